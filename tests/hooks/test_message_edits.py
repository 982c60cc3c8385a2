"""Message edits against a model that applies them one by one, from the back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.effects import AddMessages, DropMessages, Effect, NewMessage
from jaz_actors.errors import MessageIndexError
from jaz_actors.hooks.folds import resolve_message_edits
from jaz_actors.messages import Message

BUFFER = (
    Message("system", "rules", "seed", 0),
    Message("user", "task", "seed", 1),
    Message("assistant", "code", "assistant", 2, 0),
)


def _texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.content for message in messages]


def _add(text: str, index: int | None = None, **how: object) -> AddMessages:
    return AddMessages((NewMessage("user", text),), index, **how)  # type: ignore[arg-type]


def _resolved(*effects: Effect) -> tuple[list[str], list[str]]:
    edits = resolve_message_edits(BUFFER, effects, next_number=7, iteration=4)
    return _texts(edits.shown), _texts(edits.kept)


@st.composite
def _edited(draw: st.DrawFn) -> tuple[tuple[Message, ...], list[Effect]]:
    length = draw(st.integers(0, 5))
    buffer = tuple(Message("user", f"m{number}", "seed", number) for number in range(length))
    places = st.integers(-length, length) if length else st.just(0)
    new = st.builds(NewMessage, st.sampled_from(["user", "system"]), st.sampled_from(["", "x", "y", "xx"]))
    add = st.builds(
        AddMessages,
        st.lists(new, max_size=2).map(tuple),
        st.none() | places,
        st.booleans(),
        st.sampled_from([-1.0, 0.0, 0.5]),
    )
    kinds: list[st.SearchStrategy[Effect]] = [add]
    if length:
        indices = st.lists(st.integers(-length, length - 1), max_size=3).map(tuple)
        kinds.append(st.builds(DropMessages, indices, st.booleans()))
    return buffer, draw(st.lists(st.one_of(kinds), max_size=6))


def _naive(buffer: tuple[Message, ...], effects: list[Effect], *, persistent_only: bool) -> list[tuple[str, str]]:
    """Positions are worked off from the last to the first, so that none shifts another."""
    length = len(buffer)
    result: list[tuple[str, str]] = [(message.role, message.content) for message in buffer]
    chosen = [effect for effect in effects if not persistent_only or effect.persistent]  # type: ignore[attr-defined]
    for position in range(length, -1, -1):
        drops = [index % length for effect in chosen if isinstance(effect, DropMessages) for index in effect.indices]
        if position in drops:
            del result[position]
        here = [
            ((add.sort_key, [(m.content, m.role) for m in add.messages]), [(m.role, m.content) for m in add.messages])
            for add in chosen
            if isinstance(add, AddMessages)
            and (length if add.index is None else add.index % length if add.index < 0 else add.index) == position
        ]
        result[position:position] = [message for _, messages in sorted(here) for message in messages]
    return result


@given(_edited())
def test_the_result_is_that_of_the_naive_model(edited: tuple[tuple[Message, ...], list[Effect]]) -> None:
    buffer, effects = edited
    edits = resolve_message_edits(buffer, effects, next_number=len(buffer), iteration=2)
    for messages, persistent_only in ((edits.shown, False), (edits.kept, True)):
        assert [(m.role, m.content) for m in messages] == _naive(buffer, effects, persistent_only=persistent_only)


@given(st.data(), _edited())
def test_the_order_of_edits_changes_nothing(
    data: st.DataObject, edited: tuple[tuple[Message, ...], list[Effect]]
) -> None:
    buffer, effects = edited
    shuffled = data.draw(st.permutations(effects))
    assert resolve_message_edits(buffer, shuffled, next_number=9, iteration=1) == resolve_message_edits(
        buffer, effects, next_number=9, iteration=1
    )


@given(_edited())
def test_added_messages_have_fresh_numbers_in_the_order_of_the_buffer(
    edited: tuple[tuple[Message, ...], list[Effect]],
) -> None:
    buffer, effects = edited
    edits = resolve_message_edits(buffer, effects, next_number=20, iteration=3)
    added = [message for message in edits.shown if message not in buffer]
    assert [message.number for message in added] == list(range(20, edits.next_number))
    assert all(message.kind == "added" and message.iteration == 3 for message in added)
    assert [message for add in edits.adds for message in add.messages] == added
    assert [drop.message for drop in edits.drops] == [buffer[drop.position] for drop in edits.drops]


def test_without_edits_the_buffer_itself_is_shown() -> None:
    edits = resolve_message_edits(BUFFER, [], next_number=3, iteration=0)
    assert edits.shown is BUFFER
    assert edits.kept is BUFFER
    assert edits.next_number == 3


def test_transient_edits_are_for_this_query_only() -> None:
    assert _resolved(_add("hurry"), DropMessages((1,))) == (["rules", "code", "hurry"], ["rules", "task", "code"])


def test_persistent_edits_stay() -> None:
    kept = ["rules", "code", "note"]
    assert _resolved(_add("note", persistent=True), DropMessages((1,), persistent=True)) == (kept, kept)


def test_a_position_dropped_both_ways_is_dropped_for_good() -> None:
    edits = resolve_message_edits(
        BUFFER, [DropMessages((-1,), persistent=True), DropMessages((2,))], next_number=3, iteration=0
    )
    assert _texts(edits.kept) == ["rules", "task"]
    (drop,) = edits.drops
    assert (drop.position, drop.persistent) == (2, True)


def test_an_add_at_a_dropped_position_is_still_made_there() -> None:
    assert _resolved(DropMessages((1,)), _add("summary", 1))[0] == ["rules", "summary", "code"]


def test_adds_at_one_position_are_ordered_by_key_then_text() -> None:
    effects = (_add("b", 3), _add("aa", None), _add("z", 3, sort_key=-1), _add("a", None, sort_key=1))
    assert _resolved(*effects)[0] == ["rules", "task", "code", "z", "aa", "b", "a"]


def test_all_indices_refer_to_the_buffer_before_edits() -> None:
    assert _resolved(_add("x", 0), _add("y", -1), DropMessages((0, -3)))[0] == ["x", "task", "y", "code"]


@pytest.mark.parametrize("effect", [DropMessages((3,)), DropMessages((0, -4)), _add("x", 4), _add("x", -4)])
def test_an_index_out_of_range_is_refused(effect: Effect) -> None:
    with pytest.raises(MessageIndexError, match="buffer of 3"):
        _resolved(effect)
