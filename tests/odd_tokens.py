"""A made-up model family whose sampled ids are never what their text encodes to, and a backend that samples them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jaz_actors.backends.chat_format import Reply
from jaz_actors.backends.conditioning import prompt_of
from jaz_actors.backends.retry import RetryPolicy, with_retries
from jaz_actors.errors import ServerUnavailable
from jaz_actors.messages import Completion, Message, Role, SampledTokens, Segment, Span, Usage, VersionSpan
from jaz_actors.protocols import CompletionRequest

STOP, BREAK, THINK, THOUGHT = 256, 257, 258, 259
HEADS: dict[str, int] = {"system": 260, "user": 261, "assistant": 262}
ODD = 300  # a byte b is sampled as b + ODD, and encoded as b


class OddFormat:
    vocabulary = 600
    stop_ids = (STOP,)

    def load(self) -> None:
        pass

    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        return [HEADS[message.role], *message.content.encode(), STOP, BREAK]

    def reply_start_ids(self) -> list[int]:
        return [HEADS["assistant"]]

    def reply_end_ids(self, *, ended: bool) -> list[int]:
        return [BREAK] if ended else [STOP, BREAK]

    def read(self, ids: Sequence[int], *, ended: bool) -> Reply:
        body = list(ids[:-1] if ended else ids)
        end = 0
        if body and body[0] == THINK:
            end = body.index(THOUGHT) + 1 if THOUGHT in body else len(body)
        text = bytes(i - ODD if i >= ODD else i for i in body[end:] if i < STOP or i >= ODD)
        return Reply(text.decode(errors="replace"), (0, end) if end else None)


def sampled(text: str, *, thought: str | None = None) -> list[int]:
    """The ids of an answer, the one that ends it included."""
    thinking = [] if thought is None else [THINK, *(b + ODD for b in thought.encode()), THOUGHT]
    return [*thinking, *(b + ODD for b in text.encode()), STOP]


class Sampling:
    """A backend that says what `code` says, in odd tokens, and keeps a log of all that it sampled and gave.

    log:   a file that every host appends to: a line an answer.
    seed:  of thoughts, failures, lengths and versions, drawn anew from each request's own name.
    """

    model = "odd"
    reports_tokens = True
    reports_cost = True

    def __init__(
        self,
        code: Callable[[CompletionRequest], str],
        log: Path,
        *,
        seed: int | None = None,
        keep: bool = False,
    ) -> None:
        self._code, self._log, self._seed, self._keep = code, log, seed, keep

    async def complete(self, request: CompletionRequest) -> Completion:
        draw = random.Random(f"{self._seed}:{request.invoke_id.path}:{request.iteration}")
        plain = self._seed is None
        failures = 0 if plain or draw.random() < 0.7 else 2

        async def attempt(number: int) -> Completion:
            if number <= failures:
                raise ServerUnavailable("odd", "busy")
            return self._answer(request, draw, plain=plain)

        policy = RetryPolicy(5, wait_min=0, wait_max=0)
        return await with_retries(attempt, policy=policy, on_retry=request.on_retry)

    def _answer(self, request: CompletionRequest, draw: random.Random, *, plain: bool) -> Completion:
        chat = OddFormat()
        prompt = prompt_of(chat, request.messages, request.stamps)
        thought = None if plain or draw.random() < 0.6 else "hm" * draw.randint(0, 3)
        ids = sampled(self._code(request), thought=thought)
        stopped = plain or draw.random() < 0.9
        if not stopped:
            ids = ids[:-1]
        reply = chat.read(ids, ended=stopped)
        cut = draw.randint(0, len(ids))
        logprobs = [-draw.random() for _ in ids]
        tokens = SampledTokens(
            prompt.ids,
            ids,
            logprobs,
            "1",
            "2",
            (Segment(0, cut, "1", "1"), Segment(cut, len(ids), "1", "2")) if 0 < cut < len(ids) else (),
            tuple(s for s in (VersionSpan(0, cut, "1", "1"), VersionSpan(cut, len(ids), "1", "2")) if s.end > s.start),
            prompt.stamps,
            chat.reply_end_ids(ended=stopped),
            None if reply.reasoning is None else Span(*reply.reasoning),
            reply.reasoning is None or self._keep,
            {"temperature": 1.0},
        )
        line = {"invoke_id": str(request.invoke_id), "iteration": request.iteration}
        line |= {"prompt_ids": prompt.ids, "output_ids": ids, "logprobs": logprobs}
        with self._log.open("ab", buffering=0) as log:
            log.write(msgspec.json.encode(line) + b"\n")
        usage = Usage(len(prompt.ids), len(ids), 0, 0.0)
        return Completion(reply.content, "stop" if stopped else "length", self.model, usage, tokens)

    async def aclose(self) -> None:
        pass


class Answered(msgspec.Struct):
    """A line of a log."""

    invoke_id: str
    iteration: int
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]


def read_log(log: Path) -> list[Answered]:
    return [msgspec.json.decode(line, type=Answered) for line in log.read_bytes().splitlines()]
