"""SGLang's native API: token ids out, sampled ids and their log-probabilities back.

Knows one server, no pool.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from jaz_actors.backends.chat_format import ChatFormat, HFChatFormat
from jaz_actors.backends.environment import ApiKey
from jaz_actors.backends.generate_api import Generated, Sampling, generate_body, read_generated
from jaz_actors.backends.http_client import Endpoint, HttpClient
from jaz_actors.backends.retry import RetryPolicy, with_retries
from jaz_actors.errors import BackendError, ConfigurationError, MalformedResponse, ModelNotFound
from jaz_actors.messages import Completion, Message, SampledTokens, Usage
from jaz_actors.protocols import CompletionRequest

__all__ = ["SGLang", "Sampling"]

logger = logging.getLogger(__name__)

ABORT_SECONDS: Final = 5.0
THREAD_CHARACTERS: Final = 20_000  # a prompt this long takes milliseconds to tokenise, too long for the loop


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
    retry: RetryPolicy
    context_length: int | None


class SGLang:
    """A model behind SGLang's `/generate`.

    base_url:     e.g. "http://localhost:30000".
    model_path:   the folder of its tokenizer and chat template. None takes the one that the server names,
                  if that folder exists here.
    chat_format:  in place of model_path, for a format of one's own.
    model:        the label under which completions are recorded; by default the folder's name.
    context_length:  tokens that prompt and reply may have together, for hooks that watch the window. None is
                  what the server says, if it does, once it has answered for the first time.
    timeout, max_connections:  see Endpoint.

    The prefix cache is asked for under the weight version last seen in an answer. Between an update of the
    weights and the first answer after it, a request may therefore meet the old version's cache; one that
    knows of the update calls `note_weight_version` first. A prompt id that the model does not know would
    end the server, so it is refused here.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model_path: str | Path | None = None,
        chat_format: ChatFormat | None = None,
        sampling: Sampling | None = None,
        model: str | None = None,
        api_key: str | None = None,
        context_length: int | None = None,
        timeout: float | None = 600.0,
        max_connections: int = 1024,
        retry: RetryPolicy | None = None,
    ) -> None:
        if chat_format is not None and model_path is not None:
            raise ConfigurationError("chat_format", "give it or model_path, not both")
        if model_path is not None:
            chat_format = HFChatFormat(model_path)
        endpoint = Endpoint(base_url, api_key=ApiKey(api_key), timeout=timeout, max_connections=max_connections)
        label = model or (Path(model_path).name if model_path is not None else "sglang")
        self.__setstate__(
            _Settings(label, endpoint, chat_format, sampling or Sampling(), retry or RetryPolicy(), context_length)
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
        async def attempt(number: int) -> Completion:
            chat_format = await self._ready()
            prompt_ids = await self._prompt_ids(chat_format, request.messages)
            return await self._generate(chat_format, prompt_ids, rid=_rid(request, number))

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
        except msgspec.DecodeError as error:
            raise MalformedResponse(self._client.name, f"model_info: {error}: {data[:200]!r}") from error

    async def _prompt_ids(self, chat_format: ChatFormat, messages: Sequence[Message]) -> list[int]:
        """What the server is sent for these messages; the only place where ids come from text."""
        if sum(len(message.content) for message in messages) > THREAD_CHARACTERS:
            ids = await asyncio.to_thread(chat_format.encode, messages)
        else:
            ids = chat_format.encode(messages)
        _check_prompt(ids, chat_format.vocabulary)
        return ids

    async def _generate(self, chat_format: ChatFormat, prompt_ids: list[int], *, rid: str) -> Completion:
        submitted_under = self._weight_version
        body = generate_body(
            prompt_ids,
            self._settings.sampling,
            rid=rid,
            stop_ids=chat_format.stop_ids,
            weight_version=submitted_under,
        )
        try:
            data = await self._client.post("/generate", body)
        except asyncio.CancelledError:
            self._abort_nowait(rid)
            raise
        generated = read_generated(
            self._client.name, data, prompt_length=len(prompt_ids), vocabulary=chat_format.vocabulary
        )
        if generated.weight_version is not None:
            self._weight_version = generated.weight_version
        return Completion(
            chat_format.decode(_visible(generated, chat_format.stop_ids)),
            generated.finish_reason,
            self.model,
            Usage(generated.prompt_tokens, len(generated.output_ids), generated.cached_tokens),
            SampledTokens(
                prompt_ids,
                generated.output_ids,
                generated.logprobs,
                version_at_submit=submitted_under,
                version_at_return=generated.weight_version,
            ),
        )

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


def _rid(request: CompletionRequest, attempt: int) -> str:
    """Unique even where a turn is queried again.

    Servers abort by prefix; the last part is random and always as long, so no id is a prefix of another.
    """
    return f"{request.invoke_id}:{request.iteration}:{attempt}:{secrets.token_hex(4)}"


def _check_prompt(ids: list[int], vocabulary: int) -> None:
    if not ids:
        raise ConfigurationError("chat format", "made no ids of the messages")
    if min(ids) < 0 or max(ids) >= vocabulary:
        bad = next(i for i in ids if not 0 <= i < vocabulary)
        raise ConfigurationError("chat format", f"made id {bad}, outside the model's vocabulary of {vocabulary}")


def _visible(generated: Generated, stop_ids: tuple[int, ...]) -> list[int]:
    """The sampled ids without the one that ended them."""
    ids = generated.output_ids
    ended = ids and generated.finish_reason == "stop" and ids[-1] in {*stop_ids, generated.stopped_by}
    return ids[:-1] if ended else ids
