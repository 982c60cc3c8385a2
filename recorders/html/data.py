"""What the page shows, folded from the events. Knows nothing of HTML.

Everything is stored once: a message under its number, a long text in one table that the whole page shares, a turn as
what it changed. So the data grows with what was said, not with the number of times that it was shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from jaz_actors import events
from jaz_actors.events import Event
from jaz_actors.messages import Completion, Message, SampledTokens, Usage
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload
from jaz_actors.recorders.paths import path_order

Status = Literal["completed", "raised", "aborted", "failed", "unfinished"]
LOGPROB_DIGITS = 4


class Text:
    """A text that is written as its number in the table of texts."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value


class TextTable:
    """Numbers texts in the order in which they are written. Owned by one writing of the page."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: object) -> int:
        assert isinstance(text, Text)
        return self._numbers.setdefault(text.value, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)


class Value(msgspec.Struct, frozen=True, omit_defaults=True):
    """What may be said of a value without opening it."""

    type: str
    preview: Text


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    message: Text
    traceback: Text | None = None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    status: Status
    value: Value | None = None
    error: Error | None = None


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """`change` says what hooks did to it."""

    name: str
    value: Value
    description: Text | None = None
    hidden: bool = False
    change: Literal["added", "dropped"] | None = None


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. Without `text` it is the response of its own turn, or what that turn's execution put out."""

    number: int
    role: str
    kind: str
    iteration: int | None = None
    pinned: bool = False
    text: Text | None = None


class Span(msgspec.Struct, omit_defaults=True):
    """Microseconds since the first event of the page; without `end` it was never closed."""

    start: int
    end: int | None = None
    status: str = "completed"
    error: Error | None = None


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    at: int
    attempt: int
    wait: float
    error: Error


class Drop(msgspec.Struct, frozen=True, omit_defaults=True):
    """The messages at positions `start` to `stop` of the buffer, `stop` excluded."""

    start: int
    stop: int
    persistent: bool = False


