"""One server over HTTP: opened lazily, closed once, its failures turned into our errors. Knows no API.

`boundary` is the only place where errors of httpx become ours; typed ones pass through it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass

import httpx

from jaz_actors.backends.connections import Connections
from jaz_actors.backends.environment import ApiKey, proxy_for
from jaz_actors.backends.refusals import error_of_answer
from jaz_actors.errors import ConfigurationError, MalformedResponse, RequestRefused, ServerUnavailable

CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how to talk to it.

    timeout:          seconds without a byte from the server, None for ever. A server that is paused for a
                      weight update, or that does not stream, is silent until it is done.
    max_connections:  requests at once; further ones wait here.
    """

    base_url: str
    _: KW_ONLY
    api_key: ApiKey = ApiKey()
    timeout: float | None = 600.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.base_url)
        except (httpx.InvalidURL, TypeError) as error:
            raise ConfigurationError("base_url", f"is no URL: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigurationError("base_url", f"{url!r} does not begin with http://HOST or https://HOST")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigurationError("timeout", f"{self.timeout!r} is neither None nor more than 0 seconds")
        if self.max_connections < 1:
            raise ConfigurationError("max_connections", f"{self.max_connections!r} is not at least 1")

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it."""
        return str(httpx.URL(self.base_url).copy_with(userinfo=b"", query=None))


class HttpClient:
    """Requests to one server. Configuration until the first call, which binds it to that event loop.

    Pickles as its configuration alone, at any time. `name` is the backend that its errors name.
    """

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self.endpoint = endpoint
        self._client: httpx.AsyncClient | None = None
        self._urls: dict[str, httpx.URL] = {}
        self._secret: bytes | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()  # protects opening: concurrent first calls share one client
        self._closed = False

    def __reduce__(self) -> tuple[type[HttpClient], tuple[str, Endpoint]]:
        return HttpClient, (self.name, self.endpoint)

    async def get(self, path: str) -> bytes:
        """The body of the answer. Raises BackendError for anything but a success."""
        async with self.stream("GET", path) as answer:
            return await answer.aread()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        """The body of the answer to a JSON body. Raises BackendError for anything but a success."""
        async with self.stream("POST", path, body, headers) as answer:
            return await answer.aread()

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """The answer, its body still to be read. Leaving the block before its end closes the connection."""
        client = await self._opened()
        headers = {**({} if body is None else {"content-type": "application/json"}), **(headers or {})}
        with boundary(self.name):
            async with client.stream(method, self._url(path), content=body, headers=headers) as answer:
                if not answer.is_success:
                    said = await answer.aread()
                    raise error_of_answer(self.name, answer.status_code, answer.headers, self._without_key(said))
                yield answer

    def _url(self, path: str) -> httpx.URL:
        """Parsed once a path: parsing is a tenth of the cost of a request."""
        if path not in self._urls:
            self._urls[path] = httpx.URL(self.endpoint.base_url.rstrip("/") + path)
        return self._urls[path]

    def _without_key(self, body: bytes) -> bytes:
        """Some servers quote the key that they refuse."""
        return body if self._secret is None else body.replace(self._secret, b"***")

    async def _opened(self) -> httpx.AsyncClient:
        if self._closed:
            raise RequestRefused(self.name, "the backend is closed")
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self._open()
                    self._loop = asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(self.name, "is open on another event loop; give each loop a copy of its own")
        return self._client

    async def _open(self) -> httpx.AsyncClient:
        endpoint, url = self.endpoint, httpx.URL(self.endpoint.base_url)
        key = endpoint.api_key.read()
        proxy = proxy_for(url.scheme, url.host)
        # Reading the certificates takes tens of milliseconds, and a server without TLS needs none.
        needs_tls = url.scheme == "https" or (proxy or "").startswith("https")
        tls = await asyncio.to_thread(httpx.create_ssl_context) if needs_tls else _bare_tls()
        self._secret = key.encode() if key else None
        return httpx.AsyncClient(
            transport=Connections(
                max_connections=endpoint.max_connections,
                tls=tls,
                proxy=httpx.Proxy(proxy, ssl_context=tls if proxy.startswith("https") else None) if proxy else None,
            ),
            timeout=httpx.Timeout(endpoint.timeout, connect=CONNECT_SECONDS, pool=None),
            headers={"authorization": f"Bearer {key}"} if key else None,
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Idempotent."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


@contextmanager
def boundary(backend: str) -> Iterator[None]:
    """Turn what httpx raises into our errors, naming `backend`."""
    try:
        yield
    except httpx.DecodingError as error:
        raise MalformedResponse(backend, _told(error)) from error
    except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise RequestRefused(backend, _told(error)) from error
    except httpx.TransportError as error:
        raise ServerUnavailable(backend, _told(error)) from error


def _told(error: Exception) -> str:
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name


def _bare_tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
