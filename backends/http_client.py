"""One server over HTTP: opened lazily, closed once, its failures turned into our errors. Knows no API.

aiohttp and not httpx: it keeps thousands of connections without looking through them all for each request
(benchmarks/connections.py). `boundary` is the only place where its errors become ours; typed ones pass through it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import resource
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from types import TracebackType

import aiohttp
from yarl import URL

from jaz_actors.backends.environment import ApiKey, proxy_for
from jaz_actors.backends.refusals import error_of_answer
from jaz_actors.errors import ConfigurationError, MalformedResponse, RequestRefused, ServerUnavailable
from jaz_actors.http_urls import parsed, shown

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
# Below the five seconds after which common servers close an idle connection: a request sent in that instant
# would fail.
KEEPALIVE_SECONDS = 4.0
RESERVED_FILES = 256
JSON = {"content-type": "application/json"}
LARGE_BODY = 2**20  # bytes; larger ones are written piece by piece, so that other requests go on meanwhile


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how to talk to it.

    timeout:          seconds without a byte from the server, None for ever. A server that is paused for a
                      weight update, or that does not stream, is silent until it is done.
    max_connections:  requests at once; further ones wait here, first come, first served.
    """

    base_url: str
    _: KW_ONLY
    api_key: ApiKey = ApiKey()
    timeout: float | None = 600.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        parsed("base_url", self.base_url)
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigurationError("timeout", f"{self.timeout!r} is neither None nor more than 0 seconds")
        if self.max_connections < 1:
            raise ConfigurationError("max_connections", f"{self.max_connections!r} is not at least 1")

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it."""
        return shown(URL(self.base_url))


class HttpClient:
    """Requests to one server. Configuration until the first call, which binds it to that event loop.

    Pickles as its configuration alone, at any time. `name` is the backend that its errors name.
    """

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self.endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None
        self._urls: dict[str, URL] = {}
        self._secret: bytes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def __reduce__(self) -> tuple[type[HttpClient], tuple[str, Endpoint]]:
        return HttpClient, (self.name, self.endpoint)

    async def get(self, path: str) -> bytes:
        """The body of the answer. Raises BackendError for anything but a success."""
        return await self._whole("GET", path, None, None)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        """The body of the answer to a JSON body. Raises BackendError for anything but a success."""
        return await self._whole("POST", path, body, headers)

    async def _whole(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> bytes:
        request = self._requested(method, path, body, headers)
        with boundary(self.name):
            async with request as answer:
                said = await answer.read()
        self._check(answer, said)
        return said

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, its body still to be read. Leaving the block before its end closes the connection."""
        request = self._requested(method, path, body, headers)
        with boundary(self.name):
            async with request as answer:
                if not 200 <= answer.status < 300:
                    self._check(answer, await answer.read())
                yield answer

    def _requested(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data = body if body is None or len(body) < LARGE_BODY else io.BytesIO(body)
        if body is not None:
            headers = JSON if headers is None else {**JSON, **headers}
        return self._opened().request(
            method, self._url(path), data=data, headers=headers, proxy=self._proxy, allow_redirects=False
        )

    def _check(self, answer: aiohttp.ClientResponse, said: bytes) -> None:
        if not 200 <= answer.status < 300:
            raise error_of_answer(self.name, answer.status, answer.headers, self._without_key(said))

    def _url(self, path: str) -> URL:
        """Parsed once a path: parsing is a tenth of the cost of a request."""
        if path not in self._urls:
            self._urls[path] = URL(self.endpoint.base_url.rstrip("/") + path)
        return self._urls[path]

    def _without_key(self, body: bytes) -> bytes:
        """Some servers quote the key that they refuse."""
        return body if self._secret is None else body.replace(self._secret, b"***")

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RequestRefused(self.name, "the backend is closed")
        if self._session is None:
            self._session = self._open()
            self._loop = asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(self.name, "is open on another event loop; give each loop a copy of its own")
        return self._session

    def _open(self) -> aiohttp.ClientSession:
        endpoint, url = self.endpoint, URL(self.endpoint.base_url)
        key = endpoint.api_key.read()
        assert url.host is not None
        self._secret = key.encode() if key else None
        self._proxy = proxy_for(url.scheme, url.host)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_within_file_limit(endpoint.max_connections), keepalive_timeout=KEEPALIVE_SECONDS
            ),
            # Not `connect`: it would count the time that a request waits here for a connection.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=endpoint.timeout),
            headers={"authorization": f"Bearer {key}"} if key else None,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Ends requests under way with ServerUnavailable. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class boundary:
    """Turn what aiohttp raises into our errors, naming `backend`."""

    __slots__ = ("_backend",)

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, aiohttp.InvalidURL):
            raise RequestRefused(self._backend, _told(error)) from error
        if isinstance(error, aiohttp.ClientPayloadError) and _is_undecodable(error):
            raise MalformedResponse(self._backend, _told(error)) from error
        if isinstance(error, aiohttp.ClientError | OSError):
            raise ServerUnavailable(self._backend, _told(error)) from error


def _is_undecodable(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, aiohttp.http_exceptions.ContentEncodingError):
            return True
        error = error.__cause__
    return False


def _told(error: Exception) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name


def _within_file_limit(max_connections: int) -> int:
    """Connections beyond the process's limit of open files would fail, not wait."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or max_connections <= soft - RESERVED_FILES:
        return max_connections
    usable = max(1, soft - RESERVED_FILES)
    logger.warning("the limit of %d open files (ulimit -n) leaves %d connections of %d", soft, usable, max_connections)
    return usable
