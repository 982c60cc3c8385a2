"""Events without what earlier events of the same invocation have said, and whole again.

A message is written once, when it comes into the buffer; a completion, a piece of code, a result once; prompt ids from
where they differ from the turn before. So a record grows with what was said, not with the square of the turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jaz_actors import events as e
from jaz_actors.events import AnyEvent, Event, MessageDrop, edited
from jaz_actors.messages import Completion, Message, Stamp
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, OutcomeRecord, Raise, RaisedRecord, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload

_BLANK = Message("user", "", "seed", -1)
_NO_COMPLETION = Completion("")
_NO_RESULT = Continue("")
_replace = msgspec.structs.replace


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """One event, shortened.

    known:  leading messages of the buffer that are left out.
    same:   what the event repeats (completion, code, result, inputs, outcome) is left out.
    board:  the blackboard is that of the event before, and left out.
    ids:    leading prompt ids that are left out: they are those of the turn before, prompt, output and suffix.
    stamps: leading stamps that are left out, being those of the turn before.
    """

    event: AnyEvent
    known: int = 0
    same: bool = False
    board: bool = False
    ids: int = 0
    stamps: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """How much of a prompt the turn before has said."""

    ids: int = 0
    stamps: int = 0


@dataclass(slots=True)
class _State:
    """What has been said of one invocation. Fed with whole events, in both directions."""

    inputs: tuple[PackedInput, ...] = ()
    board: dict[str, Any] = field(default_factory=dict)
    buffer: tuple[Message, ...] = ()
    kept: tuple[Message, ...] = ()
    completion: Completion = _NO_COMPLETION
    code: str = ""
    result: ExecResult = _NO_RESULT
    last_ids: list[int] = field(default_factory=list)
    last_stamps: tuple[Stamp, ...] = ()

    def see(self, event: Event) -> None:
        self.board = event.blackboard
        match event:
            case e.InvokeEnter():
                self.inputs = event.inputs
            case e.LLMQueryEnter():
                self.buffer = event.messages
            case e.LLMQuerySend():
                self.kept = edited(self.buffer, event.drops, event.adds, persistent_only=True)
            case e.LLMQueryComplete():
                self.completion = event.completion
            case e.LLMQueryExit(completion=Completion() as completion):
                self.buffer = self.kept
                self.code = completion.content
                if (tokens := completion.tokens) is not None:
                    self.last_ids = [*tokens.prompt_ids, *tokens.output_ids, *tokens.suffix_ids]
                    self.last_stamps = tokens.stamps
            case e.REPLExecEnter() | e.REPLExecSend():
                self.code = event.code
            case e.REPLExecComplete():
                self.result = event.result
            case e.REPLExecExit(result=result) if result is not None:
                self.result = result
            case e.InvokeComplete():
                self.result = event.result

    def shorten(self, event: AnyEvent) -> Delta:
        board = bool(event.blackboard) and event.blackboard == self.board
        short = _replace(event, blackboard={}) if board else event
        match short:
            case e.InvokeSend() if short.inputs == self.inputs:
                return Delta(_replace(short, inputs=()), same=True, board=board)
            case e.LLMQueryEnter():
                known = self._known(short.messages)
                return Delta(_replace(short, messages=short.messages[known:]), known, board=board)
            case e.LLMQuerySend():
                drops = tuple(MessageDrop(drop.position, _BLANK, drop.persistent) for drop in short.drops)
                return Delta(_replace(short, messages=(), drops=drops), board=board)
            case e.LLMQueryComplete():
                completion, said = self._without_ids(short.completion)
                short = _replace(short, completion=completion)
                return Delta(short, board=board, ids=said.ids, stamps=said.stamps)
            case e.LLMQueryExit(completion=Completion() as completion):
                if completion == self.completion:
                    return Delta(_replace(short, completion=_NO_COMPLETION), same=True, board=board)
                completion, said = self._without_ids(completion)
                short = _replace(short, completion=completion)
                return Delta(short, board=board, ids=said.ids, stamps=said.stamps)
            case e.REPLExecEnter() | e.REPLExecSend() if short.code == self.code:
                return Delta(_replace(short, code=""), same=True, board=board)
            case e.REPLExecExit() | e.InvokeComplete() if short.result is not None and short.result == self.result:
                blank = _NO_RESULT if isinstance(short, e.REPLExecExit) else Return(Payload(b""))
                return Delta(_replace(short, result=blank), same=True, board=board)
            case e.InvokeExit() if short.outcome == _outcome(self.result):
                return Delta(_replace(short, outcome=_blank_outcome(short.outcome)), same=True, board=board)
        return Delta(short, board=board)

    def restore(self, delta: Delta) -> AnyEvent:
        event = delta.event
        if delta.board:
            event = _replace(event, blackboard=self.board)
        match event:
            case e.InvokeSend() if delta.same:
                return _replace(event, inputs=self.inputs)
            case e.LLMQueryEnter():
                return _replace(event, messages=(*self.buffer[: delta.known], *event.messages))
            case e.LLMQuerySend():
                drops = tuple(MessageDrop(d.position, self.buffer[d.position], d.persistent) for d in event.drops)
                return _replace(event, messages=edited(self.buffer, drops, event.adds), drops=drops)
            case e.LLMQueryComplete():
                return _replace(event, completion=self._with_ids(event.completion, delta))
            case e.LLMQueryExit(completion=Completion() as completion):
                whole = self.completion if delta.same else self._with_ids(completion, delta)
                return _replace(event, completion=whole)
            case e.REPLExecEnter() | e.REPLExecSend() if delta.same:
                return _replace(event, code=self.code)
            case e.REPLExecExit() | e.InvokeComplete() if delta.same:
                return _replace(event, result=self.result)
            case e.InvokeExit() if delta.same:
                return _replace(event, outcome=_outcome(self.result))
        return event

    def _known(self, messages: tuple[Message, ...]) -> int:
        known = len(self.buffer)
        if known <= len(messages) and (known == 0 or messages[known - 1] is self.buffer[-1]):
            return known
        return next((i for i, (a, b) in enumerate(zip(messages, self.buffer, strict=False)) if a != b), 0)

    def _without_ids(self, completion: Completion) -> tuple[Completion, _Known]:
        if (tokens := completion.tokens) is None:
            return completion, _Known()
        known = _Known(common_prefix(tokens.prompt_ids, self.last_ids), common_prefix(tokens.stamps, self.last_stamps))
        tokens = _replace(tokens, prompt_ids=tokens.prompt_ids[known.ids :], stamps=tokens.stamps[known.stamps :])
        return _replace(completion, tokens=tokens), known

    def _with_ids(self, completion: Completion, delta: Delta) -> Completion:
        if (tokens := completion.tokens) is None or not (delta.ids or delta.stamps):
            return completion
        tokens = _replace(
            tokens,
            prompt_ids=[*self.last_ids[: delta.ids], *tokens.prompt_ids],
            stamps=(*self.last_stamps[: delta.stamps], *tokens.stamps),
        )
        return _replace(completion, tokens=tokens)


def common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many leading items two lists share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _outcome(result: ExecResult) -> OutcomeRecord | None:
    match result:
        case Return():
            return CompletedRecord(result.value)
        case Raise():
            return RaisedRecord(result.error)
        case _:
            return None


def _blank_outcome(outcome: OutcomeRecord) -> OutcomeRecord:
    if isinstance(outcome, CompletedRecord):
        return CompletedRecord(Payload(b""))
    return RaisedRecord(ErrorRecord("", ""))


class Shortener:
    """Whole events to deltas. Each invocation's events come in their order; invocations may be interleaved."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def shorten(self, event: AnyEvent) -> Delta:
        state = _state(self._states, event)
        delta = state.shorten(event)
        _seen(self._states, state, event)
        return delta


class Restorer:
    """Deltas to whole events, in the order in which they were made."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def restore(self, delta: Delta) -> AnyEvent:
        state = _state(self._states, delta.event)
        event = state.restore(delta)
        _seen(self._states, state, event)
        return event


def _state(states: dict[str, _State], event: Event) -> _State:
    # An invocation that begins again, as on resuming a run, has said nothing yet.
    if isinstance(event, e.InvokeEnter):
        states.pop(event.invoke_id, None)
    return states.setdefault(event.invoke_id, _State())


def _seen(states: dict[str, _State], state: _State, event: Event) -> None:
    state.see(event)
    if isinstance(event, e.InvokeExit):
        states.pop(event.invoke_id, None)
