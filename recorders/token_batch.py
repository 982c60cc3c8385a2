"""Rollouts as tensors without padding: samples one after the other, or a tree of ids. Needs torch.

Both are forests of T ids, each after all that it was conditioned on: `ends` says which ids see which, `before` says
whose logits foretell an id. So one model call and one loss serve both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from jaz_actors.errors import ConfigurationError
from jaz_actors.recorders.samples import Sample
from jaz_actors.recorders.token_tree import TokenTree, TreePart

IGNORED = -100  # the label that torch.nn.functional.cross_entropy and transformers leave out


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """T ids as one row. What is per id is 0 (temperatures: 1) where `loss_mask` is False.

    input_ids:    [1, T] int64.
    position_ids: [1, T] int64, how many ids stand before it among those that it was conditioned on.
    loss_mask:    [1, T] bool, True on sampled ids.
    logprobs:     [1, T] float32 as sampled.
    temperatures: [1, T] float32 that they are at.
    advantages:   [1, T] float32, that of its rollout on each sampled id.
    before:       [T] int64, the place of the id before it, -1 for the first of a sequence.
    ends:         [T] int64: the id at place k is seen by those at k to ends[k] - 1, and by no other.
    invoke_ids:   whose ids are here.
    """

    input_ids: Tensor
    position_ids: Tensor
    loss_mask: Tensor
    logprobs: Tensor
    temperatures: Tensor
    advantages: Tensor
    before: Tensor
    ends: Tensor
    invoke_ids: tuple[str, ...]

    def attention_mask(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[1, 1, T, T], to be added to scores: 0 where the id of a row sees that of a column, else the least number.

        With torch.bool: True where it does, which transformers' eager attention takes wrongly and without a word. As
        large as T x T: see `sees`.
        """
        at = torch.arange(len(self.ends), device=self.ends.device)
        seen = ((at[None] <= at[:, None]) & (at[:, None] < self.ends[None]))[None, None]
        if dtype == torch.bool:
            return seen
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)

    @property
    def sees(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The same as a `mask_mod` of `torch.nn.attention.flex_attention`, which needs no T x T in memory."""
        ends = self.ends

        def mask_mod(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return (column <= row) & (row < ends[column])

        return mask_mod

    def token_logprobs(self, logits: Tensor) -> Tensor:
        """[1, T] float32 of the ids in `input_ids` at `temperatures`; comparable with `logprobs`, differentiable.

        logits: [1, T, V] of a model that was given `input_ids`, `position_ids` and what says who sees whom. 0 where
        `loss_mask` is False.
        """
        here = self.loss_mask[0].nonzero()[:, 0]
        scaled = logits[0, self.before[here]].float() / self.temperatures[0, here, None]
        found = scaled.log_softmax(-1).gather(-1, self.input_ids[0, here, None])[:, 0]
        return torch.zeros_like(self.logprobs).index_put((torch.zeros_like(here), here), found)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """What a DataLoader with `pin_memory=True` calls."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {n: change(value) for n, value in fields.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **changed)


@dataclass(frozen=True, slots=True)
class PackedBatch(TokenBatch):
    """S samples one after the other.

    cu_seqlens: [S + 1] int32, where each begins and the last ends, as FlashAttention's varlen functions take them.
    max_seqlen: ids of the longest.

    A transformers model that is given no `attention_mask` and `use_cache=False` keeps them apart by `position_ids`.
    """

    cu_seqlens: Tensor
    max_seqlen: int

    @property
    def labels(self) -> Tensor:
        """[1, T] int64: `input_ids` where they were sampled, else -100. Not shifted: transformers does that itself.

        Only here: in a tree, the id before another one need not stand before it.
        """
        return self.input_ids.masked_fill(~self.loss_mask, IGNORED)


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A `Sample` in as few bytes as it takes: input_ids [N] int64, loss_mask [N] bool, logprobs [N] float32,
    temperatures [N] float32. advantage: of its rollout."""

    invoke_id: str
    input_ids: Tensor
    loss_mask: Tensor
    logprobs: Tensor
    temperatures: Tensor
    advantage: float

    @classmethod
    def of(cls, sample: Sample, advantage: float) -> TrainingSample:
        """Raises ConfigurationError for a sample whose fields differ in length and an advantage that is not finite."""
        lengths = {len(sample.ids), len(sample.loss_mask), len(sample.logprobs), len(sample.temperatures)}
        if len(lengths) > 1:
            raise ConfigurationError("samples", f"one of {sample.invoke_id} has fields of {sorted(lengths)} ids")
        return cls(
            sample.invoke_id,
            torch.tensor(sample.ids, dtype=torch.int64),
            torch.tensor(sample.loss_mask, dtype=torch.bool),
            torch.tensor(sample.logprobs, dtype=torch.float32),
            torch.tensor(sample.temperatures, dtype=torch.float32),
            _finite(sample.invoke_id, advantage),
        )

    def __len__(self) -> int:
        return len(self.input_ids)


def pack(samples: Sequence[TrainingSample]) -> PackedBatch:
    """One row of samples, in their order. A DataLoader's `collate_fn`.

    Raises ConfigurationError for none, and for one whose first id was sampled: no logits foretell it.
    """
    if not samples:
        raise ConfigurationError("samples", "must be one or more, got none")
    lengths = [len(sample) for sample in samples]
    starts = [0, *accumulate(lengths)]
    position_ids = torch.cat([torch.arange(length) for length in lengths])
    before = torch.arange(-1, starts[-1] - 1)
    before[position_ids == 0] = -1
    loss_mask = torch.cat([sample.loss_mask for sample in samples])
    invoke_ids = tuple(dict.fromkeys(sample.invoke_id for sample in samples))
    _check_foretold(before, loss_mask, invoke_ids)
    return PackedBatch(
        input_ids=torch.cat([sample.input_ids for sample in samples])[None],
        position_ids=position_ids[None],
        loss_mask=loss_mask[None],
        logprobs=torch.cat([sample.logprobs for sample in samples])[None],
        temperatures=torch.cat([sample.temperatures for sample in samples])[None],
        advantages=torch.cat([_where(sample.loss_mask, sample.advantage) for sample in samples])[None],
        before=before,
        ends=torch.cat([torch.full((length,), end) for length, end in zip(lengths, starts[1:], strict=True)]),
        invoke_ids=invoke_ids,
        cu_seqlens=torch.tensor(starts, dtype=torch.int32),
        max_seqlen=max(lengths),
    )


def tree_batch(tree: TokenTree, advantages: Mapping[str, float]) -> TokenBatch:
    """A whole tree as one row: what prompts have in common is computed once.

    advantages: by invoke id.

    Raises ConfigurationError for a rollout that has none, for a tree without ids, and for an id sampled after nothing.
    """
    if not tree.tokens:
        raise ConfigurationError("tree", "must have an id or more, got none")
    of_rollout = [advantage_of(rollout.invoke_id, advantages) for rollout in tree.rollouts]
    temperatures: dict[tuple[int | None, int | None], float] = {
        (place, turn.iteration): turn.temperature for place, r in enumerate(tree.rollouts) for turn in r.turns
    }
    starts = [0, *accumulate(len(part.ids) for part in tree.parts)]
    last = _last_ids(tree.parts, starts)
    subtree = _subtree_ends(tree.parts, starts)
    rows: dict[str, list[Any]] = {name: [] for name in ("ids", "positions", "mask", "p", "t", "a", "before", "ends")}
    for place, part in enumerate(tree.parts):
        count, sampled = len(part.ids), part.sampled_by is not None
        above = -1 if part.parent is None else last[part.parent]
        rows["ids"] += part.ids
        rows["positions"] += range(part.start, part.start + count)
        rows["mask"] += [sampled] * count
        rows["p"] += part.logprobs if sampled else [0.0] * count
        rows["t"] += [temperatures.get((part.sampled_by, part.iteration), 1.0)] * count
        rows["a"] += [0.0 if part.sampled_by is None else of_rollout[part.sampled_by]] * count
        rows["before"] += [above, *range(starts[place], starts[place] + count - 1)][:count]
        rows["ends"] += [subtree[place]] * count
    before, loss_mask = torch.tensor(rows["before"], dtype=torch.int64), torch.tensor(rows["mask"], dtype=torch.bool)
    invoke_ids = tuple(rollout.invoke_id for rollout in tree.rollouts)
    _check_foretold(before, loss_mask, invoke_ids)
    return TokenBatch(
        input_ids=torch.tensor([rows["ids"]], dtype=torch.int64),
        position_ids=torch.tensor([rows["positions"]], dtype=torch.int64),
        loss_mask=loss_mask[None],
        logprobs=torch.tensor([rows["p"]], dtype=torch.float32),
        temperatures=torch.tensor([rows["t"]], dtype=torch.float32),
        advantages=torch.tensor([rows["a"]], dtype=torch.float32),
        before=before,
        ends=torch.tensor(rows["ends"], dtype=torch.int64),
        invoke_ids=invoke_ids,
    )


def advantage_of(invoke_id: str, advantages: Mapping[str, float]) -> float:
    if invoke_id not in advantages:
        raise ConfigurationError(
            "advantages", f"has none for {invoke_id}; give it one, or leave out rollouts that are not in it"
        )
    return _finite(invoke_id, advantages[invoke_id])


def _finite(invoke_id: str, advantage: float) -> float:
    if not torch.tensor(advantage, dtype=torch.float32).isfinite():
        raise ConfigurationError("advantages", f"is {advantage!r} for {invoke_id}, no finite number in float32")
    return advantage


def _where(mask: Tensor, value: float) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(mask, value)


def _check_foretold(before: Tensor, loss_mask: Tensor, invoke_ids: Sequence[str]) -> None:
    if (loss_mask & (before < 0)).any():
        raise ConfigurationError("rollouts", f"has ids that were sampled after nothing, in one of {[*invoke_ids]}")


def _last_ids(parts: Sequence[TreePart], starts: Sequence[int]) -> list[int]:
    """Of each part, the place of the last id up to its end, on the way from the root; -1 where there is none."""
    last: list[int] = []
    for place, part in enumerate(parts):
        above = -1 if part.parent is None else last[part.parent]
        last.append(starts[place + 1] - 1 if part.ids else above)
    return last


def _subtree_ends(parts: Sequence[TreePart], starts: Sequence[int]) -> list[int]:
    """Of each part, where the ids of all below it end: parts stand in depth-first order."""
    ends = list(starts[1:])
    for place in reversed(range(len(parts))):
        parent = parts[place].parent
        if parent is not None:
            ends[parent] = max(ends[parent], ends[place])
    return ends
