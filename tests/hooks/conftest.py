"""Events to give to hooks, with every field filled in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaz_actors import events
from jaz_actors.events import Event
from jaz_actors.messages import Completion
from jaz_actors.outcomes import CompletedRecord, Continue, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload

TASK = PackedInput("task", Payload(b"1"))

_FIELDS: dict[type[Event], dict[str, Any]] = {
    events.InvokeEnter: {"parent_id": None, "parent_iteration": None, "inputs": (TASK,), "scope": (), "hooks": ()},
    events.InvokeSend: {"inputs": (TASK,)},
    events.InvokeComplete: {"result": Return(Payload(b"1"))},
    events.InvokeExit: {"outcome": CompletedRecord(Payload(b"1", preview="1"))},
    events.LLMQueryEnter: {"iteration": 0, "messages": (), "model": "m", "can_recurse": True},
    events.LLMQuerySend: {"iteration": 0, "messages": (), "model": "m"},
    events.LLMQueryRetry: {"iteration": 0, "attempt": 1, "error": ErrorRecord("E", "busy"), "wait": 0.5},
    events.LLMQueryComplete: {"iteration": 0, "completion": Completion("return 1")},
    events.LLMQueryExit: {"iteration": 0, "status": "completed", "completion": Completion("return 1")},
    events.REPLExecEnter: {"iteration": 0, "code": "return 1"},
    events.REPLExecSend: {"iteration": 0, "code": "return 1"},
    events.REPLExecComplete: {"iteration": 0, "result": Continue("out\n")},
    events.REPLExecExit: {"iteration": 0, "status": "completed", "result": Continue("out\n")},
}


@pytest.fixture(scope="session")
def make() -> Callable[..., Any]:
    """`make(kind, **fields)`: an event of that kind; what is not named has some valid value."""

    def make(kind: type[Event], **fields: Any) -> Event:
        common = {"invoke_id": "run:0", "depth": 1, "sequence": 0, "timestamp": 0.0}
        return kind(**{**common, **_FIELDS[kind], **fields})

    return make
