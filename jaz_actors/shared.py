"""Big buffers in sealed memory files: written once, mapped read-only by every process of the machine that needs them.

The kernel frees a file when its last holder closes it, so a crash leaves nothing behind. Knows nothing of pickles.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os
import pickle
import threading
import weakref
from functools import cache
from pathlib import Path

from jaz_actors.errors import DecodeError
from jaz_actors.payload import SharedBuffer

SHARE_FROM_BYTES = 256 * 1024

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class _Held:
    """One memory file of this process; closed when the last owner lets go of it."""

    __slots__ = ("__weakref__", "buffer", "finalize", "owners")

    def __init__(self, buffer: SharedBuffer) -> None:
        self.buffer = buffer
        self.owners: set[str] = set()
        self.finalize = weakref.finalize(self, os.close, buffer.fd)


class SharedBuffers:
    """The memory files that this process holds, each for the invocations (owners) that still need it.

    The lock protects the tables: buffers are shared by any thread that starts an invocation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._held: dict[int, _Held] = {}
        self._by_source: dict[tuple[int, int], tuple[weakref.ref[object], _Held]] = {}
        self._adopted: dict[SharedBuffer, _Held] = {}

    def share(self, buffer: pickle.PickleBuffer, owner: str) -> bytes | SharedBuffer:
        """The buffer's content in shared memory when it is big, else in place.

        The same unchanged array given to many invocations is written once: a writable one is compared with the copy
        that stands already, a read-only one is known by identity.
        """
        with buffer.raw() as view:
            if view.nbytes < SHARE_FROM_BYTES:
                return bytes(view)
            with self._lock:
                held = self._standing_copy(view)
                if held is None:
                    held = self._write(view)
                held.owners.add(owner)
                return held.buffer

    def _standing_copy(self, view: memoryview) -> _Held | None:
        known = self._by_source.get((_address(view), view.nbytes))
        if known is None or known[0]() is not view.obj or known[1].buffer.number not in self._held:
            return None
        if not view.readonly and not _equal(known[1].buffer, view):
            return None
        return known[1]

    def _write(self, view: memoryview) -> _Held:
        fd = os.memfd_create("jaz-actors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, view.nbytes)
        with mmap.mmap(fd, view.nbytes) as target:
            target[:] = view
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        held = _Held(SharedBuffer(boot_id(), os.getpid(), fd, next(self._numbers), view.nbytes))
        self._held[held.buffer.number] = held
        try:
            source: weakref.ref[object] = weakref.ref(view.obj)
        except TypeError:  # bytes and bytearray take no weak reference, so their identity cannot be trusted
            return held
        self._by_source[_address(view), view.nbytes] = (source, held)
        return held

    def adopt(self, buffer: SharedBuffer, owner: str) -> SharedBuffer:
        """Hold another process's buffer here as well, so that it outlives its maker.

        Raises DecodeError when it is on another machine or its holder is gone.
        """
        with self._lock:
            held = self._adopted.get(buffer)
            if held is None or held.buffer.number not in self._held:
                held = _Held(SharedBuffer(boot_id(), os.getpid(), _open(buffer), next(self._numbers), buffer.nbytes))
                self._adopted[buffer] = held
                self._held[held.buffer.number] = held
            held.owners.add(owner)
            return held.buffer

    def keep(self, buffer: SharedBuffer, owner: str) -> None:
        """Hold one of this process's own buffers for a further owner."""
        with self._lock:
            self._held[buffer.number].owners.add(owner)

    def held(self, buffer: SharedBuffer, owner: str) -> SharedBuffer | None:
        """`adopt`, or None when the buffer lies on another machine and has not been brought here yet."""
        if buffer.boot_id == boot_id() or buffer in self._adopted:
            return self.adopt(buffer, owner)
        return None

    def place(self, buffer: SharedBuffer, content: bytes, owner: str) -> SharedBuffer:
        """Hold a copy of another machine's buffer here; from then on `adopt` finds it."""
        with self._lock:
            held = self._adopted.get(buffer)
            if held is None or held.buffer.number not in self._held:
                held = self._adopted[buffer] = self._write(memoryview(content))
            held.owners.add(owner)
            return held.buffer

    def content(self, buffer: SharedBuffer) -> bytes:
        """The bytes of a buffer held or adopted here, for another machine. Raises DecodeError when it is not."""
        with self._lock:
            held = self._adopted.get(buffer)
            fd = held.buffer.fd if held is not None else None
        if fd is None:
            return bytes(map_shared(buffer))
        return bytes(map_readonly(fd, buffer.nbytes))

    def release(self, owner: str) -> None:
        with self._lock:
            for number, held in list(self._held.items()):
                held.owners.discard(owner)
                if not held.owners:
                    del self._held[number]
                    held.finalize()
            self._by_source = {k: v for k, v in self._by_source.items() if v[1].buffer.number in self._held}
            self._adopted = {k: v for k, v in self._adopted.items() if v.buffer.number in self._held}


def map_readonly(fd: int, nbytes: int) -> memoryview:
    """A read-only view of a memory file; the view keeps the mapping, the descriptor may be closed."""
    return memoryview(mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ))


def map_shared(buffer: SharedBuffer) -> memoryview:
    """Map a buffer that any process of this machine holds. Raises DecodeError when it cannot be reached."""
    fd = _open(buffer)
    try:
        return map_readonly(fd, buffer.nbytes)
    finally:
        os.close(fd)


def _open(buffer: SharedBuffer) -> int:
    if buffer.boot_id != boot_id():
        raise DecodeError("a shared buffer", "it lies in the memory of another machine")
    try:
        fd = os.open(f"/proc/{buffer.pid}/fd/{buffer.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DecodeError("a shared buffer", f"process {buffer.pid} no longer holds it") from error
    if os.fstat(fd).st_size != buffer.nbytes:
        os.close(fd)
        raise DecodeError("a shared buffer", f"process {buffer.pid} no longer holds it")
    return fd


def _address(view: memoryview) -> int:
    pointer = ctypes.c_void_p()
    request = (ctypes.c_byte * 256)()  # room for one Py_buffer, whose first field is the address
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(request), 0)
    ctypes.memmove(ctypes.byref(pointer), request, ctypes.sizeof(pointer))
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(request))
    return pointer.value or 0


def _equal(buffer: SharedBuffer, view: memoryview) -> bool:
    standing = map_readonly(buffer.fd, buffer.nbytes)
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return bool(libc.memcmp(_address(standing), _address(view), view.nbytes) == 0)
