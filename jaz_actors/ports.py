"""How the processes of one run reach each other, as hosts and the driver see it. `channel.Peer` does it over ZMQ;
`LocalPorts` does it inside one process. Neither is known to the agent loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from jaz_actors.errors import ChannelClosed

Handler = Callable[[str, list[bytes]], Awaitable[Sequence[bytes] | None]]
Listener = Callable[[str, list[bytes]], None]


class Ports(Protocol):
    """Requests and notices between named processes.

    Order: what one process sends another arrives in the order of sending, notices and requests alike. Cancelling a
    request cancels its handler. Raises ChannelClosed when the other process is gone, or what the handler raised.
    """

    @property
    def name(self) -> str: ...

    async def request(self, peer: str, method: str, *parts: bytes) -> list[bytes]: ...

    def notify(self, peer: str, method: str, *parts: bytes) -> None: ...

    def handle(self, method: str, handler: Handler) -> None: ...

    def on(self, method: str, listener: Listener) -> None: ...


class LocalPorts:
    """Ports of several named parties in one process and on one event loop."""

    def __init__(self, name: str, parties: dict[str, LocalPorts]) -> None:
        self._name = name
        self._parties = parties
        self._handlers: dict[str, Handler] = {}
        self._listeners: dict[str, Listener] = {}
        parties[name] = self

    @property
    def name(self) -> str:
        return self._name

    def handle(self, method: str, handler: Handler) -> None:
        self._handlers[method] = handler

    def on(self, method: str, listener: Listener) -> None:
        self._listeners[method] = listener

    async def request(self, peer: str, method: str, *parts: bytes) -> list[bytes]:
        handler = self._party(peer)._handlers[method]
        # A task of its own, as across a channel: cancelling the request is what cancels it.
        task = asyncio.ensure_future(handler(self._name, list(parts)))
        try:
            reply = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        return list(reply or ())

    def notify(self, peer: str, method: str, *parts: bytes) -> None:
        self._party(peer)._listeners[method](self._name, list(parts))

    def _party(self, peer: str) -> LocalPorts:
        try:
            return self._parties[peer]
        except KeyError:
            raise ChannelClosed(peer, "there is no such process in this run") from None

    def close(self) -> None:
        self._parties.pop(self._name, None)
