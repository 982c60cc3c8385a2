"""The rollouts of a recorded run, from its journals: as they end while it goes on, or all of them afterwards."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jaz_actors.errors import JournalError
from jaz_actors.recorders.deltas import Restorer
from jaz_actors.recorders.entries import SCHEMA, Recorded, RewardGiven, RunStarted, entry_decoder
from jaz_actors.recorders.journal import JournalReader
from jaz_actors.recorders.rollout_fold import RolloutFold
from jaz_actors.recorders.rollouts import Rollout, with_reward

# Those that the agent itself ended; another ending may go otherwise when the run is resumed.
_FINISHED = ("completed", "raised")


@dataclass(slots=True)
class _Journal:
    reader: JournalReader
    restorer: Restorer = field(default_factory=Restorer)
    fold: RolloutFold = field(default_factory=RolloutFold)


class RolloutReader:
    """Follows the journals in `folder`, which was given to a recorder. In memory are the invocations that are open.

    rewards:  by invoke id, as far as has been read.

    All calls block on files. A folder without journals has no rollouts yet.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._journals: dict[Path, _Journal] = {}
        self.rewards: dict[str, float | None] = {}

    def read_new(self) -> Iterator[Rollout]:
        """The rollouts that have ended since this method was last used up, without their rewards.

        One that a resumed run records again is given again. Raises JournalError.
        """
        for new in self._new_by_journal():
            yield from new

    def read_in_order(self) -> Iterator[Rollout]:
        """The same, by when they ended: of several journals, the next is that of the one that is furthest behind."""
        return heapq.merge(*self._new_by_journal(), key=lambda rollout: rollout.ended_at or 0.0)

    def _new_by_journal(self) -> list[Iterator[Rollout]]:
        for path in sorted(self._folder.glob("journal-*")):
            self._journals.setdefault(path, _Journal(JournalReader(path)))
        return [self._new(path, journal) for path, journal in self._journals.items()]

    def _new(self, path: Path, journal: _Journal) -> Iterator[Rollout]:
        for number, payload in journal.reader.read_new():
            record = entry_decoder.decode(payload).record
            match record:
                case RunStarted() if record.schema > SCHEMA:
                    raise JournalError(str(path), f"entry {number} is of a newer version; update jaz-actors")
                case Recorded():
                    rollout = journal.fold.add(journal.restorer.restore(record.delta))
                    if rollout is not None:
                        yield rollout
                case RewardGiven():
                    self.rewards[record.invoke_id] = record.reward

    def is_open(self, invoke_id: str) -> bool:
        """Whether an invocation has begun and not ended, as far as has been read."""
        return any(invoke_id in journal.fold for journal in self._journals.values())

    def unfinished(self) -> list[Rollout]:
        """Those that are open, as far as has been read."""
        return [rollout for journal in self._journals.values() for rollout in journal.fold.unfinished()]

    def rewarded(self, rollout: Rollout) -> Rollout:
        return with_reward(rollout, self.rewards.get(rollout.invoke_id))


def recorded_rollouts(folder: str | Path) -> Iterator[Rollout]:
    """The rollouts of a recorded run, each invocation once, as they ended one after the other; then the unfinished.

    Of several versions of one invocation, as resumed runs have them, the last one that its agent ended counts, else the
    last. Reads the journals twice, so that in memory are only the invocations that are open. Raises JournalError.
    """
    first = RolloutReader(folder)
    versions: Counter[str] = Counter()
    chosen: dict[str, _Version] = {}
    for rollout in first.read_new():
        name, finished = rollout.invoke_id, rollout.status in _FINISHED
        if name not in chosen or finished or not chosen[name].finished:
            chosen[name] = _Version(versions[name], finished)
        versions[name] += 1
    versions.clear()
    for rollout in RolloutReader(folder).read_in_order():
        name = rollout.invoke_id
        if name in chosen and chosen[name].number == versions[name]:
            yield first.rewarded(rollout)
        versions[name] += 1
    yield from (first.rewarded(rollout) for rollout in first.unfinished() if rollout.invoke_id not in chosen)


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    finished: bool
