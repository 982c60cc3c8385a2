"""Writing and reading a journal: numbers, what counts as synced, where a torn tail is cut, what damage is found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaz_actors.errors import ConfigurationError, JournalError
from jaz_actors.recorders import journal
from jaz_actors.recorders.journal import JournalReader, JournalWriter
from tests.recorders.journals import HEAD_BYTES, HEADER_BYTES, POLICIES, Policy, contents, opened, segments, write

# -- writing


def test_appending_numbers_entries_over_segments_and_openings(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "if need be"
    with opened(folder, segment_bytes=200) as writer:
        assert [writer.append(bytes([n]) * 30) for n in range(4)] == [0, 1, 2, 3]
        assert writer.append_many(bytes([n]) * 30 for n in range(4, 7)) == range(4, 7)
        assert writer.append_many([]) == range(7, 7)
    with opened(folder) as writer:
        assert writer.entries == writer.synced == 7
        assert writer.append(b"more") == 7
    assert contents(folder) == [bytes([n]) * 30 for n in range(7)] + [b"more"]
    assert len(segments(folder)) > 2


@pytest.fixture
def synced_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were synced, in order."""
    synced: list[Path] = []
    fsync = os.fsync

    def recorded(fd: int) -> None:
        fsync(fd)
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(os, "fsync", recorded)
    return synced


def test_always_syncs_before_append_returns_and_a_group_once(tmp_path: Path, synced_files: list[Path]) -> None:
    with opened(tmp_path, fsync="always") as writer:
        synced_files.clear()
        writer.append(b"a")
        assert writer.synced == 1
        writer.append_many([b"b", b"c", b"d"])
        assert writer.synced == 4
        writer.tick()
        writer.flush()
    assert synced_files == segments(tmp_path) * 2


def test_interval_syncs_when_it_is_over_or_on_flush(tmp_path: Path, synced_files: list[Path]) -> None:
    with opened(tmp_path) as writer:
        synced_files.clear()
        writer.append(b"a")
        assert contents(tmp_path) == []
        writer.tick()
        assert contents(tmp_path) == [b"a"]
        assert (writer.synced, synced_files) == (0, [])
        writer.flush()
        assert (writer.synced, synced_files) == (1, segments(tmp_path))
        writer.flush()
    assert synced_files == segments(tmp_path)
    with JournalWriter(tmp_path, run_id="run", interval=0.0) as writer:
        writer.append(b"b")
        assert writer.synced == 1
        writer.tick()
        assert writer.synced == 2


