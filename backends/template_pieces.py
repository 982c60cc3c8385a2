"""What a chat template writes around each message, found by rendering conversations and comparing. Knows no tokens.

A conversation is a header and a suffix around each content, and a header for the answer to come. Where a template does
something else, such as moving the system's text or changing what a message says, that is found here and told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, get_args

from jaz_actors.backends.chat_template import ChatTemplate
from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Role

Pair = tuple[Role | None, Role]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
# What every run has or may have at any turn: a hook may add a message of a user after one.
NEEDED: Final[tuple[Pair, ...]] = (
    (None, "user"),
    (None, "system"),
    ("system", "user"),
    ("user", "assistant"),
    ("assistant", "user"),
    ("user", "user"),
)
_LEAST: Final[tuple[Pair, ...]] = ((None, "user"), ("user", "assistant"), ("assistant", "user"))
_BEFORE: Final[tuple[tuple[Role, ...], ...]] = (
    (),
    ("system",),
    ("user",),
    ("system", "user"),
    ("user", "assistant"),
    ("system", "user", "assistant"),
)
_AFTER: Final[tuple[tuple[Role, ...], ...]] = ((), ("user",), ("assistant", "user"), ("user", "assistant", "user"))
_EDGES: Final = " \n \tX \n "
_TRIMS: Final[tuple[Callable[[str], str], ...]] = (
    str,
    str.strip,
    str.lstrip,
    str.rstrip,
    lambda text: text.strip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: text.rstrip("\n"),
)


@dataclass(frozen=True, slots=True)
class Pieces:
    """headers:  what stands before a message, by the role before it (None: it is the first) and its own.
    suffixes:  what stands after the content of a role's message, whatever follows.
    reply:     where the answer begins.
    trims:     what the template does with the content; mostly nothing.
    dropped:   roles whose messages the template leaves out.
    refusals:  why there is no header for a pair of roles.
    own:       pairs whose header is another's, because the template takes none.
    """

    headers: Mapping[Pair, str]
    suffixes: Mapping[Role, str]
    reply: str
    trims: Mapping[Role, Callable[[str], str]]
    dropped: frozenset[Role]
    refusals: Mapping[Pair, str]
    own: frozenset[Pair] = frozenset()


def pieces_of(template: ChatTemplate, *, whole: Iterable[str], own_turns: bool) -> Pieces:
    """whole:  texts that are one token, so that no piece ends within one.
    own_turns:  give a message that the template does not take where it stands a turn like another's.

    Raises ConfigurationError, saying what the template does, where a run could not work.
    """
    found = _Found(template)
    found.look_for_all()
    for pair in _LEAST:
        if pair not in found.gaps:
            raise ConfigurationError("chat template", f"takes no conversation: {found.refusals[pair]}")
    if found.dropped - {"system"}:
        raise ConfigurationError("chat template", f"leaves out messages of role {min(found.dropped)}")
    suffixes = {role: found.suffix(role, whole) for role in ROLES}
    headers = {
        (before, role): gap.removeprefix("" if before is None else suffixes[before])
        for (before, role), gap in found.gaps.items()
    }
    own = _give_own_turns(headers, suffixes, found) if own_turns else frozenset()
    missing = [pair for pair in NEEDED if pair not in headers and not set(pair) & found.dropped]
    if missing:
        raise ConfigurationError(
            "chat template",
            f"takes no {_told(missing[0])}: {found.refusals[missing[0]]}; "
            "HFChatFormat(..., own_turns=True) gives such a message a turn of its own",
        )
    if found.dropped and headers["system", "user"] != headers["assistant", "user"]:
        raise ConfigurationError(
            "chat template", "leaves out system messages, but begins a conversation of its own way"
        )
    trims = {role: found.trim(role) for role in ROLES if role not in found.dropped}
    reply = found.reply().removeprefix(suffixes["user"])
    return Pieces(headers, suffixes, reply, trims, found.dropped, found.refusals, own)


class _Refused(Exception):
    """The template does not take a conversation, with its reason."""


class _Moved(Exception):
    """What the messages say does not stand in the text once each, in their order."""


@dataclass
class _Found:
    """gaps: the text between two contents, the suffix of the first and the header of the second."""

    template: ChatTemplate
    gaps: dict[Pair, str] = field(default_factory=dict)
    refusals: dict[Pair, str] = field(default_factory=dict)
    dropped: frozenset[Role] = frozenset()
    starts: tuple[tuple[Role, ...], ...] = _BEFORE

    def __post_init__(self) -> None:
        self.dropped = frozenset(role for role in ROLES if self._is_dropped(role))
        self._moves_system = self._is_moved(("system", "user", "assistant", "user"))
        if self._moves_system:
            self.starts = tuple(start for start in _BEFORE if "system" not in start)

    def _is_moved(self, roles: Sequence[Role]) -> bool:
        try:
            self._gap(roles, len(roles) - 1)
        except _Moved:
            return True
        except _Refused:
            return False
        return False

    def _is_dropped(self, role: Role) -> bool:
        for before in _BEFORE:
            roles = (*before, role, "user") if role == "system" else (*before, role)
            said = [(each, _sentinel(place)) for place, each in enumerate(roles)]
            try:
                text = self._render(said)
            except _Refused:
                continue
            return _sentinel(len(before)) not in text
        return False

    def look_for_all(self) -> None:
        for role in ROLES:
            for before in (None, *ROLES):
                if role not in self.dropped:
                    self._look_for((before, role))
        # What follows a system message is known from the first one; a later one must be followed by the same.
        for before, start in (("user", ("user",)), ("assistant", ("user", "assistant")), ("system", ("system",))):
            pair: Pair = (before, "system")
            try:
                same = self._gap((*start, "system", "user"), len(start) + 1) == self.gaps.get(("system", "user"))
            except (_Refused, _Moved):
                same = False
            if not same and self.gaps.pop(pair, None) is not None:
                self.refusals[pair] = "it is written in another way there"

    def _look_for(self, pair: Pair) -> None:
        before, role = pair
        gaps: set[str] = set()
        reason, moved = f"the template has no place for a {role} message there", False
        if self._moves_system and "system" in pair:
            moved = True
        for start in ((),) if before in (None, "system") else self.starts:
            for end in _AFTER:
                roles = (*start, *(() if before is None else (before,)), role, *end)
                if roles[-1] != "user":
                    continue
                try:
                    gaps.add(self._gap(roles, len(roles) - len(end) - 1))
                except _Refused as error:
                    reason = str(error)
                except _Moved:
                    moved = True
        if moved:
            self.refusals[pair] = "it moves, repeats or leaves out what a message says"
        elif len(gaps) == 1:
            self.gaps[pair] = gaps.pop()
        else:
            self.refusals[pair] = "what it writes there depends on the rest of the conversation" if gaps else reason

    def _gap(self, roles: Sequence[Role], place: int) -> str:
        contents = [_sentinel(number) for number in range(len(roles))]
        text = self._render(list(zip(roles, contents, strict=True)), reply=False)
        shown = [number for number, role in enumerate(roles) if role not in self.dropped]
        pattern = "(.*?)".join(["(.*?)", *(re.escape(contents[number]) for number in shown)][1:])
        match = re.fullmatch(f"(.*?){pattern}(.*)", text, re.DOTALL)
        if match is None or any(text.count(contents[number]) != 1 for number in shown):
            raise _Moved
        return str(match[shown.index(place) + 1])

    def _render(self, said: Sequence[tuple[Role, str]], *, reply: bool = True) -> str:
        try:
            return self.template.render(said, reply=reply)
        except ConfigurationError as error:
            raise _Refused(error.reason) from None

    def reply(self) -> str:
        """What stands after a user's content when an answer is asked for."""
        found: set[str] = set()
        for start in self.starts:
            roles: tuple[Role, ...] = (*start, "user")
            said = [(role, _sentinel(number)) for number, role in enumerate(roles)]
            try:
                found.add(self._render(said).rpartition(said[-1][1])[2])
            except _Refused:
                continue
        if len(found) != 1:
            raise ConfigurationError("chat template", "where the answer begins depends on what was said before")
        return found.pop()

    def suffix(self, role: Role, whole: Iterable[str]) -> str:
        """What is written after its content whatever follows: the end of a conversation, as far as it goes on so."""
        follows = [gap for (before, _), gap in self.gaps.items() if before == role]
        if role == "user":
            follows.append(self.reply())
        ends = []
        for start in self.starts:
            said = [(each, _sentinel(number)) for number, each in enumerate((*start, role))]
            try:
                ends.append(self._render(said, reply=False).rpartition(said[-1][1])[2])
            except _Refused:
                continue
        common = _common([*follows, *ends[:1]]) if follows else ""
        return _cut_before_split_token(common, follows, whole)

    def trim(self, role: Role) -> Callable[[str], str]:
        """Raises ConfigurationError for a template that changes more than the edges of a content."""
        for start in self.starts:
            roles: tuple[Role, ...] = (*start, role) if role == "user" else (*start, role, "user")
            contents = [_sentinel(number) for number in range(len(roles))]
            try:
                plain = self._render(list(zip(roles, contents, strict=True)))
                edged = self._render(
                    [(each, _EDGES if n == len(start) else contents[n]) for n, each in enumerate(roles)]
                )
            except _Refused:
                continue
            for trim in _TRIMS:
                if plain.replace(contents[len(start)], trim(_EDGES)) == edged:
                    return trim
            raise ConfigurationError("chat template", f"changes what a message of role {role} says")
        return str


