"""Built-in hooks as records, and what importing hooks costs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from jaz_actors import hooks
from jaz_actors.errors import ConfigurationError
from jaz_actors.events import InvokeExit, LLMQueryEnter
from jaz_actors.frames.wire import Check
from jaz_actors.hooks.base import handled_events
from jaz_actors.hooks.limits import BudgetForcing, IterationLimit, RecursionLimit, TimeLimit
from jaz_actors.hooks.metadata import MetaData
from jaz_actors.hooks.returns import ReturnType, ValidateReturn
from jaz_actors.hooks.specs import (
    Builtin,
    BuiltinSpec,
    IterationLimitSpec,
    RecursionLimitSpec,
    ReturnTypeSpec,
    hook_from_spec,
)
from jaz_actors.hooks.window import Compaction, ContextWindowWarning, SlidingWindow
from jaz_actors.payload import Payload
from jaz_actors.transfer import pack


def _pack(name: str, value: object) -> Payload:
    return pack(value)


def _check(value: object) -> None:
    """At module level, so that plain pickle finds it."""


BUILTINS: list[Builtin] = [
    IterationLimit(3),
    IterationLimit(3, warning_text="hurry", warn_remaining=1),
    RecursionLimit(2),
    ReturnType(list[int]),
    ReturnType(None, max_failures=0),
    ValidateReturn(_check, max_failures=2),
    TimeLimit(2.5),
    BudgetForcing(2, "think again"),
    ContextWindowWarning(0.8, "it fills up", context_length=100),
    SlidingWindow(0.5, context_length=100),
    Compaction(fraction=0.5, keep_recent=2, min_compact=3, summary_prompt="sum up", context_length=100),
    MetaData(task_name="sum", tags=["a"]),
]


def test_the_samples_are_all_there_is() -> None:
    assert {type(hook.to_spec(_pack)) for hook in BUILTINS} == set(BuiltinSpec.__args__)
    assert {type(hook) for hook in BUILTINS} == {c for c in Builtin.__subclasses__() if not c.__name__.startswith("_")}


@pytest.mark.parametrize("hook", BUILTINS, ids=lambda hook: type(hook).__name__)
def test_a_builtin_comes_back_from_its_record(hook: Builtin) -> None:
    record = hook.to_spec(_pack)
    back = hook_from_spec(msgspec.msgpack.encode(record))
    assert type(back) is type(hook)
    assert isinstance(back, Builtin)
    assert back is not hook
    if not isinstance(hook, ValidateReturn):  # which is sent on only by the process that has the function
        assert back.to_spec(_pack) == record
    assert back.placement == "local"


@pytest.mark.parametrize("hook", BUILTINS, ids=lambda hook: type(hook).__name__)
def test_a_builtin_survives_pickling(hook: Builtin) -> None:
    assert pickle.loads(pickle.dumps(hook)).to_spec(_pack) == hook.to_spec(_pack)


@pytest.mark.parametrize(
    "spec",
    [
        IterationLimitSpec(0, None, None),
        IterationLimitSpec(3, "hurry", None),
        RecursionLimitSpec(0),
        ReturnTypeSpec(Payload(b""), "int", -1),
    ],
)
def test_a_record_with_impossible_values_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigurationError):
        hook_from_spec(msgspec.msgpack.encode(spec))


@pytest.mark.parametrize("data", [b"", msgspec.msgpack.encode({"type": "other"}), pickle.dumps(print)])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        hook_from_spec(data)


def test_a_hint_is_never_loaded_from_a_record() -> None:
    hook = hook_from_spec(msgspec.msgpack.encode(ReturnTypeSpec(Payload(b"not a pickle"), "int", None)))
    assert hook.return_check() == Check(True, Payload(b"not a pickle"))


def test_a_subclass_of_a_builtin_is_an_ordinary_local_hook() -> None:
    class Mine(IterationLimit):
        def on_invoke_exit(self, event: InvokeExit) -> None: ...

    class Deeper(Mine):
        pass

    for hook in (Mine(3), Deeper(3)):
        assert getattr(hook, "to_spec", None) is None
        assert hook.placement == "local"
        assert handled_events(type(hook)) == {LLMQueryEnter, InvokeExit}
    assert IterationLimit(3).to_spec(_pack) == IterationLimitSpec(3, None, None)


def test_the_public_names() -> None:
    assert hooks.__all__ == [
        "BudgetForcing",
        "BudgetPool",
        "Compaction",
        "ContextWindowWarning",
        "FileLogger",
        "Hook",
        "IterationLimit",
        "MetaData",
        "PrintLogger",
        "RecursionLimit",
        "ReturnType",
        "SlidingWindow",
        "TimeLimit",
        "ValidateREPLCode",
        "ValidateReturn",
        "abort",
        "add_inputs",
        "add_variables",
        "effects",
        "events",
        "load",
        "raised",
        "returned",
    ]
    assert all(hasattr(hooks, name) for name in hooks.__all__)


def test_importing_hooks_loads_nothing_heavy() -> None:
    code = "import sys, jaz_actors.hooks, jaz_actors.hooks.dispatch, jaz_actors.hooks.folds; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "jaz_actors.hooks.returns" in loaded
    assert not loaded & {"ray", "torch", "transformers", "beartype", "zmq", "numpy", "aiohttp"}
