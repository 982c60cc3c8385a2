"""A dotted namespace of tools, given to an agent as one input. Knows nothing of prompts or of what its members do."""

from __future__ import annotations

import inspect
import keyword
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeGuard

from jaz_actors.errors import ConfigurationError
from jaz_actors.refs import Reference, signature_text

# Of one page of a catalog; the objects' lines and all others.
MAX_OBJECTS = 100
MAX_CHARACTERS = 20_000
MAX_LINE = 300
_MAX_DOC_LINES = 20


class Library:
    """Tools under dotted names: `tools = Library("tools", "What they are for.", bash=bash)`, then `tools.bash(...)`.

    A member is any object, another library included; all are pickled with it. `str(tools)` is the first page of its
    catalog, which is what an agent is shown. Names are identifiers that do not begin with an underscore and are not
    `add`, `catalog`, `members` or `replaced`; ConfigurationError names the one that is refused.
    """

    __slots__ = ("__weakref__", "_doc", "_members", "_name")

    def __init__(self, name: str, doc: str = "", /, **members: object) -> None:
        _check_name(name, name)
        self._name = name
        self._doc = inspect.cleandoc(doc)
        self._members: dict[str, object] = {}
        for path, member in members.items():
            self.add(path, member)

    def add(self, path: str, member: object) -> None:
        """Put `member` at a dotted path below this library; libraries missing on the way are made."""
        subject = f"{self._name}.{path}"
        *parents, name = path.split(".")
        for part in (*parents, name):
            _check_name(subject, part)
        library = self
        for at, parent in enumerate(parents):
            if parent not in library._members:
                for missing in reversed(parents[at:]):
                    member, name = Library(missing, "", **{name: member}), missing
                break
            inner = library._members[parent]
            if not _is_library(inner):
                raise ConfigurationError(subject, f"{parent} is there and no library")
            library = inner
        if name in library._members:
            raise ConfigurationError(subject, "the name is taken")
        if _is_library(member) and id(library) in _sizes(member, {}):
            raise ConfigurationError(subject, "a library cannot be within itself")
        library._members[name] = member

    def members(self) -> Mapping[str, object]:
        """The direct members by name, read only."""
        return MappingProxyType(self._members)

    def replaced(self, members: Mapping[str, object]) -> Library:
        """The same library with other values under its names."""
        library = Library(self._name, self._doc)
        library._members.update(members)
        return library

    def catalog(self, prefix: str = "", start: int = 0) -> str:
        """One line for each object below the dotted `prefix`, nearest first, from object `start` (0-based) on.

        It is bounded, and says how to see what it leaves out. AttributeError when nothing is at `prefix`.
        """
        path, target = self._name, self
        for name in prefix.split(".") if prefix else ():
            path, target = f"{path}.{name}", getattr(target, name)
        if not _is_library(target):
            return _line(path, target, {})
        sizes = _sizes(target, {})
        lines = [] if start else _doc_lines(target._doc)
        room = MAX_CHARACTERS - MAX_LINE - sum(len(line) + 1 for line in lines)  # the last line is for the advice
        shown: list[tuple[str, object]] = []
        for where, member in islice(_walk(path, target), start, start + MAX_OBJECTS):
            line = _line(where, member, sizes)
            room -= len(line) + 1
            if room < 0:
                break
            lines.append(line)
            shown.append((where, member))
        if advice := _advice(self._name, prefix, shown, start + len(shown), sizes[id(target)]):
            lines.append(advice)
        return "\n".join(lines)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by protocols, also before the state of an unpickled library is there
            raise AttributeError(name)
        if name not in self._members:
            raise AttributeError(f"{self._name} has no member {name!r}", name=name, obj=self)
        return self._members[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._members]

    def __str__(self) -> str:
        return self.catalog()

    def __repr__(self) -> str:
        return f"<Library {self._name} of {_sizes(self, {})[id(self)]:,} objects; print it for its catalog>"


def _is_library(value: object) -> TypeGuard[Library]:
    return issubclass(type(value), Library)  # isinstance would also ask the value for its __class__


def _check_name(subject: str, name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigurationError(subject, f"{name!r} is not a Python identifier")
    if name.startswith("_"):
        raise ConfigurationError(subject, f"{name!r} begins with an underscore, which is not reachable in a library")
    if hasattr(Library, name):
        raise ConfigurationError(subject, f"{name!r} is a method of libraries")


def _sizes(library: Library, known: dict[int, int]) -> dict[int, int]:
    """By id, how many objects are below `library` and below each library that can be reached from it."""
    size = len(library._members)
    for member in library._members.values():
        if _is_library(member):
            if id(member) not in known:  # one that is in several places is counted in each and walked once
                _sizes(member, known)
            size += known[id(member)]
    known[id(library)] = size
    return known


def _walk(path: str, library: Library) -> Iterator[tuple[str, object]]:
    """Every object below with its path, breadth first: a cut listing still shows which libraries there are."""
    pending = deque([(path, library)])
    while pending:
        path, library = pending.popleft()
        for name, member in library._members.items():
            yield f"{path}.{name}", member
            if _is_library(member):
                pending.append((f"{path}.{name}", member))


def _advice(root: str, prefix: str, shown: list[tuple[str, object]], end: int, total: int) -> str:
    """How to see what is not on this page: by examples that are on it."""
    advice = []
    if end < total:
        more = f'"{prefix}", start={end}' if prefix else f"start={end}"
        advice.append(f"{total - end:,} of {total:,} objects left out: print({root}.catalog({more})) goes on")
        if library := next((path for path, member in shown if _is_library(member)), None):
            advice.append(f'print({root}.catalog("{library.partition(".")[2]}")) lists one library')
    if function := next((path for path, member in shown if type(member) is not Reference and callable(member)), None):
        advice.append(f"help({function}) shows all of its documentation")
    return _cut(f"[{'; '.join(advice)}]", MAX_LINE) if advice else ""


def _line(path: str, member: object, sizes: dict[int, int]) -> str:
    doc = ""
    if _is_library(member):
        head, doc = f"{path}: library of {sizes[id(member)]:,}", member._doc
    elif type(member) is Reference:
        record = member._record
        kind = "async " if record.is_coroutine else ""
        head, doc = f"{kind}{path}{record.signature or f': {record.type_name}'}", record.doc
    elif callable(member):
        signature = _attempt(signature_text, member, "(...)")
        head, doc = f"{_attempt(_kind, member)}{path}{signature}", _attempt(_doc_of, member)
    else:
        head = f"{path}: {type(member).__name__}"
    comment = next((f"  # {line}" for line in _doc_lines(doc)), "")
    head = _cut(" ".join(head.split()), max(MAX_LINE - len(comment), MAX_LINE * 2 // 3))
    return _cut(head + comment, MAX_LINE)


def _attempt(read: Callable[[Any], str | None], member: object, otherwise: str = "") -> str:
    try:
        return read(member) or ""
    except Exception:  # a default's repr, a descriptor: whatever it is, the other objects are to be listed
        return otherwise


def _kind(member: Any) -> str:
    if isinstance(member, type):
        return "class "
    return "async " if any(map(inspect.iscoroutinefunction, (member, type(member).__call__))) else ""


def _doc_of(member: object) -> str | None:
    return inspect.getdoc(member.func if isinstance(member, partial) else member)


def _doc_lines(doc: str) -> list[str]:
    lines = [_cut(line.rstrip(), MAX_LINE) for line in doc.strip().splitlines()]
    return lines if len(lines) <= _MAX_DOC_LINES else [*lines[:_MAX_DOC_LINES], "…"]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
