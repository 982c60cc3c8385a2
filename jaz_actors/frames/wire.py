"""What a host and a frame say to each other over their socket pair. Records and framing; knows neither side.

Each message is a 4-byte little-endian length and the msgpack of one tagged record. Values are payloads: the host
never opens them.
"""

from __future__ import annotations

import struct

import msgspec

from jaz_actors.events import InputInfo
from jaz_actors.outcomes import Rejection
from jaz_actors.payload import ErrorRecord, PackedInput, Payload, ReferenceRecord, SharedBuffer
from jaz_actors.refs import Operation
from jaz_actors.spec import FrameHook

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


class Check(msgspec.Struct, frozen=True, array_like=True):
    """What a returned value must pass: a type hint, or a function that raises to refuse. Its place is its number."""

    is_type: bool
    payload: Payload


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """First message to a frame.

    children / references:  calls of each kind that earlier frames of the invocation made; numbers go on from there.
    shared:                 the buffers whose descriptors came with the message, in order.
    """

    home: str
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    limits: Limits
    depth: int = 1
    recursion: bool = True
    checks: tuple[Check, ...] = ()
    history: tuple[HistoryItem, ...] = ()
    children: int = 0
    references: int = 0
    shared: tuple[SharedBuffer, ...] = ()


class Execute(msgspec.Struct, frozen=True, array_like=True, tag="execute"):
    """Run one turn. `past` are the history items made since the last message; with `new_output` the message brings
    the descriptor of a fresh pipe, because earlier turns left processes that still write to the old one."""

    number: int
    code: str
    filename: str
    past: tuple[HistoryItem, ...] = ()
    new_output: bool = False


class Rebind(msgspec.Struct, frozen=True, array_like=True, tag="rebind"):
    """Unbind variables, then bind others, between turns. `required` are those that must be bound before."""

    drop: tuple[str, ...]
    required: tuple[str, ...]
    add: tuple[PackedInput, ...]


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


class AskHook(msgspec.Struct, frozen=True, array_like=True, tag="ask_hook"):
    """Run a hook of this frame for an encoded event; without `call` it only observes."""

    hook: int
    event: bytes
    call: int | None = None


ToFrame = Setup | Execute | Rebind | Reply | Serve | AskHook


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The namespace stands; `inputs` and `scope` say what to show of it."""

    inputs: tuple[InputInfo, ...]
    scope: tuple[InputInfo, ...]


class SetupFailed(msgspec.Struct, frozen=True, array_like=True, tag="setup_failed"):
    """An input could not be loaded here."""

    name: str
    reason: str


class Rebound(msgspec.Struct, frozen=True, array_like=True, tag="rebound"):
    """The answer to a Rebind. When `missing` or `taken` names a variable, or `reason` says more, nothing was done."""

    missing: str = ""
    taken: str = ""
    reason: str = ""


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """The frame is about to load and show an input that may run code of its own."""

    name: str


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """One execution is over: at most one of value (a top-level return) and raised (a top-level raise) is set.

    error:         traceback text of anything else that ended the code.
    fatal:         the FatalError that ended it.
    rejections:    of `value`, by the checks of the setup.
    stderr_bytes:  bytes of the output that Python's own sys.stderr wrote; the rest is stdout.
    timed_out:     the deadline's interrupt ended it.
    has_children:  processes that the code started are still alive.
    names:         variables that the code has made so far, bounded.
    """

    number: int
    value: Payload | None = None
    raised: ErrorRecord | None = None
    error: str = ""
    fatal: ErrorRecord | None = None
    rejections: tuple[Rejection, ...] = ()
    stderr_bytes: int = 0
    timed_out: bool = False
    has_children: bool = False
    names: tuple[str, ...] = ()


class ChildCall(msgspec.Struct, frozen=True, array_like=True, tag="child"):
    """Start a child invocation. `component` is its last path component; `scope` is what the code's own blocks add."""

    component: str
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...] = ()
    hooks: tuple[FrameHook, ...] = ()


class ReferenceCall(msgspec.Struct, frozen=True, array_like=True, tag="reference"):
    """Perform an operation on an object whose home is elsewhere. `number` counts these calls in program order."""

    record: ReferenceRecord
    operation: Operation
    args: Payload
    number: int = 0


class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    call: int
    body: ChildCall | ReferenceCall


class CancelCall(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    call: int


class Served(msgspec.Struct, frozen=True, array_like=True, tag="served"):
    call: int
    value: Payload | None = None
    error: ErrorRecord | None = None


class HookAnswered(msgspec.Struct, frozen=True, array_like=True, tag="hook_answered"):
    """The answer to an AskHook: encoded effects, or the name and the fields of the HookError."""

    call: int
    effects: bytes = b""
    error: tuple[str, tuple[str, ...]] | None = None


FromFrame = Ready | SetupFailed | Loading | Rebound | Finished | Call | CancelCall | Served | HookAnswered

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
