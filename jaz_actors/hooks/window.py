"""What to do as the conversation nears the model's context length: warn, leave out, sum up.

How full it is is known from the last completed query's prompt tokens; what came after is estimated at four characters
a token. Seed messages and pinned ones, such as the return type, always stay.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from jaz_actors import events
from jaz_actors.effects import AddMessages, DropMessages, NewMessage
from jaz_actors.errors import ConfigurationError, JazError
from jaz_actors.hooks.base import Answer
from jaz_actors.hooks.limits import check_count
from jaz_actors.hooks.returns import ReturnType
from jaz_actors.hooks.specs import Builtin, CompactionSpec, ContextWindowWarningSpec, PackValue, SlidingWindowSpec
from jaz_actors.messages import Message

logger = logging.getLogger(__name__)

CHARACTERS_PER_TOKEN = 4
MESSAGE_CHARACTERS = 4 * CHARACTERS_PER_TOKEN

SUMMARY_PROMPT = (
    "`messages` is a part of the conversation between an agent and its Python REPL that will be taken out of the "
    "agent's view. Sum up, for the agent itself, what it must still know: what was tried and found, which variables "
    "hold what, what is left to do. Return the summary as a string and nothing else."
)
SUMMARY_HEADING = "Summary of the turns before, which are no longer shown (`__history__` has them):"


class _Window(Builtin):
    """Knows how many tokens the buffer of each invocation takes."""

    context_length: int | None

    def _begin(self, fraction: float, context_length: int | None) -> None:
        if not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
            raise ConfigurationError("fraction", f"must lie between 0 and 1, got {fraction!r}")
        if context_length is not None:
            check_count("context_length", context_length)
        self.context_length = context_length
        # By invoke id: the highest message number that was last sent, and the tokens that took.
        self._sent: dict[str, int] = {}
        self._prompt_tokens: dict[str, int] = {}

    def _limit(self, event: events.LLMQueryEnter) -> int | None:
        return self.context_length or event.context_length

    def on_llm_query_send(self, event: events.LLMQuerySend) -> None:
        self._sent[event.invoke_id] = max((message.number for message in event.messages), default=-1)

    def on_llm_query_exit(self, event: events.LLMQueryExit) -> None:
        if event.completion is not None and event.completion.usage.prompt_tokens is not None:
            self._prompt_tokens[event.invoke_id] = event.completion.usage.prompt_tokens

    def on_invoke_exit(self, event: events.InvokeExit) -> None:
        self._forget(event.invoke_id)
        self._sent.pop(event.invoke_id, None)

    def _forget(self, invoke_id: str) -> None:
        """The next prompt is another one: estimate it anew."""
        self._prompt_tokens.pop(invoke_id, None)

    def _tokens(self, event: events.LLMQueryEnter) -> int:
        """Of the buffer as the last query left it, with what was added since."""
        known = self._prompt_tokens.get(event.invoke_id)
        if known is None:
            return tokens_of(event.messages)
        return known + tokens_of([m for m in event.messages if m.number > self._sent[event.invoke_id]])


def tokens_of(messages: Sequence[Message]) -> int:
    """An estimate from the number of characters."""
    return sum(len(message.content) + MESSAGE_CHARACTERS for message in messages) // CHARACTERS_PER_TOKEN


class ContextWindowWarning(_Window, Builtin):
    """Shows `warning_text`, for that query only, once the prompt takes `warn_fraction` of the context length.

    context_length: in tokens; None is what the backend says. Where neither knows, there is no warning.
    """

    def __init__(self, warn_fraction: float, warning_text: str, *, context_length: int | None = None) -> None:
        self._begin(warn_fraction, context_length)
        if not isinstance(warning_text, str) or not warning_text:
            raise ConfigurationError("warning_text", f"must be a text, got {warning_text!r}")
        self.warn_fraction = warn_fraction
        self.warning_text = warning_text

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        limit = self._limit(event)
        if limit is None or self._tokens(event) < self.warn_fraction * limit:
            return None
        return AddMessages((NewMessage("user", self.warning_text),))

    def to_spec(self, pack: PackValue) -> ContextWindowWarningSpec:
        return ContextWindowWarningSpec(self.warn_fraction, self.warning_text, self.context_length)


class SlidingWindow(_Window, Builtin):
    """Shows only the newest messages that fit into `fraction` of the context length, and those that always stay.

    Nothing is lost for good: the buffer keeps every message, and a later query may show it again.
    """

    def __init__(self, fraction: float, *, context_length: int | None = None) -> None:
        self._begin(fraction, context_length)
        self.fraction = fraction

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        limit = self._limit(event)
        if limit is None:
            return None
        room = int(self.fraction * limit) - tokens_of([m for m in event.messages if stays(m)])
        dropped: list[int] = []
        for position in range(len(event.messages) - 1, -1, -1):
            message = event.messages[position]
            if stays(message):
                continue
            room -= tokens_of([message])
            # The newest message is what the agent must answer, so it is shown whatever its size.
            if room < 0 and position < len(event.messages) - 1:
                dropped.append(position)
        return DropMessages(tuple(dropped)) if dropped else None

    def to_spec(self, pack: PackValue) -> SlidingWindowSpec:
        return SlidingWindowSpec(self.fraction, self.context_length)


class Compaction(_Window, Builtin):
    """Has older turns summed up by a child agent once the prompt takes `fraction` of the context length.

    keep_recent:     newest messages that stay as they are.
    min_compact:     fewer messages than this are not worth a summary.
    summary_prompt:  the child's task; its input `messages` is a list of (role, text).
    summarizer:      a function of that list, sync or async, to be used instead of a child; it runs at home.

    The summary replaces the messages for good. The child is a child like any other: limits, budgets and recorders see
    it. When it fails, the turn goes on without. The conversation of such a child is not compacted.
    """

    def __init__(
        self,
        *,
        fraction: float,
        keep_recent: int = 6,
        min_compact: int = 2,
        summary_prompt: str = SUMMARY_PROMPT,
        summarizer: Callable[[list[tuple[str, str]]], str | Awaitable[str]] | None = None,
        context_length: int | None = None,
    ) -> None:
        self._begin(fraction, context_length)
        if summarizer is not None:
            self.placement = "home"
            self.to_spec = None  # type: ignore[assignment, method-assign]
        self.summarizer = summarizer
        check_count("keep_recent", keep_recent)
        check_count("min_compact", min_compact)
        self.fraction = fraction
        self.keep_recent = keep_recent
        self.min_compact = min_compact
        self.summary_prompt = summary_prompt

    async def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        limit = self._limit(event)
        if limit is None or not event.can_recurse or self._tokens(event) < self.fraction * limit:
            return None
        if event.blackboard.get(SUMMARISER):
            return None
        old = event.messages[: -self.keep_recent]
        positions = [position for position, message in enumerate(old) if not stays(message)]
        if len(positions) < self.min_compact:
            return None
        summary = await self._summary([old[position] for position in positions])
        if summary is None:
            return None
        self._forget(event.invoke_id)
        added = NewMessage("user", f"{SUMMARY_HEADING}\n{summary}")
        return [
            DropMessages(tuple(positions), persistent=True),
            AddMessages((added,), index=positions[0], persistent=True),
        ]

    async def _summary(self, messages: Sequence[Message]) -> str | None:
        from jaz_actors.frontdoor import ainvoke
        from jaz_actors.hooks.metadata import MetaData

        shown: list[tuple[str, str]] = [(message.role, message.content) for message in messages]
        if self.summarizer is not None:
            summary = self.summarizer(shown)
            return await summary if isinstance(summary, Awaitable) else summary
        try:
            summary = await ainvoke(
                MetaData(**{SUMMARISER: True}), ReturnType(str), task=self.summary_prompt, messages=shown
            )
        except JazError as error:
            logger.warning("no summary was made, and the turn goes on without: %s", error)
            return None
        return str(summary)

    def to_spec(self, pack: PackValue) -> CompactionSpec:
        return CompactionSpec(
            self.fraction, self.keep_recent, self.min_compact, self.summary_prompt, self.context_length
        )


# Key of the blackboard: True for an agent that sums up another's conversation.
SUMMARISER = "jaz.summariser"


def stays(message: Message) -> bool:
    return message.kind == "seed" or message.pinned
