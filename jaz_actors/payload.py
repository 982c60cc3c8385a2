"""An opaque value: the bytes that a process made of an object, and what may be said of it without opening it.

Hosts carry payloads and never load them. Pickling and loading live in `transfer`.
"""

from __future__ import annotations

import msgspec


class SharedBuffer(msgspec.Struct, frozen=True, array_like=True):
    """Bytes in a sealed memory file, to be mapped read-only instead of copied.

    number:  identity within the process `pid` of the machine `boot_id` that holds it.
    fd:      the holder's descriptor; other processes of the same user open it through /proc while it is held.
    nbytes:  size in bytes.
    """

    boot_id: str
    pid: int
    fd: int
    number: int
    nbytes: int


class Payload(msgspec.Struct, frozen=True, array_like=True):
    """A pickled object.

    pickled:    protocol-5 pickle, buffers out of band.
    buffers:    the out-of-band buffers, in order: in place, or in shared memory.
    type_name:  qualified name of the object's type.
    preview:    a bounded repr made where the object lives, for logs and reports.
    """

    pickled: bytes
    buffers: tuple[bytes | SharedBuffer, ...] = ()
    type_name: str = ""
    preview: str = ""


class ErrorRecord(msgspec.Struct, frozen=True, array_like=True):
    """An exception in transit. `pickled` is None where it could not be pickled, or where a host made the record
    on behalf of a frame that is gone. A `fatal` one ends every enclosing invocation instead of reaching its code."""

    type_name: str
    message: str
    traceback: str = ""
    pickled: bytes | None = None
    fatal: bool = False


class ReferenceRecord(msgspec.Struct, frozen=True, array_like=True):
    """An object that stays where it is.

    home:       name of the process that holds it, as the channel knows it; frames add `/FRAME`.
    number:     identity within that home.
    type_name, doc, signature: what may be said of it without a call; signature is empty for what is not callable.
    methods / coroutine_methods: names that a proxy may call in one round trip.
    is_coroutine: calling it gives an awaitable.
    """

    home: str
    number: int
    type_name: str
    doc: str = ""
    signature: str = ""
    methods: tuple[str, ...] = ()
    coroutine_methods: tuple[str, ...] = ()
    is_coroutine: bool = False


class PackedInput(msgspec.Struct, frozen=True, array_like=True):
    """One named input on its way into a frame.

    description: the text that the agent is shown instead of a rendering of the value.
    hidden:      bound in the namespace but not shown.
    """

    name: str
    payload: Payload
    description: str | None = None
    hidden: bool = False
