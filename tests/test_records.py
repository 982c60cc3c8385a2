"""Every record that is sent or stored survives msgpack and pickling as itself."""

from __future__ import annotations

import pickle
from typing import Any, get_args

import msgspec
import pytest

from jaz_actors import effects, events, outcomes, spec
from jaz_actors.effects import AnyEffect
from jaz_actors.events import AnyEvent, MessageAdd, MessageDrop
from jaz_actors.frames import wire
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Completion, Message, SampledTokens, Usage
from jaz_actors.outcomes import Continue, ExecResult, OutcomeRecord, Raise, Rejection, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload, ReferenceRecord, SharedBuffer
from jaz_actors.refs import Operation

VALUE = Payload(b"\x80\x05K\x01.", (b"x", SharedBuffer("boot", 1, 2, 3, 4)), "int", "1")
ERROR = ErrorRecord("pkg.Error", "message", "traceback", b"pickled")
MESSAGE = Message("user", "text", "observation", 3, 1)
COMPLETION = Completion(
    "return 1", "stop", "model", Usage(1, 2, 0, 0.5), SampledTokens([1, 2], [3], [-0.5], "v1", "v2")
)
BASE: dict[str, Any] = {"invoke_id": "run:0.1", "depth": 2, "sequence": 7, "timestamp": 1.5}

