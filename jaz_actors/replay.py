"""A recorded run drives the same program again: recorded responses in place of the model, by invoke path.

What an agent is shown is compared with what it was shown then; the first message that differs is where it diverged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaz_actors.effects import ModifyLLMResponse, SupplyLLMResponse
from jaz_actors.errors import ConfigurationError, ReplayDiverged
from jaz_actors.events import InvokeEnter, InvokeExit, LLMQueryComplete, LLMQuerySend
from jaz_actors.hooks.base import Answer, Hook
from jaz_actors.hooks.values import abort
from jaz_actors.record import Recorder
from jaz_actors.recorders.atif_replay import DocumentedInvocation, documented
from jaz_actors.recorders.collector import Fsync
from jaz_actors.recorders.entries import ToolAnswer
from jaz_actors.recorders.runs import RecordedInvocation, RecordedRun, Turn
from jaz_actors.render import abbreviate
from jaz_actors.runtime import Run, continue_run, current_run

Source = str | PathLike[str] | RecordedRun | Sequence[Mapping[str, Any]]
OnDivergence = Literal["error", "live", "ignore"]
_SHOWN = 300

# What differs from run to run without meaning: folders of frames, addresses of objects.
_CHANGING = re.compile(r"/[^\s'\"]*jaz-frames-\d+-\w+/\d+|\b0x[0-9a-f]{6,}\b")


def without_addresses(text: str) -> str:
    """A text without what no two processes have in common."""
    return _CHANGING.sub("<…>", text)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an invocation went another way: the first difference, message `index` of what the model was shown."""

    path: str
    iteration: int
    index: int
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}, turn {self.iteration}, message {self.index}: expected {self.expected!r}, got {self.got!r}"


@dataclass(slots=True)
class ReplayReport:
    """replayed / live: queries answered from the record, and by the model. tools: answers given from the record."""

    replayed: int = 0
    live: int = 0
    tools: int = 0
    divergences: list[Divergence] = field(default_factory=list)


@dataclass(slots=True)
class _Playing:
    turns: list[Turn]
    finished: bool


class TrajectoryReplay(Hook):
    """Within the block, invocations get the responses that were recorded under their paths.

    source:         the folder of a recorded run, the run as read, the file of an ATIF document, or such documents.
    on_divergence:  an agent that is shown something else than then is aborted with ReplayDiverged (`error`), goes on
                    with the model together with all below it (`live`), or gets the recorded response all the same.
    normalise:      applied to both texts before they are compared.

    An invocation whose record breaks off goes on with the model where it does. `report` says what was done.
    """

    propagating_only = True
    supplies_llm_response: ClassVar[bool] = True

    def __init__(
        self,
        source: Source,
        on_divergence: OnDivergence = "error",
        *,
        normalise: Callable[[str], str] = without_addresses,
    ) -> None:
        if on_divergence not in ("error", "live", "ignore"):
            raise ConfigurationError("on_divergence", f"must be 'error', 'live' or 'ignore', got {on_divergence!r}")
        self._recorded = _recorded(source)
        self._on_divergence = on_divergence
        self._normalise = normalise
        self._run: Run | None = None
        self._reset()

    def _reset(self) -> None:
        self.report = ReplayReport()
        self._playing: dict[str, _Playing] = {}
        self._live: set[str] = set()
        self._current: dict[str, Turn] = {}

    def setup(self) -> None:
        self._reset()

    def _bind(self) -> None:
        """The run may be opened, by its first invocation, long after the block has begun."""
        if self._run is None:
            self._run = current_run()
            self._run.home.recorded = self._tool_answer

    def teardown(self, error: BaseException | None) -> None:
        if self._run is not None:
            self._run.home.recorded = None
            self._run = None

    # -- the hook

    def on_invoke_enter(self, event: InvokeEnter) -> Answer:
        self._bind()
        path = _path(event.invoke_id)
        parent = None if event.parent_id is None else _path(event.parent_id)
        recorded = self._recorded.get(path)
        if parent in self._live:
            self._live.add(path)
        elif recorded is not None:
            self._playing[path] = _Playing(recorded.turns(), recorded.finished)
        elif parent is not None and self._began_turn(parent, event.parent_iteration):
            return self._diverged(Divergence(path, 0, 0, "no such invocation", "an invocation"))
        else:
            self._live.add(path)
        return None

    def _began_turn(self, parent: str, iteration: int | None) -> bool:
        """Whether the record tells how the parent's turn ended, so that it would know of every child of it."""
        playing = self._playing.get(parent)
        return playing is not None and any(t.iteration == iteration and t.result is not None for t in playing.turns)

    def on_llm_query_send(self, event: LLMQuerySend) -> Answer:
        path = _path(event.invoke_id)
        self._current.pop(path, None)
        playing = self._playing.get(path)
        if path in self._live or playing is None:
            self.report.live += 1
            return None
        if event.iteration >= len(playing.turns):
            if playing.finished:
                ended = Divergence(path, event.iteration, 0, "the end", "another turn")
                return self._diverged(ended) or self._went_live()
            self._live.add(path)
            self.report.live += 1
            return None
        turn = playing.turns[event.iteration]
        difference = self._difference(path, turn, event)
        if difference is not None:
            answer = self._diverged(difference)
            if answer is not None:
                return answer
            if path in self._live:
                return self._went_live()
        self.report.replayed += 1
        self._current[path] = turn
        return SupplyLLMResponse(turn.completion)

    def on_llm_query_complete(self, event: LLMQueryComplete) -> Answer:
        turn = self._current.get(_path(event.invoke_id))
        # A hook that changed it then and is active now wants the same; where it is not, the record stands for it.
        return ModifyLLMResponse(turn.final) if turn is not None and turn.final != turn.completion else None

    def on_invoke_exit(self, event: InvokeExit) -> Answer:
        path = _path(event.invoke_id)
        self._playing.pop(path, None)
        self._current.pop(path, None)
        self._live.discard(path)
        return None

    def _went_live(self) -> Answer:
        self.report.live += 1
        return None

    def _difference(self, path: str, turn: Turn, event: LLMQuerySend) -> Divergence | None:
        then, now = turn.shown, event.messages
        for index in range(max(len(then), len(now))):
            one = f"{then[index].role}: {then[index].content}" if index < len(then) else "no message"
            other = f"{now[index].role}: {now[index].content}" if index < len(now) else "no message"
            if one != other and self._normalise(one) != self._normalise(other):
                return Divergence(path, event.iteration, index, *_around(one, other))
        return None

    def _diverged(self, divergence: Divergence) -> Answer:
        self.report.divergences.append(divergence)
        if self._on_divergence == "error":
            return abort(
                ReplayDiverged(
                    divergence.path, divergence.iteration, divergence.index, divergence.expected, divergence.got
                )
            )
        if self._on_divergence == "live":
            self._live.add(divergence.path)
        return None

    # -- tools

    def _tool_answer(self, path: str, number: int, verb: str, name: str) -> ToolAnswer | None:
        """What an object at home answered then; None when it must be asked."""
        recorded = self._recorded.get(path)
        if recorded is None or path in self._live:
            return None
        answer = recorded.answers.get(number)
        if answer is None or (answer.verb, answer.name) != (verb, name):
            return None
        self.report.tools += 1
        return answer


