"""The Ray actor around a recorder: a process with a channel and a journal."""

from __future__ import annotations

import asyncio
import os

import ray

from jaz_actors.channel import ChannelKeys, Peer
from jaz_actors.recorders.collector import Collector
from jaz_actors.recording import RecorderService, RecorderSpec


class RecorderActor:
    """Started, watched and started again by the pool."""

    def __init__(self, name: str, keys: ChannelKeys, spec: RecorderSpec) -> None:
        self._peer = Peer(name, keys, address=ray.util.get_node_ip_address())
        self._collector = Collector(spec.folder, run_id=spec.run_id, fsync=spec.fsync, interval=spec.interval)
        self._ended = asyncio.Event()

    async def start(self, members: list[tuple[str, str]]) -> tuple[str, int]:
        """Open journal and channel; gives the endpoint and the process id. Raises JournalError."""
        await self._collector.open()
        await self._peer.start()
        for name, endpoint in members:
            self._peer.connect(name, endpoint)
        RecorderService(self._peer, self._collector)
        return self._peer.endpoint, os.getpid()

    async def watch(self) -> None:
        """Returns when the recorder has been closed; its failure tells the pool that the process died."""
        await self._ended.wait()

    async def close(self) -> None:
        await self._peer.aclose()
        await self._collector.aclose()
        self._ended.set()
