"""OpenTelemetry spans of invocations, as OTLP/JSON, in the semantic conventions for generative AI. Sends nothing.

One trace a root. An invocation is an `invoke_agent` span, below it a `chat` and an `execute_tool` span a turn; what an
execution invoked lies below that execution. Ids follow from invoke ids alone, so every host gives a span the same ids,
and its children's parent is known wherever they run, live or afterwards.

Tokens and costs are on `chat` spans only, since tracing servers add up what they find.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec

from jaz_actors import events
from jaz_actors.events import Event
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Completion, Message, Usage
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput
from jaz_actors.recorders.paths import path_order

MAX_ATTRIBUTE_LENGTH = 8192
AGENT = "jaz_actors"  # names of spans are few: servers index them
PROVIDER = "jaz_actors"  # events do not say who serves the model
TOOL = "python"
INTERNAL, CLIENT = 1, 3  # SpanKind
OK, ERROR = 1, 2  # StatusCode


class Attribute(TypedDict):
    key: str
    value: dict[str, Any]


class SpanEvent(TypedDict):
    timeUnixNano: str
    name: str
    attributes: list[Attribute]


class SpanStatus(TypedDict):
    code: int
    message: NotRequired[str]


class Span(TypedDict):
    """A span as OTLP/JSON has it: ids in hexadecimal, 64-bit numbers as strings."""

    traceId: str
    spanId: str
    parentSpanId: NotRequired[str]
    name: str
    kind: int
    startTimeUnixNano: str
    endTimeUnixNano: str
    attributes: list[Attribute]
    events: list[SpanEvent]
    status: SpanStatus


def spans(stream: Iterable[Event], *, max_attribute_length: int = MAX_ATTRIBUTE_LENGTH) -> list[Span]:
    """All spans, by path of their invocation, then by start. The same for every interleaving of the invocations.

    A span that was never closed ends with the last event of its invocation, as an error.
    """
    fold = SpanFold(max_attribute_length=max_attribute_length)
    by_invocation: dict[str, list[Span]] = {}
    for event in stream:
        by_invocation.setdefault(event.invoke_id, []).extend(fold.add(event))
    for invoke_id, left in fold.unfinished().items():
        by_invocation[invoke_id] += left
    return [
        span
        for invoke_id in sorted(by_invocation, key=path_order)
        for span in sorted(by_invocation[invoke_id], key=_start_order)
    ]


def _start_order(span: Span) -> tuple[int, bool]:
    """An invocation before what begins at the same time in it."""
    return int(span["startTimeUnixNano"]), not span["name"].startswith("invoke_agent")


def export_json(spans: Sequence[Span | msgspec.Raw], *, service_name: str = "jaz-actors") -> bytes:
    """The body of an OTLP/HTTP request."""
    resource = {"attributes": [_attribute("service.name", service_name)]}
    scoped = {"scope": {"name": "jaz_actors"}, "spans": list(spans)}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}]})


def trace_id(invoke_id: str) -> str:
    return _hash("trace", str(InvokeId.parse(invoke_id).root))[:32]


def span_id(invoke_id: str, part: str = "invoke", iteration: int | None = None) -> str:
    """Of an invocation, or of the `query` or `execution` of one of its turns."""
    return _hash(part, invoke_id, "" if iteration is None else str(iteration))[:16]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class SpanFold:
    """Gives each span when it ends. Forgets an invocation that has ended."""

    def __init__(self, *, max_attribute_length: int = MAX_ATTRIBUTE_LENGTH) -> None:
        self._limit = max_attribute_length
        self._open: dict[str, _Invocation] = {}

    def add(self, event: Event) -> list[Span]:
        """The spans that end with the event."""
        folded = self._open.get(event.invoke_id)
        if folded is None:
            folded = self._open[event.invoke_id] = _Invocation(event, self._limit)
        ended = folded.add(event)
        if isinstance(event, events.InvokeExit):
            del self._open[event.invoke_id]
        return ended

    def unfinished(self) -> dict[str, list[Span]]:
        """The spans that are open, by invocation, as if each ended with its invocation's last event, as an error."""
        return {invoke_id: folded.unfinished() for invoke_id, folded in self._open.items()}


class _Draft:
    """A span that is open. Owned by its invocation's fold."""

    def __init__(self, invoke_id: str, name: str, kind: int, own_id: str, parent: str | None, start: float) -> None:
        self.span: Span = {
            "traceId": trace_id(invoke_id),
            "spanId": own_id,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(start),
            "endTimeUnixNano": "",
            "attributes": [],
            "events": [],
            "status": {"code": OK},
        }
        if parent is not None:
            self.span["parentSpanId"] = parent

    def say(self, **attributes: object) -> None:
        """Attributes by name, a double underscore for a dot; None is left out."""
        self.span["attributes"] += [
            _attribute(name.replace("__", "."), value) for name, value in attributes.items() if value is not None
        ]

    def fail(self, type_name: str, message: str) -> None:
        self.say(error__type=type_name)
        self.span["status"] = {"code": ERROR, "message": message}

    def end(self, at: float) -> Span:
        self.span["endTimeUnixNano"] = _nanoseconds(at)
        return self.span


