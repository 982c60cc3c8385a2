"""Train the tiny policy on generated demonstrations: `python -m jaz_actors.backends.embedded.train_tiny --out DIR`.

The same seed, steps and threads give the same weights. Afterwards it prints the end-to-end accuracy by kind of task.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from jaz_actors.backends.embedded.demonstrations import Turn, demonstrate
from jaz_actors.backends.embedded.evaluate_tiny import report
from jaz_actors.backends.embedded.tasks import KINDS, Task, generate, user_message
from jaz_actors.backends.embedded.tiny_tokenizer import ASSISTANT, END, USER, train_tokenizer

CONTEXT = 1024
TOKENIZER_TASKS = 4000
POOL_BATCHES = 32
# The kinds that must compare what they see are harder than those that read the wording only.
TRAINED_KINDS = (*KINDS, "parity", "parity", "split_sum", "split_largest", "split_evens")


@dataclass(frozen=True, slots=True)
class Recipe:
    seed: int
    steps: int
    batch: int
    rate: float
    hidden: int
    layers: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Example:
    """written: whether the policy writes the token, and so is trained on it. Both of one length."""

    token_ids: list[int]
    written: list[bool]


def train(recipe: Recipe) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    tokenizer = _make_tokenizer(recipe)
    model = _make_model(recipe, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=recipe.steps, pct_start=0.08)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}", flush=True)
    started = time.monotonic()
    for step, batch in enumerate(itertools.islice(_batches(recipe, tokenizer, rng), recipe.steps)):
        loss = _loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == recipe.steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    return model.eval(), tokenizer


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # One file with the template in it serves every version of transformers.
    (out / "chat_template.jinja").unlink(missing_ok=True)
    path = out / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), "chat_template": tokenizer.chat_template}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def encode(tokenizer: PreTrainedTokenizerFast, task: Task, turns: list[Turn]) -> Example:
    """The conversation as the chat template renders it, with a mark on what the policy writes."""
    ids: list[int] = []
    written: list[bool] = []
    observation = user_message(task.inputs)
    for turn in turns:
        shown = tokenizer.encode(f"{USER}{observation}{END}{ASSISTANT}", add_special_tokens=False)
        reply = tokenizer.encode(f"{turn.code}{END}", add_special_tokens=False)
        ids += shown + reply
        written += [False] * len(shown) + [True] * len(reply)
        observation = turn.observation or ""
    return Example(ids, written)


def _make_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    rng = random.Random(recipe.seed)
    texts: list[str] = []
    for task in generate(recipe.seed, TOKENIZER_TASKS):
        texts.append(user_message(task.inputs))
        texts += [turn.code for turn in demonstrate(task, rng)]
    return train_tokenizer(texts, vocabulary=recipe.vocabulary, context=CONTEXT)


def _make_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert isinstance(end, int)
    assert isinstance(pad, int)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden,
            intermediate_size=4 * recipe.hidden,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )


def _batches(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Iterator[list[Example]]:
    """Endless fresh examples; those of a batch are of similar length, so that little is padding."""
    while True:
        tasks = generate(rng.getrandbits(48), POOL_BATCHES * recipe.batch, TRAINED_KINDS)
        pool = sorted(
            (encode(tokenizer, task, demonstrate(task, rng)) for task in tasks), key=lambda e: len(e.token_ids)
        )
        batches = [pool[start : start + recipe.batch] for start in range(0, len(pool), recipe.batch)]
        rng.shuffle(batches)
        yield from batches


def _loss(model: LlamaForCausalLM, batch: list[Example]) -> torch.Tensor:
    """Mean cross-entropy of the written tokens. Padding is on the right, where nothing that counts attends to it."""
    width = max(len(example.token_ids) for example in batch)
    ids = torch.tensor([example.token_ids + [0] * (width - len(example.token_ids)) for example in batch])
    written = torch.tensor([example.written + [False] * (width - len(example.written)) for example in batch])[:, 1:]
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[written]), ids[:, 1:][written])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--held-out", type=int, default=200, help="tasks of the evaluation; 0 for none")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = train(
        Recipe(args.seed, args.steps, args.batch, args.rate, args.hidden, args.layers, args.vocabulary)
    )
    save(model, tokenizer, args.out)
    for temperature in (0.0, 0.7) if args.held_out else ():
        report(args.out, tasks=args.held_out, seed=args.seed + 1_000_003, temperature=temperature)


if __name__ == "__main__":
    main()
