"""The running batch: rows join and leave between steps; a step is one forward pass for all. Knows no queue.

Row i of every tensor is sequence i. A row that leaves is filled with the last, so that those in use stay the first.
"""

from __future__ import annotations

import torch

from jaz_actors.backends.embedded.cache import RowCache, Snapshot
from jaz_actors.backends.embedded.model_folder import LoadedModel
from jaz_actors.backends.embedded.sampler import Controls, Drawn
from jaz_actors.backends.embedded.sequence import Sequence


class Batch:
    """Owned by the engine's thread."""

    def __init__(self, loaded: LoadedModel, *, rows: int) -> None:
        self._loaded = loaded
        self._rows = rows
        self._cache = RowCache(layers=loaded.layers, rows=rows, context=loaded.context)
        self._controls = Controls(rows)
        self._next_ids = torch.zeros(rows, dtype=torch.long)
        self._stored = torch.zeros(rows, dtype=torch.long)
        self.sequences: list[Sequence] = []

    @property
    def is_full(self) -> bool:
        return len(self.sequences) == self._rows

    def join(self, sequence: Sequence, staged: RowCache) -> None:
        """staged: holds, in its row 0, all known tokens but the last; that one is this row's first step."""
        row = len(self.sequences)
        known = sequence.known
        length = len(known) - 1
        self._cache.copy_row(staged, 0, row, length)
        self._controls.set_row(row, sequence.params, seed=sequence.seed, drawn=len(sequence.output))
        self._next_ids[row] = known[-1]
        self._stored[row] = length
        self.sequences.append(sequence)

    def leave(self, row: int) -> None:
        last = len(self.sequences) - 1
        if row != last:
            self._cache.copy_row(self._cache, last, row, int(self._stored[last]))
            self._controls.move_row(last, row)
            self._next_ids[row] = self._next_ids[last]
            self._stored[row] = self._stored[last]
            self.sequences[row] = self.sequences[last]
        self.sequences.pop()

    def step(self) -> Drawn:
        """One more token for every row, in row order."""
        rows = len(self.sequences)
        positions = self._stored[:rows]
        end = int(positions.max()) + 1
        self._cache.step_rows(positions, end)
        logits = self._loaded.forward(
            self._next_ids[:rows, None], positions=positions[:, None], end=end, cache=self._cache, keep_logits=1
        )
        drawn = self._controls.draw(logits[:, -1].float())
        self._stored[:rows] += 1
        self._next_ids[:rows] = drawn.ids
        return drawn

    def release(self) -> None:
        """Give the memory of the cache back. The batch must be empty."""
        self._cache = RowCache(layers=self._loaded.layers, rows=self._rows, context=self._loaded.context)

    def snapshot(self, row: int) -> Snapshot:
        """The row's stored positions: all tokens of the sequence but the last drawn."""
        return self._cache.snapshot(row, int(self._stored[row]))
