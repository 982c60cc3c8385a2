"""The segments of a journal: their format, and how to read them. Knows of no writer, nor what an entry means.

The format, version 1
---------------------
A journal is a folder of segments, files named by their number in eight decimal digits and `.jazlog`: `00000000.jazlog`,
`00000001.jazlog`, without gaps. Other files, such as the writer's `writer.lock`, are no part of it. Integers are
unsigned and little-endian; CRC-32 is the one of zlib (polynomial 0xEDB88320, initial value and final xor 0xFFFFFFFF).

A segment begins with a header of 128 bytes and goes on with entries to its end, with nothing between or after them:

    header                                        entry
      0    8  magic, 89 4A 41 5A 4C 4F 47 0A        0   4  length n of the payload, at most 2**30
      8    4  format version                        4   4  CRC-32 of the payload
     12    4  number of this segment                8   4  CRC-32 of the 8 bytes before
     16    8  number of its first entry            12   n  payload
     24  100  run id, UTF-8, filled up with NUL
    124    4  CRC-32 of the 124 bytes before

Entries are numbered from 0 on over all segments. Magic and version stand at these places in every version.

What a reader meets at byte `p` of a segment, where an entry or the header should begin, is
  - the end: the file ends at `p`;
  - torn, what a crash or a write under way leaves: fewer bytes than the header, the 12 bytes of an entry's head, or the
    length in a good head take; or a head or payload that fails its checksum, or a header of zero bytes, with nothing or
    nothing but zero bytes after it;
  - damaged: whatever else fails a checksum, has another magic or version, or contradicts the segment before.
A segment that has a successor is complete: it was on disk before the next one was made, so torn is damage there. In the
last one, a reader stops at what is torn and a writer cuts the file to `p`. The head has a checksum of its own so that a
damaged length, which would hide all that follows, is never taken for an entry that is not there yet.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from jaz_actors.errors import JournalError

MAGIC = b"\x89JAZLOG\n"
VERSION = 1
RUN_ID_BYTES = 100
MAX_ENTRY_BYTES = 2**30
_NAME = re.compile(r"\d{8}\.jazlog")
_CHUNK_BYTES = 64 * 1024
# Both are followed by their own checksum.
_HEADER = struct.Struct(f"<8sIIQ{RUN_ID_BYTES}s")
_HEAD = struct.Struct("<II")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECK.size
_HEAD_BYTES = _HEAD.size + _CHECK.size


@dataclass(frozen=True, slots=True)
class Header:
    segment: int
    first: int  # number of the first entry
    run_id: str

    def to_bytes(self) -> bytes:
        fields = _HEADER.pack(MAGIC, VERSION, self.segment, self.first, self.run_id.encode())
        return fields + _CHECK.pack(crc32(fields))


@dataclass(slots=True)
class Cursor:
    """A place between two entries. Owned by whoever iterates; `advance` moves it."""

    segment: int = 0
    offset: int = 0  # 0: before the header
    entry: int = 0  # number of the next entry
    run_id: str | None = None


class Damage(Exception):
    """What stands where an entry or a header should. `torn` as in the format's description."""

    def __init__(self, reason: str, *, torn: bool) -> None:
        super().__init__(reason, torn)
        self.reason = reason
        self.torn = torn

    def error(self, path: Path, offset: int, *, last: bool) -> JournalError:
        # A segment with a successor cannot be cut: the entries after it would have other numbers.
        way_out = f"; to give up what follows, cut the file to {offset} bytes" if last and offset else ""
        return JournalError(str(path), f"damaged at byte {offset}: {self.reason}{way_out}")


def entry_bytes(payload: bytes) -> bytes:
    """The entry that holds it."""
    head = _HEAD.pack(len(payload), crc32(payload))
    return head + _CHECK.pack(crc32(head)) + payload


def advance(folder: Path, cursor: Cursor) -> Iterator[tuple[int, bytes]]:
    """Move the cursor over each whole entry, and give it, to where the journal ends or its tail is torn."""
    # Listed before a segment is read: one that has a successor by then does not change any more.
    while cursor.segment < len(paths := segment_paths(folder)):
        last = cursor.segment == len(paths) - 1
        yield from _rest_of_segment(paths[cursor.segment], cursor, last=last)
        if last:
            return
        cursor.segment += 1
        cursor.offset = 0


