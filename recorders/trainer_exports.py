"""Rollouts in the field names that verl, slime and SkyRL read. Plain data: none of them need be installed.

Each row is a piece (`to_pieces`): a rollout whose turns go on from each other is one row. `response` is all after the
piece's first prompt, with a mask that is 1 on sampled ids alone. Rewards are those of the rollouts themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaz_actors.errors import RolloutRefused
from jaz_actors.recorders.rollout_groups import Key, by_prompt, grouped
from jaz_actors.recorders.rollouts import Rollout
from jaz_actors.recorders.samples import Sample, to_pieces


def to_verl(rollout: Rollout) -> list[dict[str, Any]]:
    """Keyword arguments for `AgentLoopOutput`, one dict a piece. Raises RolloutRefused.

    Source: verl 0.9.1, `verl/experimental/agent_loop/agent_loop.py`. `num_turns` counts a question and its answer as
    two; `metrics` are left at verl's defaults; `extra_fields` holds what verl has no field for.
    """
    return [
        {
            "prompt_ids": piece.ids[: piece.prompt_length],
            "response_ids": piece.ids[piece.prompt_length :],
            "response_mask": piece.loss_mask[piece.prompt_length :],
            "response_logprobs": piece.logprobs[piece.prompt_length :],
            "reward_score": rollout.reward,
            "num_turns": 2 * len(piece.iterations),
            "metrics": {},
            "extra_fields": _origin(rollout, piece),
        }
        for piece in to_pieces(rollout)
    ]


def to_slime(rollouts: Iterable[Rollout], key: Key = by_prompt) -> list[dict[str, Any]]:
    """Dicts for `Sample.from_dict`, one a piece, groups together. Raises RolloutRefused.

    Source: slime at 7985bf2, `slime/utils/types.py`. `group_index` numbers the groups that `key` makes, `index` the
    rows. `weight_versions` has a label for each turn whose weights are known: the newest of its last id. `status` is
    `completed` where the agent ended itself, else `truncated`: slime takes `aborted` for one that it should go on
    with. Ids are all that is known, so `prompt` is empty.
    """
    rows: list[dict[str, Any]] = []
    for group_index, group in enumerate(grouped(rollouts, key).values()):
        for rollout in group:
            for piece in to_pieces(rollout):
                at = piece.prompt_length
                rows.append(
                    {
                        "group_index": group_index,
                        "index": len(rows),
                        "prompt": "",
                        "tokens": piece.ids,
                        "response_length": len(piece.ids) - at,
                        "loss_mask": piece.loss_mask[at:],
                        "rollout_log_probs": piece.logprobs[at:],
                        "weight_versions": _versions_by_turn(rollout, piece),
                        "reward": rollout.reward,
                        "status": "completed" if rollout.status in ("completed", "raised") else "truncated",
                        "metadata": _origin(rollout, piece),
                    }
                )
    return rows


def to_skyrl(rollouts: Iterable[Rollout], key: Key = by_prompt) -> dict[str, Any]:
    """A `GeneratorOutput`, groups together. Raises RolloutRefused, also for a rollout without a reward.

    Source: SkyRL 0.3.0, `skyrl/train/generators/base.py`. Each piece is a step: all of a rollout follow each other,
    and the last of them, where `is_last_step` is True, has its reward. Make each of `trajectory_ids` a
    `TrajectoryID(**fields)`: `instance_id` is the group's number in the order of `key`, `repetition_id` the number in
    the group. `stop_reasons` are those of the last turn of each step, `trajectory_generation_times` in seconds.
    """
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "prompt_token_ids",
            "response_ids",
            "rewards",
            "loss_masks",
            "stop_reasons",
            "rollout_logprobs",
            "trajectory_ids",
            "is_last_step",
            "env_metrics",
            "trajectory_generation_times",
        )
    }
    for instance, group in enumerate(grouped(rollouts, key).values()):
        for repetition, rollout in enumerate(group):
            if rollout.reward is None:
                raise RolloutRefused(rollout.invoke_id, "it has no reward, which SkyRL needs: set one, or leave it out")
            pieces = to_pieces(rollout)
            finish = {turn.iteration: turn.finish_reason for turn in rollout.turns}
            for number, piece in enumerate(pieces, 1):
                at, last = piece.prompt_length, number == len(pieces)
                columns["prompt_token_ids"].append(piece.ids[:at])
                columns["response_ids"].append(piece.ids[at:])
                columns["rewards"].append(rollout.reward if last else 0.0)
                columns["loss_masks"].append(piece.loss_mask[at:])
                columns["stop_reasons"].append(finish[piece.iterations[-1]])
                columns["rollout_logprobs"].append(piece.logprobs[at:])
                columns["trajectory_ids"].append({"instance_id": str(instance), "repetition_id": repetition})
                columns["is_last_step"].append(last)
                columns["env_metrics"].append(_origin(rollout, piece))
            if pieces:
                columns["trajectory_generation_times"].append((rollout.ended_at or 0.0) - rollout.started_at)
    return {**columns, "rollout_metrics": None}


def _origin(rollout: Rollout, piece: Sample) -> dict[str, Any]:
    return {
        "invoke_id": rollout.invoke_id,
        "parent_id": rollout.parent_id,
        "depth": rollout.depth,
        "iterations": list(piece.iterations),
        "weight_versions": _versions_by_turn(rollout, piece),
    }


def _versions_by_turn(rollout: Rollout, piece: Sample) -> list[str]:
    turns = {turn.iteration: turn for turn in rollout.turns}
    newest = (span.newest for iteration in piece.iterations for span in turns[iteration].versions[-1:])
    return [label for label in newest if label is not None]
