"""A text log: lines of UTC time, invoke id, kind and text; and such lines as nested Markdown.

An entry of several lines goes on in lines of the kind `|`. Every line names its invocation, so concurrent ones may
stand between each other's lines, and lines of several logs may be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TextIO, get_args

from jaz_actors.events import Event, InvokeExit
from jaz_actors.ids import InvokeId
from jaz_actors.recorders.markdown import heading, section
from jaz_actors.recorders.story import Entry, EntryKind, Story

_MORE = "|"
_KINDS: dict[str, EntryKind] = {kind: kind for kind in get_args(EntryKind)}


class TextLog:
    """Writes lines to a stream as events come; the caller opens and closes it. An event's lines are one write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stories: dict[str, Story] = {}

    def add(self, event: Event) -> None:
        story = self._stories.setdefault(event.invoke_id, Story())
        time = datetime.fromtimestamp(event.timestamp, UTC).isoformat(timespec="milliseconds")
        lines = [line for entry in story.add(event) for line in _lines(f"{time} {event.invoke_id}", entry)]
        if isinstance(event, InvokeExit):
            del self._stories[event.invoke_id]
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


def _lines(head: str, entry: Entry) -> Iterator[str]:
    yield f"{head} {entry.kind} {' '.join(entry.title.split())}\n"
    if entry.text:
        # A carriage return would end the line for whoever reads the log as text.
        for line in entry.text.replace("\r", "\\r").split("\n"):
            yield f"{head} {_MORE} {line}\n"


@dataclass(slots=True)
class _Node:
    """An invocation of a log, with its entries and those whose first line stands between them."""

    invoke_id: InvokeId
    parts: list[_Entry | _Node] = field(default_factory=list)


@dataclass(slots=True)
class _Entry:
    kind: EntryKind
    title: str
    lines: list[str] = field(default_factory=list)


def to_markdown(lines: Iterable[str]) -> str:
    """One document: a section an invocation, inside its parent's, where its first line stands. Skips other lines."""
    nodes: dict[InvokeId, _Node] = {}
    roots: list[_Node] = []
    for line in lines:
        parsed = _parsed(line)
        if parsed is None:
            continue
        node = nodes.get(parsed.invoke_id)
        if node is None:
            node = nodes[parsed.invoke_id] = _Node(parsed.invoke_id)
            above = _nearest(parsed.invoke_id, nodes)
            (roots if above is None else above.parts).append(node)
        _take(node, parsed)
    return "".join(text for root in roots for text in _rendered(root))


@dataclass(frozen=True, slots=True)
class _Line:
    invoke_id: InvokeId
    kind: str
    text: str


def _parsed(line: str) -> _Line | None:
    time, _, rest = line.rstrip("\n").partition(" ")
    name, _, rest = rest.partition(" ")
    kind, _, text = rest.partition(" ")
    try:
        datetime.fromisoformat(time)
        invoke_id = InvokeId.parse(name)
    except ValueError:
        return None
    return _Line(invoke_id, kind, text) if kind in _KINDS or kind == _MORE else None


def _nearest(invoke_id: InvokeId, nodes: dict[InvokeId, _Node]) -> _Node | None:
    """The closest invocation above that the log has."""
    above = invoke_id.parent
    while above is not None and above not in nodes:
        above = above.parent
    return None if above is None else nodes[above]


def _take(node: _Node, line: _Line) -> None:
    if line.kind != _MORE:
        node.parts.append(_Entry(_KINDS[line.kind], line.text))
        return
    # A child may have begun between two lines of its parent.
    last = next((part for part in reversed(node.parts) if isinstance(part, _Entry)), None)
    if last is not None:
        last.lines.append(line.text)


def _rendered(root: _Node) -> Iterator[str]:
    """Without recursion: nesting is as deep as agents made it."""
    pending: list[tuple[_Node | _Entry, int]] = [(root, 1)]
    while pending:
        part, level = pending.pop()
        if isinstance(part, _Entry):
            yield section(Entry(part.kind, part.title, "\n".join(part.lines)), level)
            continue
        yield f"{heading(level, f'Invocation {part.invoke_id}')}\n"
        pending += [(inner, level + 1) for inner in reversed(part.parts)]
