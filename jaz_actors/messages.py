"""Messages, completions and what a model was asked. Plain records; knows no backend and no loop."""

from __future__ import annotations

from typing import Any, Literal

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


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Items `start` to `end` of a list, `end` not among them."""

    start: int
    end: int


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Sampled ids `start` to `end` (exclusive) come from weights between `oldest` and `newest`, both included.

    The two are the same where the server says which ids it sampled with which weights; else `oldest` is the version
    when the request was sent and `newest` the one in the answer. None is not known.
    """

    start: int
    end: int
    oldest: str | None
    newest: str | None


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """What one request sampled: ids `start` to `end` (exclusive) of an answer that took several.

    The versions are those at submission and at return of that request. A request that a server broke off, for
    example to update its weights, is followed by one that goes on from what it had.
    """

    start: int
    end: int
    version_at_submit: str | None
    version_at_return: str | None


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Whose the next `length` ids of a prompt are.

    message:  the number of the message that contributes them; None for where the answer begins.
    turn:     the turn that sampled them, None where they were made from the message's text.
    """

    message: int | None
    length: int
    turn: int | None = None


class SampledTokens(msgspec.Struct, frozen=True):
    """What a token-native server was sent and what it sampled.

    prompt_ids:  [P] ids sent.
    output_ids:  [N] ids sampled, the one that ended the answer included.
    logprobs:    [N] natural-log probability of each sampled id at the sampling temperature.
    version_at_submit / version_at_return: the weight version when the (first) request was sent and when the (last)
                 answer came back.
    segments:    the requests that it took; one in most cases.
    versions:    which weights sampled which ids; together they cover all N.
    stamps:      whose the prompt ids are; their lengths sum to P. One a message and a last one for the answer's
                 beginning; none where the backend does not say.
    suffix_ids:  ids that stand between this answer and the next message in later prompts; not sampled.
    reasoning:   the sampled ids that are not shown, tags included.
    kept:        whether later prompts hold the sampled ids; else the visible text is encoded anew.
    sampling:    the sampling parameters as sent.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    version_at_submit: str | None = None
    version_at_return: str | None = None
    segments: tuple[Segment, ...] = ()
    versions: tuple[VersionSpan, ...] = ()
    stamps: tuple[Stamp, ...] = ()
    suffix_ids: list[int] = []
    reasoning: Span | None = None
    kept: bool = True
    sampling: dict[str, Any] = {}


class Completion(msgspec.Struct, frozen=True):
    """One answer of a model. `content` is the visible text; an empty answer is the empty string."""

    content: str
    finish_reason: FinishReason = "stop"
    model: str = ""
    usage: Usage = Usage()
    tokens: SampledTokens | None = None
