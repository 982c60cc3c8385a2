"""Texts of any content as Markdown that stays whole around them. Knows nothing of events."""

from __future__ import annotations

import re

from jaz_actors.recorders.story import Entry, one_line


def heading(level: int, title: str) -> str:
    """A heading line; there are six levels, what is deeper stays at the sixth."""
    return f"{'#' * min(level, 6)} {escaped(title)}\n"


def escaped(text: str) -> str:
    return re.sub(r"([\\`*\[\]<>#])", r"\\\1", " ".join(text.split()))


def fenced(text: str, language: str = "") -> str:
    """The text as a block of code, between fences longer than any run of backticks in it."""
    fence = "`" * max(3, _longest_run(text) + 1)
    end = "" if not text or text.endswith("\n") else "\n"
    return f"{fence}{language}\n{text}{end}{fence}\n"


def inline(text: str, limit: int = 200) -> str:
    """The text on one line, as inline code."""
    text = one_line(text, limit)
    fence = "`" * (_longest_run(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""


def _longest_run(text: str) -> int:
    return max(map(len, re.findall(r"`+", text)), default=0)


def section(entry: Entry, level: int) -> str:
    """An entry as a section of a document: every one begins and ends alike, so that sections can be joined."""
    body = f"\n{fenced(entry.text, entry.language)}" if entry.text else ""
    return f"{heading(level, entry.title)}{body}\n"
