"""What one invocation's events say, as entries for readers: a title, and a text. Knows no file and no format.

Messages are told once, when they are first shown; the output of a turn is the message that the next query shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaz_actors.events import (
    Event,
    InvokeComplete,
    InvokeEnter,
    InvokeExit,
    InvokeSend,
    LLMQueryComplete,
    LLMQueryEnter,
    LLMQueryExit,
    LLMQueryRetry,
    LLMQuerySend,
    REPLExecComplete,
    REPLExecEnter,
    REPLExecExit,
    REPLExecSend,
)
from jaz_actors.messages import Completion, Message
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, OutcomeRecord, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput

EntryKind = Literal["enter", "message", "edit", "retry", "result", "failure", "exit"]


@dataclass(frozen=True, slots=True)
class Entry:
    """title: one line. text: what stands below it, of any form. language: of the text, when it is code."""

    kind: EntryKind
    title: str
    text: str = ""
    language: str = ""


class Story:
    """The fold of one invocation's events, in their order. Owned by the view that feeds it."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._number = 0  # of the next message, as the agent loop counts them
        self._completion: Completion | None = None
        self._code = ""
        self._result: ExecResult | None = None
        self._unseen: Continue | None = None

    def add(self, event: Event) -> list[Entry]:
        """What the event says that those before it did not."""
        return list(self._entries(event))

    def _entries(self, event: Event) -> Iterator[Entry]:
        match event:
            case InvokeEnter():
                yield _entered(event)
            case InvokeSend() if event.added or event.dropped:
                yield Entry("edit", f"hooks change the inputs: {_changes(event.added, event.dropped)}")
            case LLMQueryEnter():
                self._unseen = None
                self._completion = None
                yield from self._messages(event.messages)
            case LLMQuerySend():
                yield from self._message_edits(event)
            case LLMQueryRetry():
                title = f"turn {event.iteration}: retry {event.attempt} in {event.wait:g} s"
                yield Entry("retry", title, error_line(event.error))
            case LLMQueryComplete():
                self._completion = event.completion
            case LLMQueryExit():
                yield from self._answered(event)
            case REPLExecEnter():
                self._code = event.code
                self._result = None
            case REPLExecSend():
                yield from self._code_edits(event)
            case REPLExecComplete():
                self._result = event.result
            case REPLExecExit():
                yield from self._executed(event)
            case InvokeComplete():
                self._result = event.result
            case InvokeExit():
                yield from self._ended(event)

    def _messages(self, messages: tuple[Message, ...]) -> Iterator[Entry]:
        for message in messages:
            if message.number not in self._told:
                self._tell(message)
                yield Entry("message", _message_title(message), message.content)

    def _tell(self, message: Message) -> None:
        self._told.add(message.number)
        self._number = max(self._number, message.number + 1)

    def _message_edits(self, event: LLMQuerySend) -> Iterator[Entry]:
        for drop in event.drops:
            what = f"message {drop.message.number} at position {drop.position}"
            yield Entry("edit", f"turn {event.iteration}: hooks hide {what}{_lasting(drop.persistent)}")
        for add in event.adds:
            for message in add.messages:
                self._tell(message)
                place = f"at position {add.position}{_lasting(add.persistent)}"
                title = f"turn {event.iteration}: hooks add {_message_title(message)}, {place}"
                yield Entry("edit", title, message.content)

    def _answered(self, event: LLMQueryExit) -> Iterator[Entry]:
        before = None if self._completion is None else self._completion.content
        if event.completion is None:
            yield _failure(f"turn {event.iteration}: query {event.status}", event.error)
            if before is not None:
                yield Entry("failure", f"turn {event.iteration}: the answer that was not used", before)
            return
        if before is not None and before != event.completion.content:
            yield Entry("edit", f"turn {event.iteration}: hooks replace the model's answer", before)
        message = Message("assistant", event.completion.content, "assistant", self._number, event.iteration)
        self._tell(message)
        yield Entry("message", _message_title(message), message.content)

    def _code_edits(self, event: REPLExecSend) -> Iterator[Entry]:
        if event.code != self._code:
            yield Entry("edit", f"turn {event.iteration}: hooks change the code", event.code, "python")
        if event.added_variables or event.dropped_variables:
            changes = _changes(event.added_variables, event.dropped_variables)
            yield Entry("edit", f"turn {event.iteration}: hooks change the variables: {changes}")

    def _executed(self, event: REPLExecExit) -> Iterator[Entry]:
        turn = f"turn {event.iteration}"
        if self._result is not None and event.result is not None and self._result != event.result:
            yield Entry("edit", f"{turn}: hooks change what it came to", result_text(self._result))
        match event.result:
            case None:
                yield _failure(f"{turn}: execution {event.status}", event.error)
                if isinstance(self._result, Continue):
                    yield Entry("failure", f"{turn}: its output, which was not used", self._result.text)
            case Continue():
                self._unseen = event.result
            case Return():
                yield Entry("result", f"{turn} returns a {event.result.value.type_name}", event.result.value.preview)
            case Raise():
                yield Entry("result", f"{turn} raises {event.result.error.type_name}", result_text(event.result))
        self._result = event.result

    def _ended(self, event: InvokeExit) -> Iterator[Entry]:
        if self._unseen is not None:
            yield Entry("result", "the last output, which no query has shown", self._unseen.text)
        outcome, result = event.outcome, self._result
        if isinstance(result, Return) and isinstance(outcome, CompletedRecord) and result.value != outcome.value:
            yield Entry("edit", "hooks change the result of the invocation", result_text(result))
        yield Entry("exit", outcome_name(outcome), outcome_text(outcome))


