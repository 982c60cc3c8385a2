"""The patches that agents printed: for each root the last one, ready for `git apply`. Knows no repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaz_actors.events import Event, REPLExecExit
from jaz_actors.ids import InvokeId
from jaz_actors.outcomes import Continue

_FILE = "diff --git "
_HEADER = re.compile(
    r"(old mode|new mode|deleted file mode|new file mode|copy from|copy to|rename from|rename to|similarity index|"
    r"dissimilarity index|index|---|\+\+\+|Binary files) .*"
)
_HUNK = re.compile(r"@@ -\d+(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@.*")


@dataclass(frozen=True, slots=True)
class PrintedDiff:
    """invoke_id, iteration: the turn that printed it. text: files in the form of `git diff`, ending with a newline."""

    invoke_id: str
    iteration: int
    text: str


class GitDiffs:
    """The fold of any roots' events. What is last does not depend on how invocations' events were interleaved."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[float, str, int], PrintedDiff]] = {}

    def add(self, event: Event) -> None:
        if not isinstance(event, REPLExecExit) or not isinstance(event.result, Continue):
            return
        text = last_diff(event.result.output)
        if text is None:
            return
        root = str(InvokeId.parse(event.invoke_id).root)
        order = event.timestamp, event.invoke_id, event.sequence
        known = self._last.get(root)
        if known is None or known[0] < order:
            self._last[root] = order, PrintedDiff(event.invoke_id, event.iteration, text)

    def diffs(self) -> dict[str, PrintedDiff]:
        """By the invoke id of the root; roots without one are not there."""
        return {root: diff for root, (_, diff) in sorted(self._last.items())}


def extract_diffs(events: Iterable[Event]) -> dict[str, PrintedDiff]:
    """The last diff of each root, printed by the root or by anyone below it."""
    found = GitDiffs()
    for event in events:
        found.add(event)
    return found.diffs()


def last_diff(output: str) -> str | None:
    """The last run of file diffs in the text; one that is cut short is none."""
    if _FILE not in output:
        return None
    return next(reversed(list(_diffs(output.split("\n")))), None)


def _diffs(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        end = _files_end(lines, at)
        if end > at:
            yield "\n".join(lines[at:end]) + "\n"
        at = max(end, at + 1)


def _files_end(lines: list[str], at: int) -> int:
    """Where the complete file diffs that begin at this line end."""
    while at < len(lines) and lines[at].startswith(_FILE):
        end = _file_end(lines, at + 1)
        if end is None:
            break
        at = end
    return at


def _file_end(lines: list[str], at: int) -> int | None:
    while at < len(lines):
        if lines[at].startswith("GIT binary patch"):
            return _binary_end(lines, at + 1)
        hunk = _HUNK.fullmatch(lines[at])
        if hunk is not None:
            end = _hunk_end(lines, at + 1, int(hunk["old"] or 1), int(hunk["new"] or 1))
            if end is None:
                return None
            at = end
        elif _HEADER.fullmatch(lines[at]):
            at += 1
        else:
            break
    return at


def _hunk_end(lines: list[str], at: int, old: int, new: int) -> int | None:
    """None when the text ends, or goes on otherwise, before as many lines as the hunk has."""
    while old or new:
        if at == len(lines):
            return None
        kind = lines[at][:1] or " "  # an empty line of context whose blank was stripped
        old -= kind in " -"
        new -= kind in " +"
        if kind not in " -+\\" or old < 0 or new < 0:
            return None
        at += 1
    if at < len(lines) and lines[at].startswith("\\"):
        at += 1
    return at


def _binary_end(lines: list[str], at: int) -> int:
    """Up to two blocks, each of which ends with an empty line."""
    while at < len(lines) and re.fullmatch(r"(literal|delta) \d+", lines[at]):
        while at < len(lines) and lines[at]:
            at += 1
        at += 1
    return min(at, len(lines))
