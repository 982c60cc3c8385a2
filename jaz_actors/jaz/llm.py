"""JAZ's names for model backends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaz_actors.backends.openai import OpenAI
from jaz_actors.backends.retry import Retrying, RetryPolicy
from jaz_actors.backends.sglang import SGLang as SGLangLLM
from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Completion, Usage
from jaz_actors.protocols import Backend, CompletionRequest

__all__ = ["BaseLLM", "LLMResponse", "LiteLLM", "MockLLM", "ModelInfo", "RetryPolicy", "SGLangLLM"]

MessageDict = dict[str, str]


@dataclass(frozen=True, slots=True)
class LLMResponse:
    """One answer, as a `BaseLLM` gives it. `extra` is for the backend's own use."""

    content: str | None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str | None = None
    can_report_cost: bool = False
    max_input_tokens: int | None = None


class BaseLLM:
    """A backend of one's own: override `complete`, which may block. It is pickled to each host and runs there."""

    model_info: Any = ModelInfo()

    def __init__(self, retry_policy: RetryPolicy | None = None) -> None:
        self.retry_policy = retry_policy or RetryPolicy()

    def complete(self, messages: list[MessageDict]) -> LLMResponse | str:
        raise NotImplementedError


class MockLLM(BaseLLM):
    """Answers from a function of the messages, which gives a text or an LLMResponse."""

    def __init__(self, answer: Callable[[list[MessageDict]], LLMResponse | str]) -> None:
        super().__init__()
        self._answer = answer

    def complete(self, messages: list[MessageDict]) -> LLMResponse | str:
        return self._answer(messages)


class _Adapted:
    """A BaseLLM as the runtime calls backends."""

    def __init__(self, llm: BaseLLM) -> None:
        self._llm = llm

    @property
    def model(self) -> str:
        return self._llm.model_info.name or type(self._llm).__name__

    @property
    def reports_cost(self) -> bool:
        return bool(self._llm.model_info.can_report_cost)

    @property
    def context_length(self) -> int | None:
        length: int | None = self._llm.model_info.max_input_tokens
        return length

    async def complete(self, request: CompletionRequest) -> Completion:
        messages = [{"role": m.role, "content": m.content} for m in request.messages]
        answer = await asyncio.to_thread(self._llm.complete, messages)
        return completion(LLMResponse(answer) if isinstance(answer, str) else answer, self.model)

    async def aclose(self) -> None:
        pass


def completion(response: LLMResponse, model: str = "") -> Completion:
    usage = Usage(response.prompt_tokens, response.completion_tokens, response.cached_tokens, response.cost_usd)
    return Completion(response.content or "", model=model, usage=usage)


def as_backend(llm: Backend | BaseLLM | None) -> Backend | None:
    if isinstance(llm, BaseLLM):
        return Retrying(_Adapted(llm), llm.retry_policy)
    return llm


def LiteLLM(
    model: str,
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    retry_policy: RetryPolicy | None = None,
    **query_params: Any,
) -> OpenAI:
    """A model of an OpenAI-compatible server, under its LiteLLM name `openai/NAME`.

    Raises ConfigurationError for the routes of other providers: give such a server's OpenAI-compatible URL as
    `api_base` to a name that begins with `openai/`.
    """
    route, _, name = model.rpartition("/")
    if route not in ("", "openai"):
        raise ConfigurationError("model", f"{route!r} is routed by LiteLLM alone; use openai/NAME and api_base")
    url: dict[str, Sequence[str] | str] = {} if api_base is None else {"base_url": api_base}
    return OpenAI(
        name, api_key=api_key, temperature=temperature, max_tokens=max_tokens, retry=retry_policy,
        extra_body=query_params, **url,  # type: ignore[arg-type]
    )  # fmt: skip
