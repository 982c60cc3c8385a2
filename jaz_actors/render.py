"""Values and long texts as the model sees them. Pure; runs in frames, where a value's own code may run."""

from __future__ import annotations

import inspect
from typing import Any

from jaz_actors.refs import Reference, signature_text

_MEMBERS_SHOWN = 100


def abbreviate(text: str, limit: int, head_ratio: float, recover: str = "") -> str:
    """`text`, or its head and tail around a marker when it is longer than `limit` characters.

    The marker says how much was left out and, by `recover` with its `{start}` and `{end}` filled in, how to read it.
    """
    if len(text) <= limit:
        return text
    head = int(limit * head_ratio)
    end = len(text) - (limit - head)
    how = f"; {recover.format(start=head, end=end)}" if recover else ""
    return f"{text[:head]}\n[… {end - head:,} of {len(text):,} characters left out{how} …]\n{text[end:]}"


def type_name(value: object) -> str:
    if isinstance(value, Reference):
        return value._record.type_name.rpartition(".")[2]
    return type(value).__name__


def value_text(value: Any) -> str:
    """What to show of a value that has no description. May run the value's own code, and raise what it raises."""
    if isinstance(value, Reference):
        return _reference_text(value)
    if isinstance(value, type):
        return "\n".join([_heading(value), *_members(value)])
    if callable(value) and hasattr(value, "__name__"):
        return _heading(value)
    if not _says_itself(type(value)) and hasattr(value, "__dict__"):
        attributes = [f"{name} = {item!r}" for name, item in vars(value).items() if not name.startswith("_")]
        return "\n".join([inspect.getdoc(type(value)) or type(value).__name__, *attributes, *_members(type(value))])
    return str(value)


def _says_itself(cls: type) -> bool:
    plain: tuple[object, object] = (object.__str__, object.__repr__)
    return (cls.__str__, cls.__repr__) != plain


def _heading(value: Any) -> str:
    keyword = "class " if isinstance(value, type) else "async " if inspect.iscoroutinefunction(value) else ""
    return _documented(f"{keyword}{value.__name__}{signature_text(value)}", inspect.getdoc(value))


def _documented(line: str, doc: str | None) -> str:
    if not doc:
        return line
    indented = "\n".join(f"    {text}" if text else "" for text in doc.splitlines())
    return f"{line}\n{indented}"


def _members(cls: type) -> list[str]:
    lines = []
    for name in dir(cls):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(cls, name)
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if callable(function):
            lines.append(_documented(f"{name}{signature_text(function)}", inspect.getdoc(function)))
        elif isinstance(member, property):
            lines.append(_documented(name, inspect.getdoc(member)))
    if len(lines) > _MEMBERS_SHOWN:
        lines[_MEMBERS_SHOWN:] = [f"(and {len(lines) - _MEMBERS_SHOWN} more members)"]
    return lines


def _reference_text(reference: Reference) -> str:
    record = reference._record
    head = f"{record.type_name}{record.signature}" if record.signature else record.type_name
    text = _documented(f"{'async ' if record.is_coroutine else ''}{head}", record.doc)
    if record.methods and not record.signature:
        text += f"\nmethods: {', '.join(record.methods)}"
    return text
