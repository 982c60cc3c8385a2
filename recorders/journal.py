"""A run's journal: an append-only folder of checksummed entries. Knows bytes and numbers, not what an entry means.

The format stands in `jaz_actors.recorders.segments`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from jaz_actors.errors import ConfigurationError, JournalError
from jaz_actors.recorders.segments import (
    HEADER_BYTES,
    MAX_ENTRY_BYTES,
    RUN_ID_BYTES,
    Cursor,
    Header,
    advance,
    entry_bytes,
    file_errors,
    header_of,
    segment_path,
    segment_paths,
)

logger = logging.getLogger(__name__)

_LOCK = "writer.lock"
_BUFFER_BYTES = 256 * 1024


class JournalWriter:
    """Appends to the journal in `folder`, which is made if need be. One writer at a time, others are refused.

    All calls block on files and none is thread-safe: drive it from one thread of its own. The lock is an `flock`: it
    goes with the process, however that ends, unless a child that it forked without `exec` lives on.

    fsync:    when entries are on disk. "always": before `append` returns. "interval": by the first `tick` that comes
              `interval` seconds after the last time, and by `flush`. "never": when the operating system likes; entries
              then survive the process, but not the machine.
    segment_bytes: a segment of this size is followed by a new one, after it was synced whatever the policy.

    Every call may raise `JournalError` for what the disk does. What `append` raised for is not in the journal; what it
    gave a number to is kept, and the next call tries again to write it. Only if the process dies before that may an
    entry that is not `synced` be lost, or one that was refused be found.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        run_id: str,
        fsync: Literal["always", "interval", "never"] = "interval",
        interval: float = 0.2,
        segment_bytes: int = 64 * 2**20,
    ) -> None:
        if not run_id or "\0" in run_id or len(run_id.encode()) > RUN_ID_BYTES:
            raise ConfigurationError("run_id", f"{run_id!r} is not 1 to {RUN_ID_BYTES} bytes of text without NUL")
        self._folder = Path(folder).absolute()
        self._run_id = run_id
        self._fsync = fsync
        self._interval = interval
        self._segment_bytes = max(segment_bytes, HEADER_BYTES + 1)  # an empty one is not followed
        # In the order of the file: [.. _durable | _sent | _written | _buffer | _end], offsets into the last segment.
        self._sent: list[bytes] = []
        self._buffer: list[bytes] = []
        self._durable = self._written = self._end = 0
        self._torn = False  # the file may hold more than `_written` bytes
        self._fd = -1
        with file_errors(self._folder):
            _make_folder(self._folder)
            self._lock = _take_lock(self._folder)
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise
        self._synced_at = time.monotonic()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def entries(self) -> int:
        """How many entries there are, and the number of the next one."""
        return self._entries

    @property
    def synced(self) -> int:
        """How many of them are as durable as the policy makes them, and may be acknowledged."""
        return self._entries - len(self._sent) - len(self._buffer)

    def append(self, payload: bytes) -> int:
        """Add an entry and give its number."""
        return self.append_many((payload,))[0]

    def append_many(self, payloads: Iterable[bytes]) -> range:
        """Add entries, all of them or none, to one segment, with one fsync under "always"; give their numbers."""
        entries = [self._encoded(payload) for payload in payloads]
        count, size = len(entries), sum(map(len, entries))
        self._require_open()
        if not entries:
            return range(self._entries, self._entries)
        if self._end >= self._segment_bytes:
            self._rotate()
        self._buffer += entries
        self._end += size
        self._entries += count
        try:
            if self._fsync == "always":
                self.flush()
            elif self._end - self._written >= _BUFFER_BYTES:
                self._write()
        except BaseException:
            del self._buffer[-count:]
            self._end -= size
            self._entries -= count
            raise
        return range(self._entries - count, self._entries)

    def tick(self) -> None:
        """Do what is due: hand everything to the operating system, and sync if the interval is over."""
        self._require_open()
        self._write()
        if self._fsync == "interval" and self._sent and time.monotonic() - self._synced_at >= self._interval:
            self._sync()

    def flush(self) -> None:
        """Make every entry as durable as the policy makes it, now."""
        self._require_open()
        self._write()
        if self._sent:
            self._sync()

    def close(self) -> None:
        """Flush, and let others write. Also when it raises, the writer is closed; again it does nothing."""
        if self._fd < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._fd)
            os.close(self._lock)
            self._fd = -1

    # -- the last segment

    def _open(self) -> None:
        cursor = Cursor()
        for _ in advance(self._folder, cursor):
            pass
        if cursor.run_id not in (None, self._run_id):
            raise JournalError(
                str(self._folder),
                f"it belongs to run {cursor.run_id!r}, not to {self._run_id!r}: give each run a folder of its own, or "
                "go on with that one in `resume(folder)`",
            )
        self._entries = cursor.entry
        if cursor.offset == 0:
            self._begin_segment(cursor.segment)
            return
        path = segment_path(self._folder, cursor.segment)
        with file_errors(path), _opened(path) as fd:
            torn = os.fstat(fd).st_size - cursor.offset
            if torn:
                logger.warning("%s: cut at byte %d, before a torn entry of %d bytes", path, cursor.offset, torn)
                os.ftruncate(fd, cursor.offset)
            os.fsync(fd)
            _sync_folder(self._folder)
            self._use(fd, cursor.segment, cursor.offset)

    def _begin_segment(self, number: int) -> None:
        """Make a segment, or make it anew where a crash or an error left it without its header."""
        header = Header(number, self._entries, self._run_id).to_bytes()
        path = segment_path(self._folder, number)
        with file_errors(path), _opened(path) as fd:
            os.ftruncate(fd, 0)
            _write_all(fd, header, 0)
            os.fsync(fd)
            _sync_folder(self._folder)
            self._use(fd, number, len(header))

    def _use(self, fd: int, segment: int, end: int) -> None:
        if self._fd >= 0:
            with suppress(OSError):  # it was synced: nothing can be lost any more
                os.close(self._fd)
        self._fd = fd
        self._segment = segment
        self._durable = self._written = self._end = end

    def _rotate(self) -> None:
        self._write()
        self._sync()
        self._begin_segment(self._segment + 1)

    def _write(self) -> None:
        """Bring the buffer into the file: all of it, or none that stays."""
        with self._repairing():
            if self._torn:
                self._cut()
            if self._buffer:
                self._torn = True
                self._written = _write_all(self._fd, b"".join(self._buffer), self._written)
                self._torn = False
        if self._fsync == "never":
            self._durable = self._written
        else:
            self._sent += self._buffer
        self._buffer = []

    def _sync(self) -> None:
        with self._repairing():
            try:
                os.fsync(self._fd)
            except BaseException:
                # The kernel may have dropped the pages that it could not write, and a second fsync would not say so:
                # everything since the last good one is written again.
                self._buffer = self._sent + self._buffer
                self._sent = []
                self._written = self._durable
                self._torn = True
                raise
        self._sent = []
        self._durable = self._written
        self._synced_at = time.monotonic()

    @contextmanager
    def _repairing(self) -> Iterator[None]:
        """Leave whole entries in the file. Where even that fails, the next `_write` begins with it."""
        with file_errors(segment_path(self._folder, self._segment)):
            try:
                yield
            except BaseException:
                if self._torn:
                    with suppress(OSError):
                        self._cut()
                raise

    def _cut(self) -> None:
        os.ftruncate(self._fd, self._written)
        self._torn = False

    def _encoded(self, payload: bytes) -> bytes:
        if len(payload) > MAX_ENTRY_BYTES:
            reason = f"an entry of {len(payload)} bytes is more than the limit of {MAX_ENTRY_BYTES}"
            raise JournalError(str(self._folder), reason)
        return entry_bytes(payload)

    def _require_open(self) -> None:
        if self._fd < 0:
            raise JournalError(str(self._folder), "the writer is closed")


