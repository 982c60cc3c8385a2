"""One request under way: its sequences in the engine, their progress, and whether the client is still there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive

from jaz_actors.backends.embedded.engine import Engine, EngineClosed
from jaz_actors.backends.embedded.requests import Prompts
from jaz_actors.backends.embedded.sequence import Sequence


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Flight:
    """Belongs to the server's loop; the engine's thread only sets the event."""

    def __init__(self, prompts: Prompts, engine: Engine, receive: Receive) -> None:
        self.prompts = prompts
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        body = prompts.body
        scored = bool(body.return_logprob) and body.logprob_start_len is not None and body.logprob_start_len >= 0
        self.sequences = [
            Sequence(
                prompt.token_ids,
                prompt.params,
                self._on_progress,
                seed=prompt.seed,
                rid=prompt.rid,
                wants=prompt.wants,
                namespace=prompt.extra_key,
                streams=body.stream,
                wants_prompt_logprobs=scored,
            )
            for prompt in prompts.prompts
        ]
        self._gone = asyncio.create_task(_disconnection(receive))
        self._gone.add_done_callback(lambda _: self._moved.set())

    def submit(self) -> None:
        """Raises EngineClosed."""
        for sequence in self.sequences:
            self._engine.submit(sequence)

    async def progress(self) -> AsyncIterator[list[int]]:
        """After each movement, which sequences have moved; ends when all are finished. Raises ClientGone."""
        seen = [0] * len(self.sequences)
        open_ones = set(range(len(self.sequences)))
        while open_ones:
            await self._moved.wait()
            self._moved.clear()
            if self._gone.done():
                raise ClientGone
            moved: list[int] = []
            for index in sorted(open_ones):
                sequence = self.sequences[index]
                finished = sequence.finish is not None
                count = len(sequence.logprobs)
                if finished or count != seen[index]:
                    moved.append(index)
                    seen[index] = count
                if finished:
                    open_ones.discard(index)
            if moved:
                yield moved

    @property
    def is_finished(self) -> bool:
        return all(sequence.finish is not None for sequence in self.sequences)

    def abort(self, rid: str, reason: str) -> None:
        for prompt, sequence in zip(self.prompts.prompts, self.sequences, strict=True):
            if prompt.rid == rid:
                self._end(sequence, reason)

    def release(self) -> None:
        """Idempotent: ends what is unfinished."""
        self._gone.cancel()
        for sequence in self.sequences:
            self._end(sequence, "the client is gone")

    def _end(self, sequence: Sequence, reason: str) -> None:
        with contextlib.suppress(EngineClosed):  # it ends all its sequences itself
            self._engine.abort(sequence, reason)

    def _on_progress(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits any more
            self._loop.call_soon_threadsafe(self._moved.set)


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