class Add(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages, by number, that stand before `position` of the buffer."""

    position: int
    numbers: list[int]
    persistent: bool = False


class Tokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one answer.

    prompt:     how many ids were sent.
    prompt_new: the sent ids that follow those of the turn before; None where the prompt does not continue them.
    ids:        [N] sampled.
    logprobs:   [N] rounded.
    """

    prompt: int
    ids: list[int]
    logprobs: list[float]
    prompt_new: list[int] | None = None
    version_at_submit: str | None = None
    version_at_return: str | None = None


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: Literal["continue", "return", "raise"]
    output: Text | None = None
    error_text: Text | None = None
    value: Value | None = None
    error: Error | None = None
    rejections: list[str] = []


class Turn(msgspec.Struct, omit_defaults=True):
    """One query and one execution.

    keep, then:      the buffer is the first `keep` messages of what the turn before left, then those by number.
    original:        what the model answered, where hooks changed it.
    code:            None where it is the whole response.
    code_sent:       what ran, where hooks changed it.
    original_result: what the execution gave, where hooks changed it.
    """

    iteration: int
    query: Span | None = None
    execution: Span | None = None
    model: str = ""
    keep: int = 0
    then: list[int] = []
    drops: list[Drop] = []
    adds: list[Add] = []
    retries: list[Retry] = []
    response: Text | None = None
    original: Text | None = None
    finish_reason: str = ""
    usage: Usage | None = None
    tokens: Tokens | None = None
    code: Text | None = None
    code_sent: Text | None = None
    variables_added: tuple[str, ...] = ()
    variables_dropped: tuple[str, ...] = ()
    result: Result | None = None
    original_result: Result | None = None


class Invocation(msgspec.Struct, omit_defaults=True):
    id: str
    depth: int
    start: int
    last: int
    parent: str | None = None
    parent_iteration: int | None = None
    end: int | None = None
    outcome: Outcome = Outcome("unfinished")
    hooks: tuple[str, ...] = ()
    inputs: list[Input] = []
    scope: list[Input] = []
    messages: list[Said] = []
    turns: list[Turn] = []


class Page(msgspec.Struct, frozen=True):
    """`began` is seconds since the epoch. Invocations are in the order of their paths, parents first."""

    began: float
    invocations: list[Invocation]


def page_data(stream: Iterable[Event]) -> Page:
    """The same for every interleaving of the invocations."""
    folds: dict[str, InvocationFold] = {}
    for event in stream:
        fold = folds.get(event.invoke_id)
        if fold is None:
            fold = folds[event.invoke_id] = InvocationFold(event)
        fold.add(event)
    began = min((fold.began for fold in folds.values()), default=0.0)
    return Page(began, [folds[name].at(began) for name in sorted(folds, key=path_order)])


class InvocationFold:
    """Takes the events of one invocation in order. Times are microseconds since its first event until `at`."""

    def __init__(self, first: Event) -> None:
        self.began = first.timestamp
        self._shown = Invocation(first.invoke_id, first.depth, 0, 0, inputs=[], scope=[], messages=[], turns=[])
        self._known: set[int] = set()
        self._buffer: list[int] = []  # numbers; what the last successful query left
        self._edited: list[int] = []  # what the running query leaves if it succeeds
        self._ids: list[int] = []  # the ids of the last turn, prompt and answer

    def at(self, began: float) -> Invocation:
        """The invocation, its times since `began`. Call it once, last."""
        shift = _microseconds(self.began - began)
        shown = self._shown
        shown.start, shown.last = shown.start + shift, shown.last + shift
        shown.end = None if shown.end is None else shown.end + shift
        for turn in shown.turns:
            for span in (turn.query, turn.execution):
                if span is not None:
                    span.start += shift
                    span.end = None if span.end is None else span.end + shift
            turn.retries = [msgspec.structs.replace(retry, at=retry.at + shift) for retry in turn.retries]
        return shown

    def add(self, event: Event) -> None:
        self._shown.last = self._now(event)
        match event:
            case events.InvokeEnter():
                self._enter(event)
            case events.InvokeSend():
                self._shown.inputs = _inputs_after(self._shown.inputs, event)
            case events.InvokeExit():
                self._shown.end = self._now(event)
                self._shown.outcome = _outcome(event)
            case events.LLMQueryEnter():
                self._query_enter(event)
            case events.LLMQuerySend():
                self._query_send(event)
            case events.LLMQueryRetry():
                retry = Retry(self._now(event), event.attempt, event.wait, _error(event.error))
                self._turn(event.iteration).retries.append(retry)
            case events.LLMQueryComplete():
                self._query_complete(event)
            case events.LLMQueryExit():
                self._query_exit(event)
            case events.REPLExecEnter():
                self._exec_enter(event)
            case events.REPLExecSend():
                turn = self._turn(event.iteration)
                turn.variables_added, turn.variables_dropped = event.added_variables, event.dropped_variables
                code = turn.code or turn.response
                turn.code_sent = Text(event.code) if code is None or event.code != code.value else None
            case events.REPLExecComplete():
                self._turn(event.iteration).result = _result(event.result)
            case events.REPLExecExit():
                self._exec_exit(event)

    def _now(self, event: Event) -> int:
        return _microseconds(event.timestamp - self.began)

    def _turn(self, iteration: int) -> Turn:
        turns = self._shown.turns
        if not turns or turns[-1].iteration != iteration:
            turns.append(Turn(iteration, then=[], drops=[], adds=[], retries=[]))
        return turns[-1]

    def _enter(self, event: events.InvokeEnter) -> None:
        shown = self._shown
        shown.parent, shown.parent_iteration, shown.hooks = event.parent_id, event.parent_iteration, event.hooks
        shown.inputs = [_input(item) for item in event.inputs]
        shown.scope = [_input(item) for item in event.scope]

    def _learn(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if message.number not in self._known:
                self._known.add(message.number)
                self._shown.messages.append(self._said(message))

    def _said(self, message: Message) -> Said:
        turn = next((turn for turn in reversed(self._shown.turns) if turn.iteration == message.iteration), None)
        source = None
        if turn is not None and message.kind == "assistant":
            source = None if turn.response is None else turn.response.value
        elif turn is not None and message.kind == "observation":
            source = None if turn.result is None else _observed(turn.result)
        text = None if source == message.content else Text(message.content)
        return Said(message.number, message.role, message.kind, message.iteration, message.pinned, text)

    def _query_enter(self, event: events.LLMQueryEnter) -> None:
        self._learn(event.messages)
        turn = self._turn(event.iteration)
        turn.query, turn.model = Span(self._now(event)), event.model
        numbers = [message.number for message in event.messages]
        turn.keep = _common(self._buffer, numbers)
        turn.then = numbers[turn.keep :]
        self._buffer = self._edited = numbers

    def _query_send(self, event: events.LLMQuerySend) -> None:
        turn = self._turn(event.iteration)
        for add in event.adds:
            self._learn(add.messages)
            turn.adds.append(Add(add.position, [message.number for message in add.messages], add.persistent))
        for drop in event.drops:
            last = turn.drops[-1] if turn.drops else None
            if last is not None and last.stop == drop.position and last.persistent == drop.persistent:
                turn.drops[-1] = Drop(last.start, drop.position + 1, drop.persistent)
            else:
                turn.drops.append(Drop(drop.position, drop.position + 1, drop.persistent))
        self._edited = kept(self._buffer, turn)

    def _query_complete(self, event: events.LLMQueryComplete) -> None:
        self._buffer = self._edited
        self._answered(self._turn(event.iteration), event.completion)

    def _answered(self, turn: Turn, completion: Completion) -> None:
        turn.response, turn.finish_reason = Text(completion.content), completion.finish_reason
        if turn.usage is None or completion.usage != Usage():  # a hook's own completion says no usage
            turn.usage = completion.usage
        if completion.tokens is not None and turn.tokens is None:
            turn.tokens = self._tokens(completion.tokens)

    def _tokens(self, record: SampledTokens) -> Tokens:
        before, self._ids = self._ids, record.prompt_ids + record.output_ids
        continues = record.prompt_ids[: len(before)] == before
        return Tokens(
            len(record.prompt_ids),
            record.output_ids,
            [round(logprob, LOGPROB_DIGITS) for logprob in record.logprobs],
            record.prompt_ids[len(before) :] if continues else None,
            record.version_at_submit,
            record.version_at_return,
        )

    def _query_exit(self, event: events.LLMQueryExit) -> None:
        turn = self._turn(event.iteration)
        self._close(turn.query, event)
        if event.completion is None:
            return
        first = turn.response
        self._answered(turn, event.completion)
        if first is not None and first.value != event.completion.content:
            turn.original = first

    def _exec_enter(self, event: events.REPLExecEnter) -> None:
        turn = self._turn(event.iteration)
        turn.execution = Span(self._now(event))
        whole = turn.response is not None and turn.response.value == event.code
        turn.code = None if whole else Text(event.code)

    def _exec_exit(self, event: events.REPLExecExit) -> None:
        turn = self._turn(event.iteration)
        self._close(turn.execution, event)
        if event.result is None:
            return
        first, turn.result = turn.result, _result(event.result)
        if first is not None and _shown_form(first) != _shown_form(turn.result):
            turn.original_result = first

    def _close(self, span: Span | None, event: events.LLMQueryExit | events.REPLExecExit) -> None:
        if span is not None:
            span.end, span.status = self._now(event), event.status
            span.error = None if event.error is None else _error(event.error)


def kept(buffer: Sequence[int], turn: Turn) -> list[int]:
    """The buffer, by number, once the turn's persistent edits are in it."""
    drops = [drop for drop in turn.drops if drop.persistent]
    adds = [add for add in turn.adds if add.persistent]
    return edited(buffer, drops, adds) if drops or adds else list(buffer)


def edited(buffer: Sequence[int], drops: Sequence[Drop], adds: Sequence[Add]) -> list[int]:
    dropped = {position for drop in drops for position in range(drop.start, drop.stop)}
    before: dict[int, list[int]] = {}
    for add in adds:
        before.setdefault(add.position, []).extend(add.numbers)
    result: list[int] = []
    for position, number in enumerate(buffer):
        result += before.get(position, ())
        if position not in dropped:
            result.append(number)
    return result + before.get(len(buffer), [])


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of what both begin with."""
    if list(right[: len(left)]) == left:
        return len(left)
    return next((at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), len(right))


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _value(payload: Payload) -> Value:
    return Value(payload.type_name, Text(payload.preview))


def _error(record: ErrorRecord) -> Error:
    traceback = Text(record.traceback) if record.traceback else None
    return Error(record.type_name, Text(record.message), traceback)


def _input(item: PackedInput) -> Input:
    description = None if item.description is None else Text(item.description)
    return Input(item.name, _value(item.payload), description, item.hidden)


def _inputs_after(given: list[Input], event: events.InvokeSend) -> list[Input]:
    """What the agent gets, then what it does not."""
    sent = [
        msgspec.structs.replace(_input(item), change="added" if item.name in event.added else None)
        for item in event.inputs
    ]
    dropped = [msgspec.structs.replace(item, change="dropped") for item in given if item.name in event.dropped]
    return sent + dropped


def _outcome(event: events.InvokeExit) -> Outcome:
    record = event.outcome
    status = record.__struct_config__.tag
    if isinstance(record, CompletedRecord):
        return Outcome("completed", _value(record.value))
    assert status in ("raised", "aborted", "failed")
    return Outcome(status, error=_error(record.error))  # type: ignore[arg-type]


def _result(result: ExecResult) -> Result:
    match result:
        case Continue():
            error = Text(result.error) if result.error else None
            return Result("continue", Text(result.output), error)
        case Return():
            return Result("return", value=_value(result.value), rejections=[item.reason for item in result.rejections])
        case Raise():
            return Result("raise", error=_error(result.error))


def _observed(result: Result) -> str | None:
    """What the agent is usually told of it."""
    if result.output is None:
        return None
    error = "" if result.error_text is None else result.error_text.value
    return Continue(result.output.value, error).text.rstrip("\n")


def _shown_form(result: Result) -> bytes:
    return msgspec.json.encode(result, enc_hook=lambda text: text.value)