def _recorded(source: Source) -> Mapping[str, RecordedInvocation | DocumentedInvocation]:
    """Raises JournalError or ConfigurationError for what holds no run."""
    if isinstance(source, RecordedRun):
        return source.invocations()
    if isinstance(source, Sequence) and not isinstance(source, str):
        return documented(source)
    path = Path(source)
    if not path.is_file():
        return RecordedRun(path).invocations()
    try:
        return documented([json.loads(path.read_text("utf-8"))])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError("source", f"{path} is no ATIF document of ours: {error!r}") from error


def _path(invoke_id: str) -> str:
    return invoke_id.partition(":")[2]


def _around(one: str, other: str) -> tuple[str, str]:
    """Two texts from a little before they differ, shortened."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, same - 40)
    first, second = (abbreviate(text[begin:], _SHOWN, 1.0) for text in (one, other))
    return ("…" + first, "…" + second) if begin else (first, second)


def resume(
    folder: str | PathLike[str], *, on_divergence: OnDivergence = "error", fsync: Fsync = "interval", shards: int = 1
) -> Resume:
    """Go on with a recorded run that broke off: run the program that made it again, inside this block.

    What was recorded is not asked of the model, or of tools at home, again; where the record of an invocation breaks
    off, it goes on live. Everything is recorded to the same folder, so resuming may itself be interrupted and repeated.
    Give the shards that the run was recorded with. A folder without a run is recorded from the beginning.

    `replay.report` says what was answered from the record. Raises ConfigurationError while a runtime is open, since a
    run goes on under its own name: `shutdown()` first.
    """
    return Resume(folder, on_divergence, fsync, shards)


class Resume(Recorder):
    """A recorder that first plays what its folder holds. Made by `resume`."""

    def __init__(self, folder: str | PathLike[str], on_divergence: OnDivergence, fsync: Fsync, shards: int) -> None:
        super().__init__(folder, fsync=fsync, shards=shards)
        self._on_divergence = on_divergence
        self.replay: TrajectoryReplay | None = None

    def setup(self) -> None:
        if any(self.folder.glob("journal-*")):
            run = RecordedRun(self.folder)
            continue_run(run.run_id)
            self.replay = TrajectoryReplay(run, self._on_divergence)
        super().setup()
        if self.replay is not None:
            self.replay.__enter__()

    def teardown(self, error: BaseException | None) -> None:
        try:
            if self.replay is not None:
                self.replay.__exit__(None, error, None)
        finally:
            super().teardown(error)
