"""A transport for httpx that stays fast with thousands of requests. Knows no server and no error of ours.

httpx looks through its whole pool, and every request that waits for it, whenever a request starts or ends,
which is quadratic in the number under way. Here each connection is a pool of its own, and requests beyond
the number of connections wait outside, first come, first served.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx

logger = logging.getLogger(__name__)

# Below the five seconds after which common servers close an idle connection: a request sent in that instant
# would fail.
KEEPALIVE_SECONDS = 4.0
RESERVED_FILES = 256


@dataclass(frozen=True, slots=True)
class _Idle:
    connection: httpx.AsyncHTTPTransport
    since: float


class Connections(httpx.AsyncBaseTransport):
    """At most `max_connections` requests at once, on the connection used last. Belongs to one event loop."""

    def __init__(self, *, max_connections: int, tls: ssl.SSLContext, proxy: httpx.Proxy | None = None) -> None:
        self._places = asyncio.Semaphore(_within_file_limit(max_connections))
        self._idle: deque[_Idle] = deque()  # the longest idle first
        self._tls = tls
        self._proxy = proxy
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._places.acquire()
        connection: httpx.AsyncHTTPTransport | None = None
        try:
            connection = self._idle.pop().connection if self._idle else self._new()
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._discard(connection)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Body(response.stream, lambda: self._give_back(connection)),
            extensions=response.extensions,
        )

    def _new(self) -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_SECONDS)
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits, proxy=self._proxy)

    async def _discard(self, connection: httpx.AsyncHTTPTransport | None) -> None:
        try:
            if connection is not None:
                await connection.aclose()
        finally:
            self._places.release()

    async def _give_back(self, connection: httpx.AsyncHTTPTransport) -> None:
        if self._closed:
            await self._discard(connection)
            return
        now = asyncio.get_running_loop().time()
        self._idle.append(_Idle(connection, now))
        self._places.release()
        while self._idle and self._idle[0].since < now - KEEPALIVE_SECONDS:
            await self._idle.popleft().connection.aclose()

    async def aclose(self) -> None:
        """Close the idle connections now, and each other one when its request ends."""
        self._closed = True
        while self._idle:
            await self._idle.pop().connection.aclose()


class _Body(httpx.AsyncByteStream):
    """A response's body, which gives its connection back once."""

    def __init__(self, body: httpx.AsyncByteStream, give_back: Callable[[], Awaitable[None]]) -> None:
        self._body = body
        self._give_back: Callable[[], Awaitable[None]] | None = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return
        try:
            await self._body.aclose()
        finally:
            await give_back()


def _within_file_limit(max_connections: int) -> int:
    """Connections beyond the process's limit of open files would fail, not wait."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or max_connections <= soft - RESERVED_FILES:
        return max_connections
    usable = max(1, soft - RESERVED_FILES)
    logger.warning("the limit of %d open files (ulimit -n) leaves %d connections of %d", soft, usable, max_connections)
    return usable
