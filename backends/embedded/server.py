"""The HTTP face of the engine: the part of SGLang's native API that the client needs. Knows no tensor.

Paths, field names, answer and error shapes follow SGLang 0.5.23, except that a token id outside the vocabulary is
refused with 400.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from jaz_actors.backends.embedded.engine import Engine, Sequence
from jaz_actors.backends.embedded.sampling import SamplingParams, field_names

VERSION = "embedded-1"


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of `/generate`. Unknown top-level fields are ignored, as SGLang does."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    rid: str | list[str] | None = None
    extra_key: str | None = None


class Refused(Exception):
    """A request that is answered with 400 and this body."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(str(body))
        self.body = body


def _refused(message: str) -> Refused:
    return Refused({"error": {"message": message}})


class _Generation:
    """One sequence and the event that says it has moved. Belongs to the server's loop."""

    def __init__(self, engine: Engine, prompt: list[int], params: SamplingParams, rid: str, request: GenerateRequest) -> None:
        self.rid = rid
        self.request = request
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self.sequence = Sequence(
            prompt, params, self._on_progress, streams=request.stream,
            wants_prompt_logprobs=bool(request.return_logprob) and request.logprob_start_len == 0,
        )  # fmt: skip
        self._engine = engine

    def _on_progress(self, sequence: Sequence) -> None:
        with contextlib.suppress(RuntimeError):  # the server's loop is closed: no one waits any more
            self._loop.call_soon_threadsafe(self._moved.set)

    def submit(self) -> None:
        self._engine.submit(self.sequence)

    async def finished(self) -> None:
        while self.sequence.finish is None:
            await self.moved()

    async def moved(self) -> None:
        await self._moved.wait()
        self._moved.clear()

    def answer(self) -> dict[str, Any]:
        sequence, params = self.sequence, self.sequence.params
        finish = sequence.finish
        count = len(sequence.output)
        ids = sequence.output[:count]
        logprobs = sequence.logprobs[:count]
        tokenizer = self._engine.tokenizer
        shown = ids
        text_stop = None
        if finish is not None and finish["type"] == "stop" and not params.no_stop_trim:
            if isinstance(finish["matched"], int):
                shown = ids[:-1]
            else:
                text_stop = finish["matched"]
        text = tokenizer.decode(
            shown,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        if text_stop is not None:
            text = text.partition(text_stop)[0]
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": finish,
            "prompt_tokens": len(sequence.prompt),
            "completion_tokens": count,
            "cached_tokens": 0,
            "weight_version": "default",
            "num_retractions": 0,
        }
        if finish is not None:
            meta["weight_versions"] = [{"version": "default", "start": 0, "end": count}]
            meta["e2e_latency"] = time.monotonic() - sequence.submitted
        if self.request.return_logprob:
            texts = [tokenizer.decode([i]) for i in ids] if self.request.return_text_in_logprobs else [None] * count
            meta["output_token_logprobs"] = [list(entry) for entry in zip(logprobs, ids, texts, strict=True)]
            meta["output_token_logprobs_length"] = count
            if sequence.prompt_logprobs is not None:
                pairs = zip(sequence.prompt_logprobs, sequence.prompt, strict=False)
                meta["input_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
        body: dict[str, Any] = {"text": text, "output_ids": shown, "meta_info": meta}
        if self.request.return_prompt_token_ids:
            body["prompt_token_ids"] = sequence.prompt
        return body


class Server:
    """Routes and the requests under way."""

    def __init__(self, engine: Engine, model_path: str) -> None:
        self._engine = engine
        self._model_path = model_path
        self._live: dict[str, _Generation] = {}
        self._decoder = msgspec.json.Decoder(GenerateRequest)
        self._started = time.time()

    def app(self) -> Starlette:
        both = ["GET", "POST"]
        return Starlette(
            routes=[
                Route("/generate", self.generate, methods=["POST"]),
                Route("/health", self.health),
                Route("/model_info", self.model_info),
                Route("/get_model_info", self.model_info),
                Route("/server_info", self.server_info),
                Route("/flush_cache", self.flush_cache, methods=both),
                Route("/abort_request", self.abort_request, methods=["POST"]),
            ],
            exception_handlers={404: _not_found},
        )

    async def generate(self, request: Request) -> Response:
        try:
            body = self._decode(await request.body())
            generations, many = self._generations(body)
        except Refused as refused:
            return JSONResponse(refused.body, status_code=400)
        for generation in generations:
            self._live[generation.rid] = generation
            generation.submit()
        if body.stream:
            return StreamingResponse(self._stream(generations), media_type="text/event-stream")
        gone = asyncio.create_task(_disconnected(request))
        done = asyncio.gather(*(generation.finished() for generation in generations))
        try:
            await asyncio.wait({gone, done}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                self._engine.counters.disconnected += 1
                return Response(status_code=499)
        finally:
            gone.cancel()
            self._release(generations)
            done.cancel()
        answers = [generation.answer() for generation in generations]
        return JSONResponse(answers if many else answers[0])

    async def _stream(self, generations: list[_Generation]) -> AsyncIterator[bytes]:
        finished = False
        try:
            for generation in generations:
                while True:
                    await generation.moved()
                    over = generation.sequence.finish is not None
                    yield b"data: " + msgspec.json.encode(generation.answer()) + b"\n\n"
                    if over:
                        break
            finished = True
            yield b"data: [DONE]\n\n"
        finally:
            if not finished:
                self._engine.counters.disconnected += 1
            self._release(generations)

    def _release(self, generations: list[_Generation]) -> None:
        for generation in generations:
            self._live.pop(generation.rid, None)
            self._engine.abort(generation.sequence, "the client is gone")

    def _decode(self, data: bytes) -> GenerateRequest:
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise Refused({"object": "error", "message": str(error)}) from error

    def _generations(self, body: GenerateRequest) -> tuple[list[_Generation], bool]:
        prompts, many = self._prompts(body)
        params = body.sampling_params
        each = params if isinstance(params, list) else [params or {}] * len(prompts)
        rids = body.rid if isinstance(body.rid, list) else [body.rid] * len(prompts)
        if len(each) != len(prompts) or len(rids) != len(prompts):
            raise _refused("sampling_params and rid must have one entry a prompt.")
        generations: list[_Generation] = []
        for prompt, given, rid in zip(prompts, each, rids, strict=True):
            sampling = _sampling(given)
            self._check(prompt, sampling)
            many = many or sampling.n > 1
            for branch in range(sampling.n):
                name = rid or uuid.uuid4().hex
                generation = _Generation(self._engine, prompt, sampling, name if not branch else f"{name}_{branch}", body)
                generation.sequence.branch = branch
                generations.append(generation)
        return generations, many

    def _prompts(self, body: GenerateRequest) -> tuple[list[list[int]], bool]:
        if body.input_ids is not None:
            nested = [isinstance(item, list) for item in body.input_ids]
            if any(nested) and not all(nested):
                raise Refused({"object": "error", "message": "input_ids mixes ids and lists of ids"})
            many = any(nested)
            prompts: Any = body.input_ids if many else [body.input_ids]
        elif body.text is not None:
            many = isinstance(body.text, list)
            texts = body.text if isinstance(body.text, list) else [body.text]
            prompts = [self._engine.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        else:
            raise _refused("Either text, input_ids or input_embeds should be provided.")
        if any(not prompt for prompt in prompts):
            raise _refused("input_ids cannot be empty.")
        return prompts, many

    def _check(self, prompt: list[int], sampling: SamplingParams) -> None:
        context = self._engine.context
        if len(prompt) >= context:
            raise _refused(
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)."
            )
        if len(prompt) + sampling.max_new_tokens > context:
            raise _refused(
                f"Requested token count exceeds the model's maximum context length of {context} tokens: "
                f"{len(prompt)} in the prompt and {sampling.max_new_tokens} to generate."
            )
        bad = next((i for i in prompt if not 0 <= i < self._engine.vocabulary), None)
        if bad is not None:
            raise _refused(f"Token id {bad} is outside the vocabulary of {self._engine.vocabulary}.")

    async def health(self, request: Request) -> Response:
        return Response()

    async def model_info(self, request: Request) -> Response:
        config = self._engine.model.config
        return JSONResponse(
            {
                "model_path": self._model_path,
                "tokenizer_path": self._model_path,
                "is_generation": True,
                "weight_version": "default",
                "model_type": config.model_type,
                "architectures": config.architectures,
            }
        )

    async def server_info(self, request: Request) -> Response:
        running, waiting = self._engine.load
        counters = self._engine.counters
        state = {
            "running": running,
            "waiting": waiting,
            "requests": counters.requests,
            "aborted": counters.aborted,
            "disconnected": counters.disconnected,
            "generated_tokens": counters.generated_tokens,
            "steps": counters.steps,
        }
        return JSONResponse(
            {
                "status": "ready",
                "version": VERSION,
                "model_path": self._model_path,
                "max_total_num_tokens": self._engine.context * self._engine.slots,
                "uptime": time.time() - self._started,
                "internal_states": [state],
            }
        )

    async def flush_cache(self, request: Request) -> Response:
        return PlainTextResponse("Cache flushed.\n")

    async def abort_request(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body() or b"{}")
        for rid, generation in list(self._live.items()):
            if body.get("abort_all") or rid == body.get("rid"):
                self._engine.abort(generation.sequence, "aborted by request")
        return Response()


def _sampling(given: dict[str, Any]) -> SamplingParams:
    unknown = given.keys() - set(SamplingParams.__struct_fields__)
    if unknown:
        raise Refused({"error": f"unknown field `{min(unknown)}`, expected one of {field_names()}"})
    try:
        return msgspec.convert(given, SamplingParams)
    except (msgspec.ValidationError, ValueError) as error:
        raise _refused(str(error)) from error


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "Not Found"}, status_code=404)
