"""Rollouts as a torch `Dataset`, and batches of about as many ids each. Needs torch.

dataset = RolloutDataset(rollouts, advantages(rollouts))
sampler = TokenBudgetSampler(dataset.lengths, 16_384, shuffle=True)
loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pack)
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch.utils.data import Dataset, Sampler

from jaz_actors.errors import ConfigurationError
from jaz_actors.recorders.rollouts import Rollout
from jaz_actors.recorders.samples import to_pieces
from jaz_actors.recorders.token_batch import TrainingSample, advantage_of


class RolloutDataset(Dataset[TrainingSample]):
    """The pieces of rollouts (`to_pieces`), with the advantage of their rollout; read once, kept as tensors.

    A piece in which nothing was sampled has nothing to train on and is left out.

    rollouts:    read one by one, for example from `read_rollouts`.
    advantages:  by invoke id, for example of `rollout_groups.advantages`.

    Raises RolloutRefused for one that is not to be trained on, ConfigurationError for one without an advantage.
    """

    def __init__(self, rollouts: Iterable[Rollout], advantages: Mapping[str, float]) -> None:
        self._samples = [
            TrainingSample.of(piece, advantage_of(rollout.invoke_id, advantages))
            for rollout in rollouts
            for piece in to_pieces(rollout)
            if 1 in piece.loss_mask
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> TrainingSample:
        return self._samples[index]

    @property
    def lengths(self) -> list[int]:
        """In ids."""
        return [len(sample) for sample in self._samples]


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of samples that have at most `max_tokens` ids together: each into the fullest that has room for it.

    Without `shuffle`, the longest come first, which packs best; with it, every epoch has an order of its own, drawn
    from `seed` and `set_epoch`, the same in every process.

    Raises ConfigurationError for a sample that has more than `max_tokens` itself: none is cut.
    """

    def __init__(self, lengths: Sequence[int], max_tokens: int, *, shuffle: bool = False, seed: int = 0) -> None:
        longest = max(range(len(lengths)), key=lengths.__getitem__, default=None)
        if longest is not None and lengths[longest] > max_tokens:
            raise ConfigurationError(
                "max_tokens", f"is {max_tokens}, and sample {longest} has {lengths[longest]} ids, which are not cut"
            )
        self._lengths = list(lengths)
        self._max = max_tokens
        self._shuffle = shuffle
        self._seed = seed
        self._batches = self._packed(0)

    def set_epoch(self, epoch: int) -> None:
        if self._shuffle:
            self._batches = self._packed(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def _packed(self, epoch: int) -> list[list[int]]:
        order = list(range(len(self._lengths)))
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(order)
        else:
            order.sort(key=self._lengths.__getitem__, reverse=True)
        batches: list[list[int]] = []
        rooms: list[tuple[int, int]] = []  # how many ids still fit, and into which batch
        for index in order:
            length = self._lengths[index]
            at = bisect_left(rooms, (length, 0))
            if at < len(rooms):
                room, batch = rooms.pop(at)
            else:
                room, batch = self._max, len(batches)
                batches.append([])
            batches[batch].append(index)
            insort(rooms, (room - length, batch))
        return batches
