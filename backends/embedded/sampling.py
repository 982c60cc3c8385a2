"""Sampling parameters as `/generate` takes them, and drawing a token for every row of a batch. Knows no server.

Field names and defaults are those of SGLang's native API (0.5.23).
"""

from __future__ import annotations

import msgspec
import torch

GREEDY_BELOW = 1e-6


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Raises msgspec.ValidationError for unknown keys and wrong types, ValueError for impossible values."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    min_new_tokens: int = 0
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None

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

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def draw(
    logits: torch.Tensor, rows: list[SamplingParams], generators: list[torch.Generator | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row.

    logits: [B, V] float32. Returns ids [B] and their natural-log probabilities [B] under the temperature-scaled
    distribution before top-p, top-k and min-p (at temperature 0: the unscaled one).
    """
    temperatures = torch.tensor([1.0 if row.is_greedy else row.temperature for row in rows])
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    if all(row.is_greedy for row in rows):
        ids = logits.argmax(dim=-1)
    else:
        probabilities = logprobs.exp()
        for index, row in enumerate(rows):
            if not row.is_greedy and (row.top_p < 1 or row.top_k > 0 or row.min_p > 0):
                probabilities[index] = _truncated(probabilities[index], row)
        # The smallest of independent exponentials divided by their rates falls on i with probability p_i.
        waits = torch.empty_like(probabilities).exponential_()
        for index, generator in enumerate(generators):
            if generator is not None:
                waits[index] = torch.empty_like(waits[index]).exponential_(generator=generator)
        ids = (probabilities / waits).argmax(dim=-1)
        greedy = torch.tensor([row.is_greedy for row in rows])
        ids = torch.where(greedy, logits.argmax(dim=-1), ids)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


def _truncated(probabilities: torch.Tensor, row: SamplingParams) -> torch.Tensor:
    ordered, order = probabilities.sort(descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if row.top_k > 0:
        keep[row.top_k :] = False
    if row.top_p < 1:
        keep &= ordered.cumsum(0) - ordered < row.top_p
    if row.min_p > 0:
        keep &= ordered >= row.min_p * ordered[0]
    kept = torch.zeros_like(probabilities)
    kept[order[keep]] = ordered[keep]
    return kept


def generator_for(params: SamplingParams, *, branch: int) -> torch.Generator | None:
    if params.sampling_seed is None:
        return None
    generator = torch.Generator()
    generator.manual_seed(params.sampling_seed + branch)
    return generator


def field_names() -> str:
    return ", ".join(f"`{name}`" for name in SamplingParams.__struct_fields__)
