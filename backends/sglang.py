"""SGLang's native `/generate`: token ids in, token ids and logprobs out. Also what the embedded engine speaks.

Facts of the API: SGLang 0.5.23. What comes back is checked here, because everything behind trusts it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaz_actors.backends.chat_format import ChatFormat, TemplateFormat
from jaz_actors.backends.http import MAX_CONNECTIONS, READ_SECONDS, HttpClient
from jaz_actors.backends.retry import RetryPolicy
from jaz_actors.errors import (
    BackendError,
    ConfigurationError,
    GenerationAborted,
    MalformedResponse,
    RequestRefused,
)
from jaz_actors.messages import Completion, FinishReason, Message, SampledTokens, Usage
from jaz_actors.protocols import CompletionRequest

logger = logging.getLogger(__name__)

ABORT_SECONDS = 2.0
LABEL = "SGLang"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters as SGLang names them."""

    temperature: float = 1.0
    max_new_tokens: int = 1024
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigurationError("temperature", "must be at least 0")
        if self.max_new_tokens < 1:
            raise ConfigurationError("max_new_tokens", "must be at least 1")


class SGLang:
    """base_url:   of one server.
    tokenizer:  folder of the model's tokenizer, or a ChatFormat; None takes the folder that the server names.
    sampling:   for every request.

    Raises MalformedResponse when ids, logprobs and counts do not agree, GenerationAborted when the server cut the
    request short, BackendError subclasses otherwise.
    """

    def __init__(
        self,
        base_url: str,
        *,
        tokenizer: str | Path | ChatFormat | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008  frozen
        model: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  frozen
        read_timeout: float | None = READ_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._model = model or base_url
        self._retry = retry
        self._http = HttpClient(LABEL, base_url, read_timeout=read_timeout, max_connections=max_connections)
        self._format: ChatFormat | None = None
        self._opening: asyncio.Task[ChatFormat] | None = None
        self._version: str | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> str:
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_format": None, "_opening": None, "_aborts": set()}

    async def complete(self, request: CompletionRequest) -> Completion:
        chat_format = self._format or await self._open()
        prompt = self._prompt_ids(chat_format, request.messages)
        return await self._retry.run(request, lambda: self._attempt(chat_format, prompt, request))

    def _prompt_ids(self, chat_format: ChatFormat, messages: tuple[Message, ...]) -> list[int]:
        ids = chat_format.encode(messages)
        outside = next((i for i in ids if not 0 <= i < chat_format.vocabulary_size), None)
        if outside is not None:  # such an id ends the server's scheduler
            raise RequestRefused(LABEL, f"token id {outside} is outside the vocabulary of {chat_format.vocabulary_size}")
        return ids

    async def _open(self) -> ChatFormat:
        """Load the tokenizer once, whoever comes first; a cancelled caller does not stop it for the others."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._load())
        return await asyncio.shield(self._opening)

    async def _load(self) -> ChatFormat:
        info = await self._http.get_json("/model_info")
        self._version = info.get("weight_version")
        source = self._tokenizer
        if source is None:
            source = info.get("tokenizer_path") or info.get("model_path")
            if not isinstance(source, str) or not Path(source).is_dir():
                raise ConfigurationError("tokenizer", f"the server names {source!r}, which is no folder here; give one")
        if isinstance(source, (str, Path)):
            self._format = await asyncio.to_thread(TemplateFormat, source)
        else:
            self._format = source
        return self._format

    async def _attempt(self, chat_format: ChatFormat, prompt: list[int], request: CompletionRequest) -> Completion:
        rid = f"{request.invoke_id}/{request.iteration}/{uuid.uuid4().hex[:8]}"
        version = self._version
        body = {
            "input_ids": prompt,
            "rid": rid,
            "return_logprob": True,
            "extra_key": version,
            "sampling_params": {
                **asdict(self._sampling),
                "stop_token_ids": sorted(chat_format.stop_ids),
                "no_stop_trim": True,
                "skip_special_tokens": False,
                "spaces_between_special_tokens": False,
            },
        }
        try:
            answer = await self._http.post_json("/generate", body)
        except asyncio.CancelledError:
            self._abort(rid)
            raise
        completion = self._checked(chat_format, prompt, answer, version)
        assert completion.tokens is not None
        self._version = completion.tokens.version_at_return
        return completion

    def _checked(
        self, chat_format: ChatFormat, prompt: list[int], answer: Any, version: str | None
    ) -> Completion:
        try:
            ids, meta = answer["output_ids"], answer["meta_info"]
            finish, count = meta["finish_reason"], meta["completion_tokens"]
            entries = meta.get("output_token_logprobs") or []
            logprobs = [entry[0] for entry in entries]
            logprob_ids = [entry[1] for entry in entries]
            kind = finish["type"] if isinstance(finish, dict) else finish
        except (KeyError, TypeError, IndexError) as error:
            raise MalformedResponse(LABEL, f"a field is missing or of the wrong type: {error!r}") from error
        if kind == "abort":
            message = finish.get("message") if isinstance(finish, dict) else None
            raise GenerationAborted(LABEL, message or "the server aborted the request")
        _check_evidence(ids, logprobs, logprob_ids, count, chat_format.vocabulary_size)
        visible = ids[:-1] if kind == "stop" and ids and ids[-1] in chat_format.stop_ids else ids
        reason: FinishReason = kind if kind in ("stop", "length") else "unknown"
        return Completion(
            chat_format.decode(visible),
            reason,
            self._model,
            Usage(meta.get("prompt_tokens"), count, meta.get("cached_tokens")),
            SampledTokens(prompt, ids, logprobs, version, meta.get("weight_version")),
        )

    def _abort(self, rid: str) -> None:
        """Tell the server as well: a proxy in between may keep the connection open. Best effort, bounded."""

        async def tell() -> None:
            try:
                async with asyncio.timeout(ABORT_SECONDS):
                    await self._http.post_json("/abort_request", {"rid": rid})
            except (BackendError, TimeoutError) as error:
                logger.debug("abort of %s was not confirmed: %s", rid, error)

        task = asyncio.create_task(tell())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def aclose(self) -> None:
        if self._aborts:
            await asyncio.wait(self._aborts)
        if self._opening is not None:
            self._opening.cancel()
        await self._http.aclose()

    def __repr__(self) -> str:
        return f"SGLang({self._http.base_url!r})"


def _check_evidence(ids: Any, logprobs: list[Any], logprob_ids: list[Any], count: Any, vocabulary: int) -> None:
    """Raises MalformedResponse unless ids, logprobs and the count tell one story."""
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < vocabulary for i in ids):
        raise MalformedResponse(LABEL, f"output_ids are not all ids below {vocabulary}")
    if not len(ids) == len(logprobs) == count:
        raise MalformedResponse(LABEL, f"{len(ids)} ids, {len(logprobs)} logprobs, completion_tokens {count}")
    if ids != logprob_ids:
        raise MalformedResponse(LABEL, "the logprobs are of other ids than output_ids")
    if not all(isinstance(p, (int, float)) and not isinstance(p, bool) and math.isfinite(p) and p <= 1e-6 for p in logprobs):
        raise MalformedResponse(LABEL, "a logprob is not a finite number of at most 0")
