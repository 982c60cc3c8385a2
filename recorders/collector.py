"""Takes entries from many feeds into one journal. Owns the journal's thread; does not know how entries arrive."""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from jaz_actors.recorders.entries import SCHEMA, Entry, RunStarted, encode, head_decoder
from jaz_actors.recorders.journal import JournalReader, JournalWriter

T = TypeVar("T")

Fsync = Literal["always", "interval", "never"]
OWN_FEED = "recorder"


class Collector:
    """Belongs to one event loop; `open` before use, `aclose` in every case.

    An entry is acknowledged once it would survive the death of this process: with `fsync="always"` that of the machine
    as well.
    """

    def __init__(self, folder: str | Path, *, run_id: str, fsync: Fsync = "interval", interval: float = 0.2) -> None:
        self._folder = Path(folder)
        self._run_id = run_id
        self._fsync = fsync
        self._interval = interval
        self._thread = ThreadPoolExecutor(1, "jaz-journal")
        self._writer: JournalWriter | None = None
        self._next: dict[str, int] = {}
        self._ticking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises JournalError for a folder that holds no journal of this run, or that another process writes."""
        await self._do(self._open)
        if self._fsync == "interval":
            self._ticking = asyncio.create_task(self._tick())

    def _open(self) -> None:
        self._writer = JournalWriter(self._folder, run_id=self._run_id, fsync=self._fsync, interval=self._interval)
        for _, payload in JournalReader(self._folder).read():
            head = head_decoder.decode(payload)
            self._next[head.feed] = head.sequence + 1
        number = self._next.get(OWN_FEED, 0)
        started = RunStarted(SCHEMA, self._run_id, time.time(), importlib.metadata.version("jaz-actors"))
        self._writer.append(encode(Entry(OWN_FEED, number, started)))
        self._next[OWN_FEED] = number + 1

    async def take(self, feed: str, first: int, entries: Sequence[bytes]) -> int:
        """Write entries `first`, `first` + 1, ... of a feed, those that are not there yet; gives the next one wanted.

        Raises JournalError when the disk does not take them; nothing of them is acknowledged then.
        """
        return await self._do(lambda: self._take(feed, first, entries))

    def _take(self, feed: str, first: int, entries: Sequence[bytes]) -> int:
        assert self._writer is not None
        wanted = self._next.get(feed, 0)
        if first <= wanted:
            fresh = entries[wanted - first :]
            if fresh:
                self._writer.append_many(fresh)
                self._next[feed] = wanted = wanted + len(fresh)
            self._writer.tick()
        return wanted

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            assert self._writer is not None
            await self._do(self._writer.tick)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def aclose(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        if self._writer is not None:
            await self._do(self._writer.close)
        self._thread.shutdown()
