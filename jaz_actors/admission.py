"""How many invocations run at once. One that waits for another does not count, so no depth of recursion can lock up.

Belongs to one event loop; knows nothing of what runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jaz_actors.errors import ConfigurationError


class Place:
    """One admitted invocation. Coming back from waiting never waits: the cap holds for newcomers alone."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._waiting = False

    def set_waiting(self, waiting: bool) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            self._admission.change(-1 if waiting else 1)


class Admission:
    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ConfigurationError("max_running", "must be at least 1")
        self._limit = limit
        self._queue: deque[asyncio.Future[None]] = deque()
        self.running = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Wait for a place, first come first served, and hold it."""
        if self.running >= self._limit or self._queue:
            await self._wait_turn()
        else:
            self.running += 1
        place = Place(self)
        try:
            yield place
        finally:
            place.set_waiting(False)
            self.change(-1)

    async def _wait_turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.change(-1)  # the place came together with the cancellation
            else:
                self._queue.remove(turn)
            raise

    def change(self, by: int) -> None:
        self.running += by
        while self._queue and self.running < self._limit:
            turn = self._queue.popleft()
            if not turn.cancelled():
                self.running += 1
                turn.set_result(None)
