"""A backend whose answers are given beforehand: by a function, a list, or a list for each invocation. No model, no I/O.

Public, for tests, examples and benchmarks. The answer function runs in the host; on Ray it is a pickled copy, so it
should depend on its request alone.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence

from jaz_actors.errors import BackendError, ConfigurationError
from jaz_actors.messages import Completion, Usage
from jaz_actors.protocols import CompletionRequest

Answer = str | Completion
AnswerFunction = Callable[[CompletionRequest], Answer | Awaitable[Answer]]


class ScriptEnded(BackendError):
    """More turns were asked for than the script has."""


class Scripted:
    """answer: a function of the request; or the replies of the successive turns of every invocation; or a mapping from
        an invocation's path (`"0"`, `"0.1"`; `"*"` is any other) to its replies.
    delay: seconds before each answer, or a function of the request.

    Usage counts whitespace-separated words in place of tokens. Raises ScriptEnded past the end of a list.
    """

    def __init__(
        self,
        answer: AnswerFunction | Sequence[str] | Mapping[str, Sequence[str]],
        *,
        delay: float | Callable[[CompletionRequest], float] = 0.0,
        model: str = "scripted",
    ) -> None:
        if isinstance(answer, str) or not (callable(answer) or isinstance(answer, (Sequence, Mapping))):
            raise ConfigurationError("answer", "give a function, a list of replies, or a mapping from path to replies")
        self._answer = answer
        self._delay = delay
        self._model = model

    @property
    def model(self) -> str:
        return self._model

    async def complete(self, request: CompletionRequest) -> Completion:
        delay = self._delay(request) if callable(self._delay) else self._delay
        if delay > 0:
            await asyncio.sleep(delay)
        answer = self._reply(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Completion):
            return answer
        prompt = sum(message.content.count(" ") + 1 for message in request.messages)
        usage = Usage(prompt, len(answer.split()), 0, 0.0)
        return Completion(answer, "stop", self._model, usage)

    def _reply(self, request: CompletionRequest) -> Answer | Awaitable[Answer]:
        if callable(self._answer):
            return self._answer(request)
        replies: Sequence[str]
        if isinstance(self._answer, Mapping):
            path = request.invoke_id.path
            replies = self._answer.get(path) or self._answer.get("*") or ()
        else:
            replies = self._answer
        if request.iteration >= len(replies):
            raise ScriptEnded(
                self._model, f"the script of {request.invoke_id.path} has {len(replies)} turns, and another was asked for"
            )
        return replies[request.iteration]

    async def aclose(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"Scripted(model={self._model!r})"
