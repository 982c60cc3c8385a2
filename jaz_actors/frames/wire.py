"""What a host and a frame say to each other over their socket pair. Records and framing; knows neither side.

Each message is a 4-byte little-endian length and the msgpack of one tagged record. Values are payloads: the host
never opens them.
"""

from __future__ import annotations

import struct

import msgspec

from jaz_actors.events import InputInfo
from jaz_actors.payload import ErrorRecord, PackedInput, Payload, ReferenceRecord, SharedBuffer
from jaz_actors.refs import Operation

LENGTH = struct.Struct("<I")
MAX_MESSAGE = 2**32 - 1


class HistoryItem(msgspec.Struct, frozen=True, array_like=True):
    """One past turn, as `__history__` shows it."""

    llm_response: str
    repl_output: str


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """Bounds on what is shown of one input (characters), and where its middle is cut."""

    max_characters: int
    head_ratio: float


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """First message to a frame. `shared` lists the buffers whose descriptors came with the message, in order."""

    home: str
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    limits: Limits
    depth: int = 1
    recursion: bool = True
    return_hint: bytes | None = None
    history: tuple[HistoryItem, ...] = ()
    children: int = 0
    shared: tuple[SharedBuffer, ...] = ()


class Execute(msgspec.Struct, frozen=True, array_like=True, tag="execute"):
    """Run one turn. `past` are the history items made since the last message; with `new_output` the message brings
    the descriptor of a fresh pipe, because earlier turns left processes that still write to the old one."""

    number: int
    code: str
    filename: str
    past: tuple[HistoryItem, ...] = ()
    new_output: bool = False


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer to a Call: exactly one of value and error."""

    call: int
    value: Payload | None = None
    error: ErrorRecord | None = None


class Serve(msgspec.Struct, frozen=True, array_like=True, tag="serve"):
    """Perform an operation on an object that this frame has lent. `args` packs (args, kwargs)."""

    call: int
    operation: Operation
    args: Payload


ToFrame = Setup | Execute | Reply | Serve


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The namespace stands; `inputs` and `scope` say what to show of it."""

    inputs: tuple[InputInfo, ...]
    scope: tuple[InputInfo, ...]


class SetupFailed(msgspec.Struct, frozen=True, array_like=True, tag="setup_failed"):
    """An input could not be loaded here."""

    name: str
    reason: str


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """One execution is over: at most one of value (a top-level return) and raised (a top-level raise) is set.

    error:         traceback text of anything else that ended the code.
    rejection:     why the frame's return check refused `value`.
    stderr_bytes:  bytes of the output that Python's own sys.stderr wrote; the rest is stdout.
    timed_out:     the deadline's interrupt ended it.
    has_children:  processes that the code started are still alive.
    names:         variables that the code has made so far, bounded.
    """

    number: int
    value: Payload | None = None
    raised: ErrorRecord | None = None
    error: str = ""
    rejection: str | None = None
    stderr_bytes: int = 0
    timed_out: bool = False
    has_children: bool = False
    names: tuple[str, ...] = ()


class ChildCall(msgspec.Struct, frozen=True, array_like=True, tag="child"):
    """Start a child invocation. `component` is its last path component; `hooks` are built-in hook specs."""

    component: str
    inputs: tuple[PackedInput, ...]
    hooks: tuple[bytes, ...] = ()


class ReferenceCall(msgspec.Struct, frozen=True, array_like=True, tag="reference"):
    """Perform an operation on an object whose home is elsewhere."""

    record: ReferenceRecord
    operation: Operation
    args: Payload


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    call: int
    body: ChildCall | ReferenceCall


class CancelCall(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    call: int


class Served(msgspec.Struct, frozen=True, array_like=True, tag="served"):
    call: int
    value: Payload | None = None
    error: ErrorRecord | None = None


FromFrame = Ready | SetupFailed | Finished | Call | CancelCall | Served

_encoder = msgspec.msgpack.Encoder()
to_frame_decoder: msgspec.msgpack.Decoder[ToFrame] = msgspec.msgpack.Decoder(ToFrame)
from_frame_decoder: msgspec.msgpack.Decoder[FromFrame] = msgspec.msgpack.Decoder(FromFrame)


def frame_bytes(message: ToFrame | FromFrame) -> bytearray:
    """The message with its length in front."""
    buffer = bytearray(4)
    _encoder.encode_into(message, buffer, 4)
    if len(buffer) - 4 > MAX_MESSAGE:
        raise ValueError("a value of 4 GiB or more must travel in shared buffers")
    LENGTH.pack_into(buffer, 0, len(buffer) - 4)
    return buffer
