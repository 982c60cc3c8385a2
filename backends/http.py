"""HTTP to a model server: one sized pool a backend, and one place where foreign errors become ours. No provider's API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import msgspec

from jaz_actors.errors import (
    AuthenticationFailed,
    BackendError,
    ContextOverflow,
    MalformedResponse,
    ModelNotFound,
    RateLimited,
    RequestRefused,
    ServerUnavailable,
)

MAX_CONNECTIONS = 512
CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0

_OVERFLOW = re.compile(r"context[ _](length|window|size)|longer than the model|maximum context|too many tokens", re.I)


class HttpClient:
    """A lazily opened connection pool. Picklable until its first request; belongs to the loop of that request.

    headers: a function, called when the pool opens, so that no secret lies in the pickled configuration.
    read_timeout: seconds without a byte; long, because a server may pause for a weight update. None waits for ever.
    """

    def __init__(
        self,
        label: str,
        base_url: str,
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        read_timeout: float | None = READ_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.label = label
        self.base_url = base_url.rstrip("/")
        self._headers = headers
        self._read_timeout = read_timeout
        self._max_connections = max_connections
        self._client: httpx.AsyncClient | None = None
        self._places: asyncio.Semaphore | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_places": None}

    def _open(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        if self._client is None or self._places is None:
            self._client = httpx.AsyncClient(
                base_url=self.base_url,
                headers=dict(self._headers()),
                timeout=httpx.Timeout(self._read_timeout, connect=CONNECT_SECONDS, pool=None),
                limits=httpx.Limits(
                    max_connections=self._max_connections, max_keepalive_connections=self._max_connections
                ),
                verify=self.base_url.startswith("https"),
            )
            # The pool's own queue costs time with the square of its length, so that no one waits in it.
            self._places = asyncio.Semaphore(self._max_connections)
        return self._client, self._places

    async def get_json(self, path: str) -> Any:
        client, places = self._open()
        async with places:
            with self._boundary():
                response = await client.get(path)
        return self._checked(response)

    async def post_json(self, path: str, body: Any) -> Any:
        """The decoded answer of a POST. Raises BackendError subclasses only."""
        client, places = self._open()
        async with places:
            with self._boundary():
                response = await client.post(
                    path, content=msgspec.json.encode(body), headers={"content-type": "application/json"}
                )
        return self._checked(response)

    @asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """The `data:` payloads of a server-sent event stream, up to `[DONE]`. Leaving closes the connection."""
        client, places = self._open()
        async with places:
            with self._boundary():
                request = client.build_request(
                    "POST", path, content=msgspec.json.encode(body), headers={"content-type": "application/json"}
                )
                response = await client.send(request, stream=True)
            try:
                if response.status_code != 200:
                    with self._boundary():
                        await response.aread()
                    raise self._error(response)
                yield self._events(response)
            finally:
                await response.aclose()

    async def _events(self, response: httpx.Response) -> AsyncIterator[bytes]:
        with self._boundary():
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                yield data.encode()
        raise ServerUnavailable(self.label, "the stream ended before it was complete")

    @contextmanager
    def _boundary(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise ServerUnavailable(self.label, f"no answer in time ({type(error).__name__})") from error
        except httpx.TransportError as error:
            raise ServerUnavailable(self.label, f"{type(error).__name__}: {error}") from error
        except httpx.InvalidURL as error:
            raise RequestRefused(self.label, f"{self.base_url} is no URL: {error}") from error

    def _checked(self, response: httpx.Response) -> Any:
        if response.status_code != 200:
            raise self._error(response)
        return self.decode(response.content)

    def decode(self, data: bytes) -> Any:
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedResponse(self.label, f"the answer is no JSON: {error}") from error

    def _error(self, response: httpx.Response) -> BackendError:
        message = _message(response)
        status = response.status_code
        if status in (400, 413, 422) and _OVERFLOW.search(message):
            return ContextOverflow(self.label, message, status)
        kinds: dict[int, type[BackendError]] = {
            401: AuthenticationFailed,
            403: AuthenticationFailed,
            404: ModelNotFound,
            408: ServerUnavailable,
            429: RateLimited,
        }
        kind = kinds.get(status, ServerUnavailable if status >= 500 else RequestRefused)
        error = kind(self.label, message, status)
        if isinstance(error, (RateLimited, ServerUnavailable)):
            error.retry_after = _seconds(response.headers.get("retry-after"))
        return error

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _message(response: httpx.Response) -> str:
    """The text of an error body, in any of the shapes that servers use."""
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.MsgspecError:
        body = None
    if isinstance(body, dict):
        for candidate in (body.get("error"), body.get("message"), body.get("detail")):
            if isinstance(candidate, dict):
                candidate = candidate.get("message")
            if isinstance(candidate, str) and candidate:
                return candidate
    text = response.text.strip()
    return text[:500] if text else response.reason_phrase or "no reason given"


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None
