"""Groups, advantages and staleness: each rollout by its own reward, and no age that is not known."""

from __future__ import annotations

import math
from statistics import mean, stdev

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import VersionSpan
from jaz_actors.recorders.rollout_groups import advantages, by_prompt, by_root, fresh, grouped, staleness, totals
from jaz_actors.recorders.rollouts import Rollout, TokenTurn, with_reward
from tests.recorders.rollout_streams import many

rewards = st.floats(-1e6, 1e6, allow_nan=False)


def one(name: str, reward: float | None = None, prompt: tuple[int, ...] = (1,), *spans: VersionSpan) -> Rollout:
    length = max((span.end for span in spans), default=0)
    turn = TokenTurn(0, 0, list(prompt), [7] * length, [-0.5] * length, spans)
    depth = name.count(".") + 1
    return Rollout(name, None, depth, (turn,), "completed", reward=reward)


def test_a_tree_is_one_group_and_the_same_question_is_another() -> None:
    made = [one("r:0"), one("r:0.0", prompt=(2,)), one("r:1"), one("r:1.0", prompt=(3,))]
    assert [[r.path for r in g] for g in grouped(made, by_root).values()] == [["0", "0.0"], ["1", "1.0"]]
    assert [[r.path for r in g] for g in grouped(made, by_prompt).values()] == [["0", "1"], ["0.0"], ["1.0"]]


def test_the_same_prompt_at_another_depth_is_another_question() -> None:
    assert by_prompt(one("r:0")) != by_prompt(one("r:0.0"))


def test_rollouts_without_turns_are_alone() -> None:
    made = [msgspec.structs.replace(one(name), turns=()) for name in ("r:0", "r:1")]
    assert len(grouped(made, by_prompt)) == 2


@given(st.lists(rewards, min_size=2, max_size=8))
def test_advantages_are_the_standard_scores_of_their_group(given_rewards: list[float]) -> None:
    made = [one(f"r:{i}", reward) for i, reward in enumerate(given_rewards)]
    found = list(advantages(made).values())
    if min(given_rewards) == max(given_rewards):
        assert found == [0.0] * len(made)
        return
    expected = [(reward - mean(given_rewards)) / (stdev(given_rewards) + 1e-6) for reward in given_rewards]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert all(map(math.isfinite, found))


def test_a_child_without_a_reward_has_no_advantage_and_changes_none() -> None:
    made = [one("r:0", 1.0), one("r:1", 0.0)]
    child = one("r:0.0")
    failed = msgspec.structs.replace(one("r:2", 5.0), refused="host died")
    alone = advantages(made, scale=False)
    assert alone == {"r:0": 0.5, "r:1": -0.5}
    assert advantages([*made, child, failed], scale=False) == alone


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_spoils_no_group(wrong: float) -> None:
    made = [one("r:0", 1.0), one("r:1", wrong), one("r:2", 0.0)]
    with pytest.raises(ConfigurationError, match="r:1"):
        advantages(made)
    with pytest.raises(ConfigurationError, match="r:1"):
        totals(made)


def test_rewards_near_the_end_of_floats_have_advantages() -> None:
    found = advantages([one("r:0", 1e200), one("r:1", 0.0), one("r:2", 1e308), one("r:3", 1e308)])
    assert all(map(math.isfinite, found.values()))
    assert found["r:1"] < found["r:2"] == found["r:3"]
    assert totals([one("r:2", 1e308), one("r:3", 1e308)]).mean_reward == pytest.approx(1e308)


def test_an_answer_of_a_server_that_is_behind_is_as_old_as_its_weights() -> None:
    assert staleness(one("r:0", None, (1,), VersionSpan(0, 2, "2", "1")), ["1", "2"]) == 1


def test_one_alone_has_none_over_itself() -> None:
    assert advantages([one("r:0", 3.0)]) == {"r:0": 0.0}


def test_staleness_is_that_of_the_oldest_id_by_the_order_given() -> None:
    rollout = one("r:0", None, (1,), VersionSpan(0, 2, "b", "b"), VersionSpan(2, 3, "a", "c"))
    assert staleness(rollout, ["b", "a", "c"]) == 2
    assert staleness(rollout, ["a", "b", "c"]) == 2
    assert staleness(one("r:1"), ["a"]) is None
    made = [rollout, one("r:2", None, (1,), VersionSpan(0, 1, "c", "c"))]
    assert [r.path for r in fresh(made, ["a", "b", "c"], at_most=1)] == ["2"]


@pytest.mark.parametrize(
    ("spans", "versions", "said"),
    [
        ((VersionSpan(0, 1, "z", "z"),), ["a"], "'z'"),
        ((VersionSpan(0, 1, None, None),), ["a"], "None"),
        ((VersionSpan(0, 1, "a", "a"),), ["a", "b", "a"], "'a' twice"),
    ],
)
def test_an_age_that_is_not_known_is_refused(spans: tuple[VersionSpan, ...], versions: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        staleness(one("r:0", None, (1,), *spans), versions)


def test_ids_without_a_version_are_refused_not_taken_for_new() -> None:
    turn = TokenTurn(0, 0, [1], [7, 7], [-0.5, -0.5], (VersionSpan(0, 1, "a", "a"),))
    with pytest.raises(ConfigurationError, match="not known"):
        staleness(Rollout("r:0", None, 1, (turn,), "completed"), ["a"])


@given(many())
def test_totals_count_each_sampled_id_once(made: list[Rollout]) -> None:
    found = totals(with_reward(rollout, float(place)) for place, rollout in enumerate(made))
    assert found.sampled == sum(len(turn.output_ids) for r in made for turn in r.turns) == sum(found.versions.values())
    assert found.said == sum(r.said for r in made)
    assert found.rollouts == found.rewarded == len(made)
    assert found.mean_reward == (mean(range(len(made))) if made else None)
