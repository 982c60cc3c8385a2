"""Messages, completions and what a model was asked. Plain records; knows no backend and no loop."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant"]
MessageKind = Literal["seed", "assistant", "observation", "added"]
FinishReason = Literal["stop", "length", "abort", "content_filter", "unknown"]


class Message(msgspec.Struct, frozen=True):
    """One entry of an invocation's buffer, with where it came from.

    `number` is unique within the invocation and never reused, so that an edit or a token stamp can name the
    message; `iteration` is the turn that made it, None for seed messages. Hooks that shorten the buffer leave seed
    messages and `pinned` ones alone.
    """

    role: Role
    content: str
    kind: MessageKind
    number: int
    iteration: int | None = None
    pinned: bool = False


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one completion; None where the server does not tell. `cost_usd` is in US dollars."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None


class SampledTokens(msgspec.Struct, frozen=True):
    """What a token-native server was sent and what it sampled.

    prompt_ids:  [P] ids sent.
    output_ids:  [N] ids sampled.
    logprobs:    [N] natural-log probability of each sampled id at the sampling temperature.
    version_at_submit / version_at_return: the weight version when the request was sent and when it came back.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    version_at_submit: str | None = None
    version_at_return: str | None = None


class Completion(msgspec.Struct, frozen=True):
    """One answer of a model. `content` is the visible text; an empty answer is the empty string."""

    content: str
    finish_reason: FinishReason = "stop"
    model: str = ""
    usage: Usage = Usage()
    tokens: SampledTokens | None = None
