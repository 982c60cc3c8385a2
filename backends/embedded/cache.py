"""Keys and values of several sequences, one row each, growing with the longest. Knows no request.

One class serves the running batch and the single row in which a prompt is staged; rows move between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of one row: keys and values a layer, [heads, length, head size] each."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    length: int

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.keys, *self.values))


class RowCache(Cache):
    """Storage [rows, heads, capacity, head size] a layer, made when the model first writes.

    Say before each forward pass where its tokens go: `extend_row` for many tokens of one sequence, `step_rows` for one
    token in each of the first rows.
    """

    def __init__(self, *, layers: int, rows: int, context: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])
        self._rows = rows
        self._context = context
        self._keys: list[torch.Tensor | None] = [None] * layers
        self._values: list[torch.Tensor | None] = [None] * layers
        self._row = 0
        self._start = 0
        self._end = 0
        self._positions: torch.Tensor | None = None
        self._indices = torch.arange(rows)

    def extend_row(self, row: int, start: int, end: int) -> None:
        self._row, self._start, self._end, self._positions = row, start, end, None

    def step_rows(self, positions: torch.Tensor, end: int) -> None:
        """positions: [B], where each row's token goes; all below `end`."""
        self._positions, self._start, self._end = positions, end - 1, end

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._write(self._keys, layer_idx, key_states), self._write(self._values, layer_idx, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start

    def copy_row(self, source: RowCache, source_row: int, row: int, length: int) -> None:
        for ours, theirs in ((self._keys, source._keys), (self._values, source._values)):
            for layer, tensor in enumerate(theirs):
                if tensor is not None and length:
                    room = self._room(ours, layer, length, like=tensor)
                    room[row, :, :length] = tensor[source_row, :, :length]

    def snapshot(self, row: int, length: int) -> Snapshot:
        return Snapshot(
            [tensor[row, :, :length].clone() for tensor in self._keys if tensor is not None],
            [tensor[row, :, :length].clone() for tensor in self._values if tensor is not None],
            length,
        )

    def restore(self, row: int, snapshot: Snapshot, length: int) -> None:
        """The first `length` positions of a snapshot."""
        for ours, theirs in ((self._keys, snapshot.keys), (self._values, snapshot.values)):
            for layer, tensor in enumerate(theirs):
                self._room(ours, layer, length, like=tensor[None])[row, :, :length] = tensor[:, :length]

    def _write(self, storage: list[torch.Tensor | None], layer: int, states: torch.Tensor) -> torch.Tensor:
        """states: [B, heads, T, head size]; gives everything that the rows may attend to."""
        tensor = self._room(storage, layer, self._end, like=states)
        if self._positions is None:
            row = tensor[self._row : self._row + 1, :, : self._end]
            row[:, :, self._start :] = states
            return row
        rows = states.shape[0]
        tensor[self._indices[:rows], :, self._positions] = states[:, :, 0]
        return tensor[:rows, :, : self._end]

    def _room(self, storage: list[torch.Tensor | None], layer: int, length: int, *, like: torch.Tensor) -> torch.Tensor:
        """A layer's storage with room for `length` positions; doubles, so that growing stays rare."""
        tensor = storage[layer]
        if tensor is not None and tensor.shape[2] >= length:
            return tensor
        old = 0 if tensor is None else tensor.shape[2]
        capacity = min(max(length, 2 * old, FIRST_CAPACITY), max(length, self._context))
        _, heads, _, size = like.shape
        # Zeros, not garbage: a masked NaN would still spoil the sum.
        grown = torch.zeros(self._rows, heads, capacity, size, dtype=like.dtype)
        if tensor is not None:
            grown[:, :, :old] = tensor
        storage[layer] = grown
        return grown
