"""Sampling parameters as `/generate` takes them, checked. Knows no tensor and no server.

Field names and defaults are those of SGLang's native API (0.5.23).
"""

from __future__ import annotations

from typing import Any

import msgspec

GREEDY_BELOW = 1e-6


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Raises msgspec.ValidationError for wrong types, ValueError for values that are impossible or not served here."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    stream_interval: int | None = None

    # Known to the API and not served here: refused unless left at these values.
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    stop_regex: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    custom_params: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be non-negative, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.top_k < -1 or self.top_k == 0:
            raise ValueError(f"top_k must be -1 (disable) or at least 1, got {self.top_k}.")
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be at least 0, got {self.max_new_tokens}.")
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}.")
        refused = next((name for name, value in _NOT_SERVED.items() if getattr(self, name) != value), None)
        if refused is not None:
            raise ValueError(f"{refused} is not supported by the embedded engine.")

    @property
    def stop_strings(self) -> list[str]:
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [string for string in strings if string]

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


_NOT_SERVED: dict[str, object] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    **dict.fromkeys(("stop_regex", "logit_bias", "json_schema", "regex", "ebnf", "structural_tag", "custom_params")),
}


def field_names() -> tuple[str, ...]:
    return SamplingParams.__struct_fields__
