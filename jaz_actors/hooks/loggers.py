"""What invocations do, for people and for other programs: readable lines, or JSON lines. Observers: they delay nothing.

Every line carries the invocation's path or id, so that the lines of concurrent invocations can be told apart.
"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from jaz_actors.errors import ConfigurationError
from jaz_actors.events import (
    Event,
    InvokeEnter,
    InvokeExit,
    LLMQueryExit,
    LLMQueryRetry,
    LLMQuerySend,
    REPLExecExit,
    REPLExecSend,
)
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
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.render import abbreviate


class _Logger(Hook):
    placement = "observer"
    on_error = "ignore"

    def __init__(self, max_field: int) -> None:
        if max_field < 1:
            raise ConfigurationError("max_field", "must be at least 1")
        self._max_field = max_field

    def _text(self, event: Event) -> str | None:
        """What happened, on one or more lines; None for what other events tell as well."""
        match event:
            case InvokeEnter():
                return f"invoked with {self._short(', '.join(item.name for item in event.inputs)) or 'no inputs'}"
            case LLMQuerySend() if event.drops or event.adds:
                return self._edits(event)
            case LLMQueryRetry():
                return f"retry {event.attempt} in {event.wait:.1f} s after {self._error(event.error)}"
            case LLMQueryExit(completion=None, error=ErrorRecord() as error):
                return f"query {event.status}: {self._error(error)}"
            case LLMQueryExit(completion=completion) if completion is not None:
                tokens = completion.usage.completion_tokens
                counted = "" if tokens is None else f", {tokens} tokens"
                return f"turn {event.iteration}{counted}\n{self._short(completion.content)}"
            case REPLExecSend() if event.added_variables or event.dropped_variables:
                return f"hooks bind {_names(event.added_variables)}, unbind {_names(event.dropped_variables)}"
            case REPLExecExit(result=None, error=ErrorRecord() as error):
                return f"execution {event.status}: {self._error(error)}"
            case REPLExecExit(result=result) if result is not None:
                return f"→ {self._result(result)}"
            case InvokeExit():
                return self._outcome(event.outcome)
            case _:
                return None

    def _edits(self, event: LLMQuerySend) -> str:
        lines = [f"hooks hide message {drop.position}{_lasting(drop.persistent)}" for drop in event.drops]
        for add in event.adds:
            for message in add.messages:
                place = f"at {add.position}{_lasting(add.persistent)}"
                lines.append(f"hooks add a {message.role} message {place}: {self._short(message.content)}")
        return "\n".join(lines)

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


class PrintLogger(_Logger):
    """Prints readable lines, each beginning with the invocation's path: calls, turns, results, retries.

    stream:     where to; None is the `sys.stdout` of the moment.
    max_field:  characters shown of one code, output, value or error.
    """

    def __init__(self, *, stream: TextIO | None = None, max_field: int = 1000) -> None:
        super().__init__(max_field)
        self._stream = stream

    # Events that carry the whole conversation are not sent to it.
    def on_invoke_enter(self, event: InvokeEnter) -> None:
        self._print(event)

    def on_llm_query_retry(self, event: LLMQueryRetry) -> None:
        self._print(event)

    def on_llm_query_exit(self, event: LLMQueryExit) -> None:
        self._print(event)

    def on_repl_exec_exit(self, event: REPLExecExit) -> None:
        self._print(event)

    def on_invoke_exit(self, event: InvokeExit) -> None:
        self._print(event)

    def _print(self, event: Event) -> None:
        text = self._text(event)
        if text is None:
            return
        path = event.invoke_id.partition(":")[2]
        stream = self._stream or sys.stdout
        # One write: lines of others that print to the same stream fall between events, not into one.
        stream.write("".join(f"[{path}] {line}\n" for line in text.splitlines()))
        stream.flush()


class FileLogger(_Logger):
    """Appends to a file: lines of UTC time, invoke id and text, or one JSON object an event.

    It sees every event, so each query's whole prompt travels home.

    path:       the file; its folder is made. It is open while the hook is active.
    style:      `text`, or `json`: the event's fields and its tag as `event`; values are their type and a preview.
    max_field:  characters kept of one code, output, value or error; of messages too.
    """

    def __init__(
        self, path: str | PathLike[str], *, style: Literal["text", "json"] = "text", max_field: int = 1000
    ) -> None:
        super().__init__(max_field)
        if style not in ("text", "json"):
            raise ConfigurationError("style", f"must be 'text' or 'json', got {style!r}")
        self.path = Path(path)
        self.style = style
        self._file: TextIO | None = None
        self._lock = threading.Lock()  # the file is closed where the block ends, and written on the hooks' thread

    def setup(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8", errors="backslashreplace")

    def teardown(self, error: BaseException | None) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def on_any(self, event: Event) -> None:
        lines = self._json(event) if self.style == "json" else self._lines(event)
        with self._lock:
            if self._file is not None and lines:
                self._file.write(lines)
                self._file.flush()

    def _lines(self, event: Event) -> str:
        text = self._text(event)
        if text is None:
            return ""
        time = datetime.fromtimestamp(event.timestamp, UTC).isoformat(timespec="milliseconds")
        return "".join(f"{time} {event.invoke_id} {line}\n" for line in text.splitlines())

    def _json(self, event: Event) -> str:
        fields = {name: self._plain(getattr(event, name)) for name in event.__struct_fields__}
        record = {"event": event.__struct_config__.tag, **fields}
        return f"{msgspec.json.encode(record).decode()}\n"

    def _plain(self, value: Any) -> Any:
        match value:
            case str():
                return self._short(value)
            case bytes():
                return f"<{len(value)} bytes>"
            case Payload():
                return {"type": value.type_name, "preview": value.preview}
            case ErrorRecord():
                return {"type": value.type_name, "message": self._short(value.message)}
            case msgspec.Struct():
                fields = {name: self._plain(getattr(value, name)) for name in value.__struct_fields__}
                tag = value.__struct_config__.tag
                return fields if tag is None else {"type": tag, **fields}
            case dict():
                return {str(key): self._plain(item) for key, item in value.items()}
            case list() | tuple():
                return [self._plain(item) for item in value]
            case _:
                return value


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _lasting(persistent: bool) -> str:
    return " for good" if persistent else ""