def test_never_gives_entries_to_the_operating_system(tmp_path: Path, synced_files: list[Path]) -> None:
    with opened(tmp_path, fsync="never") as writer:
        synced_files.clear()
        writer.append(b"a")
        assert writer.synced == 0
        writer.tick()
        assert writer.synced == 1
        assert contents(tmp_path) == [b"a"]
        writer.append(b"b")
    assert synced_files == []
    assert contents(tmp_path) == [b"a", b"b"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_segment_is_on_disk_before_its_successor_is_made(
    tmp_path: Path, synced_files: list[Path], policy: Policy
) -> None:
    with opened(tmp_path, fsync=policy, segment_bytes=150) as writer:
        writer.append(b"x" * 50)
        synced_files.clear()
        writer.append(b"y" * 50)
        first, second = segments(tmp_path)
        assert synced_files[:3] == [first, second, tmp_path]


def test_a_new_folder_is_on_disk(tmp_path: Path, synced_files: list[Path]) -> None:
    folder = tmp_path / "one" / "two"
    opened(folder).close()
    assert {tmp_path, tmp_path / "one", folder} <= set(synced_files)


def test_a_change_of_the_working_directory_does_not_move_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(Path("here"), segment_bytes=1) as writer:
        reader = JournalReader("here")
        monkeypatch.chdir("/")
        writer.append(b"a")
        writer.append(b"b")
    assert list(reader.read()) == [(0, b"a"), (1, b"b")]
    assert len(segments(tmp_path / "here")) == 2


def test_a_full_buffer_is_written_out(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        for _ in range(10):
            writer.append(bytes(100_000))
        assert len(contents(tmp_path)) > 5


def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.close()
    writer.close()
    for call in (lambda: writer.append(b"x"), writer.tick, writer.flush):
        with pytest.raises(JournalError, match="the writer is closed"):
            call()


def test_an_entry_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_ENTRY_BYTES", 10)
    with opened(tmp_path) as writer:
        with pytest.raises(JournalError, match="an entry of 11 bytes"):
            writer.append_many([b"fits", bytes(11)])
        writer.append(bytes(10))
    assert contents(tmp_path) == [bytes(10)]


@pytest.mark.parametrize("run_id", ["", "a\0b", "é" * 51])
def test_a_run_id_that_the_header_cannot_hold_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ConfigurationError, match="run_id"):
        JournalWriter(tmp_path, run_id=run_id)


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(JournalError, match="another writer has it open"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_the_journal_of_another_run_is_refused_and_left_free(tmp_path: Path) -> None:
    write(tmp_path, [b"x"])
    with pytest.raises(JournalError, match="it belongs to run 'run', not to 'other'"):
        JournalWriter(tmp_path, run_id="other")
    write(tmp_path, [b"y"])
    assert contents(tmp_path) == [b"x", b"y"]


# -- the tail


def test_a_torn_tail_is_cut_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, [b"one", b"two"])
    [path] = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with opened(tmp_path) as writer:
        assert writer.append(b"2") == 1
    assert contents(tmp_path) == [b"one", b"2"]
    assert f"cut at byte {HEADER_BYTES + HEAD_BYTES + 3}, before a torn entry of 14 bytes" in caplog.text


payload_lists = st.lists(st.binary(max_size=40), max_size=12)
segment_sizes = st.sampled_from([1, 200, 2**20])


@pytest.fixture(scope="module")
def no_fsync() -> Iterator[None]:
    """For tests of bytes, not of disks."""
    with mock.patch("os.fsync"):
        yield


@pytest.mark.usefixtures("no_fsync")
@settings(deadline=None)
@given(payload_lists, payload_lists, segment_sizes, st.data())
def test_wherever_the_last_segment_ends_a_prefix_is_left_and_appending_goes_on(
    payloads: list[bytes], more: list[bytes], segment_bytes: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, payloads, segment_bytes=segment_bytes)
        path = segments(folder)[-1]
        size = path.stat().st_size
        end = data.draw(st.integers(0, size), "end")
        os.truncate(path, end)

        left = contents(folder)
        assert left == payloads[: len(left)]
        in_last = payloads[sum(1 for _ in _before_last(folder)) :]
        ends = [
            HEADER_BYTES + sum(HEAD_BYTES + len(payload) for payload in in_last[:n]) for n in range(len(in_last) + 1)
        ]
        assert len(left) == len(payloads) - len(in_last) + max(sum(at <= end for at in ends) - 1, 0)

        write(folder, more, segment_bytes=segment_bytes)
        assert contents(folder) == left + more


def _before_last(folder: Path) -> Iterator[int]:
    """The numbers of the entries in all segments but the last."""
    for path in segments(folder)[:-1]:
        rest = path.read_bytes()[HEADER_BYTES:]
        while rest:
            yield 1
            rest = rest[HEAD_BYTES + int.from_bytes(rest[:4], "little") :]


@pytest.mark.usefixtures("no_fsync")
@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=12), segment_sizes, st.integers(1, 255), st.data())
def test_a_changed_byte_is_detected_or_was_in_the_last_entry(
    payloads: list[bytes], segment_bytes: int, change: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, payloads, segment_bytes=segment_bytes)
        path = data.draw(st.sampled_from(segments(folder)), "segment")
        changed = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(changed) - 1), "byte")
        changed[at] ^= change
        path.write_bytes(changed)

        in_last_entry = path == segments(folder)[-1] and at >= len(changed) - len(payloads[-1]) - HEAD_BYTES
        try:
            assert contents(folder) == payloads[:-1]
            assert in_last_entry
        except JournalError:
            in_last_payload = in_last_entry and at >= len(changed) - len(payloads[-1])
            assert not in_last_payload
            with pytest.raises(JournalError):
                opened(folder)
        else:
            write(folder, [b"more"])
            assert contents(folder) == [*payloads[:-1], b"more"]


# -- reading


def test_reading_starts_at_any_number(tmp_path: Path) -> None:
    payloads = [b"%d" % n for n in range(10)]
    write(tmp_path, payloads, segment_bytes=HEADER_BYTES + 3 * (HEAD_BYTES + 1))
    reader = JournalReader(tmp_path)
    for start in range(12):
        assert list(reader.read(start)) == [(n, payloads[n]) for n in range(start, 10)]


def test_segments_before_the_start_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, [b"x"] * 5, segment_bytes=1)
    segments(tmp_path)[0].write_bytes(b"nonsense")
    assert list(JournalReader(tmp_path).read(3)) == [(3, b"x"), (4, b"x")]


def test_read_new_gives_each_entry_once(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path)
    assert list(reader.read_new()) == []
    with opened(tmp_path, segment_bytes=150) as writer:
        assert list(reader.read_new()) == []
        writer.append_many([b"a", b"b"])
        writer.flush()
        assert list(reader.read_new()) == [(0, b"a"), (1, b"b")]
        assert list(reader.read_new()) == []
        writer.append(b"c")
        writer.append(b"d")
        writer.flush()
        for entry in reader.read_new():
            assert entry == (2, b"c")
            break
        assert list(reader.read_new()) == [(3, b"d")]
    assert len(segments(tmp_path)) == 2
    assert len(contents(tmp_path)) == 4


def test_read_new_waits_for_an_entry_that_is_being_written(tmp_path: Path) -> None:
    write(tmp_path / "whole", [b"one", b"two"])
    data = segments(tmp_path / "whole")[0].read_bytes()
    growing = tmp_path / "00000000.jazlog"
    reader = JournalReader(tmp_path)
    seen = []
    for end in range(len(data) + 1):
        growing.write_bytes(data[:end])
        seen += [(end, found) for _, found in reader.read_new()]
    assert seen == [(len(data) - HEAD_BYTES - 3, b"one"), (len(data), b"two")]
