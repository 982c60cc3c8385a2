"""What trainers read: every sampled id once, in their names, with the rollout's own reward."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from jaz_actors.errors import RolloutRefused
from jaz_actors.messages import VersionSpan
from jaz_actors.recorders.rollouts import Rollout, TokenTurn, with_reward
from jaz_actors.recorders.trainer_exports import to_skyrl, to_slime, to_verl
from tests.recorders.rollout_streams import many

# A first turn, one that goes on from it, and one that does not.
TURNS = (
    TokenTurn(0, 0, [1, 2], [3], [-0.5], (VersionSpan(0, 1, "7", "7"),)),
    TokenTurn(1, 3, [4], [5, 6], [-0.25, -1.0], (VersionSpan(0, 1, "7", "7"), VersionSpan(1, 2, "8", "8"))),
    TokenTurn(2, 1, [9], [8], [-2.0], (), finish_reason="length"),
)
ROLLOUT = Rollout("r:4", None, 1, TURNS, "completed", reward=0.5, started_at=10.0, ended_at=12.5)


def test_verl_reads_pieces_as_agent_loop_outputs() -> None:
    first, second = to_verl(ROLLOUT)
    assert first == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 5, 6],
        "response_mask": [1, 0, 1, 1],
        "response_logprobs": [-0.5, 0.0, -0.25, -1.0],
        "reward_score": 0.5,
        "num_turns": 4,
        "metrics": {},
        "extra_fields": {
            "invoke_id": "r:4",
            "parent_id": None,
            "depth": 1,
            "iterations": [0, 1],
            "weight_versions": ["7", "8"],
        },
    }
    assert (second["prompt_ids"], second["response_ids"], second["response_mask"]) == ([1, 9], [8], [1])


def test_slime_reads_groups_of_samples() -> None:
    other = msgspec.structs.replace(ROLLOUT, invoke_id="r:5", turns=TURNS[:1], status="aborted")
    another = msgspec.structs.replace(ROLLOUT, invoke_id="r:6", turns=(TokenTurn(0, 0, [7], [7], [-1.0]),))
    rows = to_slime([ROLLOUT, another, other])
    assert [(row["group_index"], row["index"], row["metadata"]["invoke_id"]) for row in rows] == [
        (0, 0, "r:4"),
        (0, 1, "r:4"),
        (0, 2, "r:5"),
        (1, 3, "r:6"),
    ]
    assert [row["status"] for row in rows] == ["completed", "completed", "truncated", "completed"]
    first = rows[0]
    assert first["tokens"] == [1, 2, 3, 4, 5, 6]
    assert first["response_length"] == len(first["loss_mask"]) == len(first["rollout_log_probs"]) == 4
    assert first["weight_versions"] == ["7", "8"]
    assert rows[1]["weight_versions"] == []


def test_skyrl_reads_steps_of_which_the_last_has_the_reward() -> None:
    other = msgspec.structs.replace(ROLLOUT, invoke_id="r:5", turns=TURNS[:1], reward=1.0)
    output = to_skyrl([ROLLOUT, other])
    assert output["prompt_token_ids"] == [[1, 2], [1, 9], [1, 2]]
    assert output["response_ids"] == [[3, 4, 5, 6], [8], [3]]
    assert output["loss_masks"] == [[1, 0, 1, 1], [1], [1]]
    assert output["rewards"] == [0.0, 0.5, 1.0]
    assert output["is_last_step"] == [False, True, True]
    assert output["stop_reasons"] == ["stop", "length", "stop"]
    assert output["trajectory_ids"] == [
        {"instance_id": "0", "repetition_id": 0},
        {"instance_id": "0", "repetition_id": 0},
        {"instance_id": "0", "repetition_id": 1},
    ]
    assert output["trajectory_generation_times"] == [2.5, 2.5]
    rows = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs")
    assert {len(output[name]) for name in (*rows, "trajectory_ids", "is_last_step", "env_metrics")} == {3}


@given(many())
def test_every_sampled_id_is_in_each_export_once(made: list[Rollout]) -> None:
    rewarded = [with_reward(rollout, float(n)) for n, rollout in enumerate(made)]
    expected = sorted((i, p) for r in rewarded for t in r.turns for i, p in zip(t.output_ids, t.logprobs, strict=True))

    def masked(ids: list[int], mask: list[int], logprobs: list[float]) -> list[tuple[int, float]]:
        return [(i, p) for i, one, p in zip(ids, mask, logprobs, strict=True) if one]

    verl = [row for rollout in rewarded for row in to_verl(rollout)]
    assert (
        sorted(each for r in verl for each in masked(r["response_ids"], r["response_mask"], r["response_logprobs"]))
        == expected
    )
    slime = to_slime(rewarded)
    assert (
        sorted(
            each
            for r in slime
            for each in masked(
                r["tokens"][-r["response_length"] :] if r["response_length"] else [],
                r["loss_mask"],
                r["rollout_log_probs"],
            )
        )
        == expected
    )
    skyrl: Any = to_skyrl(rewarded)
    columns = zip(skyrl["response_ids"], skyrl["loss_masks"], skyrl["rollout_logprobs"], strict=True)
    assert sorted(each for column in columns for each in masked(*column)) == expected
    assert sum(skyrl["rewards"]) == sum(r.reward or 0.0 for r in rewarded if r.turns)


def test_exports_refuse_by_name() -> None:
    refused = msgspec.structs.replace(ROLLOUT, refused="host died")
    for export in (lambda: to_verl(refused), lambda: to_slime([refused]), lambda: to_skyrl([refused])):
        with pytest.raises(RolloutRefused, match="host died"):
            export()
    with pytest.raises(RolloutRefused, match=r"r:4.*no reward"):
        to_skyrl([with_reward(ROLLOUT, None)])
