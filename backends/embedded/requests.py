"""The body of `/generate`, checked and spread into one prompt a sequence. Knows no engine and no HTTP library.

A refusal carries the very body that SGLang 0.5.23 answers with 400: it has three shapes, and clients must accept all.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from jaz_actors.backends.embedded.sampling import SamplingParams, field_names
from jaz_actors.backends.embedded.sequence import NOTHING, Wanted


class Refused(Exception):
    """Answered with 400 and this body."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body)
        self.body = body

    @classmethod
    def because(cls, message: str) -> Refused:
        return cls({"error": {"message": message}})

    @classmethod
    def malformed(cls, message: str) -> Refused:
        return cls({"object": "error", "message": message})


class Limits(Protocol):
    """What a prompt is checked against."""

    @property
    def context(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


class Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


class GenerateBody(msgspec.Struct, kw_only=True):
    """Unknown fields are ignored, as SGLang does."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    return_text_in_logprobs: bool = False
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_prompt_token_ids: bool = False

    # Known to the API and not served here: refused when they ask for something.
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_entropy: Any = None
    lora_path: Any = None
    session_params: Any = None
    input_embeds: Any = None
    image_data: Any = None


NOT_SERVED = (
    *("return_hidden_states", "return_routed_experts", "return_entropy"),
    *("lora_path", "session_params", "input_embeds", "image_data"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One sequence to generate."""

    rid: str
    token_ids: list[int]
    params: SamplingParams
    seed: int
    extra_key: str | None
    wants: Wanted


@dataclass(frozen=True, slots=True)
class Prompts:
    """What one body asks for. is_list: whether the answer is a list."""

    body: GenerateBody
    rid: str
    prompts: list[Prompt]
    is_list: bool


_decoder = msgspec.json.Decoder(GenerateBody)


def parse(data: bytes, *, limits: Limits, encoder: Encoder) -> Prompts:
    """Raises Refused."""
    try:
        body = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise Refused.malformed(str(error)) from error
    asked = next((name for name in NOT_SERVED if getattr(body, name)), None)
    if asked is not None:
        raise Refused.because(f"{asked} is not supported by the embedded engine.")
    token_ids, is_list = _token_ids(body, encoder)
    count = len(token_ids)
    params = [_sampling(given) for given in _each("sampling_params", body.sampling_params or {}, count)]
    keys = _each("extra_key", body.extra_key, count)
    wants = _wants(body, count)
    for ids, one, wanted in zip(token_ids, params, wants, strict=True):
        _check(ids, one, limits)
        _check_known(wanted.ids, limits)
    samples = sum(one.n for one in params)
    rid = body.rid if isinstance(body.rid, str) else uuid.uuid4().hex
    rids = iter(_rids(body.rid, rid, [one.n for one in params], samples))
    prompts = [
        Prompt(next(rids), ids, one, _seed(one, sample), key, wanted if body.return_logprob else NOTHING)
        for ids, one, key, wanted in zip(token_ids, params, keys, wants, strict=True)
        for sample in range(one.n)
    ]
    return Prompts(body, rid, prompts, is_list or samples > count)


def _wants(body: GenerateBody, count: int) -> list[Wanted]:
    """Which alternatives each prompt's tokens are reported with."""
    tops = [top or 0 for top in _each("top_logprobs_num", body.top_logprobs_num, count)]
    if min(tops) < 0:
        raise Refused.because(f"top_logprobs_num must be at least 0, got {min(tops)}.")
    given = body.token_ids_logprob or []
    flat = [token for token in given if isinstance(token, int)]
    if flat and len(flat) != len(given):
        raise Refused.malformed("token_ids_logprob must be a list of ids or a list of such lists, not both")
    picks = [flat] * count if flat or not given else _each("token_ids_logprob", given, count)
    return [Wanted(top, tuple(ids)) for top, ids in zip(tops, picks, strict=True)]


def _token_ids(body: GenerateBody, encoder: Encoder) -> tuple[list[list[int]], bool]:
    """The prompts, and whether they came as a list."""
    if body.input_ids is not None:
        nested = [ids for ids in body.input_ids if isinstance(ids, list)]
        flat = [token for token in body.input_ids if isinstance(token, int)]
        if nested and flat:
            raise Refused.malformed("input_ids must be a list of ids or a list of such lists, not both")
        prompts, is_list = (nested, True) if nested else ([flat], False)
    elif body.text is not None:
        is_list = isinstance(body.text, list)
        texts = body.text if isinstance(body.text, list) else [body.text]
        prompts = [encoder.encode(text) for text in texts]
    else:
        raise Refused.because("Either text, input_ids or input_embeds should be provided.")
    if not prompts or not all(prompts):
        raise Refused.because("input_ids cannot be empty.")
    return prompts, is_list


def _each(name: str, value: Any, count: int) -> list[Any]:
    """One value a prompt: a list has one for each, anything else is for all."""
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count:
        raise Refused.because(f"{name} has {len(values)} entries for {count} prompts.")
    return values


def _rids(given: str | list[str] | None, rid: str, samples: list[int], total: int) -> list[str]:
    if isinstance(given, list):
        names = _each("rid", given, len(samples))
        pairs = zip(names, samples, strict=True)
        rids = [name if n == 1 else f"{name}_{sample}" for name, n in pairs for sample in range(n)]
    else:
        rids = [rid] if total == 1 else [f"{rid}_{index}" for index in range(total)]
    if len(set(rids)) != len(rids):
        raise Refused.because("Duplicate request ID in one batch.")
    return rids


def _sampling(given: dict[str, Any]) -> SamplingParams:
    unknown = sorted(given.keys() - set(field_names()))
    if unknown:
        expected = ", ".join(f"`{name}`" for name in field_names())
        raise Refused({"error": f"unknown field `{unknown[0]}`, expected one of {expected}"})
    try:
        # A null stands for the default.
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, SamplingParams)
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused.because(str(error)) from error


def _check(token_ids: list[int], params: SamplingParams, limits: Limits) -> None:
    count, context = len(token_ids), limits.context
    if count >= context:
        raise Refused.because(
            f"The input ({count} tokens) is longer than the model's context length ({context} tokens)."
        )
    if count + params.max_new_tokens > context:
        raise Refused.because(
            f"Requested token count exceeds the model's maximum context length of {context} tokens: "
            f"{count} tokens of the input and {params.max_new_tokens} for the completion."
        )
    _check_known(token_ids, limits)


def _check_known(token_ids: Iterable[int], limits: Limits) -> None:
    outside = next((token for token in token_ids if not 0 <= token < limits.vocabulary), None)
    if outside is not None:
        raise Refused.because(f"Token id {outside} is outside the vocabulary of {limits.vocabulary} tokens.")


def _seed(params: SamplingParams, sample: int) -> int:
    """Samples of one seeded prompt differ from each other, in the same way every time."""
    return secrets.randbits(64) if params.sampling_seed is None else params.sampling_seed + sample
