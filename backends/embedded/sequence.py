"""One sequence being generated, and when it ends. Knows tokens and stop rules, not where it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from jaz_actors.backends.embedded.sampling import SamplingParams

Alternatives = list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """top: how many of the likeliest tokens. ids: tokens to report whatever their rank."""

    top: int = 0
    ids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.top or self.ids)


NOTHING = Wanted()


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the engine's thread once submitted; others read it.

    rid:         its name, for the token log.
    seed:        of its own draws.
    namespace:   whose cached prefixes it may use.
    on_progress: called on the engine's thread after each token when `streams`, and once when it is finished.
    wants:       alternatives to report with each token.
    output:      appended before `logprobs`, so that a reader takes as many as there are logprobs.
    tops, picks: alternatives, one list a sampled token; those of the prompt beside them, the first None.
    marks:       (version, start): the weights that sampled the ids from `start` on.
    retractions: how often it lost its keys and values to a pause.
    finish:      None while unfinished, then the API's finish reason; nothing is appended after it is set.
    """

    prompt: list[int]
    params: SamplingParams
    on_progress: Callable[[], None]
    seed: int
    rid: str = ""
    namespace: str | None = None
    streams: bool = False
    wants_prompt_logprobs: bool = False
    wants: Wanted = NOTHING
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=lambda: [None])
    tops: list[Alternatives] = field(default_factory=list)
    picks: list[Alternatives] = field(default_factory=list)
    prompt_tops: list[Alternatives | None] = field(default_factory=lambda: [None])
    prompt_picks: list[Alternatives | None] = field(default_factory=lambda: [None])
    marks: list[tuple[str, int]] = field(default_factory=list)
    retractions: int = 0
    cached_tokens: int = 0
    finish: dict[str, Any] | None = None
    submitted: float = field(default_factory=time.monotonic)
    latency: float | None = None

    @property
    def known(self) -> list[int]:
        """The prompt and what has been sampled."""
        return [*self.prompt, *self.output]

    def spans(self, count: int) -> list[dict[str, Any]]:
        """Which weights sampled the first `count` ids."""
        starts = [(version, start) for version, start in self.marks if start < count]
        ends = [*(start for _, start in starts[1:]), count]
        return [{"version": v, "start": start, "end": end} for (v, start), end in zip(starts, ends, strict=False)]

    def end(self, finish: dict[str, Any]) -> None:
        self.latency = time.monotonic() - self.submitted
        self.finish = finish
        self.on_progress()


class StopRules:
    """Decides after each token whether a sequence is finished."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos = eos

    def finish_reason(self, sequence: Sequence) -> dict[str, Any] | None:
        """As the API does it, `ignore_eos` switches every stop token off, and only strings and the length remain."""
        params = sequence.params
        token = sequence.output[-1]
        if not params.ignore_eos and (token in self._eos or token in (params.stop_token_ids or ())):
            return {"type": "stop", "matched": token}
        if params.stop is not None:
            matched = self._matched_string(sequence)
            if matched is not None:
                return {"type": "stop", "matched": matched}
        if len(sequence.output) >= params.max_new_tokens:
            return {"type": "length", "length": len(sequence.output)}
        return None

    def _matched_string(self, sequence: Sequence) -> str | None:
        strings = sequence.params.stop_strings
        if not strings:
            return None
        # A token is at least a byte, so that this many surely hold a string that the last token completed.
        window = max(len(string.encode()) for string in strings) + 1
        text = self._tokenizer.decode(sequence.output[-window:])
        return next((string for string in strings if string in text), None)
