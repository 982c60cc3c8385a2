"""How an invocation, and one execution, ended. Records only; `result()` of an invocation turns them into Python."""

from __future__ import annotations

from typing import Literal

import msgspec

from jaz_actors.payload import ErrorRecord, Payload

Status = Literal["completed", "raised", "aborted", "failed"]


class CompletedRecord(msgspec.Struct, frozen=True, tag="completed"):
    """The agent returned a value."""

    value: Payload


class RaisedRecord(msgspec.Struct, frozen=True, tag="raised"):
    """The agent's own top-level `raise`."""

    error: ErrorRecord


class AbortedRecord(msgspec.Struct, frozen=True, tag="aborted"):
    """A limit, a hook or a cancellation ended it."""

    error: ErrorRecord


class FailedRecord(msgspec.Struct, frozen=True, tag="failed"):
    """Infrastructure, the model server or a hook failed."""

    error: ErrorRecord


OutcomeRecord = CompletedRecord | RaisedRecord | AbortedRecord | FailedRecord


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """The execution did not finish the invocation; `output` becomes the observation.

    output: captured stdout and stderr, in full.
    error:  text of the traceback or explanation that follows it, empty when there was none.
    """

    output: str
    error: str = ""

    @property
    def text(self) -> str:
        if self.output and self.error and not self.output.endswith("\n"):
            return f"{self.output}\n{self.error}"
        return self.output + self.error


class Rejection(msgspec.Struct, frozen=True, array_like=True):
    """Why check number `check` of the invocation refused a returned value; `error` is what the check raised."""

    check: int
    reason: str
    error: ErrorRecord | None = None


class Return(msgspec.Struct, frozen=True, tag="return"):
    """A top-level `return`. `rejections` come from the checks that ran in the frame, where the value is."""

    value: Payload
    rejections: tuple[Rejection, ...] = ()


class Raise(msgspec.Struct, frozen=True, tag="raise"):
    """A top-level `raise`."""

    error: ErrorRecord


ExecResult = Continue | Return | Raise


class Aborting(Exception):
    """On its way out of an agent loop: a hook, a limit or a fatal error ends the invocation; `error` says why."""

    def __init__(self, error: ErrorRecord) -> None:
        super().__init__(error.message)
        self.error = error
