"""Text to ids where part of the text is markup and part is not. Knows no messages and no template.

In markup, special tokens are what they look like. In other text they are ordinary characters, so that nothing that
someone wrote can end a message or begin one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

UNWRITTEN = "\U0010ffff"  # no character: it is reserved, and stands in no text


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    is_markup: bool


class AddedToken(msgspec.Struct, frozen=True):
    """As tokenizer.json has it. lstrip, rstrip: the token takes the whitespace before or after it away."""

    id: int
    content: str
    lstrip: bool = False
    rstrip: bool = False
    special: bool = False


class TokenText:
    """One tokenizer, given as the text of its tokenizer.json."""

    def __init__(self, source: str | bytes) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError('reading a tokenizer needs: pip install "jaz-actors[sglang]"') from error
        data: dict[str, Any] = msgspec.json.decode(source)
        added = msgspec.convert(data.get("added_tokens") or [], list[AddedToken])
        self.added = {token.content: token for token in added}
        self._whole = Tokenizer.from_str(source if isinstance(source, str) else source.decode())
        plain = _without_added(data, added)
        inner = {**plain, "pre_tokenizer": _inner(plain["pre_tokenizer"])}
        self._plain = Tokenizer.from_str(msgspec.json.encode(inner).decode())
        self._first = self._plain if inner == plain else Tokenizer.from_str(msgspec.json.encode(plain).decode())
        for tokenizer in (self._whole, self._plain, self._first):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        longest_first = sorted(self.added, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, longest_first)) if longest_first else r"(?!)")

    @property
    def size(self) -> int:
        return max(self._whole.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def id_of(self, token: str) -> int | None:
        found = self._whole.token_to_id(token)
        return None if found is None else int(found)

    def encode(self, parts: Iterable[Part], *, first: bool = False) -> list[int]:
        """The ids of the parts as one text. first: nothing stands before it; some tokenizers begin words there."""
        ids: list[int] = []
        run: list[str] = []
        follows: AddedToken | None = None
        for piece in self._pieces(parts):
            if isinstance(piece, str):
                run.append(piece)
                continue
            ids += self._run(run, follows, piece, first=first and follows is None)
            ids.append(piece.id)
            run, follows = [], piece
        return ids + self._run(run, follows, None, first=first and follows is None)

    def forged(self) -> str | None:
        """A special token that text can become although it is no markup; None where there is none, as should be."""
        for token in self.added.values():
            if token.special and token.content.strip():
                for text in (token.content, f"hi {token.content}\n"):
                    if token.id in self.encode([Part(text, False)]):
                        return token.content
        return None

    def encode_markup(self, text: str) -> list[int]:
        """The tokenizer's own encoding of a whole text."""
        return list(self._whole.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        return str(self._whole.decode(list(ids), skip_special_tokens=True))

    def _pieces(self, parts: Iterable[Part]) -> Iterable[str | AddedToken]:
        for part in parts:
            if not part.is_markup:
                yield part.text
                continue
            start = 0
            for match in self._split.finditer(part.text):
                yield part.text[start : match.start()]
                yield self.added[match[0]]
                start = match.end()
            yield part.text[start:]

    def _run(self, run: list[str], follows: AddedToken | None, before: AddedToken | None, *, first: bool) -> list[int]:
        """The ids of what stands between two tokens."""
        text = "".join(run)
        if follows is not None and follows.rstrip:
            text = text.lstrip()
        if before is not None and before.lstrip:
            text = text.rstrip()
        tokenizer = self._first if first else self._plain
        return list(tokenizer.encode(text, add_special_tokens=False).ids) if text else []


def _without_added(data: dict[str, Any], added: Iterable[AddedToken]) -> dict[str, Any]:
    """The same tokenizer for text between tokens, of which it knows none."""
    return {
        "pre_tokenizer": None,
        **data,
        "model": _renamed(data["model"], {token.content for token in added if token.special}),
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _renamed(model: dict[str, Any], special: set[str]) -> dict[str, Any]:
    """The model with the special tokens under names that no text has: some find in a text whatever they know."""
    names = {name: f"{UNWRITTEN}{n}{UNWRITTEN}" for n, name in enumerate(sorted(special))}
    made = dict(model)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        made["vocab"] = {names.get(word, word): number for word, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        made["vocab"] = [[names.get(word, word), score] for word, score in vocabulary]
    if model.get("unk_token") in names:
        made["unk_token"] = names[model["unk_token"]]
    if model.get("merges"):
        made["merges"] = [merge for merge in model["merges"] if not names.keys() & _merged(merge)]
    return made


def _merged(merge: str | list[str]) -> set[str]:
    """The words that a merge knows: two, and what they become."""
    one, other = merge.split(" ", 1) if isinstance(merge, str) else merge
    return {one, other, one + other}


def _inner(pre_tokenizer: Any) -> Any:
    """For text that is not the beginning of the whole."""
    if not isinstance(pre_tokenizer, dict):
        return pre_tokenizer
    if "pretokenizers" in pre_tokenizer:
        return {**pre_tokenizer, "pretokenizers": [_inner(one) for one in pre_tokenizer["pretokenizers"]]}
    if pre_tokenizer.get("prepend_scheme") == "first":
        return {**pre_tokenizer, "prepend_scheme": "never"}
    return pre_tokenizer
