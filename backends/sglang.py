"""SGLang's native API: token ids out, sampled ids and their log-probabilities back.

Knows one server, no pool.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from jaz_actors.backends.chat_format import ChatFormat, HFChatFormat
from jaz_actors.backends.conditioning import Prompt, prompt_of, unencoded
from jaz_actors.backends.environment import ApiKey
from jaz_actors.backends.generate_api import Generated, Sampling, generate_body, read_generated
from jaz_actors.backends.http_client import Endpoint, HttpClient
from jaz_actors.backends.retry import RetryPolicy, with_retries
from jaz_actors.backends.segments import Segments
from jaz_actors.errors import (
    BackendError,
    ConfigurationError,
    GenerationAborted,
    MalformedResponse,
    ModelNotFound,
    RateLimited,
    ServerUnavailable,
)
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Completion, FinishReason, SampledTokens, Span, Usage
from jaz_actors.protocols import CompletionRequest

__all__ = ["HistoryReasoning", "SGLang", "Sampling"]

logger = logging.getLogger(__name__)

ABORT_SECONDS: Final = 5.0
THREAD_CHARACTERS: Final = 20_000  # so much text takes milliseconds to tokenise, too long for the loop

# A request that was broken off before anything was sampled may be sent again, like one that was not served.
RETRIED: Final = (RateLimited, ServerUnavailable, GenerationAborted)

# Under these, routers look for what keeps a conversation on one server: SGLang's model gateway and sgl-router.
SESSION_HEADERS: Final = ("x-smg-routing-key", "x-session-id")


class _ModelInfo(msgspec.Struct, frozen=True):
    tokenizer_path: str | None = None
    weight_version: str | int | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class _Settings:
    label: str
    endpoint: Endpoint
    chat_format: ChatFormat | None
    sampling: Sampling
    history_reasoning: HistoryReasoning
    retry: RetryPolicy
    context_length: int | None


HistoryReasoning = Literal["strip", "keep"]


class SGLang:
    """A model behind SGLang's `/generate`.

    base_url:     e.g. "http://localhost:30000".
    model_path:   the folder of its tokenizer and chat template. None takes the one that the server names,
                  if that folder exists here.
    chat_format:  in place of model_path, for a format of one's own.
    model:        the label under which completions are recorded; by default the folder's name.
    history_reasoning:  what later prompts of an invocation hold of an answer with reasoning. "strip": its visible
                  text, encoded anew, as most reasoning models are trained; each turn is then a sequence of its own.
                  "keep": the ids as sampled, so that all turns are one sequence that only grows. See the page on
                  models for what each family was trained with. An answer without reasoning is kept always.
    context_length:  tokens that prompt and reply may have together: for hooks that watch the window, and to ask for
                  no longer answer than there is room for. None is what the server says, if it does, once it has
                  answered for the first time.
    timeout, max_connections:  see Endpoint. A request waits while its server is paused for an update.

    An answer that the server breaks off, as it may for an update, is gone on with from where it was. The prefix cache
    is asked for under the weight version last seen in an answer. Between an update of the weights and the first
    answer after it, a request may therefore meet the old version's cache; one that knows of the update calls
    `note_weight_version` first. A prompt id that the model does not know would end the server, so it is refused here.
    """

    reports_tokens = True

    def __init__(
        self,
        base_url: str,
        *,
        model_path: str | Path | None = None,
        chat_format: ChatFormat | None = None,
        sampling: Sampling | None = None,
        history_reasoning: HistoryReasoning = "strip",
        model: str | None = None,
        api_key: str | None = None,
        context_length: int | None = None,
        timeout: float | None = 600.0,
        max_connections: int = 1024,
        retry: RetryPolicy | None = None,
    ) -> None:
        if chat_format is not None and model_path is not None:
            raise ConfigurationError("chat_format", "give it or model_path, not both")
        if history_reasoning not in ("strip", "keep"):
            raise ConfigurationError("history_reasoning", f"must be 'strip' or 'keep', got {history_reasoning!r}")
        if model_path is not None:
            chat_format = HFChatFormat(model_path)
        if isinstance(chat_format, HFChatFormat) and chat_format.path.is_dir():
            chat_format.load()  # now, so that a model that cannot be talked to is refused before anything starts
        endpoint = Endpoint(base_url, api_key=ApiKey(api_key), timeout=timeout, max_connections=max_connections)
        label = model or (Path(model_path).name if model_path is not None else "sglang")
        self.__setstate__(
            _Settings(
                label,
                endpoint,
                chat_format,
                sampling or Sampling(),
                history_reasoning,
                retry or RetryPolicy(retry_on=RETRIED),
                context_length,
            )
        )

    def __getstate__(self) -> _Settings:
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        self._settings = settings
        self._client = HttpClient(f"SGLang({settings.endpoint.shown})", settings.endpoint)
        self._format: ChatFormat | None = None
        self._loading = asyncio.Lock()  # protects the first use: the tokenizer is read once
        self._weight_version: str | None = None
        self.context_length = settings.context_length
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> str:
        return self._settings.label

    def note_weight_version(self, version: str) -> None:
        """The server has these weights from now on."""
        self._weight_version = version

    async def complete(self, request: CompletionRequest) -> Completion:
        chat_format: ChatFormat | None = None
        prompt: Prompt | None = None
        sampled = Segments()

        async def attempt(number: int) -> Completion:
            nonlocal chat_format, prompt
            if chat_format is None or prompt is None:
                chat_format = await self._ready()
                prompt = await self._prompt(chat_format, request)
            await self._sample(chat_format, prompt, sampled, request.invoke_id, request.iteration)
            return self._completion(chat_format, prompt, sampled)

        return await with_retries(attempt, policy=self._settings.retry, on_retry=request.on_retry)

    async def aclose(self) -> None:
        """Waits for aborts under way, each of which is bounded. Idempotent."""
        await asyncio.gather(*self._aborts)
        await self._client.aclose()

    def __repr__(self) -> str:
        return f"SGLang({self._settings.endpoint.shown!r}, model={self.model!r})"

    async def _ready(self) -> ChatFormat:
        if self._format is None:
            async with self._loading:
                if self._format is None:
                    self._format = await self._first_use()
        return self._format

    async def _first_use(self) -> ChatFormat:
        info = await self._model_info()
        if self._weight_version is None and info.weight_version is not None:
            self._weight_version = str(info.weight_version)
        if self.context_length is None:
            self.context_length = info.context_length
        chat_format = self._settings.chat_format
        if chat_format is None:
            if info.tokenizer_path is None:
                raise ConfigurationError("model_path", "the server names no tokenizer; give model_path or chat_format")
            chat_format = HFChatFormat(info.tokenizer_path)
        await asyncio.to_thread(chat_format.load)
        return chat_format

    async def _model_info(self) -> _ModelInfo:
        try:
            data = await self._client.get("/model_info")
        except ModelNotFound:  # the older name of the same
            data = await self._client.get("/get_model_info")
        try:
            return msgspec.json.decode(data, type=_ModelInfo)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MalformedResponse(self._client.name, f"model_info: {error}: {data[:200]!r}") from error

    async def _prompt(self, chat_format: ChatFormat, request: CompletionRequest) -> Prompt:
        if unencoded(request.messages, request.stamps) > THREAD_CHARACTERS:
            return await asyncio.to_thread(prompt_of, chat_format, request.messages, request.stamps)
        return prompt_of(chat_format, request.messages, request.stamps)

    async def _sample(
        self, chat_format: ChatFormat, prompt: Prompt, sampled: Segments, invoke_id: InvokeId, iteration: int
    ) -> None:
        """Ask until the answer is complete. Raises what ends a request that has got no further."""
        while True:
            generated = await self._generate(chat_format, prompt, sampled, invoke_id, iteration)
            if generated.aborted is None or len(sampled.output_ids) >= self._most(prompt):
                return
            if not isinstance(generated.aborted, GenerationAborted):
                raise generated.aborted

    async def _generate(
        self, chat_format: ChatFormat, prompt: Prompt, sampled: Segments, invoke_id: InvokeId, iteration: int
    ) -> Generated:
        """One request, which goes on from what is sampled already."""
        submitted_under = self._weight_version
        ids = [*prompt.ids, *sampled.output_ids]
        rid = _rid(invoke_id, iteration)
        session = str(invoke_id)
        body = generate_body(
            ids,
            self._settings.sampling.parameters(
                chat_format.stop_ids, most=self._most(prompt), sampled=len(sampled.output_ids)
            ),
            rid=rid,
            weight_version=submitted_under,
            session=session,
        )
        try:
            data = await self._client.post("/generate", body, dict.fromkeys(SESSION_HEADERS, session))
        except asyncio.CancelledError:
            self._abort_nowait(rid)
            raise
        generated = read_generated(self._client.name, data, prompt_length=len(ids), vocabulary=chat_format.vocabulary)
        sampled.add(generated, submitted_under=submitted_under)
        if generated.weight_version is not None:
            self._weight_version = _later(self._weight_version, generated.weight_version)
        return generated

    def _most(self, prompt: Prompt) -> int:
        """Ids that the answer may have: where the window leaves fewer than asked for, servers refuse the request.

        Some count the last place as well, so one is left.
        """
        most = self._settings.sampling.max_new_tokens
        room = most if self.context_length is None else self.context_length - len(prompt.ids) - 1
        return room if 0 < room < most else most

    def _completion(self, chat_format: ChatFormat, prompt: Prompt, sampled: Segments) -> Completion:
        settings, last = self._settings, sampled.last
        assert last is not None
        ids = sampled.output_ids
        finish: FinishReason = "length" if last.finish_reason == "abort" else last.finish_reason
        ended = bool(ids) and ids[-1] in {*chat_format.stop_ids, last.stopped_by}
        if ended and finish == "length":
            finish = "stop"  # servers look at the length first where both end an answer
        reply = chat_format.read(ids, ended=ended)
        tokens = SampledTokens(
            prompt.ids,
            ids,
            sampled.logprobs,
            sampled.version_at_submit,
            sampled.version_at_return,
            tuple(sampled.segments),
            tuple(sampled.versions),
            prompt.stamps,
            chat_format.reply_end_ids(ended=ended),
            None if reply.reasoning is None else Span(*reply.reasoning),
            reply.reasoning is None or settings.history_reasoning == "keep",
            settings.sampling.parameters(chat_format.stop_ids, most=self._most(prompt)),
        )
        usage = Usage(len(prompt.ids), len(ids), sampled.cached_tokens)
        return Completion(reply.content, finish, self.model, usage, tokens)

    def _abort_nowait(self, rid: str) -> None:
        """The closed connection ends the request too, but only once the server looks at it."""
        task = asyncio.get_running_loop().create_task(self._abort(rid), name=f"abort {rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, rid: str) -> None:
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._client.post("/abort_request", msgspec.json.encode({"rid": rid}))
        except (TimeoutError, BackendError) as error:
            logger.debug("%s could not be aborted: %s", rid, error)


def _rid(invoke_id: InvokeId, iteration: int) -> str:
    """Unique even where a turn is queried again, and read by routers as the invocation's: they cut such endings off.

    Servers abort by prefix; the last part is random and always as long, so no id is a prefix of another.
    """
    return f"{invoke_id}_t{iteration}_r{secrets.randbelow(10**12):012d}"


def _later(one: str | None, other: str) -> str:
    """Answers may overtake each other; numbered versions only rise."""
    if one is not None and one.isdecimal() and other.isdecimal() and int(one) > int(other):
        return one
    return other
