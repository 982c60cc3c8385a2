"""Rollouts as samples and as a tree: whatever the history, each sampled id once, after what it was sampled after."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given

from jaz_actors.errors import ConfigurationError, NonMonotoneRollout, RolloutRefused
from jaz_actors.messages import VersionSpan
from jaz_actors.recorders.rollouts import Rollout, TokenTurn, with_reward
from jaz_actors.recorders.samples import Sample, TurnSample, to_flat, to_pieces, to_turn_samples
from jaz_actors.recorders.token_tree import to_tree
from tests.recorders.rollout_streams import many, rollouts

Conditioned = tuple[tuple[int, ...], int, float]


def prompts_of(rollout: Rollout) -> list[list[int]]:
    """By the definition of `shared`, without the package's own code."""
    prompts: list[list[int]] = []
    before: list[int] = []
    for turn in rollout.turns:
        prompts.append(before[: turn.shared] + turn.new_ids)
        before = prompts[-1] + turn.output_ids
    return prompts


def conditioned(prompt: list[int], ids: list[int], logprobs: list[float]) -> list[Conditioned]:
    """Each sampled id with all that stood before it."""
    return [(tuple(prompt + ids[:n]), i, p) for n, (i, p) in enumerate(zip(ids, logprobs, strict=True))]


def expected(rollout: Rollout) -> list[Conditioned]:
    pairs = zip(prompts_of(rollout), rollout.turns, strict=True)
    return [each for prompt, turn in pairs for each in conditioned(prompt, turn.output_ids, turn.logprobs)]


def in_sample(sample: Sample) -> list[Conditioned]:
    assert len(sample.ids) == len(sample.loss_mask) == len(sample.logprobs)
    return [(tuple(sample.ids[:n]), sample.ids[n], sample.logprobs[n]) for n, one in enumerate(sample.loss_mask) if one]


@given(rollouts())
def test_pieces_hold_each_sampled_id_once_after_what_it_was_sampled_after(rollout: Rollout) -> None:
    pieces = to_pieces(rollout)
    assert [each for piece in pieces for each in in_sample(piece)] == expected(rollout)
    assert [i for piece in pieces for i in piece.iterations] == [turn.iteration for turn in rollout.turns]
    for piece in pieces:
        assert all(p == 0.0 for p, one in zip(piece.logprobs, piece.loss_mask, strict=True) if not one)


@given(rollouts())
def test_turn_samples_hold_the_same(rollout: Rollout) -> None:
    samples = to_turn_samples(rollout)
    assert [sample.prompt_ids for sample in samples] == prompts_of(rollout)
    found = [each for s in samples for each in conditioned(s.prompt_ids, s.output_ids, s.logprobs)]
    assert found == expected(rollout)


@given(rollouts())
def test_flat_is_the_only_piece_or_refused(rollout: Rollout) -> None:
    pieces = to_pieces(rollout)
    if len(pieces) > 1:
        with pytest.raises(NonMonotoneRollout) as caught:
            to_flat(rollout)
        assert caught.value.iteration == pieces[1].iterations[0]
    elif pieces:
        assert to_flat(rollout) == pieces[0]
    else:
        assert to_flat(rollout).ids == []


@given(many())
def test_a_tree_holds_each_sampled_id_once_and_agrees_with_the_turns(made: list[Rollout]) -> None:
    tree = to_tree(made)
    found = Counter(
        (sample.rollout, each)
        for sample in tree.samples()
        for each in conditioned(sample.prompt_ids, sample.output_ids, sample.logprobs)
    )
    assert found == Counter((index, each) for index, rollout in enumerate(made) for each in expected(rollout))
    sampled = [part for part in tree.parts if part.sampled_by is not None]
    assert sum(len(part.ids) for part in sampled) == sum(rollout.sampled for rollout in made)
    assert tree.tokens <= sum(rollout.said for rollout in made)
    for place, part in enumerate(tree.parts):
        assert part.parent is None or part.parent < place
        assert len(part.logprobs) == (len(part.ids) if part.sampled_by is not None else 0)


@given(many())
def test_no_two_contexts_that_begin_alike_stand_side_by_side(made: list[Rollout]) -> None:
    tree = to_tree(made)
    begins = Counter((part.parent, part.ids[0]) for part in tree.parts if part.ids and part.sampled_by is None)
    assert not begins or max(begins.values()) == 1


