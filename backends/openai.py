"""Any server that speaks OpenAI's chat completions API. Text in, text out; no token ids."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jaz_actors.backends.http import MAX_CONNECTIONS, READ_SECONDS, HttpClient
from jaz_actors.backends.retry import RetryPolicy
from jaz_actors.errors import ConfigurationError, ContentFiltered, MalformedResponse
from jaz_actors.messages import Completion, FinishReason, Usage
from jaz_actors.protocols import CompletionRequest

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "content_filter": "content_filter"}


class OpenAI:
    """model:     sent with every request.
    base_url:  up to and including `/v1`.
    api_key:   None reads the environment variable `OPENAI_API_KEY` in the process that makes the requests.
    stream:    ask for a stream, so that a cancelled request ends at the server at once.
    params:    further fields of the request: temperature, max_tokens, ...

    Raises ContentFiltered for a refusal or a filtered answer, and BackendError subclasses for everything else.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        stream: bool = False,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  frozen
        read_timeout: float | None = READ_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
        **params: Any,
    ) -> None:
        if not model:
            raise ConfigurationError("model", "name the model to ask for")
        reserved = params.keys() & {"messages", "n"}
        if reserved:
            raise ConfigurationError(min(reserved), "is set by the runtime")
        self._model = model
        self._api_key = api_key
        self._stream = stream
        self._retry = retry
        self._params = params
        self._http = HttpClient(
            "OpenAI", base_url, headers=self._headers, read_timeout=read_timeout, max_connections=max_connections
        )

    @property
    def model(self) -> str:
        return self._model

    def _headers(self) -> Mapping[str, str]:
        key = self._api_key or os.environ.get("OPENAI_API_KEY")
        return {"authorization": f"Bearer {key}"} if key else {}

    async def complete(self, request: CompletionRequest) -> Completion:
        body = {
            **self._params,
            "model": self._model,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        }
        attempt = self._streamed if self._stream else self._whole
        return await self._retry.run(request, lambda: attempt(body))

    async def _whole(self, body: dict[str, Any]) -> Completion:
        answer = await self._http.post_json("/chat/completions", body)
        try:
            choice = answer["choices"][0]
            message = choice["message"]
            content, refusal, finish = message.get("content"), message.get("refusal"), choice.get("finish_reason")
            return self._completion(content or "", refusal, finish, answer.get("usage"), answer.get("model"))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise MalformedResponse("OpenAI", f"the answer has no choices[0].message: {error!r}") from error

    async def _streamed(self, body: dict[str, Any]) -> Completion:
        parts: list[str] = []
        refusal = finish = usage = model = None
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._http.stream("/chat/completions", body) as events:
            async for data in events:
                chunk = self._http.decode(data)
                try:
                    usage = chunk.get("usage") or usage
                    model = chunk.get("model") or model
                    for choice in chunk["choices"][:1]:
                        delta = choice.get("delta") or {}
                        parts.append(delta.get("content") or "")
                        refusal = delta.get("refusal") or refusal
                        finish = choice.get("finish_reason") or finish
                except (KeyError, TypeError, AttributeError) as error:
                    raise MalformedResponse("OpenAI", f"a chunk has no choices: {error!r}") from error
        return self._completion("".join(parts), refusal, finish, usage, model)

    def _completion(
        self, content: str, refusal: str | None, finish: str | None, usage: Mapping[str, Any] | None, model: str | None
    ) -> Completion:
        if refusal:
            raise ContentFiltered("OpenAI", f"the model refused: {refusal}")
        reason = _FINISH.get(finish or "", "unknown")
        if reason == "content_filter":
            raise ContentFiltered("OpenAI", "the answer was cut by the provider's content filter")
        return Completion(content, reason, model or self._model, _usage(usage or {}))

    async def aclose(self) -> None:
        await self._http.aclose()

    def __repr__(self) -> str:
        return f"OpenAI({self._model!r}, base_url={self._http.base_url!r})"


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens"))
