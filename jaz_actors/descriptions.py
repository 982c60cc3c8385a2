"""The text that an agent is shown instead of a rendering of a value. Knows nothing of prompts."""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

T = TypeVar("T")

_ATTRIBUTE = "__jaz_description__"
_weak: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# Values that take neither an attribute nor a weak reference are kept alive with their text: an id alone would come
# to mean another object. Small shared values are refused for the same reason.
_pinned: dict[int, tuple[object, str]] = {}


class Display:
    """An input shown to the agent as `text`, for one call; None hides it: bound as a variable, not shown."""

    __slots__ = ("text", "value")

    def __init__(self, value: object, text: str | None) -> None:
        if not isinstance(text, str | None):
            raise TypeError(f"a text is a str, or None to hide the value, not {type(text).__name__}")
        self.value = value
        self.text = text


def describe(value: T, text: str) -> T:
    """Attach `text` to `value` for every invocation that gets it as an input; returns the same object.

    Raises TypeError when `text` is no string, or when `value` is None, a bool, a number or a string, which are shared
    by the whole process.
    """
    if not isinstance(text, str):
        raise TypeError(f"a description is a str, not {type(text).__name__}")
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        raise TypeError(f"{value!r} is shared by the whole process; pass Display({value!r}, text) instead")
    try:
        setattr(value, _ATTRIBUTE, text)
    except (AttributeError, TypeError):
        try:
            _weak[value] = text
        except TypeError:
            _pinned[id(value)] = (value, text)
    return value


def description_of(value: object) -> str | None:
    attribute = getattr(value, "__dict__", {}).get(_ATTRIBUTE) if hasattr(value, "__dict__") else None
    if isinstance(attribute, str):
        return attribute
    pinned = _pinned.get(id(value))
    if pinned is not None:
        return pinned[1]
    try:
        return _weak.get(value)
    except TypeError:
        return None
