"""One prompt on its way into the batch, stored chunk by chunk. Knows no queue and no other sequence.

The last token of the prompt is left to the batch's next step, so that every token is drawn in one place.
"""

from __future__ import annotations

import torch

from jaz_actors.backends.embedded.cache import RowCache, Snapshot
from jaz_actors.backends.embedded.model_folder import LoadedModel
from jaz_actors.backends.embedded.prefixes import Hit
from jaz_actors.backends.embedded.sequence import Sequence


class Staging:
    """Holds at most one sequence. Owned by the engine's thread."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.cache = RowCache(layers=loaded.layers, rows=1, context=loaded.context)
        self.sequence: Sequence | None = None
        self._stored = 0

    def begin(self, sequence: Sequence, hit: Hit | None) -> None:
        self.sequence = sequence
        self._stored = 0
        if hit is not None:
            self.cache.restore(0, hit.snapshot, hit.length)
            self._stored = sequence.cached_tokens = hit.length

    def advance(self, most: int) -> int:
        """Store up to `most` more tokens; returns how many."""
        sequence = self._current()
        start = self._stored
        end = min(start + most, len(sequence.prompt) - 1)
        if end > start:
            self.cache.extend_row(0, start, end)
            logits = self._loaded.forward(
                torch.tensor([sequence.prompt[start:end]]),
                positions=torch.arange(start, end)[None],
                end=end,
                cache=self.cache,
                keep_logits=0 if sequence.wants_prompt_logprobs else 1,
            )
            if sequence.wants_prompt_logprobs:
                sequence.prompt_logprobs += _scores(logits[0], sequence.prompt[start + 1 : end + 1])
            self._stored = end
        return end - start

    @property
    def is_complete(self) -> bool:
        return self._stored == len(self._current().prompt) - 1

    def snapshot(self) -> Snapshot:
        return self.cache.snapshot(0, self._stored)

    def release(self) -> Sequence:
        sequence, self.sequence = self._current(), None
        return sequence

    def _current(self) -> Sequence:
        if self.sequence is None:
            raise RuntimeError("nothing is staged")
        return self.sequence


def _scores(logits: torch.Tensor, targets: list[int]) -> list[float]:
    """logits: [T, V]; the log-probability of each of the T targets."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    picked: list[float] = logprobs.gather(1, torch.tensor(targets)[:, None])[:, 0].tolist()
    return picked
