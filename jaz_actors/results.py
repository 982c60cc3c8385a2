"""Outcomes as their receiver sees them: values and exceptions instead of payloads. Decoded when first touched."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from jaz_actors.ids import InvokeId
from jaz_actors.outcomes import AbortedRecord, CompletedRecord, FailedRecord, OutcomeRecord, RaisedRecord, Status
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.transfer import load_error, unpack


class Outcome:
    """How one invocation ended. `index` is its place in the inputs of `amap`, None elsewhere."""

    status: ClassVar[Status]

    def __init__(self, invoke_id: InvokeId, index: int | None = None) -> None:
        self.id = invoke_id
        self.index = index

    def result(self) -> Any:
        """The value, or the exception raised."""
        raise NotImplementedError


class Completed(Outcome):
    """The agent returned `value`. Raises DecodeError on access when it cannot be loaded here."""

    status = "completed"

    def __init__(self, invoke_id: InvokeId, payload: Payload, index: int | None = None) -> None:
        super().__init__(invoke_id, index)
        self.payload = payload

    @cached_property
    def value(self) -> Any:
        return unpack(self.payload)

    def result(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"Completed({self.id.path}, {self.payload.preview})"


class Unfinished(Outcome):
    """No value: `error` says why."""

    def __init__(self, invoke_id: InvokeId, record: ErrorRecord, index: int | None = None) -> None:
        super().__init__(invoke_id, index)
        self.record = record

    @cached_property
    def error(self) -> BaseException:
        return load_error(self.record)

    def result(self) -> Any:
        raise self.error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id.path}, {self.record.type_name}: {self.record.message})"


class Raised(Unfinished):
    """The agent's own top-level `raise`."""

    status = "raised"


class Aborted(Unfinished):
    """A limit, a hook or a cancellation ended it."""

    status = "aborted"


class Failed(Unfinished):
    """The runtime, the model server or a hook failed. Never a verdict on the agent."""

    status = "failed"


def outcome_of(record: OutcomeRecord, invoke_id: InvokeId, index: int | None = None) -> Outcome:
    match record:
        case CompletedRecord():
            return Completed(invoke_id, record.value, index)
        case RaisedRecord():
            return Raised(invoke_id, record.error, index)
        case AbortedRecord():
            return Aborted(invoke_id, record.error, index)
        case FailedRecord():
            return Failed(invoke_id, record.error, index)
