"""Short ways to write a journal and to look at it, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jaz_actors.recorders.journal import JournalReader, JournalWriter

Policy = Literal["always", "interval", "never"]
POLICIES: tuple[Policy, ...] = ("always", "interval", "never")
HEADER_BYTES = 128
HEAD_BYTES = 12


def opened(folder: Path, *, fsync: Policy = "interval", segment_bytes: int = 2**20) -> JournalWriter:
    """A writer whose interval never ends by itself."""
    return JournalWriter(folder, run_id="run", fsync=fsync, interval=1e9, segment_bytes=segment_bytes)


def write(folder: Path, payloads: list[bytes], *, run_id: str = "run", segment_bytes: int = 2**20) -> None:
    with JournalWriter(folder, run_id=run_id, fsync="never", segment_bytes=segment_bytes) as writer:
        for payload in payloads:
            writer.append(payload)


def contents(folder: Path) -> list[bytes]:
    found = list(JournalReader(folder).read())
    assert [number for number, _ in found] == list(range(len(found)))
    return [payload for _, payload in found]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jazlog"))
