"""What is acknowledged stays, whatever dies: the writer, the disk, the file's last bytes. And what a reader sees."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaz_actors.errors import ConfigurationError, JournalError
from jaz_actors.recorders import journal
from jaz_actors.recorders.journal import JournalReader, JournalWriter

Policy = Literal["always", "interval", "never"]
POLICIES: tuple[Policy, ...] = ("always", "interval", "never")
HEADER_BYTES = 128
HEAD_BYTES = 12


def opened(folder: Path, *, fsync: Policy = "interval", segment_bytes: int = 2**20) -> JournalWriter:
    """A writer whose interval never ends by itself."""
    return JournalWriter(folder, run_id="run", fsync=fsync, interval=1e9, segment_bytes=segment_bytes)


def write(folder: Path, payloads: list[bytes], *, segment_bytes: int = 2**20) -> None:
    with opened(folder, fsync="never", segment_bytes=segment_bytes) as writer:
        for payload in payloads:
            writer.append(payload)


def contents(folder: Path) -> list[bytes]:
    found = list(JournalReader(folder).read())
    assert [number for number, _ in found] == list(range(len(found)))
    return [payload for _, payload in found]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jazlog"))


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


# -- errors of the disk


def failing(error: int, before: Callable[..., object] = lambda *_: None) -> Callable[..., int]:
    def call(*args: object) -> int:
        before(*args)
        raise OSError(error, os.strerror(error))

    return call


@pytest.mark.parametrize("can_cut", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_after_a_write_that_failed_half_way_appending_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy, can_cut: bool
) -> None:
    pwrite = os.pwrite
    with opened(tmp_path, fsync=policy, segment_bytes=400_000) as writer:
        writer.append(b"before")
        writer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing(errno.ENOSPC, lambda fd, data, at: pwrite(fd, data[:-1], at)))
            if not can_cut:
                patch.setattr(os, "ftruncate", failing(errno.EIO))
            with pytest.raises(JournalError, match=r"00000000\.jazlog: No space left"):
                writer.append(bytes(300_000))
            assert contents(tmp_path) == [b"before"]
            # Where the file could not be cut, a shorter entry must not leave the rest of the longer one behind it.
            with pytest.raises(JournalError):
                writer.append_many([b"short", bytes(300_000)])
        assert writer.entries == writer.synced == 1
        assert writer.append(b"after") == 1
        writer.flush()
        assert contents(tmp_path) == [b"before", b"after"]
    [path] = segments(tmp_path)  # what was refused does not fill a segment
    assert path.stat().st_size == HEADER_BYTES + 2 * HEAD_BYTES + len("beforeafter")


def test_what_append_gave_a_number_to_is_written_once_the_disk_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as writer:
        writer.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing(errno.ENOSPC))
            with pytest.raises(JournalError, match="No space left"):
                writer.tick()
        assert (writer.entries, writer.synced) == (1, 0)
        writer.append(b"b")
        writer.flush()
        assert writer.synced == 2
    assert contents(tmp_path) == [b"a", b"b"]


@pytest.mark.parametrize("policy", ["always", "interval"])
def test_what_the_kernel_dropped_in_a_failed_sync_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    """After an error of fsync the pages may be gone, and the next fsync succeeds."""

    def drop_pages(fd: int) -> None:
        size = os.fstat(fd).st_size
        os.pwrite(fd, bytes(size - durable), durable)

    with opened(tmp_path, fsync=policy) as writer:
        writer.append(b"durable")
        writer.flush()
        durable = segments(tmp_path)[0].stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(errno.EIO, drop_pages))
            if policy == "interval":
                writer.append_many([b"first", b"second"])
                writer.tick()
            with pytest.raises(JournalError, match="Input/output error"):
                writer.flush() if policy == "interval" else writer.append(b"refused")
            assert writer.synced == 1
            assert contents(tmp_path) == [b"durable"]
        kept = [] if policy == "always" else [b"first", b"second"]
        writer.append(b"third")
        writer.flush()
        assert writer.entries == writer.synced
    assert contents(tmp_path) == [b"durable", *kept, b"third"]


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync"])
def test_a_new_segment_that_could_not_be_made_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with opened(tmp_path, fsync="always", segment_bytes=150) as writer:
        writer.append(b"x" * 50)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(errno.ENOSPC))
            with pytest.raises(JournalError, match="No space left"):
                writer.append(b"y")
        assert contents(tmp_path) == [b"x" * 50]
        assert writer.append(b"z") == 1
        assert len(segments(tmp_path)) == 2
    assert contents(tmp_path) == [b"x" * 50, b"z"]


def test_an_opening_that_fails_leaves_the_journal_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(JournalError, match="Input/output error"):
            opened(tmp_path)
    write(tmp_path, [b"y"])
    assert contents(tmp_path) == [b"x", b"y"]


def test_a_folder_that_cannot_be_is_a_journal_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="file/folder: Not a directory"):
        opened(tmp_path / "file" / "folder")
    with pytest.raises(JournalError, match="nowhere: No such file or directory"):
        contents(tmp_path / "nowhere")


def test_close_raises_what_the_disk_does_and_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = opened(tmp_path)
    writer.append(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(JournalError, match="Input/output error"):
            writer.close()
    write(tmp_path, [b"y"])
    assert contents(tmp_path) == [b"y"]


FAULTS = {
    "full": [("pwrite", errno.ENOSPC)],
    "full half way": [("pwrite half", errno.ENOSPC)],
    "unsynced": [("fsync", errno.EIO)],
    "broken": [("pwrite half", errno.EIO), ("fsync", errno.EIO), ("ftruncate", errno.EIO)],
    "uncut": [("fsync", errno.EIO), ("ftruncate", errno.EIO)],
    "good": [],
}
steps = st.tuples(st.sampled_from(sorted(FAULTS)), st.sampled_from(["append", "group", "tick", "flush"]))


@settings(deadline=None)
@given(st.sampled_from(POLICIES), st.sampled_from([1, 500, 2**20]), st.lists(steps, max_size=20))
def test_whatever_fails_the_file_is_whole_and_the_journal_is_what_was_accepted(
    policy: Policy, segment_bytes: int, todo: list[tuple[str, str]]
) -> None:
    pwrite = os.pwrite
    faults = {
        "pwrite half": ("pwrite", lambda fd, data, at: pwrite(fd, data[: len(data) // 2], at)),
        **{name: (name, lambda *_: None) for name in ("pwrite", "fsync", "ftruncate")},
    }
    accepted: list[bytes] = []
    refused: set[bytes] = set()
    with (
        mock.patch("os.fsync"),
        mock.patch.object(journal, "_BUFFER_BYTES", 300),
        tempfile.TemporaryDirectory() as name,
        JournalWriter(name, run_id="run", fsync=policy, interval=0.0, segment_bytes=segment_bytes) as writer,
    ):
        for number, (fault, step) in enumerate([*todo, ("good", "append"), ("good", "flush")]):
            entries = [b"%d.%d " % (number, n) * 13 for n in range({"append": 1, "group": 3}.get(step, 0))]
            with contextlib.ExitStack() as stack:
                for kind, error in FAULTS[fault]:
                    call, before = faults[kind]
                    stack.enter_context(mock.patch.object(os, call, failing(error, before)))
                try:
                    if entries:
                        writer.append_many(entries)
                    else:
                        getattr(writer, step)()
                    accepted += entries
                except JournalError:
                    refused.update(entries)
            assert writer.entries == len(accepted)
            found = contents(Path(name))
            assert found[: writer.synced] == accepted[: writer.synced]
            kept = [entry for entry in found if entry not in refused]
            assert kept == accepted[: len(kept)]
        assert contents(Path(name)) == accepted


FULL_DISK = """
import json, resource, sys
from jaz_actors.errors import JournalError
from jaz_actors.recorders.journal import JournalReader, JournalWriter

