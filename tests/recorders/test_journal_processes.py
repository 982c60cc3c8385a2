"""A journal among processes: what was acknowledged outlives a killed writer, and a reader follows a living one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from jaz_actors.errors import JournalError
from jaz_actors.recorders.journal import JournalReader
from tests.recorders.journals import Policy, contents, opened, segments

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
