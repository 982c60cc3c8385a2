"""What is done with rollouts, in one place: shapes, groups, files, tensors, exports.

    from jaz_actors.rollouts import RolloutDataset, advantages, read_rollouts

`RolloutDataset`, `TokenBudgetSampler`, `pack` and `tree_batch` need torch, which is imported when one of them is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaz_actors.recorders.rollout_files import RolloutWriter, read_rollouts, save_rollouts, stream_rollouts
from jaz_actors.recorders.rollout_groups import (
    Totals,
    advantages,
    by_prompt,
    by_root,
    fresh,
    grouped,
    staleness,
    totals,
)
from jaz_actors.recorders.rollout_reader import recorded_rollouts
from jaz_actors.recorders.rollouts import Rollout, TokenTurn, with_reward
from jaz_actors.recorders.samples import Sample, TurnSample, to_flat, to_pieces, to_turn_samples
from jaz_actors.recorders.token_tree import TokenTree, TreePart, to_tree
from jaz_actors.recorders.trainer_exports import to_skyrl, to_slime, to_verl

if TYPE_CHECKING:
    from jaz_actors.recorders.rollout_dataset import RolloutDataset, TokenBudgetSampler
    from jaz_actors.recorders.token_batch import PackedBatch, TokenBatch, TrainingSample, pack, tree_batch

_WITH_TORCH = {
    "PackedBatch": "token_batch",
    "RolloutDataset": "rollout_dataset",
    "TokenBatch": "token_batch",
    "TokenBudgetSampler": "rollout_dataset",
    "TrainingSample": "token_batch",
    "pack": "token_batch",
    "tree_batch": "token_batch",
}

__all__ = [
    "PackedBatch",
    "Rollout",
    "RolloutDataset",
    "RolloutWriter",
    "Sample",
    "TokenBatch",
    "TokenBudgetSampler",
    "TokenTree",
    "TokenTurn",
    "Totals",
    "TrainingSample",
    "TreePart",
    "TurnSample",
    "advantages",
    "by_prompt",
    "by_root",
    "fresh",
    "grouped",
    "pack",
    "read_rollouts",
    "recorded_rollouts",
    "save_rollouts",
    "staleness",
    "stream_rollouts",
    "to_flat",
    "to_pieces",
    "to_skyrl",
    "to_slime",
    "to_tree",
    "to_turn_samples",
    "to_verl",
    "totals",
    "tree_batch",
    "with_reward",
]


def __getattr__(name: str) -> Any:
    home = _WITH_TORCH.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"jaz_actors.recorders.{home}"), name)
