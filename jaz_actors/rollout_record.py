"""`RolloutRecorder`: the tokens of every invocation of a `with` block as rollouts, while it runs and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from os import PathLike

from jaz_actors.errors import ConfigurationError, JournalError
from jaz_actors.record import OwnFolder
from jaz_actors.recorders.collector import Fsync
from jaz_actors.recorders.entries import RewardGiven
from jaz_actors.recorders.rollout_reader import RolloutReader, recorded_rollouts
from jaz_actors.recorders.rollouts import Rollout, RolloutStatus, checked_reward, with_reward

POLL_SECONDS = 0.05
BATCH = 64  # rollouts that are read ahead of whoever follows


class RolloutRecorder(OwnFolder):
    """A recorder for training: one rollout an invocation, with what was sampled, when, and by which weights.

    folder:          of the journal, see `Recorder`; None is a temporary one, which ends with the block. Its rollouts
                     are then kept in memory; with a folder, only those of open invocations are.
    demand_tokens:   nothing starts in the block with a backend that does not tell the tokens it sampled. With False,
                     rollouts of other backends are there and `refused`.

    Every invocation has a rollout, however it ended; `refused` says which are not to be trained on, and why. A rollout
    is there once its invocation's result is.
    """

    def __init__(
        self,
        folder: str | PathLike[str] | None = None,
        *,
        fsync: Fsync = "interval",
        shards: int = 1,
        demand_tokens: bool = True,
    ) -> None:
        super().__init__(folder, fsync=fsync, shards=shards)
        self.demands_tokens = demand_tokens
        self._active = False
        self._last: list[Rollout] | None = None
        self._recorded_run = ""
        self._begin()

    def _begin(self) -> None:
        self._rewards: dict[str, float | None] = {}
        self._statuses: dict[str, RolloutStatus] = {}
        self._watching = RolloutReader(self.folder)

    def setup(self) -> None:
        super().setup()
        self._begin()
        self._recorded_run = self.run_id
        self._active, self._last = True, None

    def teardown(self, error: BaseException | None) -> None:
        try:
            super().teardown(error)
        finally:
            self._active = False  # whatever becomes of the record, those who follow it come to an end

    def read_last(self) -> None:
        if self._temporary is not None:
            self._last = list(recorded_rollouts(self.folder))

    def __iter__(self) -> Iterator[Rollout]:
        """Every rollout, in the order in which invocations ended, with its reward; those that are open come last."""
        source = recorded_rollouts(self.folder) if self._last is None else iter(self._last)
        return (self._rewarded(rollout) for rollout in source)

    @property
    def rollouts(self) -> list[Rollout]:
        return list(self)

    async def follow(self) -> AsyncIterator[Rollout]:
        """Each rollout as its invocation ends, from the beginning of the block until its end.

        An invocation that a resumed run records again is given again. Raises JournalError.
        """
        reader = RolloutReader(self.folder)
        given: set[tuple[str, float | None]] = set()
        while True:
            active, new = self._active, reader.read_new()
            waited = True
            while batch := await asyncio.to_thread(self._batch, new):
                waited = False
                for rollout in batch:
                    given.add((rollout.invoke_id, rollout.ended_at))
                    yield self._rewarded(reader.rewarded(rollout))
            if not active:
                break
            if waited:
                await asyncio.sleep(POLL_SECONDS)
        for rollout in self._last or ():
            if rollout.status != "unfinished" and (rollout.invoke_id, rollout.ended_at) not in given:
                yield self._rewarded(rollout)

    def _batch(self, new: Iterator[Rollout]) -> list[Rollout]:
        try:
            return list(islice(new, BATCH))
        except JournalError:
            if self._last is None:
                raise
            return []  # a temporary folder, which went with the block

    def set_reward(self, invoke_id: object, reward: float | None) -> bool:
        """What one invocation's rollout is worth; its children have nothing of it. The last value counts.

        In the block it goes to the journal as well; after it, it is known to this object alone.

        invoke_id:  of the invocation (`Outcome.id`, `Rollout.invoke_id`), or its path in this run.

        False where infrastructure ended the invocation: that says nothing of the policy, so it takes no reward.
        Raises ConfigurationError for a reward that is no finite number and an invocation that never began.
        """
        reward = checked_reward(reward)
        name = self._begun(str(invoke_id))
        if self._statuses.get(name) == "failed":
            return False
        self._rewards[name] = reward
        if self._active:
            self.note(name, RewardGiven(name, reward))
        return True

    def _begun(self, name: str) -> str:
        """The whole invoke id of an invocation that has begun."""
        if ":" not in name:
            name = f"{self._run_name()}:{name}"
        if name not in self._statuses:
            new = self._watching.read_new() if self._active else self
            self._statuses.update((rollout.invoke_id, rollout.status) for rollout in new)
        if name not in self._statuses and not self._watching.is_open(name):
            raise ConfigurationError("invoke_id", f"no invocation {name!r} has begun under this recorder")
        return name

    def _run_name(self) -> str:
        return self.run_id if self._active else self._recorded_run

    def _rewarded(self, rollout: Rollout) -> Rollout:
        """A reward given here counts at once, before it is in the journal."""
        if rollout.invoke_id not in self._rewards:
            return rollout
        return with_reward(rollout, self._rewards[rollout.invoke_id])
