"""Train the tiny policy that the package ships, on demonstrations of `jaz_actors.demo_tasks`. Deterministic by seed.

    python benchmarks/train_tiny_policy.py --out backends/embedded/tiny_policy

Writes a Hugging Face folder (config, safetensors, tokenizer with chat template) and prints, on tasks that were not
trained on, how often a whole node of the tree is written exactly as demonstrated.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from jaz_actors.code_protocol import CodeProtocol, Rules
from jaz_actors.demo_tasks import KINDS, Task, demonstration, generate
from jaz_actors.events import InputInfo

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
CONTEXT = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def user_message(task: Task) -> str:
    rules = Rules(30.0, True, True, True)
    shown = tuple(InputInfo(name, type(value).__name__, str(value)) for name, value in task.inputs.items())
    return CodeProtocol().seed(rules, shown, ())[1].content


def conversation(task: Task) -> list[tuple[str, bool]]:
    """Pieces of text; True for those that the policy writes."""
    pieces = [(f"{USER}{user_message(task)}{END}{ASSISTANT}", False)]
    for turn in demonstration(task):
        pieces.append((f"{turn.code}{END}", True))
        if turn.output is not None:
            pieces.append((f"{USER}{turn.output}{END}{ASSISTANT}", False))
    return pieces


def make_tokenizer(tasks: list[Task], vocabulary: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}| ?\p{L}+|\s*\n\s*| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = ("".join(text for text, _ in conversation(task)) for task in tasks)
    tokenizer.train_from_iterator(
        (part for text in texts for part in text.replace(USER, END).replace(ASSISTANT, END).split(END)), trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, model_max_length=CONTEXT,
        additional_special_tokens=[USER, ASSISTANT], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(tokenizer: PreTrainedTokenizerFast, task: Task) -> tuple[list[int], list[int]]:
    """Token ids and labels (-100 where the policy does not write)."""
    ids: list[int] = []
    labels: list[int] = []
    for text, written in conversation(task):
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        labels += piece if written else [-100] * len(piece)
    return ids, labels


def batch(encoded: list[tuple[list[int], list[int]]], pad: int) -> dict[str, torch.Tensor]:
    width = max(len(ids) for ids, _ in encoded)
    rows = [ids + [pad] * (width - len(ids)) for ids, _ in encoded]
    labels = [labels + [-100] * (width - len(labels)) for _, labels in encoded]
    mask = [[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in encoded]
    return {
        "input_ids": torch.tensor(rows),
        "labels": torch.tensor(labels),
        "attention_mask": torch.tensor(mask),
    }


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    tasks = generate(args.seed, args.examples)
    tokenizer = make_tokenizer(tasks[:4000], args.vocabulary)
    pad = tokenizer.pad_token_id
    # Batches of similar length waste little on padding.
    encoded = sorted((encode(tokenizer, task) for task in tasks), key=lambda pair: len(pair[0]))
    batches = [encoded[i : i + args.batch] for i in range(0, len(encoded), args.batch)]
    random.shuffle(batches)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=args.hidden, intermediate_size=args.hidden * 3,
        num_hidden_layers=args.layers, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=pad,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}, "
          f"{len(batches)} batches, longest {len(encoded[-1][0])} tokens", flush=True)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.01, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.rate, total_steps=args.steps, pct_start=0.05)
    started = time.monotonic()
    for step in range(args.steps):
        loss = model(**batch(batches[step % len(batches)], pad)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
        if step and step % 300 == 0:
            save(model, tokenizer, args.out)
    save(model, tokenizer, args.out)
    evaluate(model, tokenizer, args)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    configuration = json.loads((out / "tokenizer_config.json").read_text())
    configuration["chat_template"] = CHAT_TEMPLATE
    (out / "tokenizer_config.json").write_text(json.dumps(configuration, indent=2, sort_keys=True) + "\n")
    (out / "chat_template.jinja").unlink(missing_ok=True)


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> None:
    """Greedy, teacher-forced on held-out tasks: a node counts when every token that it writes is the demonstrated."""
    model.eval()
    for kind in KINDS:
        held_out = generate(args.seed + 1_000_003, 60, (kind,))
        exact = 0
        for task in held_out:
            ids, labels = encode(tokenizer, task)
            predicted = model(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
            exact += all(label in (-100, guess) for guess, label in zip(predicted[:-1], labels[1:], strict=True))
        print(f"{kind:14s} {exact / len(held_out):.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--examples", type=int, default=40_000)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-3)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
