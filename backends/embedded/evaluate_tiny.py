"""How often a policy folder solves unseen tasks end to end, by kind of task and depth of tree. A command, too."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoTokenizer

from jaz_actors.backends.embedded.launch import TINY_POLICY, EmbeddedEngine
from jaz_actors.backends.embedded.rehearsal import Complete, Message, ReplyFailed, solve
from jaz_actors.backends.embedded.tasks import Task, generate

MAX_NEW_TOKENS = 128
REQUEST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Score:
    """Of `of` tasks: right answers, and those among them whose tree is as deep as the task asks."""

    of: int
    right: int
    right_depth: int


@dataclass(frozen=True, slots=True)
class Result:
    """failure: why there is no answer; None where there is one."""

    task: Task
    is_right: bool
    depth: int | None
    failure: str | None


def scores(results: Sequence[Result], key: Callable[[Task], Any]) -> dict[Any, Score]:
    grouped: dict[Any, list[Result]] = {}
    for result in results:
        grouped.setdefault(key(result.task), []).append(result)
    return {
        name: Score(
            len(group),
            sum(result.is_right for result in group),
            sum(result.is_right and result.depth == result.task.depth for result in group),
        )
        for name, group in grouped.items()
    }


async def evaluate(url: str, tokenizer: Any, tasks: Sequence[Task], *, temperature: float) -> list[Result]:
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS) as client:
        complete = _completer(client, tokenizer, temperature)
        return await asyncio.gather(*(_result(task, complete) for task in tasks))


def report(model_path: Path, *, tasks: int, seed: int, temperature: float) -> list[Result]:
    """Print the scores of a model folder on tasks made from `seed`."""
    tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    with EmbeddedEngine(model_path) as engine:
        results = asyncio.run(evaluate(engine.url, tokenizer, generate(seed, tasks), temperature=temperature))
    print(f"temperature {temperature}: {sum(r.is_right for r in results)} of {len(results)} right", flush=True)
    for title, key in (("", lambda task: task.kind), ("depth ", lambda task: task.depth)):
        for name, score in scores(results, key).items():
            print(f"  {title}{name!s:14} {score.right}/{score.of}, as deep as asked {score.right_depth}")
    return results


def _completer(client: httpx.AsyncClient, tokenizer: Any, temperature: float) -> Complete:
    async def complete(messages: list[Message]) -> str:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        params = {"temperature": temperature, "max_new_tokens": MAX_NEW_TOKENS}
        answer = await client.post("/generate", json={"input_ids": prompt, "sampling_params": params})
        if answer.status_code == httpx.codes.BAD_REQUEST:
            raise ReplyFailed(answer.text)
        answer.raise_for_status()
        text: str = answer.json()["text"]
        return text

    return complete


async def _result(task: Task, complete: Complete) -> Result:
    try:
        solved = await solve(task.inputs, complete)
    except ReplyFailed as failed:
        return Result(task, False, None, str(failed))
    return Result(task, solved.value == task.answer, solved.depth, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", type=Path, default=TINY_POLICY)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1_000_003)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    report(args.model_path, tasks=args.tasks, seed=args.seed, temperature=args.temperature)


if __name__ == "__main__":
    main()
