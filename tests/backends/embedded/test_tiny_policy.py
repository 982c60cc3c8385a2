"""The shipped policy: its folder, its chat template, and that it solves what it was trained for."""

from __future__ import annotations

import collections
import random
from typing import Any

import pytest
import torch
from safetensors import safe_open

from jaz_actors.backends.embedded.demonstrations import demonstrate
from jaz_actors.backends.embedded.evaluate_tiny import evaluate, scores
from jaz_actors.backends.embedded.launch import TINY_POLICY
from jaz_actors.backends.embedded.tasks import KINDS, generate, user_message
from jaz_actors.backends.embedded.train_tiny import Recipe, encode, save, train

MAX_BYTES = 6_000_000
UNSEEN = 424_242


def test_the_folder_is_complete_and_small() -> None:
    names = {file.name for file in TINY_POLICY.iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "README.md"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    assert sum(file.stat().st_size for file in TINY_POLICY.iterdir()) < MAX_BYTES
    with safe_open(TINY_POLICY / "model.safetensors", "pt") as weights:
        assert weights.keys()


def test_the_template_shows_user_and_assistant_and_leaves_the_system_message_out(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "You write code."},
        {"role": "user", "content": "6"},
        {"role": "assistant", "content": "return 6"},
        {"role": "user", "content": "(no output)"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>6<|end|><|assistant|>return 6<|end|><|user|>(no output)<|end|><|assistant|>"
    without = tokenizer.apply_chat_template(messages[1:], tokenize=False, add_generation_prompt=False)
    assert text == without + "<|assistant|>"


@pytest.mark.parametrize("text", ["return sum(numbers)", "  naïve — 文\n\n\ttab ", "[3, 55]\n", "", "<|user|>"])
def test_encoding_loses_nothing(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_one_id_each_and_digits_stand_alone(tokenizer: Any) -> None:
    for token in ("<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"):
        assert len(tokenizer.encode(token)) == 1
    assert len(tokenizer.encode("4096")) == 4


def test_a_conversation_is_a_prefix_of_its_continuation(tokenizer: Any) -> None:
    first = [{"role": "user", "content": user_message(generate(0, 1)[0].inputs)}]
    then = [*first, {"role": "assistant", "content": "print(len(numbers))"}, {"role": "user", "content": "6"}]
    ids = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in (first, then)]
    assert ids[1][: len(ids[0])] == ids[0]


def test_training_text_is_what_the_template_renders(tokenizer: Any) -> None:
    task = generate(5, 1, ["split_sum"])[0]
    turns = demonstrate(task, random.Random(0))
    messages = [{"role": "user", "content": user_message(task.inputs)}]
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.code})
        if turn.observation is not None:
            messages.append({"role": "user", "content": turn.observation})
    example = encode(tokenizer, task, turns)
    assert example.token_ids == tokenizer.apply_chat_template(messages, return_dict=False)
    written = [token for token, counts in zip(example.token_ids, example.written, strict=True) if counts]
    assert tokenizer.decode(written) == "".join(f"{turn.code}<|end|>" for turn in turns)


def test_training_is_reproducible_and_saves_a_whole_folder(tmp_path: Any) -> None:
    recipe = Recipe(seed=3, steps=3, batch=2, rate=1e-3, hidden=16, layers=1, vocabulary=300)
    (first, tokenizer), (second, _) = train(recipe), train(recipe)
    weights = second.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in first.state_dict().items())
    save(first, tokenizer, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} | {"README.md"} == {f.name for f in TINY_POLICY.iterdir()}


@pytest.mark.asyncio
@pytest.mark.parametrize(("temperature", "expected"), [(0.0, 0.95), (0.7, 0.8)])
async def test_it_solves_unseen_tasks_end_to_end(
    server: Any, tokenizer: Any, temperature: float, expected: float
) -> None:
    tasks = generate(UNSEEN, 100)
    results = await evaluate(server.url, tokenizer, tasks, temperature=temperature)
    failures = collections.Counter(result.failure for result in results if not result.is_right)
    assert sum(result.is_right for result in results) >= expected * len(tasks), failures
    assert {score.of for score in scores(results, lambda task: task.kind).values()} == {len(tasks) // len(KINDS)}
