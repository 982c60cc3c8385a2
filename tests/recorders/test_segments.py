"""The format of a segment: what its bytes are, and what is said of bytes that break it."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
from pathlib import Path
from zlib import crc32

import pytest

from jaz_actors.errors import JournalError
from jaz_actors.recorders.journal import JournalReader
from tests.recorders.journals import HEAD_BYTES, HEADER_BYTES, contents, write


def segment(folder: Path, number: int = 0) -> Path:
    return folder / f"{number:08d}.jazlog"


def head(length: int, checksum: int) -> bytes:
    fields = struct.pack("<II", length, checksum)
    return fields + struct.pack("<I", crc32(fields))


def with_changed_header(data: bytes, offset: int, new: bytes) -> bytes:
    header = data[:offset] + new + data[offset + len(new) : HEADER_BYTES - 4]
    return header + struct.pack("<I", crc32(header)) + data[HEADER_BYTES:]


def assert_refused(folder: Path, match: str) -> None:
    """By the writer and the reader alike."""
    with pytest.raises(JournalError, match=match):
        contents(folder)
    with pytest.raises(JournalError, match=match):
        write(folder, [])


def test_a_segment_has_the_bytes_that_the_description_says(tmp_path: Path) -> None:
    write(tmp_path, [b"one", b"", b"three"], segment_bytes=HEADER_BYTES + 20)
    header = b"\x89JAZLOG\n" + struct.pack("<IIQ", 1, 0, 0) + b"run" + bytes(97)
    first = b"".join([header, struct.pack("<I", crc32(header)), head(3, crc32(b"one")), b"one", head(0, 0)])
    assert segment(tmp_path, 0).read_bytes() == first
    header = b"\x89JAZLOG\n" + struct.pack("<IIQ", 1, 1, 2) + b"run" + bytes(97)
    second = b"".join([header, struct.pack("<I", crc32(header)), head(5, crc32(b"three")), b"three"])
    assert segment(tmp_path, 1).read_bytes() == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000.jazlog", "00000001.jazlog", "writer.lock"]


def test_a_file_that_is_no_segment_is_refused_with_what_to_do(tmp_path: Path) -> None:
    segment(tmp_path).write_bytes(b"{}")
    assert_refused(tmp_path, r"00000000\.jazlog: damaged at byte 0: b'\{\}' does not begin .* move the file out")


def test_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, [b"x"])
    data = segment(tmp_path).read_bytes()
    segment(tmp_path).write_bytes(with_changed_header(data, 8, struct.pack("<I", 2)))
    assert_refused(tmp_path, "format version 2, and this release reads 1; open it with the release that wrote it")


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    write(tmp_path, [b"x"] * 4, segment_bytes=1)
    segment(tmp_path, 1).unlink()
    assert_refused(tmp_path, r"00000001\.jazlog: the segment is missing")


@pytest.mark.parametrize("run_id", ["run", "another"])
def test_a_segment_that_does_not_follow_the_one_before_is_refused(tmp_path: Path, run_id: str) -> None:
    write(tmp_path / "here", [b"x"] * 4, segment_bytes=HEADER_BYTES + 1)
    write(tmp_path / "there", [b"x"] * 3, run_id=run_id, segment_bytes=HEADER_BYTES + 14)
    shutil.copy(segment(tmp_path / "there", 1), segment(tmp_path / "here", 1))
    assert_refused(tmp_path / "here", r"00000001\.jazlog: damaged at byte 0: .* does not follow the segment before")


def test_a_segment_that_lost_whole_entries_is_noticed_by_the_next(tmp_path: Path) -> None:
    write(tmp_path, [b"x"] * 4, segment_bytes=HEADER_BYTES + 2 * (HEAD_BYTES + 1))
    data = segment(tmp_path, 0).read_bytes()
    segment(tmp_path, 0).write_bytes(data[: -HEAD_BYTES - 1])
    assert_refused(tmp_path, r"00000001\.jazlog: damaged at byte 0: .* does not follow")


def test_a_torn_segment_with_a_successor_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, [b"xyz"] * 2, segment_bytes=1)
    path = segment(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(tmp_path, rf"00000000\.jazlog: damaged at byte {HEADER_BYTES}: an entry is incomplete$")


def test_damage_before_the_last_entry_says_where_to_cut(tmp_path: Path) -> None:
    write(tmp_path, [b"one", b"two", b"three"])
    at = HEADER_BYTES + HEAD_BYTES + 3
    data = bytearray(segment(tmp_path).read_bytes())
    data[at + HEAD_BYTES] ^= 1
    segment(tmp_path).write_bytes(data)
    assert_refused(tmp_path, rf"damaged at byte {at}: an entry fails its checksum; .* cut the file to {at} bytes")
    with segment(tmp_path).open("r+b") as file:
        file.truncate(at)
    assert contents(tmp_path) == [b"one"]


def test_a_damaged_length_is_not_taken_for_an_entry_that_is_not_there_yet(tmp_path: Path) -> None:
    write(tmp_path, [b"one", b"two"])
    data = bytearray(segment(tmp_path).read_bytes())
    data[HEADER_BYTES + 1] ^= 1  # 3 becomes 259: more than the file holds
    segment(tmp_path).write_bytes(data)
    assert_refused(tmp_path, f"damaged at byte {HEADER_BYTES}: the head of an entry fails its checksum")


@pytest.mark.parametrize("kept", [0, 5, HEAD_BYTES, HEAD_BYTES + 10, HEAD_BYTES + 99])
def test_zeros_that_a_file_system_left_at_the_end_are_torn(tmp_path: Path, kept: int) -> None:
    """`kept` bytes of two last entries were written before the machine went down."""
    write(tmp_path, [b"kept", b"a" * 100, b"b" * 100])
    at = HEADER_BYTES + HEAD_BYTES + 4
    data = segment(tmp_path).read_bytes()
    segment(tmp_path).write_bytes(data[: at + kept].ljust(len(data) + 100_000, b"\0"))
    assert contents(tmp_path) == [b"kept"]
    write(tmp_path, [b"more"])
    assert contents(tmp_path) == [b"kept", b"more"]


def test_a_segment_of_zeros_is_torn(tmp_path: Path) -> None:
    segment(tmp_path).write_bytes(bytes(100_000))
    assert contents(tmp_path) == []
    write(tmp_path, [b"x"])
    assert contents(tmp_path) == [b"x"]
    assert segment(tmp_path).stat().st_size == HEADER_BYTES + HEAD_BYTES + 1


def test_a_length_beyond_the_limit_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [b"x"])
    with segment(tmp_path).open("ab") as file:
        file.write(head(2**30 + 1, 0))
    assert_refused(tmp_path, "an entry of 1073741825 bytes is more than the limit of 1073741824")


def test_a_length_that_the_file_does_not_hold_allocates_nothing(tmp_path: Path) -> None:
    write(tmp_path, [b"x"])
    with segment(tmp_path).open("ab") as file:
        file.write(head(2**30, 0) + b"not much")
    tracemalloc.start()
    assert contents(tmp_path) == [b"x"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_reading_holds_an_entry_at_a_time(tmp_path: Path) -> None:
    size = 2**18
    write(tmp_path, [bytes(size)] * 40)
    tracemalloc.start()
    for _, payload in JournalReader(tmp_path).read():
        assert len(payload) == size
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * size
