"""Sends spans to a server that takes OTLP over HTTP. Knows no event.

What was said to and by the model leaves the machine this way.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from jaz_actors.errors import ConfigurationError, ExportFailed
from jaz_actors.http_urls import parsed, shown
from jaz_actors.recorders.spans import Span, export_json

MAX_BODY = 3_000_000  # bytes; Langfuse's cloud takes 4.5 MB
ATTEMPTS = 4
FIRST_WAIT = 0.5  # seconds, doubled each time
LONGEST_WAIT = 30.0
PASSING = (429, 502, 503, 504)  # what OTLP says may be sent again
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class SpanExporter:
    """Posts spans as OTLP/HTTP JSON. A client opens with the first export and closes with `aclose`.

    headers:  sent with each request; not shown in its repr.
    timeout:  seconds that one request may take.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str] | None = None,
        *,
        service_name: str = "jaz-actors",
        timeout: float = 10.0,
    ) -> None:
        self._url = parsed("endpoint", endpoint)
        self._headers = {**(headers or {}), "content-type": "application/json"}
        self._service_name = service_name
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    @property
    def endpoint(self) -> str:
        """The URL without what may be secret in it."""
        return shown(self._url)

    def __repr__(self) -> str:
        return f"SpanExporter({self.endpoint!r})"

    async def export(self, spans: Sequence[Span]) -> None:
        """Send them, in requests of a bounded size. Raises ExportFailed; what was sent before stays sent.

        Sending a span again does no harm: its ids are the same.
        """
        for batch in _batches(spans):
            await self._post(export_json(batch, service_name=self._service_name))

    async def _post(self, body: bytes) -> None:
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with self._opened().post(self._url, data=body, allow_redirects=False) as answer:
                    said = await answer.read()
            except (aiohttp.ClientError, OSError) as error:
                failure = ExportFailed(self.endpoint, f"{type(error).__name__}: {error}", None)
            else:
                if 200 <= answer.status < 300:
                    return self._check_taken(answer.status, said)
                reason = said.decode("utf-8", "replace")[:500] or answer.reason or "no explanation"
                failure = ExportFailed(self.endpoint, reason, answer.status)
                if answer.status not in PASSING:
                    raise failure
                wait = _retry_after(answer.headers.get("retry-after", ""), wait)
            if attempt == ATTEMPTS:
                raise failure
            await asyncio.sleep(min(wait, LONGEST_WAIT))
            wait = max(wait, FIRST_WAIT) * 2
        return None

    def _check_taken(self, status: int, body: bytes) -> None:
        """Raises ExportFailed where the server has taken only some of the spans."""
        try:
            taken = msgspec.json.decode(body or b"{}", type=_Taken, strict=False)
        except msgspec.DecodeError:
            return  # some servers answer with text
        rejected = taken.partialSuccess.rejectedSpans
        if rejected:
            reason = f"{rejected} spans were rejected: {taken.partialSuccess.errorMessage}"
            raise ExportFailed(self.endpoint, reason, status)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._url.host not in LOOPBACK,
            )
        return self._session

    async def aclose(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Partial(msgspec.Struct, frozen=True):
    rejectedSpans: int = 0  # OTLP/JSON writes it as a string
    errorMessage: str = ""


class _Taken(msgspec.Struct, frozen=True):
    """What a server answers; an empty object when it has taken everything."""

    partialSuccess: _Partial = _Partial()


def jaeger(endpoint: str = "http://localhost:4318/v1/traces") -> SpanExporter:
    """To a Jaeger, or any OpenTelemetry collector."""
    return SpanExporter(endpoint)


def langfuse(public_key: str | None = None, secret_key: str | None = None, base_url: str | None = None) -> SpanExporter:
    """To Langfuse; what is not given is read from LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY, and LANGFUSE_HOST or
    LANGFUSE_BASE_URL (by default its European cloud). Raises ConfigurationError for a missing key."""
    public_key = _key("public_key", public_key, "LANGFUSE_PUBLIC_KEY")
    secret_key = _key("secret_key", secret_key, "LANGFUSE_SECRET_KEY")
    base_url = base_url or _read("LANGFUSE_HOST") or _read("LANGFUSE_BASE_URL") or "https://cloud.langfuse.com"
    credentials = base64.b64encode(f"{public_key}:{secret_key}".encode()).decode()
    endpoint = base_url.rstrip("/") + "/api/public/otel/v1/traces"
    return SpanExporter(endpoint, {"authorization": f"Basic {credentials}"})


def _key(name: str, given: str | None, variable: str) -> str:
    key = given or _read(variable)
    if not key:
        raise ConfigurationError(name, f"is needed: give it, or set {variable}")
    return key


def _read(variable: str) -> str:
    return os.environ.get(variable, "").strip()


def _batches(spans: Sequence[Span]) -> Iterator[list[Span | msgspec.Raw]]:
    batch: list[Span | msgspec.Raw] = []
    size = 0
    for span in spans:
        encoded = msgspec.json.encode(span)
        if batch and size + len(encoded) > MAX_BODY:
            yield batch
            batch, size = [], 0
        batch.append(msgspec.Raw(encoded))
        size += len(encoded) + 1
    if batch:
        yield batch


def _retry_after(said: str, otherwise: float) -> float:
    """In seconds; dates are not understood."""
    return float(said) if said.isdecimal() else otherwise
