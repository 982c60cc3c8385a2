"""Tools for agents that work on software. They run where they are called, in that process's current directory."""

from __future__ import annotations

import difflib
import io
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import BinaryIO

from jaz_actors.library import Library
from jaz_actors.render import abbreviate

_KEPT_BYTES = 1 << 20
_PIPE_BYTES = 1 << 16  # what a pipe holds: one read takes all that is in it
_GRACE_SECONDS = 0.1
_LONGEST_WAIT = 3600.0  # what every selector takes
_LINE_CHARACTERS = 2_000
_LINE_BYTES = 4 * _LINE_CHARACTERS + 2  # as many characters at their longest, and the line's end
_BINARY_BYTES = 8 * 1024
_DIFF_CHARACTERS = 4_000
_DIFF_LINES = 4_000  # difflib may take seconds for more
_CONTEXT = 3
_FINDS_SHOWN = 20


def software_tools() -> Library:
    """`bash`, `read` and `edit` as one input."""
    return Library("tools", "What a software engineer needs.", bash=bash, read=read, edit=edit)


def bash(command: str, *, timeout: float = 120.0, max_output: int = 30_000) -> str:
    """Run a command in a new bash shell; returns its stdout and stderr, in the order written.

    timeout:     seconds, then the shell and its process group are killed.
    max_output:  characters returned; of more, the middle is left out.

    A last line `[exit status N]` tells any N but 0 (128 + signal for a killed shell), `[timed out ...]` a timeout:
    neither is raised. stdin is empty. The shell starts in the current directory; cd and variables do not last.
    What is left in the background goes on: send its output to a file, since its writes here fail afterwards.
    """
    output = _Ends(max(_KEPT_BYTES, 2 * max_output + 8))  # each end alone has half of what is shown, however encoded
    with subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
    ) as shell:  # fmt: skip
        try:
            _collect(shell, output, timeout)
        finally:  # also when an interrupt ends the caller's turn
            status = shell.returncode
            if status is None:
                os.killpg(shell.pid, signal.SIGKILL)
    text = output.text(max_output)
    if status == 0:
        return text
    if status is None:
        end = f"[timed out after {timeout:g} s: the shell and its process group were killed]"
    else:
        end = f"[exit status {status if status > 0 else 128 - status}]"
    return f"{text}\n{end}" if text and not text.endswith("\n") else text + end


def _collect(shell: subprocess.Popen[bytes], output: _Ends, timeout: float) -> None:
    """Read what the shell writes until it has ended, which sets its return code, or the time is over."""
    assert shell.stdout is not None
    pipe, ended = shell.stdout.fileno(), os.pidfd_open(shell.pid)
    deadline = time.monotonic() + timeout
    try:
        with selectors.DefaultSelector() as waiting:
            waiting.register(pipe, selectors.EVENT_READ)
            waiting.register(ended, selectors.EVENT_READ)
            while waiting.get_map():
                left = deadline - time.monotonic()
                for key, _ in waiting.select(min(max(left, 0.0), _LONGEST_WAIT)):
                    if key.fd == ended:
                        waiting.unregister(ended)
                        shell.wait()
                        # Others may hold the pipe: `tee >(cat)` for a moment, a server in the background for ever.
                        deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
                    elif chunk := os.read(pipe, _PIPE_BYTES):
                        output.add(chunk)
                    else:
                        waiting.unregister(pipe)
                if left <= 0:
                    break
    finally:
        os.close(ended)


class _Ends:
    """The first and the last `size` bytes of a stream; those between are counted and dropped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._first = bytearray()
        self._last = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        room = self._size - len(self._first)
        self._first += chunk[:room]
        self._last += chunk[room:]
        over = max(len(self._last) - self._size, 0)
        del self._last[:over]
        self._dropped += over

    def text(self, limit: int) -> str:
        kept = (self._first + self._last).decode(errors="replace")
        return abbreviate(kept, limit, 0.5, f"{self._dropped:,} bytes more were not kept" if self._dropped else "")


def read(path: str | os.PathLike[str], *, start: int = 1, lines: int = 2000) -> str:
    """Lines of a text file, numbered: `lines` of them from line `start` on, the first being 1.

    Each is cut at 2,000 characters. Bytes that are not UTF-8 show as U+FFFD. A last line in brackets says how many
    lines follow. Raises ValueError for a binary file (a NUL in the first 8 KiB), OSError for what is missing or a
    directory.
    """
    if start < 1 or lines < 1:
        raise ValueError(f"start and lines are at least 1, not {start} and {lines}")
    with _existing(path).open("rb") as file:
        if b"\0" in file.read(_BINARY_BYTES):
            raise ValueError(f"{path} is a binary file; look at it with bash, for example by xxd or file")
        file.seek(0)
        before = sum(1 for _ in islice(_line_heads(file), start - 1))
        shown = [f"{start + i:>6}\t{_shown_line(head)}" for i, head in enumerate(islice(_line_heads(file), lines))]
        more = _count_lines(file)
    if not shown:
        return f"[{path} has {before:,} lines]"
    if more:
        shown.append(f"[{more:,} more lines; the next is start={start + len(shown)}]")
    return "\n".join(shown)


def _existing(path: str | os.PathLike[str]) -> Path:
    """The file itself, links followed; opening anything but a file or directory could block or never end."""
    found = Path(path).resolve(strict=True)
    if not (found.is_file() or found.is_dir()):
        raise ValueError(f"{path} is not a regular file")
    return found


def _line_heads(file: BinaryIO) -> Iterator[bytes]:
    """Each line's first bytes: more than is shown, and never all of an endless line."""
    while head := file.readline(_LINE_BYTES):
        part = head
        while not part.endswith(b"\n") and (part := file.readline(_PIPE_BYTES)):
            pass
        yield head


