"""Draw one token for every row of a batch at once. Knows tensors, no request and no model.

A row's randomness is a hash of its seed and of how many tokens it has drawn: what it draws does not depend on which
other rows there are, and no generator has to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from jaz_actors.backends.embedded.sampling import SamplingParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0**-53

UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """ids: [B] int64. logprobs: [B], natural logarithm. all: [B, V], those of every token."""

    ids: torch.Tensor
    logprobs: torch.Tensor
    all: torch.Tensor


class Controls:
    """Sampling parameters of all rows as tensors, so that no step looks at a row in Python. Belongs to one batch."""

    def __init__(self, rows: int) -> None:
        self._temperature = torch.ones(rows)
        self._greedy = torch.ones(rows, dtype=torch.bool)
        self._top_p = torch.ones(rows)
        self._top_k = torch.ones(rows, dtype=torch.long)
        self._min_p = torch.zeros(rows)
        self._truncates = torch.zeros(rows, dtype=torch.bool)
        self._seeds: UInt64s = np.zeros(rows, dtype=np.uint64)
        self._drawn: UInt64s = np.zeros(rows, dtype=np.uint64)

    def set_row(self, row: int, params: SamplingParams, *, seed: int, drawn: int = 0) -> None:
        """drawn: tokens that the row's sequence has drawn already."""
        self._greedy[row] = params.is_greedy
        self._temperature[row] = 1.0 if params.is_greedy else params.temperature
        self._top_p[row] = params.top_p
        self._top_k[row] = params.top_k if params.top_k > 0 else torch.iinfo(torch.long).max
        self._min_p[row] = params.min_p
        self._truncates[row] = not params.is_greedy and (params.top_p < 1 or params.top_k > 0 or params.min_p > 0)
        # Mixed first, so that neighbouring seeds are unrelated.
        self._seeds[row] = _mixed(np.array([seed % 2**64], dtype=np.uint64))[0]
        self._drawn[row] = drawn

    def move_row(self, source: int, target: int) -> None:
        tensors = (self._greedy, self._temperature, self._top_p, self._top_k, self._min_p, self._truncates)
        for tensor in tensors:
            tensor[target] = tensor[source]
        self._seeds[target] = self._seeds[source]
        self._drawn[target] = self._drawn[source]

    def draw(self, logits: torch.Tensor) -> Drawn:
        """logits: [B, V] float32, of the first B rows.

        The probabilities reported are those of the temperature-scaled distribution before top-p, top-k and min-p; of
        a greedy row, those at temperature 1.
        """
        rows = logits.shape[0]
        logprobs = torch.log_softmax(logits / self._temperature[:rows, None], dim=-1)
        greedy = self._greedy[:rows]
        ids = logits.argmax(dim=-1)
        if not bool(greedy.all()):
            ids = torch.where(greedy, ids, self._sampled(logprobs.exp()))
        self._drawn[:rows] += np.uint64(1)
        return Drawn(ids, logprobs.gather(1, ids[:, None])[:, 0], logprobs)

    def _sampled(self, probabilities: torch.Tensor) -> torch.Tensor:
        rows = probabilities.shape[0]
        uniforms = torch.from_numpy(_uniforms(self._seeds[:rows], self._drawn[:rows]))
        if not bool(self._truncates[:rows].any()):
            return _inverse(probabilities, uniforms)
        # The weights go back to their own order: a row must draw the same whether or not others are truncated.
        return _inverse(probabilities * self._kept(probabilities), uniforms)

    def _kept(self, probabilities: torch.Tensor) -> torch.Tensor:
        rows = probabilities.shape[0]
        ordered, order = probabilities.sort(dim=-1, descending=True)
        keep = ordered.cumsum(-1) - ordered < self._top_p[:rows, None]
        keep &= torch.arange(ordered.shape[1]) < self._top_k[:rows, None]
        keep &= ordered >= self._min_p[:rows, None] * ordered[:, :1]
        return torch.zeros_like(keep).scatter(1, order, keep) | ~self._truncates[:rows, None]


def top_of(logprobs: torch.Tensor, count: int) -> list[tuple[float, int]]:
    """logprobs: [V]. The likeliest tokens first."""
    found = logprobs.topk(min(count, logprobs.shape[-1]))
    return list(zip(found.values.tolist(), found.indices.tolist(), strict=True))


def picked_of(logprobs: torch.Tensor, ids: Sequence[int]) -> list[tuple[float, int]]:
    """logprobs: [V]. The given tokens, in their order."""
    return list(zip(logprobs[list(ids)].tolist(), ids, strict=True))


def _inverse(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Where the cumulated weights [B, V] pass the given part [B] of their sum; never at a weight of 0."""
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1]
    targets = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, targets[:, None], right=True)[:, 0]


def _uniforms(seeds: UInt64s, drawn: UInt64s) -> npt.NDArray[np.float64]:
    """In [0, 1), by splitmix64."""
    return (_mixed(seeds + drawn * _GOLDEN) >> np.uint64(11)).astype(np.float64) * _UNIT


def _mixed(values: UInt64s) -> UInt64s:
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
