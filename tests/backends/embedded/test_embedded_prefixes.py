"""The prefix cache and the rows that it copies from and to."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jaz_actors.backends.embedded.cache import FIRST_CAPACITY, RowCache, Snapshot
from jaz_actors.backends.embedded.prefixes import MIN_TOKENS, PrefixCache

BYTES_PER_TOKEN = 8


def _snapshot(length: int) -> Snapshot:
    return Snapshot([torch.zeros(1, length, 1)], [torch.zeros(1, length, 1)], length)


def _store(cache: PrefixCache, namespace: str | None, ids: list[int]) -> None:
    cache.store(namespace, ids, _snapshot(len(ids)))


def _length(cache: PrefixCache, namespace: str | None, ids: list[int]) -> int:
    hit = cache.longest(namespace, ids)
    return 0 if hit is None else hit.length


def test_the_longest_common_beginning_is_found_in_the_namespace_only() -> None:
    cache = PrefixCache(max_bytes=10_000)
    _store(cache, "a", [*range(20), 1, 2])
    _store(cache, "a", [*range(20), 7, 8, 9])
    assert _length(cache, "a", [*range(20), 7, 8, 3]) == 22
    assert _length(cache, "b", [*range(20), 7, 8, 3]) == 0
    assert _length(cache, None, [*range(20), 7, 8, 3]) == 0


def test_too_short_a_beginning_is_not_worth_it() -> None:
    cache = PrefixCache(max_bytes=10_000)
    _store(cache, None, list(range(40)))
    assert _length(cache, None, list(range(MIN_TOKENS - 1))) == 0
    assert _length(cache, None, [*range(MIN_TOKENS - 1), 99, 98]) == 0


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(max_bytes=3 * 20 * BYTES_PER_TOKEN)
    prompts = [[start, *range(19)] for start in range(4)]
    for prompt in prompts[:3]:
        _store(cache, None, prompt)
    assert _length(cache, None, prompts[0]) == 20
    _store(cache, None, prompts[3])
    assert [_length(cache, None, prompt) for prompt in prompts] == [20, 0, 20, 20]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 2), min_size=1, max_size=30)), max_size=30))
def test_what_is_found_is_a_stored_beginning_and_memory_stays_bounded(stored: list[tuple[str, list[int]]]) -> None:
    bound = 120 * BYTES_PER_TOKEN
    cache = PrefixCache(max_bytes=bound)
    for namespace, tail in stored:
        ids = [*([0] * MIN_TOKENS), *tail]
        _store(cache, namespace, ids)
        assert cache._bytes == sum(e.snapshot.bytes for entries in cache._buckets.values() for e in entries) <= bound
        assert _length(cache, namespace, ids) == len(ids)


def test_a_row_survives_growth_and_moves() -> None:
    cache = RowCache(layers=1, rows=3, context=1000)
    written = torch.randn(1, 2, 5, 4)
    cache.extend_row(0, 0, 5)
    cache.update(written, written, 0)
    cache.extend_row(1, 0, FIRST_CAPACITY + 1)
    long = torch.randn(1, 2, FIRST_CAPACITY + 1, 4)
    cache.update(long, long, 0)
    cache.copy_row(cache, 0, 2, 5)
    kept = cache.snapshot(2, 5)
    other = RowCache(layers=1, rows=1, context=1000)
    other.restore(0, kept, 3)
    assert torch.equal(kept.keys[0], written[0])
    assert torch.equal(other.snapshot(0, 3).values[0], written[0, :, :3])


def test_a_step_writes_each_row_at_its_own_position() -> None:
    cache = RowCache(layers=1, rows=2, context=100)
    for row, length in enumerate((2, 4)):
        cache.extend_row(row, 0, length)
        cache.update(torch.zeros(1, 1, length, 1), torch.zeros(1, 1, length, 1), 0)
    cache.step_rows(torch.tensor([2, 4]), 5)
    keys, _ = cache.update(torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1), 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
