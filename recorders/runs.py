"""A recorded run, read from its journals: whole events, and each invocation's most complete version.

A resumed run records its invocations again from their beginnings. Of several versions of one invocation the one that
got furthest counts, the later of two that got equally far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaz_actors.errors import JournalError
from jaz_actors.events import (
    AnyEvent,
    InvokeEnter,
    InvokeExit,
    LLMQueryComplete,
    LLMQueryEnter,
    LLMQueryExit,
    LLMQuerySend,
    REPLExecExit,
)
from jaz_actors.messages import Completion, Message
from jaz_actors.outcomes import CompletedRecord, ExecResult, OutcomeRecord, RaisedRecord
from jaz_actors.recorders.deltas import Restorer
from jaz_actors.recorders.entries import SCHEMA, Recorded, RunStarted, ToolAnswer, entry_decoder
from jaz_actors.recorders.journal import JournalReader


@dataclass(frozen=True, slots=True)
class Turn:
    """One completed query, and the execution after it where that was recorded.

    shown:       what the model was shown.
    completion:  as the model gave it; `final` as hooks left it.
    """

    iteration: int
    shown: tuple[Message, ...]
    completion: Completion
    final: Completion
    result: ExecResult | None


@dataclass(slots=True)
class RecordedInvocation:
    """One version of one invocation; `add` in the order of its events."""

    invoke_id: str
    events: list[AnyEvent] = field(default_factory=list)
    answers: dict[int, ToolAnswer] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.invoke_id.partition(":")[2]

    @property
    def outcome(self) -> OutcomeRecord | None:
        """None for one that never ended."""
        last = self.events[-1]
        return last.outcome if isinstance(last, InvokeExit) else None

    @property
    def finished(self) -> bool:
        """Whether the agent itself ended it: not a crash, a cancellation or a failure, which may go otherwise."""
        return isinstance(self.outcome, (CompletedRecord, RaisedRecord))

    def turns(self) -> list[Turn]:
        turns: list[Turn] = []
        shown: tuple[Message, ...] = ()
        raw: Completion | None = None
        for event in self.events:
            match event:
                case LLMQueryEnter():
                    shown, raw = event.messages, None
                case LLMQuerySend():
                    shown = event.messages
                case LLMQueryComplete():
                    raw = event.completion
                case LLMQueryExit(completion=Completion() as final):
                    turns.append(Turn(event.iteration, shown, raw or final, final, None))
                case REPLExecExit(result=result) if result is not None and turns:
                    last = turns[-1]
                    turns[-1] = Turn(last.iteration, last.shown, last.completion, last.final, result)
        return turns

    def progress(self) -> tuple[bool, int]:
        """How far it got, for comparison with other versions."""
        return self.finished, len(self.events)


class RecordedRun:
    """`folder` is what was given to `Recorder`. Reads all of it; raises JournalError for what is no journal."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.run_id = ""
        self._journals = sorted(self.folder.glob("journal-*"), key=lambda path: int(path.name.partition("-")[2]))
        if not self._journals:
            raise JournalError(str(self.folder), "there is no journal in it; give the folder that Recorder was given")
        self.versions: list[RecordedInvocation] = []
        for journal in self._journals:
            self._read(journal)

    def _read(self, journal: Path) -> None:
        restorer = Restorer()
        open_versions: dict[str, RecordedInvocation] = {}
        for number, payload in JournalReader(journal).read():
            record = entry_decoder.decode(payload).record
            match record:
                case RunStarted():
                    if record.schema > SCHEMA:
                        raise JournalError(str(journal), f"entry {number} is of a newer version; update jaz-actors")
                    self.run_id = record.run_id
                case Recorded():
                    event = restorer.restore(record.delta)
                    self._add(event, open_versions)
                case ToolAnswer():
                    version = open_versions.get(record.invoke_id)
                    if version is not None:
                        version.answers[record.number] = record

    def _add(self, event: AnyEvent, open_versions: dict[str, RecordedInvocation]) -> None:
        version = open_versions.get(event.invoke_id)
        if version is None or isinstance(event, InvokeEnter):
            version = open_versions[event.invoke_id] = RecordedInvocation(event.invoke_id)
            self.versions.append(version)
        version.events.append(event)

    def invocations(self) -> dict[str, RecordedInvocation]:
        """The version of each invocation that counts, by path, in the order of their beginnings."""
        best: dict[str, RecordedInvocation] = {}
        for version in self.versions:
            known = best.get(version.path)
            if known is None or version.progress() >= known.progress():
                best[version.path] = version
        return best

    def events(self) -> Iterator[AnyEvent]:
        """The events of those versions, by time; each invocation's own in their order."""
        chosen: Sequence[RecordedInvocation] = list(self.invocations().values())
        merged = [
            (event.timestamp, place, number, event)
            for place, version in enumerate(chosen)
            for number, event in enumerate(version.events)
        ]
        # Clocks of hosts may differ, and a child may seem to begin before its parent: its own order always holds.
        return (event for *_, event in sorted(merged, key=lambda item: item[:3]))
