"""Streams of events as the agent loop makes them, from a plan that hypothesis draws: edits, failures, tokens, trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from jaz_actors.effects import AddMessages, DropMessages, NewMessage
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
from jaz_actors.hooks.folds import resolve_message_edits
from jaz_actors.messages import Completion, Message, SampledTokens, Segment, Span, Stamp, Usage, VersionSpan
from jaz_actors.outcomes import (
    AbortedRecord,
    CompletedRecord,
    Continue,
    ExecResult,
    FailedRecord,
    Raise,
    RaisedRecord,
    Return,
)
from jaz_actors.payload import ErrorRecord, PackedInput
from jaz_actors.render import abbreviate
from jaz_actors.transfer import sendable
from tests.recorders.synthetic import RUN, payload

SHOWN = 30
ERROR = ErrorRecord("jaz_actors.errors.FrameLost", "signal 9 \ud800")
Ends = Literal["goes on", "query failed", "aborted after the query", "execution failed", "returned", "raised"]


@dataclass(frozen=True)
class Edit:
    """At a place between 0 and 1 of the buffer; a drop where there is no text."""

    place: float
    text: str
    persistent: bool


@dataclass(frozen=True)
class TurnPlan:
    code: str
    output: str
    edits: tuple[Edit, ...]
    retries: int
    tokens: Literal["none", "good", "not finite", "too few", "of another prompt"]
    modified: bool
    ends: Ends


@dataclass(frozen=True)
class Plan:
    turns: tuple[TurnPlan, ...]
    parent: float
    parent_turn: int | None
    by_hook: bool
    kept: float
    lost: bool


texts = st.text(st.characters(exclude_categories=()), max_size=60)
edits = st.builds(Edit, st.floats(0, 1), st.sampled_from(["", "", "a note", "x" * 200]), st.booleans())
early_ends: list[Ends] = ["query failed", "aborted after the query", "execution failed", "returned", "raised"]
turn_plans = st.builds(
    TurnPlan,
    texts,
    texts,
    st.lists(edits, max_size=3).map(tuple),
    st.integers(0, 1),
    st.sampled_from(["none", "good", "good", "not finite", "too few", "of another prompt"]),
    st.booleans(),
    st.sampled_from(["goes on"] * 12 + early_ends),
)
plans = st.builds(
    Plan,
    st.lists(turn_plans, max_size=5).map(tuple),
    st.floats(0, 0.999),
    st.one_of(st.none(), st.integers(0, 5)),
    st.booleans(),
    st.sampled_from([1.0, 1.0, 0.3, 0.7, 0.0]),
    st.booleans(),
)


class Stream:
    """One invocation after its plan."""

    def __init__(self, path: str, plan: Plan, clock: float) -> None:
        self.path = path
        self.events: list[Event] = []
        self._clock = clock
        self._buffer: tuple[Message, ...] = (
            Message("system", "be good", "seed", 0),
            Message("user", f"task of {path}", "seed", 1),
        )
        self._next = 2
        self._ids: list[int] = [1, 2, 3]
        self._stamps: list[Stamp] = []
        above, dot, _ = path.rpartition(".")
        inputs = (PackedInput("task", payload("'\ud800'")),)
        self._emit(
            InvokeEnter,
            parent_id=f"{RUN}:{above}" if dot else None,
            parent_iteration=plan.parent_turn if dot else None,
            inputs=inputs,
            scope=(),
            hooks=("Watch",),
        )
        self._emit(InvokeSend, inputs=inputs)
        for iteration, turn in enumerate(plan.turns):
            if not self._turn(iteration, turn):
                break
        else:
            self._emit(InvokeExit, outcome=AbortedRecord(ErrorRecord("IterationLimitExceeded", "enough")))
        self.events = self.events[: max(1, int(plan.kept * len(self.events)))]
        if plan.lost:
            lost = {"invoke_id": f"{RUN}:{path}", "depth": path.count(".") + 1, "timestamp": self._clock + 100}
            self.events.append(InvokeExit(**lost, sequence=-1, outcome=FailedRecord(ERROR)))

    def _emit(self, kind: type[Event], **fields: object) -> None:
        self._clock += 0.125
        common = {"invoke_id": f"{RUN}:{self.path}", "depth": self.path.count(".") + 1, "timestamp": self._clock}
        self.events.append(kind(**common, sequence=len(self.events), **fields))  # type: ignore[arg-type]

    def _turn(self, iteration: int, plan: TurnPlan) -> bool:
        """Whether another may follow."""
        of = {"iteration": iteration}
        self._emit(LLMQueryEnter, **of, messages=self._buffer, model="m", can_recurse=True)
        effects: list[AddMessages | DropMessages] = []
        for edit in plan.edits:
            if edit.text:
                place = int(edit.place * len(self._buffer))
                effects.append(AddMessages((NewMessage("user", edit.text),), index=place, persistent=edit.persistent))
            elif len(self._buffer) > 2:
                place = 2 + int(edit.place * (len(self._buffer) - 3))
                effects.append(DropMessages((place,), persistent=edit.persistent))
        edits = resolve_message_edits(self._buffer, effects, next_number=self._next, iteration=iteration)
        self._next = edits.next_number
        self._emit(LLMQuerySend, **of, messages=edits.shown, model="m", drops=edits.drops, adds=edits.adds)
        for attempt in range(plan.retries):
            self._emit(LLMQueryRetry, **of, attempt=attempt + 1, error=ERROR, wait=float("inf"))
        if plan.ends == "query failed":
            return self._over(LLMQueryExit, iteration, "failed")
        raw = self._completion(plan)
        self._emit(LLMQueryComplete, **of, completion=raw)
        self._buffer = edits.kept
        if plan.ends == "aborted after the query":
            return self._over(LLMQueryExit, iteration, "aborted")
        text = sendable(raw.content) + ("# changed" if plan.modified else "")
        self._emit(LLMQueryExit, **of, status="completed", completion=Completion(text, usage=raw.usage))
        self._say("assistant", text, iteration)
        self._emit(REPLExecEnter, **of, code=text)
        self._emit(REPLExecSend, **of, code=text)
        if plan.ends == "execution failed":
            return self._over(REPLExecExit, iteration, "failed")
        result = self._result(plan)
        self._emit(REPLExecComplete, **of, result=result)
        self._emit(REPLExecExit, **of, status="completed", result=result)
        if isinstance(result, Continue):
            self._say("user", abbreviate(result.text.rstrip("\n"), SHOWN, 0.5) or "(no output)", iteration)
            return True
        self._emit(InvokeComplete, result=result)
        ended = CompletedRecord(result.value) if isinstance(result, Return) else RaisedRecord(result.error)
        self._emit(InvokeExit, outcome=ended)
        return False

    def _over(self, kind: type[Event], iteration: int, status: str) -> bool:
        self._emit(kind, iteration=iteration, status=status, error=ERROR)
        self._emit(InvokeExit, outcome=(FailedRecord if status == "failed" else AbortedRecord)(ERROR))
        return False

    def _say(self, role: Literal["user", "assistant"], text: str, iteration: int) -> None:
        kind: Literal["assistant", "observation"] = "assistant" if role == "assistant" else "observation"
        self._buffer = (*self._buffer, Message(role, text, kind, self._next, iteration))
        self._next += 1

    def _completion(self, plan: TurnPlan) -> Completion:
        if plan.tokens == "none":
            return Completion(plan.code, "stop", "m-1", Usage(None, 4, None, float("nan")))
        prompt = [7, 8] if plan.tokens == "of another prompt" else list(self._ids)
        new = [len(prompt), 5, 6]
        logprobs = [-0.5, 0.0, float("-inf") if plan.tokens == "not finite" else -1.0]
        self._ids = [*prompt, *new, 9]
        counted = Usage(len(prompt), 2 if plan.tokens == "too few" else 3, 0, 0.5)
        whole = sum(stamp.length for stamp in self._stamps)
        if plan.tokens == "of another prompt" or whole > len(prompt):
            self._stamps = []
            whole = 0
        self._stamps += [Stamp(self._next, len(prompt) - whole, self._next % 3 or None)]
        tokens = SampledTokens(
            prompt,
            new,
            logprobs,
            "1",
            None,
            (Segment(0, 1, "1", None), Segment(1, 3, None, "2")),
            (VersionSpan(0, 3, "1", "2"),),
            (*self._stamps, Stamp(None, 0)),
            [9],
            Span(0, 1) if plan.tokens == "of another prompt" else None,
            plan.tokens != "of another prompt",
            {"temperature": 0.5},
        )
        return Completion(plan.code, "length", "m-1", counted, tokens)

    def _result(self, plan: TurnPlan) -> ExecResult:
        if plan.ends == "returned":
            return Return(payload("'\udfff'"))
        return (
            Raise(ERROR) if plan.ends == "raised" else Continue(plan.output, "Traceback \ud800" * (len(plan.code) % 2))
        )


def forest(drawn: list[Plan]) -> list[Stream]:
    """The first is a root, and every other a child of one before it, or a root as well."""
    paths: list[str] = []
    streams = []
    for number, plan in enumerate(drawn):
        above = int(plan.parent * (len(paths) + 1))
        component = f"hook-0-{number}" if plan.by_hook else str(number)
        path = f"{paths[above - 1]}.{component}" if above else str(number)
        paths.append(path)
        streams.append(Stream(path, plan, 1_700_000_000.0 + number))
    return streams
