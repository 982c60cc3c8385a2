"""The HTTP face of the engine: the part of SGLang's native API that a token-native client needs. Knows no tensor.

Paths, fields, answers and errors follow SGLang 0.5.23, except that a token id outside the vocabulary is refused with
400; there it ends the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from jaz_actors.backends.embedded.answers import answer
from jaz_actors.backends.embedded.engine import Engine, EngineClosed
from jaz_actors.backends.embedded.flights import ClientGone, Flight
from jaz_actors.backends.embedded.requests import Prompts, Refused, parse
from jaz_actors.backends.embedded.sampling import SamplingParams
from jaz_actors.backends.embedded.sequence import Sequence
from jaz_actors.backends.embedded.weight_routes import WeightRoutes

VERSION = "embedded-1"
CLIENT_CLOSED_REQUEST = 499
HEALTH_SECONDS = 20.0


class AbortBody(msgspec.Struct, kw_only=True):
    rid: str | None = None
    abort_all: bool = False


class Server:
    """Routes, and the requests under way. Belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._flights: dict[str, Flight] = {}
        self._started = time.time()
        self._weights = WeightRoutes(engine)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/generate", self.generate, methods=["POST"]),
                Route("/health", self.health),
                Route("/ready", self.health),
                Route("/health_generate", self.health_generate),
                Route("/model_info", self.model_info),
                Route("/get_model_info", self.model_info),
                Route("/server_info", self.server_info),
                Route("/v1/loads", self.loads),
                Route("/abort_request", self.abort_request, methods=["POST"]),
                *self._weights.routes(),
            ],
            exception_handlers=_ANSWERS,
        )

    async def generate(self, request: Request) -> Response:
        loaded = self._engine.loaded
        prompts = parse(await request.body(), limits=loaded, encoder=loaded.tokenizer)
        flight = self._take_off(prompts, request)
        if prompts.body.stream:
            return _EventStream(self._frames(flight), self._landing(flight))
        with self._landing(flight):
            try:
                async for _ in flight.progress():
                    pass
            except ClientGone:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
        answers = [self._answer(flight, index) for index in range(len(flight.sequences))]
        return _json(answers if prompts.is_list else answers[0])

    async def _frames(self, flight: Flight) -> AsyncIterator[bytes]:
        """Cumulative frames; several sequences take turns, each frame with its index."""
        with contextlib.suppress(ClientGone):
            async for moved in flight.progress():
                for index in moved:
                    frame = self._answer(flight, index)
                    if flight.prompts.is_list:
                        frame["index"] = index
                    yield b"data: " + msgspec.json.encode(frame) + b"\n\n"
            yield b"data: [DONE]\n\n"

    def _take_off(self, prompts: Prompts, request: Request) -> Flight:
        """Nothing is awaited between the check of the ids and their entry, so that two requests cannot share one."""
        taken = next((p.rid for p in prompts.prompts if p.rid in self._flights), None)
        if taken is not None:
            raise Refused.because(f"Duplicate request ID detected: {taken}")
        flight = Flight(prompts, self._engine, request.receive)
        try:
            flight.submit()
        except EngineClosed:
            flight.release()
            raise
        for prompt in prompts.prompts:
            self._flights[prompt.rid] = flight
        return flight

    @contextlib.contextmanager
    def _landing(self, flight: Flight) -> Iterator[None]:
        """However the request ends, its sequences end with it."""
        try:
            yield
        finally:
            for prompt in flight.prompts.prompts:
                del self._flights[prompt.rid]
            if not flight.is_finished:
                self._engine.counters.disconnected += 1
            flight.release()

    def _answer(self, flight: Flight, index: int) -> dict[str, Any]:
        prompts = flight.prompts
        tokenizer = self._engine.loaded.tokenizer
        version = self._engine.weights.version
        return answer(tokenizer, prompts.body, prompts.prompts[index], flight.sequences[index], version=version)

    async def abort_request(self, request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body() or b"{}", type=AbortBody)
        except msgspec.MsgspecError as error:
            raise Refused.malformed(str(error)) from error
        for rid, flight in self._flights.items():
            # By its beginning, so that one call ends all samples of a prompt.
            if body.abort_all or (body.rid and rid.startswith(body.rid)):
                flight.abort(rid, "aborted by request")
        return Response()

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._engine.is_alive else 503)

    async def health_generate(self, request: Request) -> Response:
        """Generates a token; 503 where that takes long, as while paused."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        sequence = Sequence([0], SamplingParams(max_new_tokens=1), lambda: _set(loop, done), seed=0)
        self._engine.submit(sequence)
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await done.wait()
        except TimeoutError:
            self._engine.abort(sequence, "the health check has waited long enough")
            return Response(status_code=503)
        return Response()

    async def loads(self, request: Request) -> Response:
        engine = self._engine
        room = engine.loaded.context * engine.rows
        used = engine.used_tokens
        counters = engine.counters
        paused = engine.held if engine.is_paused else 0
        load = {
            "dp_rank": 0,
            "num_running_reqs": engine.running,
            "num_waiting_reqs": engine.waiting + engine.held,
            "num_used_tokens": used,
            "max_total_num_tokens": room,
            "token_usage": used / room,
            "gen_throughput": counters.generated_tokens / max(time.time() - self._started, 1e-9),
            "cache_hit_rate": counters.cached_tokens / max(counters.prompt_tokens, 1),
            "utilization": engine.running / engine.rows,
            "queues": {
                "waiting": engine.waiting,
                "paused": engine.held if paused else 0,
                "retracted": engine.retracted,
            },
            "memory": {"prefix_cache_bytes": engine.prefix_cache_bytes},
        }
        return _json({"timestamp": time.time(), "version": VERSION, "loads": [load]})

    async def model_info(self, request: Request) -> Response:
        loaded = self._engine.loaded
        config = loaded.model.config
        return _json(
            {
                "model_path": loaded.path,
                "tokenizer_path": loaded.path,
                "is_generation": True,
                "weight_version": self._engine.weights.version,
                "model_type": config.model_type,
                "architectures": config.architectures,
                "context_length": loaded.context,
                "vocab_size": loaded.vocabulary,
            }
        )

    async def server_info(self, request: Request) -> Response:
        engine = self._engine
        counters = engine.counters
        state = {
            "running": engine.running,
            "waiting": engine.waiting + engine.held,
            "paused": engine.is_paused,
            "total_requests": counters.requests,
            "aborted": counters.aborted,
            "disconnected": counters.disconnected,
            "generated_tokens": counters.generated_tokens,
            "cached_tokens": counters.cached_tokens,
            "steps": counters.steps,
        }
        return _json(
            {
                "weight_version": engine.weights.version,
                "status": "ready" if engine.is_alive else "stopping",
                "version": VERSION,
                "model_path": engine.loaded.path,
                "max_running_requests": engine.rows,
                "max_total_num_tokens": engine.loaded.context * engine.rows,
                "uptime": time.time() - self._started,
                "internal_states": [state],
            }
        )


class _EventStream(StreamingResponse):
    """Holds `around` for as long as it is sent, also when its first frame is never asked for."""

    def __init__(self, frames: AsyncIterator[bytes], around: AbstractContextManager[None]) -> None:
        super().__init__(frames, media_type="text/event-stream")
        self._around = around

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._around:
            await super().__call__(scope, receive, send)


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits any more
        loop.call_soon_threadsafe(event.set)


async def _refused(request: Request, refused: Refused) -> Response:
    return JSONResponse(refused.body, status_code=400)


async def _closed(request: Request, closed: EngineClosed) -> Response:
    return JSONResponse({"detail": "the server is shutting down"}, status_code=503)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=error.headers)


# Each takes its own class of error, which the library's type for such a table cannot say.
_ANSWERS: dict[Any, Any] = {HTTPException: _http_error, Refused: _refused, EngineClosed: _closed}
