"""What the disk refuses is refused, nothing half-written stays, and appending goes on once the disk is good again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaz_actors.errors import JournalError
from jaz_actors.recorders import journal
from jaz_actors.recorders.journal import JournalWriter
from tests.recorders.journals import HEAD_BYTES, HEADER_BYTES, POLICIES, Policy, contents, opened, segments, write


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
    faults: dict[str, tuple[str, Callable[..., object]]] = {
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
