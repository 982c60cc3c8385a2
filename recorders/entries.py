"""What the entries of a journal hold, and the reading of one: msgpack of `Entry`. Knows no process and no disk.

Each sender (a feed) numbers its entries from 0, so that what it sends again after a recorder's death is kept once.
"""

from __future__ import annotations

import msgspec

from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.recorders.deltas import Delta

SCHEMA = 2


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """First entry of a journal, and again each time that a run is resumed. `timestamp` is seconds since the epoch."""

    schema: int
    run_id: str
    timestamp: float
    version: str


class Recorded(msgspec.Struct, frozen=True, tag="event"):
    delta: Delta


class ToolAnswer(msgspec.Struct, frozen=True, tag="tool_answer"):
    """What an object passed by reference answered: call `number` of the invocation, in the order of its program."""

    invoke_id: str
    number: int
    verb: str
    name: str
    value: Payload | None = None
    error: ErrorRecord | None = None


class RewardGiven(msgspec.Struct, frozen=True, tag="reward"):
    """What an invocation's own rollout is worth; the last one counts, None takes it back. Of its children it says
    nothing."""

    invoke_id: str
    reward: float | None


Record = RunStarted | Recorded | ToolAnswer | RewardGiven


class Entry(msgspec.Struct, frozen=True, array_like=True):
    feed: str
    sequence: int
    record: Record


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of an entry, read without the rest."""

    feed: str
    sequence: int


encode = msgspec.msgpack.Encoder().encode
entry_decoder = msgspec.msgpack.Decoder(Entry)
head_decoder = msgspec.msgpack.Decoder(Head)