INPUT = PackedInput("x", VALUE, "described", hidden=True)
CHECK = wire.Check(True, VALUE)
EVENTS: list[Any] = [
    events.InvokeEnter(**BASE, parent_id="run:0", parent_iteration=2, inputs=(INPUT,), scope=(INPUT,), hooks=("H",)),
    events.InvokeSend(**BASE, inputs=(INPUT,), added=("a",), dropped=("b",)),
    events.InvokeComplete(**BASE, result=Return(VALUE, (Rejection(0, "why not", ERROR),))),
    events.InvokeExit(**BASE, outcome=outcomes.CompletedRecord(VALUE)),
    events.LLMQueryEnter(**BASE, iteration=0, messages=(MESSAGE,), model="m", can_recurse=True),
    events.LLMQuerySend(
        **BASE,
        iteration=0,
        messages=(MESSAGE,),
        model="m",
        drops=(MessageDrop(0, MESSAGE, persistent=True),),
        adds=(MessageAdd(1, (MESSAGE,), persistent=False),),
    ),
    events.LLMQueryRetry(**BASE, iteration=0, attempt=1, error=ERROR, wait=0.5),
    events.LLMQueryComplete(**BASE, iteration=0, completion=COMPLETION),
    events.LLMQueryExit(**BASE, iteration=0, status="failed", error=ERROR),
    events.REPLExecEnter(**BASE, iteration=0, code="x"),
    events.REPLExecSend(**BASE, iteration=0, code="x"),
    events.REPLExecComplete(**BASE, iteration=0, result=Continue("out", "err")),
    events.REPLExecExit(**BASE, iteration=0, status="completed", result=Raise(ERROR)),
]
EFFECTS: list[Any] = [
    effects.Abort(ERROR),
    effects.BlackboardWrite("key", [1, {"a": None}]),
    effects.AddInputs((INPUT,)),
    effects.DropInputs(("x",), allow_missing=True),
    effects.DisableRecursion(),
    effects.SupplyInvokeResult(Return(VALUE)),
    effects.ModifyInvokeResult(Raise(ERROR)),
    effects.AddMessages((effects.NewMessage("user", "x"),), -1, persistent=True, sort_key=2.0),
    effects.DropMessages((0, -1), persistent=True),
    effects.SupplyLLMResponse(COMPLETION),
    effects.ModifyLLMResponse(COMPLETION),
    effects.InsertCode("x", None, 1.5),
    effects.DeleteCode(1, -1),
    effects.AddVariables((INPUT,)),
    effects.DropVariables(("x",)),
    effects.SupplyExecResult(Continue("x")),
    effects.ModifyExecResult(Return(VALUE)),
]
OUTCOMES: list[Any] = [
    outcomes.CompletedRecord(VALUE),
    outcomes.RaisedRecord(ERROR),
    outcomes.AbortedRecord(ERROR),
    outcomes.FailedRecord(ERROR),
]
RESULTS: list[Any] = [Continue("a", "b"), Return(VALUE), Raise(ERROR)]
REFERENCE = ReferenceRecord("driver", 3, "pkg.Type", "doc", "(a)", ("m",), ("m",), is_coroutine=True)
OPERATION = Operation(3, "method", "m")
TO_FRAME: list[Any] = [
    wire.Setup("home", (INPUT,), (INPUT,), wire.Limits(10, 0.5), 2, True, (CHECK,), (wire.HistoryItem("a", "b"),), 3),
    wire.Execute(1, "code", "<repl_1>", (wire.HistoryItem("a", "b"),), new_output=True),
    wire.Reply(1, error=ERROR),
    wire.Serve(2, OPERATION, VALUE),
    wire.Rebind(("a",), ("a",), (INPUT,)),
    wire.AskHook(1, b"event", 2),
]
FROM_FRAME: list[Any] = [
    wire.Ready((events.InputInfo("x", "int", None),), ()),
    wire.SetupFailed("x", "why"),
    wire.Loading("x"),
    wire.Rebound("a", "b", "why"),
    wire.HookAnswered(1, b"effects", ("HookFailed", ("H", "E", "why"))),
    wire.Finished(1, VALUE, None, "", None, (Rejection(0, "no"),), 3, timed_out=True, has_children=True, names=("a",)),
    wire.Call(1, wire.ChildCall("0", (INPUT,), (INPUT,), (spec.BuiltinHook(b"spec", propagates=True),))),
    wire.Call(2, wire.ReferenceCall(REFERENCE, OPERATION, VALUE)),
    wire.CancelCall(1),
    wire.Served(1, VALUE),
]
FACTS = spec.HookFacts("H", frozenset({"invoke_exit"}), False, {"key": 1}, ("claim",), ("key",))
SPECS: list[Any] = [
    spec.InvocationSpec(
        "run",
        "0.1",
        "driver",
        3,
        (INPUT,),
        (INPUT,),
        b"config",
        (
            spec.BuiltinHook(b"spec", propagates=True),
            spec.LocalHook(b"pickled", propagates=False),
            spec.SharedHook(b"pickled", 1, FACTS, propagates=False),
            spec.HomeHook("driver", 1, FACTS, True, observer=True),
        ),
        b"tree",
        {2: b"depth"},
    )
]

UNIONS: list[tuple[Any, list[Any]]] = [
    (AnyEvent, EVENTS),
    (AnyEffect, EFFECTS),
    (OutcomeRecord, OUTCOMES),
    (ExecResult, RESULTS),
    (wire.ToFrame, TO_FRAME),
    (wire.FromFrame, FROM_FRAME),
    (spec.InvocationSpec, SPECS),
]


@pytest.mark.parametrize(("union", "examples"), UNIONS)
def test_there_is_an_example_of_each(union: Any, examples: list[Any]) -> None:
    assert {type(example) for example in examples} == set(get_args(union) or (union,))


@pytest.mark.parametrize(("union", "example"), [(union, example) for union, examples in UNIONS for example in examples])
def test_a_record_comes_back_as_it_was(union: Any, example: Any) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(example), type=union) == example
    assert pickle.loads(pickle.dumps(example)) == example
    with pytest.raises(AttributeError):
        setattr(example, example.__struct_fields__[0] if example.__struct_fields__ else "x", None)


def test_ids_travel_too() -> None:
    invoke_id = InvokeId("run", "0.1")
    assert pickle.loads(pickle.dumps(invoke_id)) == invoke_id
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(invoke_id), type=InvokeId) == invoke_id
