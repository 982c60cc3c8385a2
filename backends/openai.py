"""Any server with OpenAI's chat completions API. Knows no tokens, only text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from jaz_actors.backends.environment import ApiKey
from jaz_actors.backends.http_client import Endpoint, HttpClient
from jaz_actors.backends.refusals import Explanation, error_of, explain
from jaz_actors.backends.retry import RetryPolicy, with_retries
from jaz_actors.backends.sse import events
from jaz_actors.errors import (
    BackendError,
    ConfigurationError,
    ContentFiltered,
    GenerationAborted,
    MalformedResponse,
    ServerUnavailable,
)
from jaz_actors.messages import Completion, FinishReason, Usage
from jaz_actors.protocols import CompletionRequest

KEY_VARIABLE = "OPENAI_API_KEY"
READ_OUT_SECONDS: Final = 1.0
_PATH: Final = "/chat/completions"
_OWN_KEYS = frozenset({"model", "messages", "stream", "n"})
_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "abort": "abort",
}


class _Part(msgspec.Struct, frozen=True):
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    content: str | list[_Part] | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def counted(self) -> Usage:
        details = self.prompt_tokens_details
        return Usage(self.prompt_tokens, self.completion_tokens, details.cached_tokens if details else None)


class _Choice(msgspec.Struct, frozen=True):
    """`message` in a whole answer, `delta` in a streamed piece of one."""

    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    """A whole answer, or one streamed piece. Some servers put an error into an answer with status 200."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_answers = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a model costs, in US dollars a million tokens. `cached` is for prompt tokens that the server had cached."""

    prompt: float
    completion: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "completion", "cached"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < float("inf"):
                raise ConfigurationError(name, f"a price is a number of dollars, at least 0; got {price!r}")

    def cost(self, usage: Usage) -> float | None:
        """In US dollars; None when the usage does not say how many tokens it was."""
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        cached = usage.cached_tokens or 0
        cached_price = self.prompt if self.cached is None else self.cached
        fresh = (usage.prompt_tokens - cached) * self.prompt
        return (fresh + cached * cached_price + usage.completion_tokens * self.completion) / 1e6


class OpenAI:
    """A model behind a chat completions endpoint.

    model:       the server's name for it, and the label under which completions are recorded.
    base_url:    up to and with the version, e.g. "http://localhost:8000/v1".
    api_key:     is pickled with the backend. None reads OPENAI_API_KEY at the first call, in that process,
                 whatever the base_url; without a key, none is sent.
    stream:      receive the answer piece by piece; for servers and proxies that end silent connections.
    extra_body:  further fields of the request, for whatever the server takes.
    prices:      what the model costs; without, completions have no cost.
    context_length:  tokens that prompt and reply may have together, for hooks that watch the window.
    timeout, max_connections:  see Endpoint.

    Raises ConfigurationError at construction for what cannot work.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        stream: bool = False,
        temperature: float | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        prices: Prices | None = None,
        context_length: int | None = None,
        timeout: float | None = 600.0,
        max_connections: int = 1024,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._model = model
        self._stream = stream
        self._prices = prices
        self.context_length = context_length
        self._retry = retry or RetryPolicy()
        self._fields = _fields(temperature, max_tokens, extra_body or {})
        key = ApiKey(api_key, None if api_key is not None else KEY_VARIABLE)
        self._client = HttpClient(
            f"OpenAI({model})",
            Endpoint(base_url, api_key=key, timeout=timeout, max_connections=max_connections),
        )

    @property
    def model(self) -> str:
        return self._model

    @property
    def reports_cost(self) -> bool:
        return self._prices is not None

    async def complete(self, request: CompletionRequest) -> Completion:
        body = self._body(request)

        async def attempt(_: int) -> Completion:
            answer = await (self._streamed(body) if self._stream else self._whole(body))
            return self._completion(answer)

        return await with_retries(attempt, policy=self._retry, on_retry=request.on_retry)

    async def aclose(self) -> None:
        await self._client.aclose()

    def __repr__(self) -> str:
        return f"OpenAI({self._model!r}, base_url={self._client.endpoint.shown!r})"

    def _body(self, request: CompletionRequest) -> bytes:
        fields: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        }
        if self._stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(fields | self._fields)

    async def _whole(self, body: bytes) -> _Answer:
        return self._decoded(await self._client.post(_PATH, body))

    async def _streamed(self, body: bytes) -> _Answer:
        joined = _Joined()
        async with (
            self._client.stream("POST", _PATH, body) as response,
            aclosing(events(response.content.iter_any())) as stream,
        ):
            async for data in stream:
                if data == b"[DONE]":
                    await _read_out(stream)
                    return joined.answer()
                joined.add(self._decoded(data))
        if joined.finish is None:
            raise ServerUnavailable(self._client.name, "the stream ended before the answer did")
        return joined.answer()

    def _decoded(self, data: bytes) -> _Answer:
        try:
            answer = _answers.decode(data)
        except msgspec.DecodeError as error:
            raise MalformedResponse(self._client.name, f"{error}: {data[:200]!r}") from error
        if answer.error is not None:
            raise self._error_in(answer.error)
        return answer

    def _error_in(self, error: Any) -> BackendError:
        """An error in an answer with status 200. Its code is often the status that it would have had."""
        said = explain(msgspec.json.encode({"error": error})) or Explanation("an error without explanation")
        status = int(said.code) if re.fullmatch(r"[45]\d\d", said.code) else None
        return error_of(self._client.name, status, said)

    def _completion(self, answer: _Answer) -> Completion:
        name = self._client.name
        message = answer.choices[0].message if answer.choices else None
        if message is None:
            raise MalformedResponse(name, "the answer has no choice with a message")
        finish = _FINISH.get(answer.choices[0].finish_reason or "", "unknown")
        if message.refusal:
            raise ContentFiltered(name, message.refusal)
        if finish == "content_filter":
            raise ContentFiltered(name, "the answer was cut off by the provider's content filter")
        if finish == "abort":
            raise GenerationAborted(name, "the server ended the request before it was complete")
        usage = answer.usage.counted() if answer.usage is not None else Usage()
        if self._prices is not None:
            usage = msgspec.structs.replace(usage, cost_usd=self._prices.cost(usage))
        return Completion(message.text, finish, self._model, usage)


class _Joined:
    """The pieces of one streamed answer so far. Owned by the call that receives them."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._usage: _Usage | None = None

    def add(self, piece: _Answer) -> None:
        self._usage = piece.usage or self._usage
        for choice in piece.choices[:1]:
            self.finish = choice.finish_reason or self.finish
            if choice.delta is not None:
                self._texts.append(choice.delta.text)
                self._refusals.append(choice.delta.refusal or "")

    def answer(self) -> _Answer:
        message = _Message("".join(self._texts), "".join(self._refusals))
        return _Answer([_Choice(message, finish_reason=self.finish)], self._usage)


async def _read_out(stream: AsyncIterator[bytes]) -> None:
    """Read what follows the last event, so that the connection can be used again. The answer is complete."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(READ_OUT_SECONDS):
            async for _ in stream:
                pass


def _fields(temperature: float | None, max_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    named = {"temperature": temperature, "max_tokens": max_tokens}
    fields = {name: value for name, value in named.items() if value is not None}
    taken = extra.keys() & (_OWN_KEYS | fields.keys())
    if taken:
        raise ConfigurationError("extra_body", f"{min(taken)!r} is set otherwise")
    try:
        msgspec.json.encode(extra)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("extra_body", f"cannot be written as JSON: {error}") from error
    return fields | dict(extra)
