"""The ids that an invocation's messages contribute to its prompts, so that no text is encoded twice. Knows no format.

Pure bookkeeping over what completions say: nothing here makes ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaz_actors.messages import Completion, Message, Role, SampledTokens


@dataclass(frozen=True, slots=True)
class TokenStamp:
    """ids: what the message contributes. text: its content when they were made; with another they do not hold.

    previous:  the role of the message before it then; None for the first. Sampled ids hold after any.
    turn:      the turn that sampled them, None where they were made from the text.
    """

    ids: list[int]
    text: str
    previous: Role | None
    turn: int | None = None

    def holds(self, message: Message, previous: Role | None) -> bool:
        return self.text == message.content and (self.turn is not None or self.previous == previous)


class Stamps:
    """Belongs to one invocation. Messages are named by their numbers, which are never used twice."""

    def __init__(self) -> None:
        self._stamps: dict[int, TokenStamp] = {}

    @property
    def known(self) -> Mapping[int, TokenStamp]:
        return self._stamps

    def sent(self, shown: Sequence[Message], tokens: SampledTokens) -> None:
        """Learn what each shown message contributed to a prompt."""
        contents = {message.number: place for place, message in enumerate(shown)}
        start = 0
        for stamp in tokens.stamps:
            end = start + stamp.length
            place = None if stamp.message is None else contents.get(stamp.message)
            if place is not None:
                message = shown[place]
                known = self._stamps.get(message.number)
                previous = shown[place - 1].role if place else None
                if known is None or not known.holds(message, previous):
                    ids = tokens.prompt_ids[start:end]
                    self._stamps[message.number] = TokenStamp(ids, message.content, previous, stamp.turn)
            start = end

    def said(self, message: Message, answer: Completion, final: Completion) -> None:
        """Learn what an assistant's message contributes: the ids that were sampled, unless a hook changed its text."""
        tokens = answer.tokens
        if tokens is None or not tokens.stamps or not tokens.kept or final.content != answer.content:
            return
        begins = tokens.stamps[-1].length
        ids = [*tokens.prompt_ids[len(tokens.prompt_ids) - begins :], *tokens.output_ids, *tokens.suffix_ids]
        self._stamps[message.number] = TokenStamp(ids, message.content, None, message.iteration)
