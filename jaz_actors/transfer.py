"""Objects to payloads and back: pickling, shared buffers, exceptions. Knows nothing of who sends them where.

Inputs, results and exceptions are copied: cloudpickle, protocol 5, buffers out of band. Loading runs the pickle, so
only the process that is meant to use a value loads it.
"""

from __future__ import annotations

import io
import pickle
import reprlib
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle

from jaz_actors.errors import DecodeError, FatalError, RemoteError
from jaz_actors.payload import ErrorRecord, Payload, SharedBuffer

PREVIEW_CHARACTERS = 200

Share = Callable[[pickle.PickleBuffer], "bytes | SharedBuffer"]
Mapped = Callable[[SharedBuffer], memoryview]

_preview = reprlib.Repr()
_preview.maxstring = _preview.maxother = PREVIEW_CHARACTERS
_preview.maxlist = _preview.maxtuple = _preview.maxdict = _preview.maxset = 8


class Pickled(NamedTuple):
    data: bytes
    buffers: list[pickle.PickleBuffer]


def qualified_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def sendable(text: str) -> str:
    """`text` with lone surrogates spelt out: they are legal in Python and in no encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def preview(value: object) -> str:
    """A short repr; a repr that raises gives the type's name and the error's."""
    try:
        text = _preview.repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return sendable(text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…")


def in_place(buffer: pickle.PickleBuffer) -> bytes:
    return bytes(buffer.raw())


def dumps(value: object) -> bytes:
    """Pickle with buffers in band."""
    data: bytes = cloudpickle.dumps(value, protocol=5)
    return data


def pickled(value: object, pickler: type[cloudpickle.Pickler] = cloudpickle.Pickler) -> Pickled:
    """The value's pickle and its out-of-band buffers, which still belong to it. Raises whatever pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return Pickled(stream.getvalue(), buffers)


def pack(value: object) -> Payload:
    """The payload of a value, all of it in place. Raises whatever pickling raises."""
    return payload_of(value, pickled(value))


def payload_of(value: object, parts: Pickled, *, share: Share = in_place) -> Payload:
    """The payload of a value pickled before; `share` says where each buffer goes."""
    return Payload(
        parts.data, tuple(share(buffer) for buffer in parts.buffers), qualified_name(type(value)), preview(value)
    )


def _refuse_shared(buffer: SharedBuffer) -> memoryview:
    raise DecodeError("a shared buffer", f"process {buffer.pid} holds it and this one has no way to map it")


def unpack(payload: Payload, *, mapped: Mapped = _refuse_shared) -> object:
    """The value of a payload. Raises DecodeError naming the type when the pickle cannot be loaded here."""
    buffers = [mapped(buffer) if isinstance(buffer, SharedBuffer) else buffer for buffer in payload.buffers]
    try:
        return pickle.loads(payload.pickled, buffers=buffers)
    except Exception as error:
        raise DecodeError(f"a {payload.type_name}", f"{type(error).__name__}: {error}") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def load_plain(payload: Payload) -> object:
    """The value of a payload that holds plain data; no code of its maker runs. Raises DecodeError for all else."""
    try:
        return _PlainUnpickler(io.BytesIO(payload.pickled)).load()
    except Exception as error:
        raise DecodeError(f"a {payload.type_name}", f"only plain data is opened here: {error}") from error


def plain_error(record: ErrorRecord) -> RemoteError:
    """Stands for an exception where its pickle must not be opened."""
    return RemoteError(record.type_name, record.message, record.traceback)


def is_fatal(error: BaseException) -> bool:
    """Whether an error ends every enclosing invocation: a FatalError, alone or within a group."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_fatal(inner) for inner in error.exceptions)
    return isinstance(error, FatalError)


def error_record(error: BaseException, *, traceback_text: str | None = None) -> ErrorRecord:
    """An exception as a record. Never raises: what cannot be pickled, or loaded again, goes as text."""
    if traceback_text is None:
        traceback_text = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception as broken:
        message = f"<its str raised {type(broken).__name__}>"
    try:
        pickled: bytes | None = dumps(error)
        # An exception whose constructor does not take its args pickles but fails on arrival, where it is too late.
        if not isinstance(pickle.loads(pickled or b""), BaseException):
            pickled = None
    except Exception:
        pickled = None
    return ErrorRecord(
        qualified_name(type(error)), sendable(message), sendable(traceback_text), pickled, is_fatal(error)
    )


def load_error(record: ErrorRecord, *, note: str = "") -> BaseException:
    """The exception itself, with its remote traceback as a note; RemoteError where it could not be pickled."""
    error: BaseException | None = None
    if record.pickled is not None:
        try:
            loaded = pickle.loads(record.pickled)
        except Exception:
            loaded = None
        if isinstance(loaded, BaseException):
            error = loaded
    if error is None:
        error = RemoteError(record.type_name, record.message, record.traceback)
    if note:
        error.add_note(note)
    if record.traceback:
        error.add_note(f"Remote traceback:\n{record.traceback.rstrip()}")
    return error