def _entered(event: InvokeEnter) -> Entry:
    caller = ""
    if event.parent_id is not None:
        turn = "" if event.parent_iteration is None else f" in its turn {event.parent_iteration}"
        caller = f" by {event.parent_id.partition(':')[2]}{turn}"
    return Entry("enter", f"invoked{caller}", "\n".join(map(input_line, (*event.inputs, *event.scope))))


def input_line(item: PackedInput) -> str:
    text = item.payload.preview if item.description is None else item.description
    return f"{item.name}: {item.payload.type_name} = {one_line(text)}"


def one_line(text: str, limit: int = 200) -> str:
    """Of several lines, one; cut to `limit` characters."""
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def error_line(error: ErrorRecord) -> str:
    return f"{error.type_name}: {error.message}"


def _failure(title: str, error: ErrorRecord | None) -> Entry:
    if error is None:
        return Entry("failure", title)
    return Entry("failure", f"{title} by {error.type_name}", error.traceback or error_line(error))


def _message_title(message: Message) -> str:
    turn = "" if message.iteration is None else f", turn {message.iteration}"
    pinned = ", pinned" if message.pinned else ""
    return f"message {message.number}: {message.role}, {message.kind}{turn}{pinned}"


def _changes(added: tuple[str, ...], dropped: tuple[str, ...]) -> str:
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("bind", added), ("unbind", dropped)) if names]
    return " and ".join(parts)


def _lasting(persistent: bool) -> str:
    return " for good" if persistent else " for this query"


def result_text(result: ExecResult) -> str:
    match result:
        case Continue():
            return result.text
        case Return():
            return f"return {result.value.preview}"
        case Raise():
            return result.error.traceback or error_line(result.error)


def outcome_name(outcome: OutcomeRecord) -> str:
    if isinstance(outcome, CompletedRecord):
        return "completed"
    kind = str(outcome.__struct_config__.tag)
    return f"{kind} by {outcome.error.type_name}" if kind == "aborted" else f"{kind}: {outcome.error.type_name}"


def outcome_text(outcome: OutcomeRecord) -> str:
    if isinstance(outcome, CompletedRecord):
        return outcome.value.preview
    return outcome.error.traceback or error_line(outcome.error)
