"""Keys and values of a running batch: one slot a sequence, in tensors that never move. Knows no request."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer


class SlotCache(Cache):
    """Storage [slots, heads, context, head size] a layer.

    Before each forward pass say where its tokens go: `prefill(slot, start)` for one sequence, `decode(positions)` for
    one token in each of the first slots.
    """

    def __init__(self, config: PretrainedConfig, *, slots: int, context: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(config.num_hidden_layers)])
        self.slots = slots
        self.context = context
        self._keys: list[torch.Tensor | None] = [None] * config.num_hidden_layers
        self._values: list[torch.Tensor | None] = [None] * config.num_hidden_layers
        self._first = 0
        self._start = 0
        self._positions: torch.Tensor | None = None
        self._end = 0

    def prefill(self, slot: int, start: int, count: int) -> None:
        self._first, self._start, self._positions, self._end = slot, start, None, start + count

    def decode(self, positions: torch.Tensor) -> None:
        """positions: [B], where in its slot each row's token goes."""
        self._positions = positions
        self._end = int(positions.max()) + 1

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            self._store(self._keys, layer_idx, key_states),
            self._store(self._values, layer_idx, value_states),
        )

    def _store(self, storage: list[torch.Tensor | None], layer: int, states: torch.Tensor) -> torch.Tensor:
        """states: [B, heads, T, head size]; gives everything that the rows may attend to."""
        tensor = storage[layer]
        if tensor is None:
            _, heads, _, size = states.shape
            tensor = storage[layer] = torch.zeros(self.slots, heads, self.context, size, dtype=states.dtype)
        if self._positions is None:
            row = tensor[self._first : self._first + 1]
            row[:, :, self._start : self._end] = states
            return row[:, :, : self._end]
        rows = torch.arange(states.shape[0])
        tensor[rows, :, self._positions] = states[:, :, 0]
        return tensor[: states.shape[0], :, : self._end]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a sequence to another slot."""
        for storage in (self._keys, self._values):
            for tensor in storage:
                if tensor is not None:
                    tensor[target, :, :length] = tensor[source, :, :length]

    def exchange(self, a: int, b: int, length: int) -> None:
        """Swap two sequences."""
        for storage in (self._keys, self._values):
            for tensor in storage:
                if tensor is not None:
                    tensor[[a, b], :, :length] = tensor[[b, a], :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start if self._positions is None else self._end - 1
