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


class Return(msgspec.Struct, frozen=True, tag="return"):
    """A top-level `return`. `rejection` holds the reason when a check that ran in the frame refused the value."""

    value: Payload
    rejection: str | None = None


class Raise(msgspec.Struct, frozen=True, tag="raise"):
    """A top-level `raise`."""

    error: ErrorRecord


ExecResult = Continue | Return | Raise
