"""A readable line an event, each beginning with the invocation's path."""

from __future__ import annotations

import sys
from typing import TextIO

from jaz_actors import events
from jaz_actors.errors import ConfigurationError
from jaz_actors.events import Event
from jaz_actors.hooks.base import Hook
from jaz_actors.outcomes import (
    AbortedRecord,
    CompletedRecord,
    Continue,
    ExecResult,
    FailedRecord,
    OutcomeRecord,
    Raise,
    RaisedRecord,
    Return,
)
from jaz_actors.payload import ErrorRecord
from jaz_actors.render import abbreviate


class PrintLogger(Hook):
    """Prints what invocations do, at home and as an observer: it never delays them.

    stream:     where to; None is the `sys.stdout` of the moment.
    max_field:  characters shown of one code, output, value or error.
    """

    placement = "observer"
    on_error = "ignore"

    def __init__(self, *, stream: TextIO | None = None, max_field: int = 1000) -> None:
        if max_field < 1:
            raise ConfigurationError("max_field", "must be at least 1")
        self._stream = stream
        self._max_field = max_field

    def on_invoke_enter(self, event: events.InvokeEnter) -> None:
        self._print(event, f"invoked with {self._short(', '.join(event.inputs)) or 'no inputs'}")

    def on_llm_query_retry(self, event: events.LLMQueryRetry) -> None:
        self._print(event, f"retry {event.attempt} in {event.wait:.1f} s after {self._error(event.error)}")

    def on_llm_query_exit(self, event: events.LLMQueryExit) -> None:
        if event.completion is not None:
            tokens = event.completion.usage.completion_tokens
            counted = "" if tokens is None else f", {tokens} tokens"
            self._print(event, f"turn {event.iteration}{counted}\n{self._short(event.completion.content)}")
        elif event.error is not None:
            self._print(event, f"query {event.status}: {self._error(event.error)}")

    def on_repl_exec_exit(self, event: events.REPLExecExit) -> None:
        if event.result is not None:
            self._print(event, f"→ {self._result(event.result)}")
        elif event.error is not None:
            self._print(event, f"execution {event.status}: {self._error(event.error)}")

    def on_invoke_exit(self, event: events.InvokeExit) -> None:
        self._print(event, self._outcome(event.outcome))

    def _print(self, event: Event, text: str) -> None:
        path = event.invoke_id.partition(":")[2]
        stream = self._stream or sys.stdout
        # One write: lines of others that print to the same stream fall between events, not into one.
        stream.write("".join(f"[{path}] {line}\n" for line in text.splitlines()))
        stream.flush()

    def _result(self, result: ExecResult) -> str:
        match result:
            case Continue():
                return self._short(result.text) or "(no output)"
            case Return():
                return f"return {self._short(result.value.preview)}"
            case Raise():
                return f"raise {self._error(result.error)}"

    def _outcome(self, outcome: OutcomeRecord) -> str:
        match outcome:
            case CompletedRecord():
                return f"completed: {self._short(outcome.value.preview)}"
            case RaisedRecord():
                return f"raised {self._error(outcome.error)}"
            case AbortedRecord():
                return f"aborted by {self._error(outcome.error)}"
            case FailedRecord():
                return f"failed with {self._error(outcome.error)}"

    def _error(self, error: ErrorRecord) -> str:
        return self._short(f"{error.type_name}: {error.message}")

    def _short(self, text: str) -> str:
        return abbreviate(text.rstrip(), self._max_field, 0.7)
