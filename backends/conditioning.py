"""From messages to the ids of a prompt: what was sampled or encoded before is taken as it was, the rest is encoded.

Knows a chat format and no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaz_actors.backends.chat_format import ChatFormat
from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Message, Stamp
from jaz_actors.stamps import TokenStamp


@dataclass(frozen=True, slots=True)
class Prompt:
    """stamps: whose the ids are, one for each message and one for the answer's beginning."""

    ids: list[int]
    stamps: tuple[Stamp, ...]


def unencoded(messages: Sequence[Message], stamps: Mapping[int, TokenStamp]) -> int:
    """Characters of the messages that have no stamp: a measure of the work that `prompt_of` will do."""
    return sum(len(message.content) for message in messages if message.number not in stamps)


def prompt_of(chat_format: ChatFormat, messages: Sequence[Message], stamps: Mapping[int, TokenStamp]) -> Prompt:
    """The only place where ids come from text. Raises ConfigurationError for ids that the model does not know."""
    ids: list[int] = []
    made: list[Stamp] = []
    for place, message in enumerate(messages):
        previous = messages[place - 1].role if place else None
        stamp = stamps.get(message.number)
        if stamp is not None and stamp.holds(message, previous):
            own, turn = stamp.ids, stamp.turn
        else:
            own, turn = chat_format.message_ids(message, previous), None
        ids += own
        made.append(Stamp(message.number, len(own), turn))
    begin = chat_format.reply_start_ids()
    ids += begin
    _check(ids, chat_format.vocabulary)
    return Prompt(ids, (*made, Stamp(None, len(begin))))


def _check(ids: list[int], vocabulary: int) -> None:
    """An id that the model does not know ends a real server."""
    if not ids:
        raise ConfigurationError("chat format", "made no ids of the messages")
    if min(ids) < 0 or max(ids) >= vocabulary:
        bad = next(i for i in ids if not 0 <= i < vocabulary)
        raise ConfigurationError("chat format", f"made id {bad}, outside the model's vocabulary of {vocabulary}")