@given(many())
def test_versions_follow_the_ids_into_pieces_and_parts(made: list[Rollout]) -> None:
    def of_turn(turn: TokenTurn) -> list[tuple[str | None, str | None]]:
        return [(span.oldest, span.newest) for span in turn.versions for _ in range(span.start, span.end)]

    def spread(spans: tuple[VersionSpan, ...], length: int) -> list[tuple[str | None, str | None]]:
        told: list[tuple[str | None, str | None]] = [("none", "none")] * length
        for span in spans:
            told[span.start : span.end] = [(span.oldest, span.newest)] * (span.end - span.start)
        return told

    for rollout in made:
        wanted = [each for turn in rollout.turns for each in of_turn(turn)]
        told = [
            version
            for piece in to_pieces(rollout)
            for version, one in zip(spread(piece.versions, len(piece.ids)), piece.loss_mask, strict=True)
            if one
        ]
        assert told == wanted
    tree = to_tree(made)
    by_turn: dict[tuple[int | None, int | None], list[tuple[str | None, str | None]]] = {}
    for part in tree.parts:
        if part.sampled_by is not None:
            told = spread(tree.versions(part), len(part.ids))
            by_turn.setdefault((part.sampled_by, part.iteration), []).extend(told)
    for index, rollout in enumerate(made):
        for turn in rollout.turns:
            assert by_turn[index, turn.iteration] == of_turn(turn)


def a_long_rollout(turns: int, *, growing: int = 40) -> Rollout:
    made = [
        TokenTurn(n, 0 if n == 0 else n * (growing + 8), list(range(growing)), list(range(8)), [-0.5] * 8)
        for n in range(turns)
    ]
    return Rollout("r:0", None, 1, tuple(made), "completed")


def test_a_long_rollout_costs_what_was_said() -> None:
    rollout = a_long_rollout(128)
    assert rollout.said == 128 * 48
    flat, tree = to_flat(rollout), to_tree([rollout])
    assert len(flat.ids) == sum(len(piece.ids) for piece in to_pieces(rollout)) == tree.tokens == rollout.said
    whole = len(msgspec.msgpack.encode(rollout))
    short = len(msgspec.msgpack.encode(a_long_rollout(16)))
    assert whole <= 1.1 * 8 * short


def test_a_rollout_that_is_refused_is_exported_in_no_form() -> None:
    rollout = msgspec.structs.replace(a_long_rollout(2), refused="a hook gave the answer of turn 1 without its tokens")
    for export in (to_flat, to_pieces, to_turn_samples):
        with pytest.raises(RolloutRefused, match="turn 1"):
            export(rollout)
    with pytest.raises(RolloutRefused):
        to_tree([rollout])


def test_an_empty_answer_is_a_sample_of_length_0() -> None:
    rollout = Rollout("r:0", None, 1, (TokenTurn(0, 0, [1, 2], [], []),), "completed")
    assert to_flat(rollout).ids == [1, 2]
    assert [sample.output_ids for sample in to_turn_samples(rollout)] == [[]]
    assert [sample.prompt_ids for sample in to_tree([rollout]).samples()] == [[1, 2]]


def test_samples_of_one_prompt_share_it_and_keep_their_own_first_ids() -> None:
    group = [Rollout(f"r:{n}", None, 1, (TokenTurn(0, 0, [1, 2, 3], [7, n], [-0.5, -1]),), "completed") for n in (8, 8)]
    tree = to_tree(group)
    assert [part.ids for part in tree.parts] == [[1, 2, 3], [7, 8], [7, 8]]
    assert tree.tokens == 7


def test_a_turn_sample_is_of_its_rollout() -> None:
    rollout = a_long_rollout(3)
    sample = to_turn_samples(rollout)[2]
    assert isinstance(sample, TurnSample)
    assert (len(sample.prompt_ids), sample.turn.iteration, sample.reward) == (2 * 48 + 40, 2, None)


@pytest.mark.parametrize("wrong", [float("nan"), float("-inf"), 10**400, "1", [1.0]])
def test_a_reward_that_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="reward"):
        with_reward(a_long_rollout(1), wrong)