class JournalReader:
    """Reads the journal in `folder`, also while a writer in another process appends to it.

    Reading is streaming: what is in memory is the entry being given. It ends without an error where the journal does
    for now, and raises `JournalError` at damage. Entries are seen before they are synced: if the disk then fails, those
    that were not may be taken back.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()
        self._cursor = Cursor()

    @property
    def run_id(self) -> str | None:
        """None while the first segment has no header yet."""
        paths = segment_paths(self._folder)
        header = header_of(paths[0]) if paths else None
        return header.run_id if header else None

    def read(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Number and payload of every entry from number `start` on. Segments that end before it are not looked at."""
        cursor = self._before(start)
        return ((number, payload) for number, payload in advance(self._folder, cursor) if number >= start)

    def read_new(self) -> Iterator[tuple[int, bytes]]:
        """The entries that this method has not yet given. One iteration at a time; a left one is taken up again."""
        return advance(self._folder, self._cursor)

    def _before(self, start: int) -> Cursor:
        for path in reversed(segment_paths(self._folder)):
            header = header_of(path)
            if header and header.first <= start:
                return Cursor(segment=header.segment, entry=header.first)
        return Cursor()


# -- files


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor for reading and writing, closed again if the block fails."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    except BaseException:
        os.close(fd)
        raise


def _make_folder(folder: Path) -> None:
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        _sync_folder(place.parent)


def _take_lock(folder: Path) -> int:
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise JournalError(str(folder), "another writer has it open; a journal has one at a time") from None
        raise
    return fd


def _sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, offset: int) -> int:
    """Write at `offset` and give the offset after it."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, offset)
        offset += count
        rest = rest[count:]
    return offset
