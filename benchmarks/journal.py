"""What a journal costs: bytes a second appended under each policy, over those of a plain `os.write` an entry.

    python benchmarks/journal.py [--entry-bytes N] [--megabytes N] [--folder PATH] [--quick]

Every figure is a ratio of two measurements of this run, on this machine; the JSON line at the end holds them all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from jaz_actors.recorders.journal import JournalWriter

Policy = Literal["never", "interval", "always"]
GROUP = 64  # entries that are appended together, and under "always" synced together


def plain_write(folder: Path, groups: list[list[bytes]], *, fsync: bool) -> None:
    fd = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT)
    for group in groups:
        for payload in group:
            os.write(fd, payload)
        if fsync:
            os.fsync(fd)
    os.close(fd)


def append(folder: Path, groups: list[list[bytes]], policy: Policy) -> None:
    with JournalWriter(folder, run_id="benchmark", fsync=policy) as writer:
        for group in groups:
            writer.append_many(group)
            writer.tick()


def timed(folder: Path | None, work: Callable[[Path], None], *, repeat: int = 3) -> float:
    """Best of `repeat`, in seconds."""
    seconds = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            os.sync()
            started = time.perf_counter()
            work(Path(name))
            seconds.append(time.perf_counter() - started)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entry-bytes", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: the one for temporary files")
    parser.add_argument("--quick", action="store_true", help="16 megabytes")
    args = parser.parse_args()
    count = (16 if args.quick else args.megabytes) * 10**6 // args.entry_bytes
    groups = [[os.urandom(args.entry_bytes)] * min(GROUP, count - at) for at in range(0, count, GROUP)]
    figures: dict[str, float] = {}
    plain = timed(args.folder, partial(plain_write, groups=groups, fsync=False))
    for policy in get_args(Policy):
        seconds = timed(args.folder, partial(append, groups=groups, policy=policy))
        figures[f"{policy}_over_plain_write"] = plain / seconds
    synced = timed(args.folder, partial(plain_write, groups=groups, fsync=True))
    figures["always_over_plain_write_and_fsync"] = synced / seconds
    for key, value in figures.items():
        print(f"{key:36s} {value:10.2f}")
    print(json.dumps({"benchmark": "journal", "python": platform.python_version(), **figures}))


if __name__ == "__main__":
    main()
