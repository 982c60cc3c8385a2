"""A chat template and a tokenizer together: ids around and of each message, checked against the whole conversation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal

from jaz_actors.backends.chat_format import Reply
from jaz_actors.backends.chat_template import ChatTemplate
from jaz_actors.backends.reasoning import KNOWN_TAGS, Reasoning, begun_in
from jaz_actors.backends.template_pieces import Pieces, conversations, pieces_of
from jaz_actors.backends.token_text import Part, TokenText
from jaz_actors.backends.tokenizer_folder import TokenizerFolder, read_tokenizer_folder
from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Role

logger = logging.getLogger(__name__)

Tags = tuple[str, str] | Literal["auto"] | None

# Contents whose edges meet what a template writes around them.
_PROBES: Final = (
    ("Add up.", "return 3", "It is 3."),
    ("\n\nLines\n  first\n", "  indented", "x = [1, 2]\nprint(x)\n\n\n", "\ttab "),
    ("1", "2", "{'a': \"b\"} & <c>", "\u00e9 \u2603 \u4f60\u597d"),
)


@dataclass(frozen=True, slots=True)
class TemplateFormat:
    """reply_start, suffix, reply_end:  ids where an answer begins, after an unfinished one, after its stop id."""

    path: Path
    pieces: Pieces
    text: TokenText
    stop_ids: tuple[int, ...]
    vocabulary: int
    reply_start: tuple[int, ...]
    suffix: tuple[int, ...]
    reply_end: tuple[int, ...]
    reasoning: Reasoning | None
    reasoned: bool

    def message_ids(self, role: Role, content: str, previous: Role | None) -> list[int]:
        """Raises ConfigurationError where the template takes no such message."""
        pieces = self.pieces
        if role in pieces.dropped:
            return []
        header = pieces.headers.get((previous, role))
        if header is None:
            after = "at the beginning" if previous is None else f"after one of role {previous}"
            raise ConfigurationError(
                "chat template",
                f"{self.path.name} takes no {role} message {after}: {pieces.refusals.get((previous, role), 'none')}",
            )
        trim = pieces.trims.get(role, str)
        parts = [Part(header, True), Part(trim(content), False), Part(pieces.suffixes.get(role, ""), True)]
        return self.text.encode(parts, first=previous is None)

    def read(self, ids: Sequence[int]) -> Reply:
        trace = None if self.reasoning is None else self.reasoning.read(ids, self.text.decode)
        if trace is not None:
            return Reply(trace.content, (0, trace.end))
        return Reply(self.text.decode(ids), (0, 0) if self.reasoned else None)


def read_format(
    path: Path, *, variables: Mapping[str, Any], reasoning: Tags, own_turns: bool, today: date
) -> TemplateFormat:
    """Blocks. Raises ConfigurationError for a folder that cannot be used, and says why."""
    folder = read_tokenizer_folder(path)
    template = ChatTemplate(folder.template, special_tokens=folder.special_tokens, variables=variables, today=today)
    text = _token_text(path, folder)
    pieces = pieces_of(template, whole=text.added, own_turns=own_turns)
    if pieces.dropped:
        logger.info("the chat template of %s leaves out system messages", path)
    tags = _tags(reasoning, folder, text)
    suffix = text.encode([Part(pieces.suffixes["assistant"], True)])
    stop_ids = _stop_ids(folder, text, suffix)
    last = next((place for place, i in enumerate(suffix) if i in stop_ids), -1)
    made = TemplateFormat(
        path,
        pieces,
        text,
        stop_ids,
        folder.vocabulary or text.size,
        tuple(text.encode([Part(pieces.reply, True)])),
        tuple(suffix),
        tuple(suffix[last + 1 :]),
        None if tags is None else _reasoning(tags, text, pieces.reply),
        tags is not None and not begun_in(pieces.reply, tags) and tags[1] in pieces.reply,
    )
    _check(made, template)
    return made


def _token_text(path: Path, folder: TokenizerFolder) -> TokenText:
    try:
        text = TokenText(folder.tokenizer)
    except ImportError:
        raise
    except Exception as error:  # tokenizers raises bare exceptions
        raise ConfigurationError("tokenizer", f"{path} cannot be read: {error}") from error
    forged = text.forged()
    if forged is not None:
        raise ConfigurationError("tokenizer", f"{path}: text that says {forged!r} becomes that special token")
    return text


def _stop_ids(folder: TokenizerFolder, text: TokenText, suffix: Sequence[int]) -> tuple[int, ...]:
    """What the configurations name, and the token that the template writes after an answer."""
    found = set(folder.eos_ids)
    eos = folder.special_tokens.get("eos_token")
    named = text.id_of(eos) if eos is not None else None
    if named is not None:
        found.add(named)
    special = {token.id for token in text.added.values() if token.special}
    found.update(i for i in suffix[:1] if i in special)
    return tuple(sorted(found))


def _tags(reasoning: Tags, folder: TokenizerFolder, text: TokenText) -> tuple[str, str] | None:
    if reasoning != "auto":
        return reasoning
    for tags in KNOWN_TAGS:
        if tags[1] in text.added or tags[1] in folder.template:
            return tags
    return None


def _reasoning(tags: tuple[str, str], text: TokenText, reply: str) -> Reasoning:
    first, last = (text.added[tag].id if tag in text.added else None for tag in tags)
    return Reasoning(tags[0], tags[1], first, last, begun_in(reply, tags))


def _check(made: TemplateFormat, template: ChatTemplate) -> None:
    """Ids of the pieces must be those of the whole. A template that is given more turns than it takes has no whole."""
    for probe in _PROBES:
        for said in conversations(made.pieces, probe):
            try:
                whole = made.text.encode_markup(template.render(said))
            except ConfigurationError:
                continue
            ids: list[int] = []
            previous: Role | None = None
            for role, content in said:
                ids += made.message_ids(role, content, previous)
                previous = role
            ids += made.reply_start
            if ids != whole:
                at = next(
                    (n for n, (a, b) in enumerate(zip(ids, whole, strict=False)) if a != b), min(len(ids), len(whole))
                )
                raise ConfigurationError(
                    "chat template",
                    f"{made.path.name}: message by message it gives other ids than for the whole conversation "
                    f"{said!r}, from id {at} on: {ids[at : at + 5]} for {whole[at : at + 5]}; give a chat_format",
                )