def _rest_of_segment(path: Path, cursor: Cursor, *, last: bool) -> Iterator[tuple[int, bytes]]:
    with file_errors(path), path.open("rb") as file:
        try:
            if cursor.offset == 0:
                _check_succession(_read_header(file), cursor)
            file.seek(cursor.offset)
            while (payload := _read_entry(file, cursor.offset)) is not None:
                number = cursor.entry
                cursor.offset += _HEAD_BYTES + len(payload)
                cursor.entry += 1
                yield number, payload
        except Damage as damage:
            if not (last and damage.torn):
                raise damage.error(path, cursor.offset, last=last) from None


def _check_succession(header: Header, cursor: Cursor) -> None:
    """Step over a header that follows from the segment before."""
    if cursor.run_id is None:
        cursor.run_id = header.run_id
    expected = Header(cursor.segment, cursor.entry, cursor.run_id)
    if header != expected:
        raise Damage(f"{header} does not follow the segment before, which asks for {expected}", torn=False)
    cursor.offset = HEADER_BYTES


def header_of(path: Path) -> Header | None:
    """None where it is torn."""
    with file_errors(path), path.open("rb") as file:
        try:
            return _read_header(file)
        except Damage as damage:
            if damage.torn:
                return None
            raise damage.error(path, 0, last=False) from None


def _read_header(file: BinaryIO) -> Header:
    data = file.read(HEADER_BYTES)
    if not MAGIC.startswith(data[: len(MAGIC)]):
        reason = f"{data[: len(MAGIC)]!r} does not begin a journal's segment; move the file out of the folder"
        raise Damage(reason, torn=not data.strip(b"\0") and _only_zeros_follow(file))
    version = data[8:12]
    if len(version) == 4 and version != VERSION.to_bytes(4, "little"):
        found = int.from_bytes(version, "little")
        reason = f"format version {found}, and this release reads {VERSION}; open it with the release that wrote it"
        raise Damage(reason, torn=False)
    if len(data) < HEADER_BYTES:
        raise Damage("the header is incomplete", torn=True)
    if not _is_whole(data):
        raise Damage("the header fails its checksum", torn=False)
    _, _, segment, first, run_id = _HEADER.unpack_from(data)
    return Header(segment, first, run_id.rstrip(b"\0").decode(errors="replace"))


def _read_entry(file: BinaryIO, offset: int) -> bytes | None:
    """The payload of the entry at `offset`, where the file stands; None at the end of the file."""
    head = file.read(_HEAD_BYTES)
    if not head:
        return None
    if len(head) < _HEAD_BYTES:
        raise Damage("the head of an entry is incomplete", torn=True)
    if not _is_whole(head):
        raise Damage("the head of an entry fails its checksum", torn=_only_zeros_follow(file))
    length, checksum = _HEAD.unpack_from(head)
    if length > MAX_ENTRY_BYTES:
        raise Damage(f"an entry of {length} bytes is more than the limit of {MAX_ENTRY_BYTES}", torn=False)
    # Looked up first: `read` allocates what it is asked for.
    there = os.fstat(file.fileno()).st_size >= offset + _HEAD_BYTES + length
    payload = file.read(length) if there else b""
    if len(payload) < length:
        raise Damage("an entry is incomplete", torn=True)
    if crc32(payload) != checksum:
        raise Damage("an entry fails its checksum", torn=_only_zeros_follow(file))
    return payload


def _only_zeros_follow(file: BinaryIO) -> bool:
    """Whether no entry can follow. File systems leave zeros where a crash of the machine came before the data."""
    while data := file.read(_CHUNK_BYTES):
        if data.strip(b"\0"):
            return False
    return True


def _is_whole(data: bytes) -> bool:
    """Whether its last four bytes are the checksum of those before."""
    return data[-4:] == _CHECK.pack(crc32(data[:-4]))


# -- files


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.jazlog"


def segment_paths(folder: Path) -> list[Path]:
    """In order of their numbers."""
    with file_errors(folder):
        names = {name for name in os.listdir(folder) if _NAME.fullmatch(name)}  # noqa: PTH208 - names, not paths
    paths = [segment_path(folder, number) for number in range(len(names))]
    for path in paths:
        if path.name not in names:
            raise JournalError(str(path), "the segment is missing, and later ones are there; restore it from a copy")
    return paths


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Say which file it was."""
    try:
        yield
    except OSError as error:
        raise JournalError(str(path), error.strerror or str(error)) from error
