"""SGLang's /generate as data: the request body, and the answer checked strictly. Pure; knows no transport.

An answer is trained on, so one whose ids, log-probabilities and counts do not agree is refused, never
repaired.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from jaz_actors.backends.refusals import is_context_overflow
from jaz_actors.errors import ConfigurationError, ContextOverflow, GenerationAborted, MalformedResponse
from jaz_actors.messages import FinishReason

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class Sampling(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How the server is to draw tokens. None leaves a field to the server, and unsent.

    Log-probabilities are those of the temperature-scaled distribution, before top_p, top_k and min_p.
    Raises ConfigurationError for impossible values.
    """

    temperature: float = 1.0
    max_new_tokens: int = 512
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        possible = {
            "temperature": 0 <= self.temperature < math.inf,
            "max_new_tokens": self.max_new_tokens >= 0,
            "top_p": 0 < self.top_p <= 1,
            "top_k": self.top_k is None or self.top_k == -1 or self.top_k >= 1,
            "min_p": self.min_p is None or 0 <= self.min_p <= 1,
        }
        for name, fine in possible.items():
            if not fine:
                raise ConfigurationError(name, f"{getattr(self, name)!r} cannot be sampled with")


class Generated(msgspec.Struct, frozen=True):
    """A checked answer: [N] ids, their [N] log-probabilities, and the server's counts.

    stopped_by: the id that ended it, where an id did.
    """

    output_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stopped_by: int | None
    prompt_tokens: int
    cached_tokens: int | None
    weight_version: str | None


class _Finish(msgspec.Struct, frozen=True):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _Finish | str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | int | None = None
    output_token_logprobs: list[tuple[float, int, str | None]] | None = None
    output_token_logprobs_length: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    meta_info: _Meta
    output_ids: list[int] | None = None


class _Outline(msgspec.Struct, frozen=True):
    """How an answer ended, which is looked at before what an aborted one may lack."""

    class Meta(msgspec.Struct, frozen=True):
        finish_reason: _Finish | str

    meta_info: Meta


_answers = msgspec.json.Decoder(_Answer)
_outlines = msgspec.json.Decoder(_Outline)


def generate_body(
    prompt_ids: list[int],
    sampling: Sampling,
    *,
    rid: str,
    stop_ids: tuple[int, ...],
    weight_version: str | None,
) -> bytes:
    """`weight_version` names the prefix cache to use: what old weights computed must not serve new ones."""
    drawn = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    body: dict[str, Any] = {
        "input_ids": prompt_ids,
        "sampling_params": {name: value for name, value in drawn.items() if value is not None}
        # Anything that trims or hides sampled tokens would part the ids from their log-probabilities.
        | {"no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
        | ({"stop_token_ids": list(stop_ids)} if stop_ids else {}),
        "return_logprob": True,
        "rid": rid,
    }
    if weight_version is not None:
        body["extra_key"] = weight_version
    return msgspec.json.encode(body)


def read_generated(backend: str, data: bytes, *, prompt_length: int, vocabulary: int) -> Generated:
    """Raises MalformedResponse; for an abort GenerationAborted, or ContextOverflow where that was why."""
    try:
        _refuse_aborted(backend, _finish_of(_outlines.decode(data).meta_info))
        answer = _answers.decode(data)
    except msgspec.DecodeError as error:
        raise MalformedResponse(backend, f"{error}: {data[:200]!r}") from error
    meta, ids, entries = answer.meta_info, answer.output_ids, answer.meta_info.output_token_logprobs
    if ids is None or entries is None:
        raise MalformedResponse(backend, "the answer lacks output_ids or output_token_logprobs")
    logprobs = [entry[0] for entry in entries]
    problem = _disagreement(ids, entries, meta, prompt_length=prompt_length, vocabulary=vocabulary)
    if problem is not None:
        raise MalformedResponse(backend, problem)
    finish = _finish_of(meta)
    return Generated(
        ids,
        logprobs,
        _FINISH.get(finish.type, "unknown"),
        finish.matched if isinstance(finish.matched, int) else None,
        prompt_length,
        meta.cached_tokens,
        None if meta.weight_version is None else str(meta.weight_version),
    )


def _finish_of(meta: _Meta | _Outline.Meta) -> _Finish:
    """Older servers give the bare type."""
    return _Finish(meta.finish_reason) if isinstance(meta.finish_reason, str) else meta.finish_reason


def _refuse_aborted(backend: str, finish: _Finish) -> None:
    if finish.type != "abort":
        return
    message = finish.message or "the server ended the request before it was complete"
    error = ContextOverflow if is_context_overflow(message) else GenerationAborted
    raise error(backend, message, finish.status_code)


def _disagreement(
    ids: list[int],
    entries: list[tuple[float, int, str | None]],
    meta: _Meta,
    *,
    prompt_length: int,
    vocabulary: int,
) -> str | None:
    """What is wrong with the answer, None if nothing is."""
    counts = {"output_token_logprobs": len(entries), "completion_tokens": meta.completion_tokens}
    if meta.output_token_logprobs_length is not None:
        counts["output_token_logprobs_length"] = meta.output_token_logprobs_length
    for name, count in counts.items():
        if count != len(ids):
            return f"{len(ids)} output ids, but {name} is {count}"
    if meta.prompt_tokens != prompt_length:
        return f"{prompt_length} prompt ids were sent, but prompt_tokens is {meta.prompt_tokens}"
    for index, (token, (logprob, scored, _)) in enumerate(zip(ids, entries, strict=True)):
        if token != scored:
            return f"output id {index} is {token}, but its log-probability is for {scored}"
        if not 0 <= token < vocabulary:
            return f"output id {index} is {token}, outside the vocabulary of {vocabulary}"
        if not math.isfinite(logprob):
            return f"the log-probability of output id {index} is {logprob}"
    return None
