"""A frame's stdout and stderr. Both end in the turn's pipe; knows nothing of what is run."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from typing import Any


class _Counting(io.FileIO):
    """Unbuffered writes to one descriptor, counted; threads left over from earlier turns write nothing."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.count = 0
        self.silenced: frozenset[int] = frozenset()

    def write(self, data: Any) -> int:
        if threading.get_ident() in self.silenced:
            return len(data)
        written = super().write(data) or 0
        self.count += written
        return written


class Output:
    """Owns `sys.stdout` and `sys.stderr` of the frame's process."""

    def __init__(self) -> None:
        self._out = _Counting(1)
        self._err = _Counting(2)
        self._stdout = _stream(self._out)
        self._stderr = _stream(self._err)

    def begin(self) -> None:
        """Start a turn: the streams are ours again, whatever the last turn made of them."""
        sys.stdout = sys.__stdout__ = self._stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._stderr  # type: ignore[misc]
        self._err.count = 0

    def end(self, *, spare: frozenset[int]) -> int:
        """End a turn; returns the bytes that sys.stderr wrote. Threads still alive, but for `spare`, fall silent."""
        for stream in (self._stdout, self._stderr):
            with contextlib.suppress(OSError, ValueError):  # the code closed or broke its own stdout
                stream.flush()
        # Only what started before the end of the turn is known to belong to it.
        old = frozenset(thread.ident for thread in threading.enumerate() if thread.ident is not None) - spare
        self._out.silenced = self._err.silenced = old
        return self._err.count


def _stream(raw: _Counting) -> io.TextIOWrapper:
    buffered = io.BufferedWriter(raw, 8192)
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)
