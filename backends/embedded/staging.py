"""One prompt on its way into the batch, stored chunk by chunk. Knows no queue and no other sequence.

The last token of the prompt is left to the batch's next step, so that every token is drawn in one place.
"""

from __future__ import annotations

import torch

from jaz_actors.backends.embedded.cache import RowCache, Snapshot
from jaz_actors.backends.embedded.model_folder import LoadedModel
from jaz_actors.backends.embedded.prefixes import Hit
from jaz_actors.backends.embedded.sampler import picked_of, top_of
from jaz_actors.backends.embedded.sequence import Sequence


class Staging:
    """Holds at most one sequence. Owned by the engine's thread."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.cache = RowCache(layers=loaded.layers, rows=1, context=loaded.context)
        self.sequence: Sequence | None = None
        self._stored = 0
        self._tokens: list[int] = []
        self._scored = False

    def begin(self, sequence: Sequence, hit: Hit | None) -> None:
        self.sequence = sequence
        self._tokens = sequence.known
        self._stored = 0
        self._scored = sequence.wants_prompt_logprobs and not sequence.output
        for scores in (sequence.prompt_logprobs, sequence.prompt_tops, sequence.prompt_picks):
            if self._scored:  # from the beginning, where a pause has taken a part of it back
                del scores[1:]
        if hit is not None:
            self.cache.restore(0, hit.snapshot, hit.length)
            self._stored = hit.length
            if not sequence.output:
                sequence.cached_tokens = hit.length

    def advance(self, most: int) -> int:
        """Store up to `most` more tokens; returns how many."""
        sequence, tokens = self._current(), self._tokens
        start = self._stored
        end = min(start + most, len(tokens) - 1)
        if end > start:
            self.cache.extend_row(0, start, end)
            logits = self._loaded.forward(
                torch.tensor([tokens[start:end]]),
                positions=torch.arange(start, end)[None],
                end=end,
                cache=self.cache,
                keep_logits=0 if self._scored else 1,
            )
            if self._scored:
                _score(sequence, logits[0], tokens[start + 1 : end + 1])
            self._stored = end
        return end - start

    @property
    def is_complete(self) -> bool:
        return self.sequence is not None and self._stored == len(self._tokens) - 1

    @property
    def stored(self) -> list[int]:
        """The tokens whose keys and values are held."""
        return self._tokens[: self._stored]

    def snapshot(self) -> Snapshot:
        return self.cache.snapshot(0, self._stored)

    def release(self) -> Sequence:
        sequence, self.sequence = self._current(), None
        return sequence

    def _current(self) -> Sequence:
        if self.sequence is None:
            raise RuntimeError("nothing is staged")
        return self.sequence


def _score(sequence: Sequence, logits: torch.Tensor, targets: list[int]) -> None:
    """logits: [T, V]; the log-probability of each of the T targets, and the alternatives that are wanted."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    sequence.prompt_logprobs += logprobs.gather(1, torch.tensor(targets)[:, None])[:, 0].tolist()
    wants = sequence.wants
    if wants:
        sequence.prompt_tops += [top_of(row, wants.top) for row in logprobs]
        sequence.prompt_picks += [picked_of(row, wants.ids) for row in logprobs]
