"""Continuous batching: sequences join and leave the running batch between steps. Knows tokens, not HTTP.

One thread owns the model. Others submit sequences and learn of their progress through callbacks on that thread. Weights
change there too, between two steps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from jaz_actors.backends.embedded.batch import Batch
from jaz_actors.backends.embedded.model_folder import LoadedModel
from jaz_actors.backends.embedded.prefixes import PrefixCache
from jaz_actors.backends.embedded.sampler import picked_of, top_of
from jaz_actors.backends.embedded.sequence import Sequence, StopRules
from jaz_actors.backends.embedded.staging import Staging
from jaz_actors.backends.embedded.token_log import TokenLog
from jaz_actors.backends.embedded.weights import Weights

logger = logging.getLogger(__name__)

# Prompt tokens stored between two steps of the batch: a long prompt holds up those that generate by no more than this.
PREFILL_TOKENS = 256
PREFIX_CACHE_BYTES = 256 * 2**20

T = TypeVar("T")
PauseMode = Literal["abort", "retract", "in_place"]


class EngineClosed(Exception):
    """The engine takes no more sequences."""


@dataclass(slots=True)
class Counters:
    """Written by the engine's thread, except `disconnected`, which is the server's."""

    requests: int = 0
    aborted: int = 0
    disconnected: int = 0
    prompt_tokens: int = 0
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
        weight_version: str = "default",
        token_log: Path | None = None,
    ) -> None:
        self.loaded = loaded
        self.weights = Weights(loaded, weight_version)
        self.is_paused = False
        self.rows = rows
        self.counters = Counters()
        self._threads = threads
        self._prefill_tokens = prefill_tokens
        self._rules = StopRules(loaded.tokenizer, loaded.eos)
        self._batch = Batch(loaded, rows=rows)
        self._staging = Staging(loaded)
        self._prefixes = PrefixCache(max_bytes=prefix_cache_bytes)
        self._waiting: deque[Sequence] = deque()
        # Those that came while paused, or behind a change that waits for the ones before it.
        self._held: deque[Sequence] = deque()
        self._changes: deque[Callable[[], None]] = deque()
        self._released = False
        self._log = TokenLog(token_log) if token_log is not None else None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unsettled: set[Future[Any]] = set()
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

    def change(self, change: Callable[[], T]) -> Future[T]:
        """Run it on the engine's thread once nothing is running or waiting, or at once while paused. What is submitted
        later waits until it is done. Raises EngineClosed, here or in the future."""

        def take(run: Callable[[], None]) -> None:
            self._changes.append(run)
            self._settle()

        return self._called(change, take)

    def between_steps(self, call: Callable[[], T]) -> Future[T]:
        """Run it on the engine's thread after the step that is under way. Raises EngineClosed."""
        return self._called(call, _run_now)

    def _called(self, call: Callable[[], T], take: Callable[[Callable[[], None]], None]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)

        self._unsettled.add(future)
        future.add_done_callback(self._unsettled.discard)
        try:
            self._put(lambda: take(run))
        except EngineClosed:
            self._unsettled.discard(future)
            raise
        return future

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

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def used_tokens(self) -> int:
        """Positions whose keys and values the batch holds."""
        return sum(len(sequence.prompt) + len(sequence.output) for sequence in list(self._batch.sequences))

    @property
    def retracted(self) -> int:
        """Those among the waiting that a pause has taken out of the batch."""
        return sum(1 for sequence in list(self._waiting) if sequence.retractions)

    @property
    def prefix_cache_bytes(self) -> int:
        return self._prefixes.bytes

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self._held)

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
                    if not self.is_paused:
                        self._fill()
                        self._step()
                    self._settle()
                except Exception as error:
                    # A failed step must neither leave its sequences without an answer nor end the server.
                    logger.exception("a step of the engine failed")
                    self._abort_all(f"the engine failed: {error!r}", HTTPStatus.INTERNAL_SERVER_ERROR)
        self._abort_all("the server is shutting down", HTTPStatus.SERVICE_UNAVAILABLE)
        for future in list(self._unsettled):
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineClosed())
        if self._log is not None:
            self._log.close()

    def _take_messages(self) -> bool:
        """Blocks while there is nothing to generate; False after the last message."""
        while True:
            idle = self.is_paused or not (self.running or self.waiting)
            try:
                message = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if message is None:
                return False
            message()

    def _accept(self, sequence: Sequence) -> None:
        self.counters.requests += 1
        self.counters.prompt_tokens += len(sequence.prompt)
        if self.is_paused or self._released or self._changes:
            self._held.append(sequence)
        else:
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        if sequence.params.max_new_tokens == 0 and not sequence.wants_prompt_logprobs:
            self._end(sequence, {"type": "length", "length": 0})
        else:
            self._waiting.append(sequence)

    def _settle(self) -> None:
        """Make the changes whose time has come, and let in what waited for them."""
        while self._changes and (self.is_paused or not (self.running or self.waiting)):
            self._changes.popleft()()
        if not (self.is_paused or self._released or self._changes):
            while self._held:
                self._enqueue(self._held.popleft())

    def _end(self, sequence: Sequence, finish: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.write(sequence, finish)
        sequence.end(finish)

    # Called through `between_steps` or `change`.

    def pause(self, mode: PauseMode) -> int:
        """Nothing is generated until `resume`; how many sequences are held by that.

        abort ends those under way with what they have, retract takes their keys and values away, to be made anew by
        the weights of then, in_place keeps all as it is.
        """
        self.is_paused = True
        if mode == "abort":
            self._abort_all("paused", HTTPStatus.OK)
        elif mode == "retract":
            self._retract()
        return self.running + self.waiting + len(self._held)

    def resume(self) -> None:
        self.is_paused = False
        self._settle()

    def abort_all(self) -> None:
        self._abort_all("aborted by request", HTTPStatus.OK)

    def flush_cache(self) -> bool:
        """Forget the cached prefixes; whether that was done: not while there are requests."""
        if self.is_idle:
            self._prefixes.clear()
        return self.is_idle

    def release_memory(self) -> bool:
        """Give the memory of keys and values back; whether that was done: not while there are requests."""
        if self.is_idle:
            self._released = True
            self._prefixes.clear()
            self._batch.release()
        return self.is_idle

    def resume_memory(self) -> None:
        self._released = False
        self._settle()

    def _retract(self) -> None:
        back = [*self._batch.sequences]
        for row in reversed(range(len(back))):
            self._batch.leave(row)
        if self._staging.sequence is not None:
            back.append(self._staging.release())
        for sequence in back:
            sequence.retractions += 1
        self._waiting.extendleft(reversed(back))

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
            hit = self._prefixes.longest(sequence.namespace, sequence.known[:-1])
        self._staging.begin(sequence, hit)
        self.counters.cached_tokens += 0 if hit is None else hit.length

    def _admit(self) -> None:
        stored = self._staging.stored
        sequence = self._staging.release()
        if len(stored) > sequence.cached_tokens and not sequence.output:
            # At once, and not only when it ends: samples of one prompt arrive together.
            self._prefixes.store(sequence.namespace, stored, self._staging.snapshot())
        if sequence.params.max_new_tokens == 0:
            self._end(sequence, {"type": "length", "length": 0})
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
            version = self.weights.version
            if not sequence.marks or sequence.marks[-1][0] != version:
                sequence.marks.append((version, len(sequence.output)))
            sequence.output.append(token)
            if sequence.wants:
                sequence.tops.append(top_of(drawn.all[row], sequence.wants.top))
                sequence.picks.append(picked_of(drawn.all[row], sequence.wants.ids))
            sequence.logprobs.append(logprob)
            finish = self._rules.finish_reason(sequence)
            if finish is not None:
                ended.append(row)
                self._end(sequence, finish)
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

    def _abort(self, sequence: Sequence, reason: str) -> None:
        if sequence.finish is not None:
            return
        if sequence is self._staging.sequence:
            self._staging.release()
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._held:
            self._held.remove(sequence)
        else:
            self._batch.leave(self._batch.sequences.index(sequence))
        self._end_aborted(sequence, reason, HTTPStatus.OK)

    def _abort_all(self, reason: str, status: HTTPStatus) -> None:
        unfinished = [*self._batch.sequences, *self._waiting, *self._held]
        if self._staging.sequence is not None:
            unfinished.append(self._staging.release())
        self._batch.sequences.clear()
        self._waiting.clear()
        self._held.clear()
        for sequence in unfinished:
            if sequence.finish is None:
                self._end_aborted(sequence, reason, status)

    def _end_aborted(self, sequence: Sequence, reason: str, status: HTTPStatus) -> None:
        self.counters.aborted += 1
        finish: dict[str, Any] = {"type": "abort", "message": reason, "status_code": None, "err_type": None}
        if status is not HTTPStatus.OK:
            finish |= {"status_code": int(status), "err_type": status.phrase}
        self._end(sequence, finish)


def _run_now(run: Callable[[], None]) -> None:
    run()
