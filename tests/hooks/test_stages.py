"""The stage table, cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaz_actors import effects as e
from jaz_actors.effects import AnyEffect, Effect
from jaz_actors.errors import InvalidEffect
from jaz_actors.events import EVENT_TYPES, Event, LLMQueryEnter
from jaz_actors.hooks.stages import STAGES, check_effects
from jaz_actors.messages import Completion
from jaz_actors.outcomes import Continue, Return
from jaz_actors.payload import ErrorRecord, Payload

SAMPLES: list[Effect] = [
    e.Abort(ErrorRecord("E", "stop")),
    e.BlackboardWrite("key", 1),
    e.AddInputs(()),
    e.DropInputs(("x",)),
    e.DisableRecursion(),
    e.SupplyInvokeResult(Return(Payload(b"1"))),
    e.ModifyInvokeResult(Return(Payload(b"1"))),
    e.AddMessages((e.NewMessage("user", "hi"),)),
    e.DropMessages((0,)),
    e.SupplyLLMResponse(Completion("x")),
    e.ModifyLLMResponse(Completion("x")),
    e.InsertCode("x"),
    e.DeleteCode(0),
    e.AddVariables(()),
    e.DropVariables(("x",)),
    e.SupplyExecResult(Continue("x")),
    e.ModifyExecResult(Continue("x")),
]

# What each event takes besides BlackboardWrite and Abort; those in NO_ABORT do not take even that.
TAKES = {
    "InvokeEnter": {"AddInputs", "DropInputs", "DisableRecursion"},
    "InvokeSend": {"SupplyInvokeResult"},
    "InvokeComplete": {"ModifyInvokeResult"},
    "LLMQueryEnter": {"AddMessages", "DropMessages"},
    "LLMQuerySend": {"SupplyLLMResponse"},
    "LLMQueryComplete": {"ModifyLLMResponse"},
    "REPLExecEnter": {"InsertCode", "DeleteCode", "AddVariables", "DropVariables"},
    "REPLExecSend": {"SupplyExecResult"},
    "REPLExecComplete": {"ModifyExecResult"},
}
NO_ABORT = {"InvokeExit", "LLMQueryRetry"}


def test_the_samples_and_the_table_know_every_effect_and_event() -> None:
    assert {type(sample) for sample in SAMPLES} == set(AnyEffect.__args__)
    assert set(STAGES) == set(EVENT_TYPES)


@pytest.mark.parametrize("effect", SAMPLES, ids=lambda effect: type(effect).__name__)
@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_an_effect_passes_exactly_at_its_stage(kind: type[Event], effect: Effect, make: Callable[..., Any]) -> None:
    common = {"BlackboardWrite"} if kind.__name__ in NO_ABORT else {"BlackboardWrite", "Abort"}
    allowed = TAKES.get(kind.__name__, set()) | common
    name = type(effect).__name__
    if name in allowed:
        check_effects("Mine", make(kind), [effect])
        return
    with pytest.raises(InvalidEffect) as refused:
        check_effects("Mine", make(kind), [effect])
    assert refused.value.args == ("Mine", name, kind.__name__)


def test_one_wrong_effect_among_right_ones_is_found(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidEffect, match="SupplyLLMResponse"):
        check_effects("Mine", make(LLMQueryEnter), [SAMPLES[7], SAMPLES[0], SAMPLES[9]])


def test_what_is_no_effect_is_refused_by_its_type(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidEffect, match="with str"):
        check_effects("Mine", make(EVENT_TYPES[0]), ["stop"])  # type: ignore[list-item]


@pytest.mark.parametrize("effect", [e.SupplyInvokeResult, e.ModifyInvokeResult])
def test_an_invocation_cannot_end_with_continue(effect: Any, make: Callable[..., Any]) -> None:
    kind = next(kind for kind, allowed in STAGES.items() if effect in allowed)
    with pytest.raises(InvalidEffect, match=r"InvokeResult\(Continue\)"):
        check_effects("Mine", make(kind), [effect(Continue("x"))])


@pytest.mark.parametrize("effect", [e.AddMessages((), sort_key=float("nan")), e.InsertCode("x", sort_key=float("nan"))])
def test_a_sort_key_that_sorts_nothing_is_refused(effect: Effect, make: Callable[..., Any]) -> None:
    kind = next(kind for kind, allowed in STAGES.items() if type(effect) in allowed)
    with pytest.raises(InvalidEffect, match="sort_key=nan"):
        check_effects("Mine", make(kind), [effect])
