"""Packed samples and trees foretell each id from what it was sampled after, and from nothing else."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers import LlamaConfig, LlamaForCausalLM

from jaz_actors.errors import ConfigurationError, RolloutRefused
from jaz_actors.recorders.rollout_dataset import RolloutDataset, TokenBudgetSampler
from jaz_actors.recorders.rollouts import Rollout, TokenTurn
from jaz_actors.recorders.samples import to_pieces, to_turn_samples
from jaz_actors.recorders.token_batch import IGNORED, PackedBatch, TokenBatch, TrainingSample, pack, tree_batch
from jaz_actors.recorders.token_tree import to_tree
from tests.recorders.rollout_streams import many


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.5,
        attn_implementation=request.param,
    )
    return LlamaForCausalLM(config).eval()


def trainable(made: list[Rollout]) -> list[Rollout]:
    """With prompts that have ids, each turn at its own temperature."""
    heated = []
    for rollout in made:
        assume(all(turn.prompt_length for turn in rollout.turns))
        turns = (
            msgspec.structs.replace(t, sampling={"temperature": 0.5 + t.iteration / 2} if t.iteration else {})
            for t in rollout.turns
        )
        heated.append(msgspec.structs.replace(rollout, turns=tuple(turns)))
    assume(any(rollout.sampled for rollout in heated))
    return heated


def one_by_one(model: Any, rollouts: list[Rollout]) -> dict[str, list[float]]:
    """Every turn in a call of its own."""
    found: dict[str, list[float]] = {}
    for rollout in rollouts:
        for sample in to_turn_samples(rollout):
            ids = torch.tensor([[*sample.prompt_ids, *sample.output_ids]])
            heat = float(sample.turn.sampling.get("temperature", 1.0))
            table = (model(input_ids=ids).logits[0] / heat).log_softmax(-1)
            at = len(sample.prompt_ids) - 1
            found.setdefault(rollout.invoke_id, []).extend(
                table[at + n, token].item() for n, token in enumerate(sample.output_ids)
            )
    return found


def close(one: list[float], other: list[float]) -> bool:
    return sorted(one) == pytest.approx(sorted(other), abs=1e-4)


@given(many())
@settings(max_examples=40, deadline=None)
def test_packed_samples_are_told_as_if_each_were_alone(model: Any, made: list[Rollout]) -> None:
    rollouts = trainable(made)
    dataset = RolloutDataset(rollouts, {rollout.invoke_id: 1.0 for rollout in rollouts})
    batch = pack([dataset[n] for n in range(len(dataset))])
    with torch.inference_mode():
        expected = one_by_one(model, rollouts)
        by_positions = batch.token_logprobs(
            model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        )
        by_mask = batch.token_logprobs(with_mask(model, batch))
    assert close(by_positions[batch.loss_mask].tolist(), [p for ps in expected.values() for p in ps])
    assert torch.allclose(by_positions, by_mask, atol=1e-4)
    assert_same_ids(batch, rollouts)
    pieces = [piece for rollout in rollouts for piece in to_pieces(rollout) if 1 in piece.loss_mask]
    assert batch.cu_seqlens.tolist() == [0, *torch.tensor([len(piece.ids) for piece in pieces]).cumsum(0).tolist()]
    assert batch.max_seqlen == max(len(piece.ids) for piece in pieces)
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.labels.tolist() == batch.input_ids.where(batch.loss_mask, IGNORED).tolist()


@given(many())
@settings(max_examples=40, deadline=None)
def test_a_tree_in_one_row_is_told_as_if_each_turn_were_alone(model: Any, made: list[Rollout]) -> None:
    rollouts = trainable(made)
    weights = {rollout.invoke_id: float(n + 1) for n, rollout in enumerate(rollouts)}
    batch = tree_batch(to_tree(rollouts), weights)
    with torch.inference_mode():
        expected = one_by_one(model, rollouts)
        told = batch.token_logprobs(with_mask(model, batch))[0]
    for invoke_id, weight in weights.items():
        assert close(told[batch.advantages[0] == weight].tolist(), expected.get(invoke_id, []))
    assert_same_ids(batch, rollouts)
    assert batch.input_ids.numel() <= sum(rollout.said for rollout in rollouts)


def with_mask(model: Any, batch: TokenBatch) -> torch.Tensor:
    logits: torch.Tensor = model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=batch.attention_mask()
    ).logits
    return logits


def assert_same_ids(batch: TokenBatch, rollouts: list[Rollout]) -> None:
    sampled = [i for rollout in rollouts for turn in rollout.turns for i in turn.output_ids]
    logprobs = [p for rollout in rollouts for turn in rollout.turns for p in turn.logprobs]
    assert sorted(batch.input_ids[batch.loss_mask].tolist()) == sorted(sampled)
    assert sorted(batch.logprobs[batch.loss_mask].tolist()) == sorted(logprobs)
    assert not batch.logprobs[~batch.loss_mask].any()
    assert not batch.advantages[~batch.loss_mask].any()
    assert (batch.temperatures[~batch.loss_mask] == 1).all()


def test_the_mask_of_flex_attention_is_the_one_that_is_written_out() -> None:
    turns = (TokenTurn(0, 0, [1, 2], [3], [-0.5]), TokenTurn(1, 1, [4], [5, 6], [-0.5, -0.5]))
    batch = tree_batch(to_tree([Rollout("r:0", None, 1, turns, "completed")]), {"r:0": 1.0})
    count = batch.input_ids.shape[1]
    written = batch.attention_mask(torch.bool)
    assert create_mask(batch.sees, 1, 1, count, count, device="cpu").tolist() == written.tolist()
    assert create_block_mask(batch.sees, None, None, count, count, device="cpu").shape == (1, 1, count, count)
    assert (batch.attention_mask() == 0).tolist() == written.tolist()
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert batch.before.tolist() == [-1, 0, 1, 0, 3, 4]
    assert batch.position_ids.tolist() == [[0, 1, 2, 1, 2, 3]]


def test_a_loss_reaches_the_logits_of_sampled_ids_alone() -> None:
    rollout = Rollout("r:0", None, 1, (TokenTurn(0, 0, [1, 2], [3, 4], [-0.5, -0.5]),), "completed")
    batch = pack([RolloutDataset([rollout], {"r:0": 2.0})[0]])
    logits = torch.zeros(1, 4, 8, requires_grad=True)
    (batch.token_logprobs(logits) * batch.advantages).sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum(-1)[0].ne(0).tolist() == [False, True, True, False]


def rollout_of(name: str, prompt: int, output: int, **changes: Any) -> Rollout:
    made = Rollout(name, None, 1, (TokenTurn(0, 0, [1] * prompt, [2] * output, [-0.5] * output),), "completed")
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize("worker_processes", [0, 2])
def test_a_data_loader_gives_every_sample_once(worker_processes: int) -> None:
    rollouts = [rollout_of(f"r:{n}", 1 + n % 5, 1 + n % 3) for n in range(40)]
    dataset = RolloutDataset(rollouts, {rollout.invoke_id: 1.0 for rollout in rollouts})
    sampler = TokenBudgetSampler(dataset.lengths, 16, shuffle=True)
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=pack, num_workers=worker_processes
    )
    batches: list[PackedBatch] = list(loader)
    assert sorted(name for batch in batches for name in batch.invoke_ids) == sorted(r.invoke_id for r in rollouts)
    assert all(batch.input_ids.numel() <= 16 for batch in batches)
    assert len(batches) == len(sampler)
    moved = batches[0].to("cpu")
    assert isinstance(moved, PackedBatch)
    assert moved.invoke_ids == batches[0].invoke_ids


@given(st.lists(st.integers(1, 32), max_size=60), st.booleans(), st.integers(0, 3))
def test_batches_hold_each_sample_once_and_no_two_could_be_one(lengths: list[int], shuffle: bool, epoch: int) -> None:
    sampler = TokenBudgetSampler(lengths, 32, shuffle=shuffle)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    sizes = sorted(sum(lengths[index] for index in batch) for batch in batches)
    assert all(size <= 32 for size in sizes)
    assert len(sizes) < 2 or sizes[0] + sizes[1] > 32


def test_epochs_differ_and_processes_agree() -> None:
    lengths = [1 + n % 7 for n in range(50)]
    one, other = (TokenBudgetSampler(lengths, 20, shuffle=True, seed=3) for _ in range(2))
    first = list(one)
    assert first == list(other)
    one.set_epoch(1)
    assert list(one) != first
    other.set_epoch(1)
    assert list(one) == list(other)


def test_what_cannot_be_trained_on_is_refused_by_name() -> None:
    with pytest.raises(RolloutRefused, match="r:7"):
        RolloutDataset([rollout_of("r:7", 1, 1, refused="host died")], {"r:7": 1.0})
    with pytest.raises(ConfigurationError, match="r:8"):
        RolloutDataset([rollout_of("r:8", 1, 1)], {})
    with pytest.raises(ConfigurationError, match="r:8"):
        tree_batch(to_tree([rollout_of("r:8", 1, 1)]), {})
    for wrong in (math.nan, -math.inf, 1e300):
        with pytest.raises(ConfigurationError, match="r:8"):
            RolloutDataset([rollout_of("r:8", 1, 1)], {"r:8": wrong})
    after_nothing = rollout_of("r:9", 0, 2)
    with pytest.raises(ConfigurationError, match="r:9"):
        pack([RolloutDataset([after_nothing], {"r:9": 1.0})[0]])
    with pytest.raises(ConfigurationError, match="r:9"):
        tree_batch(to_tree([after_nothing]), {"r:9": 1.0})
    with pytest.raises(ConfigurationError, match="sample 1 has 9 ids"):
        TokenBudgetSampler([3, 9], 8)
    with pytest.raises(ConfigurationError, match="one or more"):
        pack([])
    with pytest.raises(ConfigurationError, match="tree"):
        tree_batch(to_tree([]), {})


def test_numbers_are_float32_whatever_the_default() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        batch = pack([RolloutDataset([rollout_of("r:0", 1, 1)], {"r:0": 0.7071})[0]])
        tree = tree_batch(to_tree([rollout_of("r:0", 1, 1)]), {"r:0": 0.7071})
    finally:
        torch.set_default_dtype(torch.float32)
    for one in (batch, tree):
        assert one.advantages.tolist() == [[0.0, pytest.approx(0.7071, abs=1e-7)]]
        assert {t.dtype for t in (one.logprobs, one.temperatures, one.advantages)} == {torch.float32}


def test_a_sample_whose_fields_differ_in_length_is_refused() -> None:
    (sample,) = to_pieces(rollout_of("r:0", 1, 2))
    with pytest.raises(ConfigurationError, match="r:0"):
        TrainingSample.of(dataclasses.replace(sample, logprobs=[0.0, -0.5]), 1.0)


def test_an_answer_without_ids_is_no_sample() -> None:
    rollouts = [rollout_of("r:0", 2, 0), rollout_of("r:1", 2, 1)]
    assert RolloutDataset(rollouts, {"r:0": 1.0, "r:1": 1.0}).lengths == [3]