folder, policy = sys.argv[1:]
writer = JournalWriter(folder, run_id="run", fsync=policy)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
accepted, refused = [], []

def attempt(n):
    try:
        assert writer.append(bytes([n]) * 5000) == len(accepted)
    except JournalError as error:
        refused.append(error.reason)
    else:
        accepted.append(n)
    try:
        writer.flush()
    except JournalError as error:
        refused.append(error.reason)
    assert len(list(JournalReader(folder).read())) >= writer.synced

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
for n in range(100):
    attempt(n)
assert set(refused) == {"File too large"}, refused
assert writer.synced == 19
before = len(refused)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
for n in range(100, 110):
    attempt(n)
assert len(refused) == before
writer.close()
print(json.dumps(accepted))
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_disk_refuses_and_appending_goes_on_when_there_is_space(tmp_path: Path, policy: Policy) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), policy]
    accepted = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert accepted[:19] == list(range(19))
    assert accepted[-10:] == list(range(100, 110))
    assert contents(tmp_path) == [bytes([n]) * 5000 for n in accepted]


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


# -- other processes

WRITER = """
import os, sys
from jaz_actors.recorders.journal import JournalWriter

folder, policy, limit, segment_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
writer = JournalWriter(folder, run_id="run", fsync=policy, interval=0.001, segment_bytes=segment_bytes)
while writer.entries < limit:
    first = writer.entries
    writer.append_many(b"%d " % n * (n * n % 997) for n in range(first, first + 1 + first % 4))
    writer.tick()
    os.write(1, b"%d\\n" % writer.synced)
    if policy == "interval" and first < limit // 2 <= writer.entries:
        sys.stdin.readline()
writer.close()
"""


def payload(number: int) -> bytes:
    return b"%d " % number * (number * number % 997)


def start_writer(folder: Path, policy: Policy, limit: int, segment_bytes: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), policy, str(limit), str(segment_bytes)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    chance = random.Random(7)
    for _ in range(6):
        with start_writer(tmp_path, "always", 10**9, 2**18) as process:
            pipe(process.stdout).readline()
            with pytest.raises(JournalError, match="another writer"):
                opened(tmp_path)
            for _ in range(chance.randrange(200)):
                pipe(process.stdout).readline()
            process.send_signal(signal.SIGKILL)
            acknowledged = [int(line) for line in pipe(process.stdout) if line.endswith("\n")]
        with opened(tmp_path) as writer:
            assert writer.entries >= max(acknowledged, default=0)
        assert contents(tmp_path) == [payload(number) for number in range(writer.entries)]
    assert writer.entries > 100


def test_a_reader_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    limit = 2000
    reader = JournalReader(tmp_path)
    read = 0

    def read_on() -> None:
        nonlocal read
        for number, found in reader.read_new():
            assert (number, found) == (read, payload(read))
            read += 1

    assert reader.run_id is None
    with start_writer(tmp_path, "interval", limit, 2**16) as process:
        while read < limit // 2:
            assert process.poll() is None
            read_on()
        pipe(process.stdin).write("go on\n")
        pipe(process.stdin).flush()
        while read < limit:
            read_on()
        pipe(process.stdout).read()
    assert process.returncode == 0
    read_on()
    assert limit <= read < limit + 4
    assert reader.run_id == "run"
    assert len(segments(tmp_path)) > 10


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
