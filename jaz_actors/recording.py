"""From hosts to recorders: each event once, as a delta, kept until it is acknowledged. Nothing is dropped.

A host has one feed to each recorder. A recorder that dies is started again by the driver, and gets again what it had
not acknowledged. While a recorder is slow, invocations wait; one that stays unreachable fails them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from jaz_actors.errors import ChannelClosed, JazError, JournalError, RecorderLost
from jaz_actors.events import AnyEvent
from jaz_actors.ids import InvokeId
from jaz_actors.ports import Ports
from jaz_actors.recorders.collector import Collector, Fsync
from jaz_actors.recorders.deltas import Shortener
from jaz_actors.recorders.entries import Entry, Record, Recorded, RewardGiven, ToolAnswer, encode

logger = logging.getLogger(__name__)

BATCH = 1024
# Entries and bytes that may wait for their acknowledgement before invocations do.
MAX_WAITING = 16_384
MAX_WAITING_BYTES = 64 * 2**20
RETRY_SECONDS = 0.1
# How long a recorder may be unreachable, or its disk full, before what depends on it fails.
PATIENCE_SECONDS = 60.0

_reply_decoder = msgspec.msgpack.Decoder(int)


@dataclass(frozen=True, slots=True)
class RecorderSpec:
    """One recorder: the folder of its journal, whose journal that is, and when entries are on disk."""

    folder: str
    run_id: str
    fsync: Fsync = "interval"
    interval: float = 0.2


def shard_of(invoke_id: InvokeId, count: int) -> int:
    """Which of several recorders an invocation's whole tree goes to."""
    return zlib.crc32(invoke_id.root.path.encode()) % count


class Feed:
    """One host's way to one recorder. Belongs to the host's event loop."""

    def __init__(self, ports: Ports, recorder: str) -> None:
        self._ports = ports
        self._recorder = recorder
        self.name = f"{ports.name}-{secrets.token_hex(6)}"
        self._shortener = Shortener()
        self._next = 0
        self._acknowledged = 0
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()
        self._sender: asyncio.Task[None] | None = None
        self._error: JazError | None = None

    async def event(self, event: AnyEvent) -> None:
        """Record an event. Waits while too much is unacknowledged. Raises RecorderLost."""
        self._put(Recorded(self._shortener.shorten(event)))
        await self._room()

    async def note(self, record: ToolAnswer | RewardGiven) -> None:
        """Record what is no event. Waits while too much is unacknowledged. Raises RecorderLost."""
        self._put(record)
        await self._room()

    def _put(self, record: Record) -> None:
        if self._error is not None:
            raise self._error
        data = encode(Entry(self.name, self._next, record))
        self._next += 1
        self._waiting.append(data)
        self._bytes += len(data)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())

    async def _room(self) -> None:
        if len(self._waiting) > MAX_WAITING or self._bytes > MAX_WAITING_BYTES:
            await self._until(lambda: len(self._waiting) <= MAX_WAITING and self._bytes <= MAX_WAITING_BYTES)

    async def acknowledged(self) -> None:
        """Wait until all that was put so far is acknowledged. Raises RecorderLost."""
        target = self._next
        if self._acknowledged < target:
            await self._until(lambda: self._acknowledged >= target)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._error is not None or holds())
        if self._error is not None:
            raise self._error

    async def _send(self) -> None:
        """Send what waits, until nothing does."""
        try:
            while self._waiting:
                batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
                wanted = await self._sent(self._acknowledged, batch)
                await self._settled(wanted)
        except JazError as error:
            self._error = error
            self._waiting.clear()
            async with self._changed:
                self._changed.notify_all()
        finally:
            self._sender = None

    async def _sent(self, first: int, batch: Sequence[bytes]) -> int:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + PATIENCE_SECONDS
        header = (self.name.encode(), str(first).encode())
        while True:
            try:
                reply = await self._ports.request(self._recorder, "record", *header, *batch)
                return _reply_decoder.decode(reply[0])
            except (ChannelClosed, JournalError) as error:
                if loop.time() > give_up:
                    raise RecorderLost(self._recorder, str(error)) from error
                logger.warning("%s: %s; trying again", self._recorder, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _settled(self, wanted: int) -> None:
        if wanted < self._acknowledged:
            raise RecorderLost(self._recorder, "it has lost entries that it had acknowledged")
        while self._acknowledged < wanted:
            self._bytes -= len(self._waiting.popleft())
            self._acknowledged += 1
        async with self._changed:
            self._changed.notify_all()

    async def aclose(self) -> None:
        """Give what waits a last moment."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=RETRY_SECONDS * 10)
            if self._sender is not None:
                self._sender.cancel()


class RecorderService:
    """A collector that hosts reach through ports."""

    def __init__(self, ports: Ports, collector: Collector) -> None:
        self._collector = collector
        ports.handle("record", self._on_record)

    async def _on_record(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        wanted = await self._collector.take(parts[0].decode(), int(parts[1]), parts[2:])
        return [encode(wanted)]
