"""The Ray actor around a host: a process with a channel. Everything else is the `Host` it holds."""

from __future__ import annotations

import asyncio
import os

import msgspec
import ray

from jaz_actors import garbage
from jaz_actors.channel import ChannelKeys, Peer
from jaz_actors.host import Host


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A process of the run and where it listens. `takes_children`: whether invocations may be placed there."""

    name: str
    endpoint: str
    takes_children: bool


members_decoder = msgspec.msgpack.Decoder(list[Member])


class HostActor:
    """Started by the pool; speaks with it over the channel, and over Ray only to start, to be watched and to end."""

    def __init__(self, name: str, keys: ChannelKeys, max_running: int) -> None:
        self._name = name
        self._keys = keys
        self._max_running = max_running
        self._peer: Peer | None = None
        self._host: Host | None = None
        self._ended = asyncio.Event()

    async def start(self, driver: str, driver_endpoint: str) -> tuple[str, int]:
        """Open the channel and a first zygote; gives the endpoint and the process id."""
        peer = self._peer = Peer(self._name, self._keys, address=ray.util.get_node_ip_address())
        await peer.start()
        peer.connect(driver, driver_endpoint)
        self._host = Host(peer, max_running=self._max_running)
        peer.on("members", self._on_members)
        peer.on("gone", self._on_gone)
        garbage.settle()
        return peer.endpoint, os.getpid()

    def _on_members(self, caller: str, parts: list[bytes]) -> None:
        assert self._peer is not None
        assert self._host is not None
        members = members_decoder.decode(parts[0])
        for member in members:
            if member.name != self._name:
                self._peer.connect(member.name, member.endpoint)
        self._host.set_members([member.name for member in members if member.takes_children])

    def _on_gone(self, caller: str, parts: list[bytes]) -> None:
        assert self._peer is not None
        assert self._host is not None
        name, reason = parts[0].decode(), parts[1].decode()
        self._peer.forget(name, reason)
        self._host.peer_gone(name)

    async def watch(self) -> None:
        """Returns when the host has been closed; its failure tells the pool that the process died."""
        await self._ended.wait()

    async def close(self) -> None:
        if self._host is not None:
            await self._host.aclose()
        if self._peer is not None:
            await self._peer.aclose()
        self._ended.set()
