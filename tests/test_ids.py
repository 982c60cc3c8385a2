"""Invoke ids and path components."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.errors import KeyRefused
from jaz_actors.ids import InvokeId, PathCounter, new_run_id

_paths = st.lists(
    st.one_of(st.integers(0, 99).map(str), st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)), min_size=1
)


@given(_paths)
def test_an_id_reads_back_from_its_text_and_knows_its_place(parts: list[str]) -> None:
    invoke_id = InvokeId(new_run_id(), ".".join(parts))
    assert InvokeId.parse(str(invoke_id)) == invoke_id
    assert invoke_id.depth == len(parts)
    assert invoke_id.root.path == parts[0]
    child = invoke_id.child("7")
    assert child.parent == invoke_id
    assert child.depth == invoke_id.depth + 1


def test_run_ids_are_distinct_and_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for second in (1.0, 2.0, 1e9, 2e9):
        monkeypatch.setattr("time.time", lambda second=second: second)
        ids.append(new_run_id())
    assert ids == sorted(set(ids))


def test_ordinals_count_calls_and_keys_do_not_shift_them() -> None:
    counter = PathCounter()
    assert [counter.take(), counter.take("doc-17"), counter.take()] == ["0", "doc-17", "1"]


@pytest.mark.parametrize("key", ["", "a.b", "a:b", "17", "ä", "x" * 101, "a b", 3, None.__class__])
def test_a_key_that_is_no_path_component_is_refused(key: object) -> None:
    with pytest.raises(KeyRefused):
        PathCounter().take(key)  # type: ignore[arg-type]


def test_a_key_is_taken_once() -> None:
    counter = PathCounter()
    counter.take("a")
    with pytest.raises(KeyRefused, match="another child of the same parent"):
        counter.take("a")


@pytest.mark.parametrize("text", ["", "abc", ":0", "run:"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an invoke id"):
        InvokeId.parse(text)