def _give_own_turns(headers: dict[Pair, str], suffixes: dict[Role, str], found: _Found) -> frozenset[Pair]:
    """A system message that is not taken is written as a user's; one of a role after the same as after another."""
    own: set[Pair] = set()
    for role in ROLES:
        like: Role = role
        if role == "system" and not {(None, "system"), ("system", "user")} <= headers.keys():
            like, suffixes[role] = "user", suffixes["user"]
            for pair in [pair for pair in headers if role in pair]:
                del headers[pair]
        inner = next((headers[b, like] for b in ("assistant", "user") if (b, like) in headers), None)
        for before in (None, *ROLES):
            header = headers.get((before, like), headers[None, "user"] if before is None else inner)
            if (before, role) not in headers and header is not None and not {before, role} & found.dropped:
                own.add((before, role))
                headers[before, role] = header
    return frozenset(own)


def _common(texts: Sequence[str]) -> str:
    """The longest beginning that all have."""
    low, high = min(texts), max(texts)
    end = next((place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:end]


def _cut_before_split_token(common: str, follows: Sequence[str], whole: Iterable[str]) -> str:
    end = len(common)
    for token in whole:
        for text in follows:
            start = text.find(token, max(0, end - len(token) + 1))
            if 0 <= start < end < start + len(token):
                end = start
    return common[:end]


def _sentinel(number: int) -> str:
    return f"Sentinel{'abcdefgh'[number]}text"


def _told(pair: Pair) -> str:
    before, role = pair
    return f"{role} message at the beginning" if before is None else f"{role} message after one of role {before}"


def conversations(pieces: Pieces, contents: Sequence[str]) -> Iterator[list[tuple[Role, str]]]:
    """Conversations that the template takes as they are, with these contents in turn; to check pieces with."""
    every: tuple[tuple[Role, ...], ...] = (
        ("user",),
        ("system", "user"),
        ("system", "user", "assistant", "user"),
        ("user", "assistant", "user", "assistant", "user"),
        ("system", "user", "assistant", "user", "user"),
    )
    for roles in every:
        pairs = set(pairwise((None, *roles)))
        if not pairs & pieces.own:
            yield [(role, contents[number % len(contents)]) for number, role in enumerate(roles)]
