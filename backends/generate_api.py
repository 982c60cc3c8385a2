"""SGLang's /generate as data: the request body, and the answer checked strictly. Pure; knows no transport.

An answer is trained on, so one whose ids, log-probabilities and counts do not agree is refused, never
repaired.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from jaz_actors.backends.refusals import Explanation, error_of, is_context_overflow
from jaz_actors.errors import (
    BackendError,
    ConfigurationError,
    ContextOverflow,
    GenerationAborted,
    MalformedResponse,
)
from jaz_actors.messages import FinishReason, VersionSpan

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}

# Servers put large negative numbers in place of minus infinity; no sampled token is that unlikely.
LEAST_LOGPROB: Final = -1000.0
# Rounding may give a sure token a little more than certainty.
MOST_LOGPROB: Final = 1e-3


_COUNTS = ("max_new_tokens", "top_k", "sampling_seed")
_OPTIONAL = ("top_k", "min_p", "ignore_eos", "sampling_seed")


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
        for name in self.__struct_fields__:
            value = getattr(self, name)
            wanted = bool if name == "ignore_eos" else int if name in _COUNTS else (int, float)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ConfigurationError(name, f"{value!r} cannot be sampled with")
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

    def parameters(self, stop_ids: tuple[int, ...], *, most: int | None = None, sampled: int = 0) -> dict[str, Any]:
        """The `sampling_params` of a request, `sampled` ids after the beginning of the answer.

        most:  ids of the whole answer, in place of `max_new_tokens`.
        """
        drawn = {name: getattr(self, name) for name in self.__struct_fields__}
        drawn["max_new_tokens"] = (self.max_new_tokens if most is None else most) - sampled
        if sampled and self.sampling_seed is not None:
            drawn["sampling_seed"] += sampled  # the same draws must not come again
        return (
            {name: value for name, value in drawn.items() if value is not None}
            # Anything that trims or hides sampled tokens would part the ids from their log-probabilities.
            | {"no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
            | ({"stop_token_ids": list(stop_ids)} if stop_ids else {})
        )


class Generated(msgspec.Struct, frozen=True):
    """A checked answer: [N] ids, their [N] log-probabilities, and the server's counts.

    stopped_by:      the id that ended it, where an id did.
    weight_version:  the server's label when it answered.
    versions:        which weights sampled which ids, where the server tells.
    aborted:         why the server broke it off, None where it is complete.
    """

    output_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stopped_by: int | None
    prompt_tokens: int
    cached_tokens: int | None
    weight_version: str | None
    versions: tuple[VersionSpan, ...] = ()
    aborted: BackendError | None = None


class _Finish(msgspec.Struct, frozen=True):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: str | None = None


class _Versions(msgspec.Struct, frozen=True):
    version: str | int | None
    start: int
    end: int


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _Finish | str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | int | None = None
    weight_versions: list[_Versions] | None = None
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
    parameters: dict[str, Any],
    *,
    rid: str,
    weight_version: str | None,
    session: str,
) -> bytes:
    """The request.

    weight_version:  names the prefix cache to use: what old weights computed must not serve new ones.
    session:         the same for all requests of an invocation, for routers that keep them on one server.
    """
    body: dict[str, Any] = {
        "input_ids": prompt_ids,
        "sampling_params": parameters,
        "return_logprob": True,
        "rid": rid,
        "routing_key": session,
    }
    if weight_version is not None:
        body["extra_key"] = weight_version
    return msgspec.json.encode(body)


def read_generated(backend: str, data: bytes, *, prompt_length: int, vocabulary: int) -> Generated:
    """Raises MalformedResponse, and for a request that the server ended before anything was sampled, the reason."""
    try:
        finish = _finish_of(_outlines.decode(data).meta_info)
        aborted = _aborted(backend, finish)
        answer = _answers.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedResponse(backend, f"{error}: {data[:200]!r}") from error
    meta, ids, entries = answer.meta_info, answer.output_ids, answer.meta_info.output_token_logprobs
    if aborted is not None and not ids:
        raise aborted
    if ids is None or entries is None:
        raise MalformedResponse(backend, "the answer lacks output_ids or output_token_logprobs")
    problem = _disagreement(ids, entries, meta, prompt_length=prompt_length, vocabulary=vocabulary)
    if problem is not None:
        raise MalformedResponse(backend, problem)
    return Generated(
        ids,
        [entry[0] for entry in entries],
        _FINISH.get(finish.type, "unknown"),
        finish.matched if isinstance(finish.matched, int) else None,
        prompt_length,
        meta.cached_tokens,
        _label(meta.weight_version),
        tuple(VersionSpan(s.start, s.end, _label(s.version), _label(s.version)) for s in meta.weight_versions or ()),
        aborted,
    )


def _label(version: str | int | None) -> str | None:
    return None if version is None else str(version)


def _finish_of(meta: _Meta | _Outline.Meta) -> _Finish:
    """Older servers give the bare type."""
    return _Finish(meta.finish_reason) if isinstance(meta.finish_reason, str) else meta.finish_reason


def _aborted(backend: str, finish: _Finish) -> BackendError | None:
    """Why a request was ended: an error where the server gives one, else only that it was."""
    if finish.type != "abort":
        return None
    message = finish.message or "the server ended the request before it was complete"
    if is_context_overflow(message):
        return ContextOverflow(backend, message, finish.status_code)
    if finish.status_code is not None and finish.status_code >= 400:
        return error_of(backend, finish.status_code, Explanation(message, finish.err_type or ""))
    return GenerationAborted(backend, message, finish.status_code)


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
        if not LEAST_LOGPROB < logprob <= MOST_LOGPROB:  # NaN is neither
            return f"the log-probability of output id {index} is {logprob}"
    return _gap(meta.weight_versions, len(ids))


def _gap(spans: list[_Versions] | None, count: int) -> str | None:
    """Spans of versions that are told must say of every id which weights sampled it."""
    at = 0
    for span in spans or ():
        if span.start != at or span.end < at:
            return f"weight_versions leave a gap or overlap at output id {at}"
        at = span.end
    return f"weight_versions end at {at} of {count} output ids" if spans and at != count else None
