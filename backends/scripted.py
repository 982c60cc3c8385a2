"""A backend whose answers are given beforehand, in code or as lists. No model, no I/O.

Public, for tests, examples and benchmarks. An answer function runs in the host; on Ray it is a pickled
copy, so it should depend on its request alone.
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
Replies = Sequence[str]


class ScriptEnded(BackendError):
    """More turns were asked for than the script has."""


class Scripted:
    """Answers as it was told to.

    answer: a function of the request, sync or async; or the replies of the successive turns of every
            invocation; or a mapping from an invocation's path (`"0"`, `"0.1"`; `"*"` stands for any other)
            to its replies.
    delay:  seconds before each answer, or a function of the request that gives them.
    context_length:  what it says of itself, in tokens.
    reports_tokens:  whether the function gives Completions with the tokens that were sampled.

    Usage counts words in place of tokens: of the prompt by its spaces, of the reply by whitespace. A
    Completion given by a function is passed on as it is. Raises ScriptEnded past the end of a list.
    """

    reports_cost = True  # nothing

    def __init__(
        self,
        answer: AnswerFunction | Replies | Mapping[str, Replies],
        *,
        delay: float | Callable[[CompletionRequest], float] = 0.0,
        model: str = "scripted",
        context_length: int | None = None,
        reports_tokens: bool = False,
    ) -> None:
        if not callable(answer):
            _check_script(answer)
        self._answer = answer
        self._delay = delay
        self._model = model
        self.context_length = context_length
        self.reports_tokens = reports_tokens

    @property
    def model(self) -> str:
        return self._model

    async def complete(self, request: CompletionRequest) -> Completion:
        delay = self._delay(request) if callable(self._delay) else self._delay
        if delay > 0:
            await asyncio.sleep(delay)
        answer = self._answer(request) if callable(self._answer) else self._reply(self._answer, request)
        if not isinstance(answer, (str, Completion)) and inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            prompt = sum(message.content.count(" ") + 1 for message in request.messages)
            return Completion(answer, "stop", self._model, Usage(prompt, len(answer.split()), 0, 0.0))
        if isinstance(answer, Completion):
            return answer
        raise ConfigurationError("answer", f"the function gave {type(answer).__name__}, not a str or a Completion")

    def _reply(self, script: Replies | Mapping[str, Replies], request: CompletionRequest) -> str:
        path = request.invoke_id.path
        if isinstance(script, Mapping):
            script = script[path] if path in script else script.get("*", ())
        if request.iteration >= len(script):
            raise ScriptEnded(self._model, f"the script of {path} has {len(script)} turns, and another was asked for")
        return script[request.iteration]

    async def aclose(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"Scripted(model={self._model!r})"


def _check_script(script: object) -> None:
    scripts = list(script.values()) if isinstance(script, Mapping) else [script]
    for replies in scripts:
        if isinstance(replies, str) or not isinstance(replies, Sequence):
            raise ConfigurationError("answer", "give a function, a list of replies, or a mapping from path to replies")
        wrong = [type(reply).__name__ for reply in replies if not isinstance(reply, str)]
        if wrong:
            raise ConfigurationError("answer", f"a reply is {wrong[0]}, not a str")