def _shown_line(head: bytes) -> str:
    text = head.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")
    return text if len(text) <= _LINE_CHARACTERS else f"{text[:_LINE_CHARACTERS]} [… line cut]"


def _count_lines(file: BinaryIO) -> int:
    """Lines from here to the end."""
    count, last = 0, b"\n"
    while chunk := file.read(_KEPT_BYTES):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


def edit(path: str | os.PathLike[str], old: str, new: str, *, count: int = 1) -> str:
    r"""Replace the exact text `old` by `new` in a file; returns a unified diff.

    `old` must be there exactly `count` times, else ValueError says how often and in which lines, and nothing changes.
    With old="" a new file is made of `new`, and folders on the way; FileExistsError when there is one.
    In a file whose lines all end in \r\n, \n in `old` and `new` stands for that. The file is replaced in one step and
    keeps its mode.
    """
    if not old:
        content = new.encode()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("xb") as file:
            file.write(content)
        return f"{path}: created"
    if old == new:
        raise ValueError("old and new are the same: nothing to do")
    target = _existing(path)
    before = target.read_bytes()
    wanted, replacement = (_with_line_ends_of(before, text.encode()) for text in (old, new))
    found = before.count(wanted)
    if found != count:
        where = f" (lines {_lines_of(before, wanted)})" if found else ""
        raise ValueError(f"old was found {found} times{where} in {path}, not {count}: nothing was changed")
    after = before.replace(wanted, replacement)
    _write(target, after)
    return _diff(path, before, after)


def _with_line_ends_of(data: bytes, text: bytes) -> bytes:
    if 0 < data.count(b"\n") == data.count(b"\r\n"):
        return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    return text


def _lines_of(data: bytes, wanted: bytes) -> str:
    lines: list[str] = []
    line, last, at = 1, 0, data.find(wanted)
    while at >= 0:
        if len(lines) == _FINDS_SHOWN:
            return f"{', '.join(lines)}, …"
        line += data.count(b"\n", last, at)
        lines.append(str(line))
        last, at = at, data.find(wanted, at + len(wanted))
    return ", ".join(lines)


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing: readers see the old file or the new one."""
    with tempfile.NamedTemporaryFile(prefix=".edit-", dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            shutil.copymode(path, file.name)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _diff(path: str | os.PathLike[str], before: bytes, after: bytes) -> str:
    a, b = (io.StringIO(data.decode(errors="replace"), newline="\n").readlines() for data in (before, after))
    # Only the middle that differs, with its context, is compared: difflib is slow on long texts.
    head = _common(a, b)
    tail = _common(a[head:][::-1], b[head:][::-1])
    above, below = min(head, _CONTEXT), min(tail, _CONTEXT)
    start = head - above
    a, b = (_marked(lines[start : len(lines) - tail + below], above, below) for lines in (a, b))
    if len(a) + len(b) > _DIFF_LINES:
        return f"{path}: changed between lines {start + 1} and {start + len(a)}, too far apart for a diff"
    text = ""
    for line in difflib.unified_diff(a, b, str(path), str(path), n=_CONTEXT):
        if line.startswith("@@"):
            line = re.sub(r"(?<=[-+])\d+", lambda number: str(int(number[0]) + start), line)
        elif "\0" in line:
            line = line[0] + line.partition("\0")[2]
        text += line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
    return abbreviate(text, _DIFF_CHARACTERS, 0.5)


def _marked(lines: list[str], above: int, below: int) -> list[str]:
    """Context lines are marked by their place: else an equal line among the changed may be taken for one of them."""
    last = len(lines) - below
    place = (f"above {i}" if i < above else f"below {i - last}" if i >= last else "" for i in range(len(lines)))
    return [f"{mark}\0{line}" for mark, line in zip(place, lines, strict=True)]


def _common(a: list[str], b: list[str]) -> int:
    """How many lines are the same from the start on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
