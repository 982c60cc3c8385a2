"""Where the reasoning in sampled ids is, and what is said beside it. Knows no template."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# How model families write it; the first that a model's tokens or template name is its own.
KNOWN_TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("\N{WHITE LEFT-POINTING TRIANGLE}think\N{WHITE RIGHT-POINTING TRIANGLE}",
     "\N{WHITE LEFT-POINTING TRIANGLE}/think\N{WHITE RIGHT-POINTING TRIANGLE}"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """end: how many of the ids are reasoning, from the first on. content: what the others say."""

    end: int
    content: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model marks its reasoning.

    open, close:          the tags.
    open_id, close_id:    where each is one token; then the same characters in other tokens are no tag.
    opened:               whether the prompt ends within it.

    Reasoning is what an answer begins with: a tag after visible text is text. Tags within it nest where they close
    each other; where they do not, the last closing tag ends it. Without one, all is reasoning.
    """

    open: str
    close: str
    open_id: int | None = None
    close_id: int | None = None
    opened: bool = False

    def read(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Trace | None:
        """None where there is no reasoning."""
        if self.open_id is not None and self.close_id is not None:
            return self._by_ids(ids, decode)
        return self._by_text(ids, decode)

    def _by_ids(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Trace | None:
        if not self.opened:
            first = next((place for place, i in enumerate(ids) if i == self.open_id), None)
            if first is None or decode(ids[:first]).strip():
                return None
        tags = [(place + 1, i == self.open_id) for place, i in enumerate(ids) if i in (self.open_id, self.close_id)]
        end = _closed(tags, depth=1 if self.opened else 0)
        return Trace(len(ids), "") if end is None else Trace(end, decode(ids[end:]).lstrip())

    def _by_text(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Trace | None:
        text = decode(ids)
        if not self.opened and not text.lstrip().startswith(self.open):
            return None
        pattern = f"{re.escape(self.open)}|{re.escape(self.close)}"
        tags = [(match.end(), match[0] == self.open) for match in re.finditer(pattern, text)]
        cut = _closed(tags, depth=1 if self.opened else 0)
        if cut is None:
            return Trace(len(ids), "")
        # A token may hold the end of the tag and what follows it; it counts as reasoning, its text does not.
        end = bisect_left(range(len(ids)), True, key=lambda count: decode(ids[:count])[:cut] == text[:cut])
        return Trace(end, text[cut:].lstrip())


def _closed(tags: Sequence[tuple[int, bool]], *, depth: int) -> int | None:
    """Where what is open is closed; tags are (end, whether it opens)."""
    last: int | None = None
    for end, opens in tags:
        depth += 1 if opens else -1
        if depth == 0:
            return end
        if not opens:
            last = end
    return last


def begun_in(text: str, tags: tuple[str, str]) -> bool:
    """Whether a prompt that ends so ends within reasoning."""
    return text.rfind(tags[0]) > text.rfind(tags[1])
