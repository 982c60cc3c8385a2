"""Continuous batching: sequences join and leave the running batch between steps. Knows tokens, not HTTP.

One thread owns the model. Others submit sequences and learn of their progress through callbacks on that thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import torch

from jaz_actors.backends.embedded.batch import Batch
from jaz_actors.backends.embedded.model_folder import LoadedModel
from jaz_actors.backends.embedded.prefixes import PrefixCache
from jaz_actors.backends.embedded.sequence import Sequence, StopRules
from jaz_actors.backends.embedded.staging import Staging

logger = logging.getLogger(__name__)

# Prompt tokens stored between two steps of the batch: a long prompt holds up those that generate by no more than this.
PREFILL_TOKENS = 256
PREFIX_CACHE_BYTES = 256 * 2**20


class EngineClosed(Exception):
    """The engine takes no more sequences."""


@dataclass(slots=True)
class Counters:
    """Written by the engine's thread, except `disconnected`, which is the server's."""

    requests: int = 0
    aborted: int = 0
    disconnected: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0


class Engine:
    """`start`, then `submit` from any thread. `close` finishes what is left as aborted, with what it has so far."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        rows: int = 64,
        threads: int = 1,
        prefill_tokens: int = PREFILL_TOKENS,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    ) -> None:
        self.loaded = loaded
        self.rows = rows
        self.counters = Counters()
        self._threads = threads
        self._prefill_tokens = prefill_tokens
        self._rules = StopRules(loaded.tokenizer, loaded.eos)
        self._batch = Batch(loaded, rows=rows)
        self._staging = Staging(loaded)
        self._prefixes = PrefixCache(max_bytes=prefix_cache_bytes)
        self._waiting: deque[Sequence] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._entry = threading.Lock()  # protects: nothing is put into the inbox after its last message
        self._thread = threading.Thread(target=self._run, name="embedded-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Raises EngineClosed."""
        self._put(lambda: self._accept(sequence))

    def abort(self, sequence: Sequence, reason: str) -> None:
        """End a sequence with what it has so far; does nothing when it is finished."""
        if sequence.finish is None and not self._closed:
            self._put(lambda: self._abort(sequence, reason))

    def flush_cache(self, on_done: Callable[[bool], None]) -> None:
        """Forget the cached prefixes; `on_done`, on the engine's thread, says whether that was done: not while busy."""
        self._put(lambda: on_done(self._flush()))

    def close(self) -> None:
        """Idempotent; returns at once. `join` waits for the end."""
        with self._entry:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)

    def join(self) -> None:
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    @property
    def running(self) -> int:
        return len(self._batch.sequences)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + (self._staging.sequence is not None)

    def _put(self, message: Callable[[], None]) -> None:
        with self._entry:
            if self._closed:
                raise EngineClosed
            self._inbox.put(message)

    # From here on: the engine's thread only.

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while True:
                try:
                    if not self._take_messages():
                        break
                    self._fill()
                    self._step()
                except Exception as error:
                    # A failed step must neither leave its sequences without an answer nor end the server.
                    logger.exception("a step of the engine failed")
                    self._abort_all(f"the engine failed: {error!r}", HTTPStatus.INTERNAL_SERVER_ERROR)
        self._abort_all("the server is shutting down", HTTPStatus.SERVICE_UNAVAILABLE)

    def _take_messages(self) -> bool:
        """Blocks while there is nothing to generate; False after the last message."""
        while True:
            idle = not self.running and not self.waiting
            try:
                message = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if message is None:
                return False
            message()

    def _accept(self, sequence: Sequence) -> None:
        self.counters.requests += 1
        if sequence.params.max_new_tokens == 0 and not sequence.wants_prompt_logprobs:
            sequence.end({"type": "length", "length": 0})
        else:
            self._waiting.append(sequence)

    def _fill(self) -> None:
        """Bring prompts into the batch, as many tokens of them as one round may take."""
        budget = self._prefill_tokens
        while budget > 0 and not self._batch.is_full:
            if self._staging.sequence is None:
                if not self._waiting:
                    return
                self._stage(self._waiting.popleft())
            budget -= max(1, self._staging.advance(budget))
            if self._staging.is_complete:
                self._admit()

    def _stage(self, sequence: Sequence) -> None:
        hit = None
        if not sequence.wants_prompt_logprobs:
            hit = self._prefixes.longest(sequence.namespace, sequence.prompt[:-1])
        self._staging.begin(sequence, hit)
        self.counters.cached_tokens += sequence.cached_tokens

    def _admit(self) -> None:
        sequence = self._staging.release()
        stored = len(sequence.prompt) - 1
        if stored > sequence.cached_tokens:
            # At once, and not only when it ends: samples of one prompt arrive together.
            self._prefixes.store(sequence.namespace, sequence.prompt[:-1], self._staging.snapshot())
        if sequence.params.max_new_tokens == 0:
            sequence.end({"type": "length", "length": 0})
        else:
            self._batch.join(sequence, self._staging.cache)

    def _step(self) -> None:
        if not self._batch.sequences:
            return
        drawn = self._batch.step()
        self.counters.steps += 1
        self.counters.generated_tokens += self.running
        ended: list[int] = []
        rows = zip(self._batch.sequences, drawn.ids.tolist(), drawn.logprobs.tolist(), strict=True)
        for row, (sequence, token, logprob) in enumerate(rows):
            sequence.output.append(token)
            sequence.logprobs.append(logprob)
            finish = self._rules.finish_reason(sequence)
            if finish is not None:
                ended.append(row)
                sequence.end(finish)
            elif sequence.streams:
                sequence.on_progress()
        # The last first: leaving moves the last row, which must not be one that is still to leave.
        for row in reversed(ended):
            self._leave(row)

    def _leave(self, row: int) -> None:
        sequence = self._batch.sequences[row]
        tokens = [*sequence.prompt, *sequence.output[:-1]]
        self._prefixes.store(sequence.namespace, tokens, self._batch.snapshot(row))
        self._batch.leave(row)

    def _flush(self) -> bool:
        idle = not self.running and not self.waiting
        if idle:
            self._prefixes.clear()
        return idle

    def _abort(self, sequence: Sequence, reason: str) -> None:
        if sequence.finish is not None:
            return
        if sequence is self._staging.sequence:
            self._staging.release()
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._batch.leave(self._batch.sequences.index(sequence))
        self._end_aborted(sequence, reason, HTTPStatus.OK)

    def _abort_all(self, reason: str, status: HTTPStatus) -> None:
        unfinished = [*self._batch.sequences, *self._waiting]
        if self._staging.sequence is not None:
            unfinished.append(self._staging.release())
        self._batch.sequences.clear()
        self._waiting.clear()
        for sequence in unfinished:
            if sequence.finish is None:
                self._end_aborted(sequence, reason, status)

    def _end_aborted(self, sequence: Sequence, reason: str, status: HTTPStatus) -> None:
        self.counters.aborted += 1
        finish: dict[str, Any] = {"type": "abort", "message": reason, "status_code": None, "err_type": None}
        if status is not HTTPStatus.OK:
            finish |= {"status_code": int(status), "err_type": status.phrase}
        sequence.end(finish)
