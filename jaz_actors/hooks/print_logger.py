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
    RaisedRecord,
    Return,
)
from jaz_actors.render import abbreviate


class PrintLogger(Hook):
    """Prints what invocations do, at home and as an observer: it never delays them.

    stream:     where to; None is the `sys.stdout` of the moment.
    max_field:  characters shown of one code, output or value.
    """

    placement = "observer"
    on_error = "ignore"

    def __init__(self, *, stream: TextIO | None = None, max_field: int = 1000) -> None:
        if max_field < 1:
            raise ConfigurationError("max_field", "must be at least 1")
        self._stream = stream
        self._max_field = max_field

    def on_any(self, event: Event) -> None:
        text = self._text(event)
        if text is None:
            return
        path = event.invoke_id.partition(":")[2]
        lines = "".join(f"[{path}] {line}\n" for line in text.splitlines() or [""])
        stream = self._stream or sys.stdout
        stream.write(lines)
        stream.flush()

    def _text(self, event: Event) -> str | None:
        match event:
            case events.InvokeEnter():
                return f"invoked with {', '.join(event.inputs) or 'no inputs'}"
            case events.LLMQueryExit(completion=completion) if completion is not None:
                tokens = completion.usage.completion_tokens
                counted = "" if tokens is None else f", {tokens} tokens"
                return f"turn {event.iteration}{counted}\n{self._short(completion.content)}"
            case events.LLMQueryExit(error=error) if error is not None:
                return f"query {event.status}: {error.type_name}: {error.message}"
            case events.LLMQueryRetry():
                return f"retry {event.attempt} in {event.wait:.1f} s after {event.error.message}"
            case events.REPLExecExit(result=result) if result is not None:
                return self._result(result)
            case events.InvokeExit():
                return self._outcome(event.outcome)
            case _:
                return None

    def _result(self, result: ExecResult) -> str:
        match result:
            case Continue():
                return f"→ {self._short(result.text) or '(no output)'}"
            case Return():
                return f"→ return {result.value.preview}"
            case _:
                return f"→ raise {result.error.type_name}: {result.error.message}"

    def _outcome(self, outcome: OutcomeRecord) -> str:
        match outcome:
            case CompletedRecord():
                return f"completed: {outcome.value.preview}"
            case RaisedRecord(error=error):
                return f"raised {error.type_name}: {error.message}"
            case AbortedRecord(error=error):
                return f"aborted by {error.type_name}: {error.message}"
            case FailedRecord(error=error):
                return f"failed with {error.type_name}: {error.message}"

    def _short(self, text: str) -> str:
        return abbreviate(text.rstrip(), self._max_field, 0.7)
