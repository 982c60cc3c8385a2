"""Continuous batching: sequences join and leave the running batch between steps. Knows tokens, not HTTP.

One thread owns the model. Others submit sequences and get their progress through callbacks on that thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from jaz_actors.backends.embedded.cache import SlotCache
from jaz_actors.backends.embedded.sampling import SamplingParams, draw, generator_for

logger = logging.getLogger(__name__)

PREFILL_TOKENS = 512


@dataclass(slots=True)
class Sequence:
    """One sequence to generate. Owned by the engine's thread once submitted.

    on_progress: called after each token when `streams`, and once when it is finished.
    finish:      None while running, then the API's finish reason.
    filled:      tokens, prompt first, whose keys and values are stored.
    """

    prompt: list[int]
    params: SamplingParams
    on_progress: Callable[[Sequence], None]
    streams: bool = False
    branch: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None
    wants_prompt_logprobs: bool = False
    finish: dict[str, Any] | None = None
    generator: torch.Generator | None = None
    aborted: str | None = None
    filled: int = 0
    submitted: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Counters:
    requests: int = 0
    aborted: int = 0
    disconnected: int = 0
    generated_tokens: int = 0
    steps: int = 0


class Engine:
    """A model and its batch. `start`, then `submit` from any thread; `close` finishes everything as aborted."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        slots: int = 64,
        context: int | None = None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.context = context or int(model.config.max_position_embeddings)
        self.vocabulary = int(model.config.vocab_size)
        self.eos = _eos_ids(model, tokenizer)
        self.counters = Counters()
        self.slots = slots
        self._cache = SlotCache(model.config, slots=slots, context=self.context)
        self._running: list[Sequence] = []  # index is slot
        self._waiting: deque[Sequence] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        self._inbox.put(lambda: self._admit(sequence))

    def abort(self, sequence: Sequence, reason: str) -> None:
        """End a sequence with what it has; does nothing when it is finished."""
        self._inbox.put(lambda: self._mark(sequence, reason))

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    @property
    def load(self) -> tuple[int, int]:
        """Running and waiting sequences."""
        return len(self._running), len(self._waiting)

    # -- the engine's thread

    def _admit(self, sequence: Sequence) -> None:
        self.counters.requests += 1
        sequence.generator = generator_for(sequence.params, branch=sequence.branch)
        if sequence.params.max_new_tokens == 0:
            self._finish(sequence, {"type": "length", "length": 0})
        else:
            self._waiting.append(sequence)

    def _mark(self, sequence: Sequence, reason: str) -> None:
        if sequence.finish is None:
            sequence.aborted = reason

    def _loop(self) -> None:
        with torch.inference_mode():
            while self._take_messages():
                try:
                    self._step()
                except Exception as error:
                    # A step that fails must not leave its requests without an answer, nor end the server.
                    logger.exception("a step failed")
                    for sequence in [*self._running, *self._waiting]:
                        sequence.aborted = f"the engine failed: {error}"
                    self._drop_aborted()
        for sequence in [*self._running, *self._waiting]:
            sequence.aborted = "the server is shutting down"
        self._drop_aborted()

    def _take_messages(self) -> bool:
        while True:
            idle = not self._running and not self._waiting
            try:
                message = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if message is None:
                return False
            message()

    def _step(self) -> None:
        self._drop_aborted()
        while self._waiting and len(self._running) < self._cache.slots:
            self._running.append(self._waiting.popleft())
        # One chunk of prompt a step, so that a long prompt never holds up those that are generating.
        filling = [s for s in range(len(self._running)) if not self._is_filled(self._running[s])]
        budget = PREFILL_TOKENS
        for slot in filling:
            if budget <= 0:
                break
            budget -= self._prefill(slot, budget)
        self._decode()
        self._remove_finished()

    def _is_filled(self, sequence: Sequence) -> bool:
        return sequence.filled >= len(sequence.prompt)

    def _prefill(self, slot: int, budget: int) -> int:
        sequence = self._running[slot]
        start = sequence.filled
        chunk = sequence.prompt[start : start + budget]
        end = start + len(chunk)
        self._cache.prefill(slot, start, len(chunk))
        positions = torch.arange(start, end)[None]
        mask = torch.arange(end)[None, None, None, :] <= positions[0][None, None, :, None]
        keep = 0 if sequence.wants_prompt_logprobs else 1
        logits = self.model(
            input_ids=torch.tensor([chunk]), attention_mask=mask, position_ids=positions, cache=self._cache,
            use_cache=True, logits_to_keep=keep,
        ).logits[0]  # fmt: skip
        sequence.filled = end
        if sequence.wants_prompt_logprobs:
            self._score_prompt(sequence, logits, start, end)
        if end == len(sequence.prompt):
            ids, logprobs = draw(logits[-1:].float(), [sequence.params], [sequence.generator])
            self._append(sequence, int(ids[0]), float(logprobs[0]))
        return len(chunk)

    def _score_prompt(self, sequence: Sequence, logits: torch.Tensor, start: int, end: int) -> None:
        if sequence.prompt_logprobs is None:
            sequence.prompt_logprobs = [None]
        scores = torch.log_softmax(logits.float(), dim=-1)
        targets = sequence.prompt[start + 1 : end + 1]
        picked = scores[: len(targets)].gather(1, torch.tensor(targets, dtype=torch.long)[:, None])[:, 0]
        sequence.prompt_logprobs += picked.tolist()

    def _decode(self) -> None:
        """One token for every sequence whose prompt is stored. Such sequences are kept in the first slots."""
        ready = self._ready_first()
        if not ready:
            return
        rows = self._running[:ready]
        positions = torch.tensor([row.filled for row in rows])
        self._cache.decode(positions)
        mask = torch.arange(int(positions.max()) + 1)[None, None, None, :] <= positions[:, None, None, None]
        logits = self.model(
            input_ids=torch.tensor([[row.output[-1]] for row in rows]), attention_mask=mask,
            position_ids=positions[:, None], cache=self._cache, use_cache=True,
        ).logits[:, -1].float()  # fmt: skip
        ids, logprobs = draw(logits, [row.params for row in rows], [row.generator for row in rows])
        self.counters.steps += 1
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            row.filled += 1
            self._append(row, token, logprob)

    def _ready_first(self) -> int:
        """Move sequences that can decode to the front; returns how many there are."""
        ready = 0
        for slot, sequence in enumerate(self._running):
            if self._is_filled(sequence) and sequence.output and sequence.finish is None:
                if slot != ready:
                    self._swap(slot, ready)
                ready += 1
        return ready

    def _swap(self, a: int, b: int) -> None:
        first, second = self._running[a], self._running[b]
        self._cache.exchange(a, b, max(first.filled, second.filled))
        self._running[a], self._running[b] = second, first

    def _append(self, sequence: Sequence, token: int, logprob: float) -> None:
        sequence.output.append(token)
        sequence.logprobs.append(logprob)
        self.counters.generated_tokens += 1
        finish = self._finish_reason(sequence, token)
        if finish is not None:
            self._finish(sequence, finish)
        elif sequence.streams:
            sequence.on_progress(sequence)

    def _finish_reason(self, sequence: Sequence, token: int) -> dict[str, Any] | None:
        params = sequence.params
        count = len(sequence.output)
        if count >= params.min_new_tokens:
            if token in (params.stop_token_ids or ()) or (token in self.eos and not params.ignore_eos):
                return {"type": "stop", "matched": token}
            if params.stop_strings:
                text = self.tokenizer.decode(sequence.output[-64:])
                for string in params.stop_strings:
                    if string in text:
                        return {"type": "stop", "matched": string}
        if count >= params.max_new_tokens:
            return {"type": "length", "length": count}
        if len(sequence.prompt) + count >= self.context:
            return {"type": "length", "length": count}
        return None

    def _finish(self, sequence: Sequence, finish: dict[str, Any]) -> None:
        sequence.finish = finish
        sequence.on_progress(sequence)

    def _drop_aborted(self) -> None:
        for sequence in [*self._running, *self._waiting]:
            if sequence.aborted is not None and sequence.finish is None:
                self.counters.aborted += 1
                self._finish(sequence, {"type": "abort", "message": sequence.aborted})
        self._waiting = deque(sequence for sequence in self._waiting if sequence.finish is None)
        self._remove_finished()

    def _remove_finished(self) -> None:
        slot = 0
        while slot < len(self._running):
            if self._running[slot].finish is None:
                slot += 1
                continue
            last = len(self._running) - 1
            if slot != last:
                self._cache.move(last, slot, self._running[last].filled)
                self._running[slot] = self._running[last]
            self._running.pop()


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if isinstance(i, int))