class _Invocation:
    """The open spans of one invocation, and what is added up for its own."""

    def __init__(self, first: Event, limit: int) -> None:
        self._limit = limit
        self._id = first.invoke_id
        self._last = first.timestamp
        self._whole = self._draft_invocation(first)
        self._query: _Draft | None = None
        self._execution: _Draft | None = None
        self._turns = 0
        self._came_back: Completion | None = None

    def _draft_invocation(self, first: Event) -> _Draft:
        name = InvokeId.parse(self._id)
        parent = None
        if name.parent is not None:
            iteration = first.parent_iteration if isinstance(first, events.InvokeEnter) else None
            part = "invoke" if iteration is None else "execution"
            parent = span_id(str(name.parent), part, iteration)
        draft = _Draft(self._id, f"invoke_agent {AGENT}", INTERNAL, span_id(self._id), parent, first.timestamp)
        draft.say(
            gen_ai__operation__name="invoke_agent",
            gen_ai__provider__name=PROVIDER,
            gen_ai__agent__id=self._id,
            gen_ai__agent__name=AGENT,
            gen_ai__conversation__id=name.run,
            jaz__invoke_id=self._id,
            jaz__path=name.path,
            jaz__depth=first.depth,
        )
        return draft

    def add(self, event: Event) -> list[Span]:
        self._last = event.timestamp
        match event:
            case events.InvokeEnter():
                hooks = [self._cut(hook) for hook in event.hooks[:100]]
                self._whole.say(jaz__hooks=hooks or None)
            case events.InvokeSend():
                self._whole.say(
                    gen_ai__input__messages=self._messages([_inputs_message(event.inputs)]),
                    jaz__hook_added_inputs=list(event.added) or None,
                    jaz__hook_dropped_inputs=list(event.dropped) or None,
                )
            case events.LLMQueryEnter():
                self._query_enter(event)
            case events.LLMQuerySend() if self._query:
                self._query.say(
                    gen_ai__input__messages=self._messages(event.messages),
                    jaz__message_count=len(event.messages),
                    jaz__messages_hidden=len(event.drops) or None,
                    jaz__messages_added=sum(len(add.messages) for add in event.adds) or None,
                )
            case events.LLMQueryRetry() if self._query:
                self._query.span["events"].append(self._retry(event))
            case events.LLMQueryComplete():
                self._came_back = event.completion
            case events.LLMQueryExit() if self._query:
                return [self._query_exit(self._query, event)]
            case events.REPLExecEnter():
                self._exec_enter(event)
            case events.REPLExecSend() if self._execution:
                arguments = {"code": self._cut(event.code)}
                self._execution.say(gen_ai__tool__call__arguments=msgspec.json.encode(arguments).decode())
            case events.REPLExecExit() if self._execution:
                return [self._exec_exit(self._execution, event)]
            case events.InvokeExit():
                return [*self._unclosed(), self._exit(event)]
        return []

    def unfinished(self) -> list[Span]:
        whole = self._copy(self._whole)
        whole.say(jaz__outcome="unfinished", jaz__turns=self._turns)
        whole.fail("unfinished", "the record stops before the end")
        return [*self._unclosed(), whole.end(self._last)]

    def _unclosed(self) -> list[Span]:
        left = []
        for draft in (self._query, self._execution):
            if draft is not None:
                draft = self._copy(draft)
                draft.fail("unfinished", "the record stops before the end")
                left.append(draft.end(self._last))
        return left

    @staticmethod
    def _copy(draft: _Draft) -> _Draft:
        """So that what is told of an open span does not stay in it."""
        copy = object.__new__(_Draft)
        copy.span = draft.span.copy()
        copy.span["attributes"] = list(draft.span["attributes"])
        return copy

    def _query_enter(self, event: events.LLMQueryEnter) -> None:
        own_id = span_id(self._id, "query", event.iteration)
        self._query = _Draft(self._id, f"chat {event.model}", CLIENT, own_id, span_id(self._id), event.timestamp)
        self._came_back = None
        self._turns += 1
        self._query.say(
            gen_ai__operation__name="chat",
            gen_ai__provider__name=PROVIDER,
            gen_ai__request__model=self._cut(event.model),
            gen_ai__conversation__id=InvokeId.parse(self._id).run,
            jaz__invoke_id=self._id,
            jaz__iteration=event.iteration,
        )

    def _retry(self, event: events.LLMQueryRetry) -> SpanEvent:
        return {
            "timeUnixNano": _nanoseconds(event.timestamp),
            "name": "llm_retry",
            "attributes": [
                _attribute("jaz.attempt", event.attempt),
                _attribute("jaz.wait", event.wait),
                _attribute("error.type", self._cut(event.error.type_name)),
                _attribute("error.message", self._cut(event.error.message)),
            ],
        }

    def _query_exit(self, draft: _Draft, event: events.LLMQueryExit) -> Span:
        completion = event.completion or self._came_back
        if completion is not None:
            self._say_completion(draft, completion)
        self._query = None
        return self._closed(draft, event)

    def _say_completion(self, draft: _Draft, completion: Completion) -> None:
        usage = completion.usage
        if usage == Usage() and self._came_back is not None:  # a hook's own completion says no usage
            usage = self._came_back.usage
        tokens = completion.tokens
        draft.say(
            gen_ai__response__model=self._cut(completion.model) or None,
            gen_ai__response__finish_reasons=[completion.finish_reason],
            gen_ai__output__messages=_json(
                [_message("assistant", self._cut(completion.content), finish_reason=completion.finish_reason)]
            ),
            gen_ai__usage__input_tokens=usage.prompt_tokens,
            gen_ai__usage__output_tokens=usage.completion_tokens,
            gen_ai__usage__cache_read__input_tokens=usage.cached_tokens,
            gen_ai__usage__cost=usage.cost_usd,
            jaz__weight_version=None if tokens is None else tokens.version_at_return,
        )

    def _exec_enter(self, event: events.REPLExecEnter) -> None:
        own_id = span_id(self._id, "execution", event.iteration)
        name = f"execute_tool {TOOL}"
        self._execution = _Draft(self._id, name, INTERNAL, own_id, span_id(self._id), event.timestamp)
        self._execution.say(
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=TOOL,
            gen_ai__tool__type="function",
            gen_ai__tool__call__id=f"{self._id}#{event.iteration}",
            jaz__invoke_id=self._id,
            jaz__iteration=event.iteration,
        )

    def _exec_exit(self, draft: _Draft, event: events.REPLExecExit) -> Span:
        if event.result is not None:
            self._say_result(draft, event.result)
        self._execution = None
        return self._closed(draft, event)

    def _say_result(self, draft: _Draft, result: ExecResult) -> None:
        match result:
            case Continue():
                draft.say(jaz__result="continue", gen_ai__tool__call__result=self._cut(result.text))
                if result.error:
                    last = result.error.rstrip().rpartition("\n")[2]
                    draft.fail(self._cut(last.partition(":")[0]), self._cut(last))
            case Return():
                preview = self._cut(result.value.preview)
                draft.say(
                    jaz__result="return", jaz__result_type=result.value.type_name, gen_ai__tool__call__result=preview
                )
            case Raise():
                draft.say(jaz__result="raise")
                self._fail(draft, result.error)

    def _closed(self, draft: _Draft, event: events.LLMQueryExit | events.REPLExecExit) -> Span:
        if event.error is not None:
            draft.say(jaz__status=event.status)
            self._fail(draft, event.error)
        return draft.end(event.timestamp)

    def _exit(self, event: events.InvokeExit) -> Span:
        draft, outcome = self._whole, event.outcome
        draft.say(jaz__outcome=outcome.__struct_config__.tag, jaz__turns=self._turns)
        if isinstance(outcome, CompletedRecord):
            said = _message("assistant", self._cut(outcome.value.preview), finish_reason="stop")
            draft.say(jaz__result_type=outcome.value.type_name, gen_ai__output__messages=_json([said]))
        else:
            self._fail(draft, outcome.error)
        return draft.end(event.timestamp)

    def _fail(self, draft: _Draft, error: ErrorRecord) -> None:
        draft.fail(self._cut(error.type_name), self._cut(error.message))

    def _cut(self, text: str) -> str:
        return _cut(text, self._limit)

    def _messages(self, messages: Sequence[Message]) -> str:
        """The last messages that fit, as the conventions write them. Characters are counted before JSON escapes."""
        left, said = self._limit, []
        for message in reversed(messages):
            if left <= 0:
                break
            content = _cut(message.content, left)
            left -= len(content)
            said.append(_message(message.role, content))
        return _json(said[::-1])


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"


def _inputs_message(inputs: Iterable[PackedInput]) -> Message:
    shown = "\n".join(f"{item.name} = {item.payload.preview}" for item in inputs if not item.hidden)
    return Message("user", shown, "seed", 0)


def _message(role: str, content: str, **more: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": content}], **more}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _nanoseconds(seconds: float) -> str:
    """To the microsecond, which is what such a float holds."""
    return str(round(seconds * 1e6) * 1000)


def _attribute(key: str, value: object) -> Attribute:
    return {"key": key, "value": _any_value(value)}


def _any_value(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    return {"stringValue": str(value)}
