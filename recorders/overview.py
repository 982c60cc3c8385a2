"""One invocation's page: the fold of its events, its place among others, and the text of its overview. No files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath

from jaz_actors.events import (
    Event,
    InvokeEnter,
    InvokeExit,
    InvokeSend,
    LLMQueryEnter,
    LLMQueryExit,
    REPLExecExit,
    REPLExecSend,
)
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Usage
from jaz_actors.outcomes import CompletedRecord, Continue, OutcomeRecord, Raise, Return
from jaz_actors.payload import PackedInput
from jaz_actors.recorders.markdown import escaped, heading, inline
from jaz_actors.recorders.story import Entry, Story, outcome_name, outcome_text, result_text

_LABEL = 70


@dataclass(slots=True)
class Totals:
    """Of completed queries. `cost_usd` is None while no completion has said what it costs."""

    queries: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    cost_usd: float | None = None

    def count(self, usage: Usage) -> None:
        self.queries += 1
        self.prompt += usage.prompt_tokens or 0
        self.completion += usage.completion_tokens or 0
        self.cached += usage.cached_tokens or 0
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd

    def __str__(self) -> str:
        cost = "cost unknown" if self.cost_usd is None else f"{self.cost_usd:.6f} USD"
        tokens = f"{self.prompt} prompt tokens ({self.cached} cached), {self.completion} completion tokens"
        return f"{self.queries} queries, {tokens}, {cost}"


@dataclass(slots=True)
class _Turn:
    iteration: int
    usage: Usage | None = None
    code: str | None = None
    end: str = "not ended"


@dataclass(slots=True)
class Page:
    """An invocation in its folder. Its own totals, and those with all its descendants. Keeps no values and no code.

    changes: how many things the overview shows otherwise than when it was written last.
    """

    invoke_id: InvokeId
    folder: PurePosixPath
    parent: Page | None
    own: Totals = field(default_factory=Totals)
    total: Totals = field(default_factory=Totals)
    changes: int = 0
    _story: Story = field(default_factory=Story)
    _children: list[Page] = field(default_factory=list)
    _turns: list[_Turn] = field(default_factory=list)
    _label: str = ""
    _inputs: list[str] = field(default_factory=list)
    _scope: list[str] = field(default_factory=list)
    _model: str = ""
    _parent_iteration: int | None = None
    _outcome: str = ""
    _outcome_text: str = ""
    _begun: float = 0.0
    _last: float = 0.0
    _size: int = 0

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent._children.append(self)
            self.parent.changes += 1

    def add(self, event: Event) -> list[Entry]:
        """Fold one event in; returns what is to be added to the trace."""
        match event:
            case InvokeEnter():
                self._give(event.inputs)
                self._scope = [_input(item) for item in event.scope]
                self._parent_iteration = event.parent_iteration
                self._begun = event.timestamp
                self._changed(for_parent=True)
            case InvokeSend():
                self._give(event.inputs)
                self._changed()
            case LLMQueryEnter():
                self._model = event.model
                self._turns.append(_Turn(event.iteration))
                self._changed()
            case LLMQueryExit():
                self._queried(event)
            case REPLExecSend():
                self._turn(event.iteration).code = inline(_first_line(event.code), _LABEL)
                self._changed()
            case REPLExecExit():
                self._turn(event.iteration).end = _turn_end(event)
                self._changed()
            case InvokeExit():
                self._end(event.outcome)
                self._last = event.timestamp
                self._changed(for_parent=True)
        entries = self._story.add(event)
        if isinstance(event, InvokeExit):
            self._story = Story()  # the old one keeps the last reply and result
        return entries

    def _give(self, inputs: tuple[PackedInput, ...]) -> None:
        self._inputs = [_input(item) for item in inputs]
        shown = [item for item in inputs if not item.hidden]
        item = next((item for item in shown if item.name == "task"), shown[0] if shown else None)
        # What tells it from its siblings.
        self._label = "" if item is None else inline(item.payload.preview, _LABEL)

    def _end(self, outcome: OutcomeRecord) -> None:
        text = outcome_text(outcome).strip()
        # Of a traceback, its last line says what happened.
        last = text if isinstance(outcome, CompletedRecord) else text.rpartition("\n")[2]
        self._outcome, self._outcome_text = escaped(outcome_name(outcome)), inline(last)

    def _queried(self, event: LLMQueryExit) -> None:
        turn = self._turn(event.iteration)
        if event.completion is None:
            turn.end = f"query {event.status}"
            self._changed()
            return
        turn.usage = event.completion.usage
        self.own.count(turn.usage)
        page: Page | None = self
        while page is not None:
            page.total.count(turn.usage)
            page.changes += 1
            page = page.parent

    def _turn(self, iteration: int) -> _Turn:
        if not self._turns or self._turns[-1].iteration != iteration:
            self._turns.append(_Turn(iteration))
        return self._turns[-1]

    def _changed(self, *, for_parent: bool = False) -> None:
        self.changes += 1
        if for_parent and self.parent is not None:
            self.parent.changes += 1

    @property
    def overview_due(self) -> bool:
        """Whether it is worth its cost to write the overview: all writing together stays linear in what happened."""
        return self.changes > 0 and (self.changes * 8 >= self._size or self._outcome != "")

    def written(self) -> None:
        self.changes = 0
        self._size = len(self._turns) + len(self._children)

    @staticmethod
    def new_files(event: Event) -> Iterator[tuple[str, str]]:
        """Names and contents of the files that the event gives, beside trace and overview."""
        if isinstance(event, REPLExecSend):
            yield f"iter_{event.iteration}/code.py", event.code
        elif isinstance(event, REPLExecExit) and isinstance(event.result, (Continue, Raise)):
            yield f"iter_{event.iteration}/output.txt", result_text(event.result)

    def overview(self) -> str:
        parts = [heading(1, f"Invocation {self.invoke_id.path}"), "\n", *self._facts()]
        for title, lines in (
            ("Inputs", self._inputs),
            ("Scope", self._scope),
            ("Turns", [self._turn_line(turn) for turn in self._turns]),
            ("Children", [self._child_line(child) for child in self._children]),
        ):
            if lines:
                parts += ["\n", heading(2, title), "\n", *lines]
        return "".join(parts)

    def _facts(self) -> Iterator[str]:
        if self._label:
            yield f"- label: {self._label}\n"
        yield f"- outcome: {f'{self._outcome}, {self._outcome_text}' if self._outcome else 'not ended'}\n"
        yield f"- id: {escaped(str(self.invoke_id))}\n"
        if self._model:
            yield f"- model: {escaped(self._model)}\n"
        started = datetime.fromtimestamp(self._begun, UTC).isoformat(timespec="milliseconds")
        took = f", took {self._last - self._begun:.3f} s" if self._outcome else ""
        yield f"- started: {started}{took}\n"
        yield f"- own use: {self.own}\n"
        if self._children:
            yield f"- with children: {self.total}\n"
        yield "- [the whole conversation](trace.md)\n"
        if self.parent is not None:
            up = "/".join([".."] * len(self.folder.relative_to(self.parent.folder).parts))
            yield f"- called by [{self.parent.invoke_id.path}]({up}/overview.md)\n"

    @staticmethod
    def _turn_line(turn: _Turn) -> str:
        name = f"turn {turn.iteration}"
        name = name if turn.code is None else f"[{name}](iter_{turn.iteration}/code.py)"
        tokens = ""
        if turn.usage is not None and turn.usage.completion_tokens is not None:
            tokens = f" {turn.usage.prompt_tokens or 0} + {turn.usage.completion_tokens} tokens:"
        code = f" {turn.code}" if turn.code else ""
        return f"- {name}:{tokens}{code} → {turn.end}\n"

    def _child_line(self, child: Page) -> str:
        place = child.folder.relative_to(self.folder)
        turn = "" if child._parent_iteration is None else f", turn {child._parent_iteration}"
        label = f"{child._label}, " if child._label else ""
        return f"- [{child.invoke_id.path}]({place}/overview.md){turn}: {label}{child._outcome or 'not ended'}\n"


def _input(item: PackedInput) -> str:
    text = item.payload.preview if item.description is None else item.description
    hidden = ", hidden" if item.hidden else ""
    return f"- {inline(item.name)} ({escaped(item.payload.type_name)}{hidden}): {inline(text)}\n"


def _first_line(code: str) -> str:
    lines = [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return lines[0] if lines else code


def _turn_end(event: REPLExecExit) -> str:
    match event.result:
        case None:
            return f"execution {event.status}"
        case Return():
            return f"returns {inline(event.result.value.preview, _LABEL)}"
        case Raise():
            return f"raises {escaped(event.result.error.type_name)}"
        case Continue() if event.result.error:
            return inline(event.result.error.strip().rpartition("\n")[2], _LABEL)
        case Continue():
            return inline(event.result.output, _LABEL) or "no output"
