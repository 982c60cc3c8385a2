"""What an engine sampled, a line a sequence: the truth that recorded rollouts can be compared with. Knows no HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from jaz_actors.backends.embedded.sequence import Sequence


class TokenLog:
    """Appends JSON lines to a file. A line is written before its sequence's answer is sent, also where no one waits
    for that any more. Owned by the engine's thread.

    A line: {rid, prompt_ids, output_ids, logprobs, versions: [{version, start, end}], finish_reason, time}.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, sequence: Sequence, finish: dict[str, Any]) -> None:
        line = {
            "rid": sequence.rid,
            "prompt_ids": sequence.prompt,
            "output_ids": sequence.output,
            "logprobs": sequence.logprobs,
            "versions": sequence.spans(len(sequence.output)),
            "finish_reason": finish,
            "time": time.time(),
        }
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()
