"""The tasks of the tiny policy, its demonstrations, and the rehearsal that measures it."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from jaz_actors.backends.embedded.demonstrations import demonstrate, limit_of
from jaz_actors.backends.embedded.rehearsal import Message, ReplyFailed, solve
from jaz_actors.backends.embedded.tasks import FAMILIES, KINDS, MAX_DEPTH, Task, generate, user_message

EVENS = re.compile(r"\b\d*[02468]\b")
# Computed in another way than the tasks do.
INDEPENDENT: dict[str, Callable[[Any], Any]] = {
    "largest": lambda numbers: sorted(numbers)[-1],
    "sort": lambda numbers: [n for n in range(100) for _ in range(numbers.count(n))],
    "reverse": lambda words: [words[-1 - i] for i in range(len(words))],
    "longest": lambda words: next(w for w in words if len(w) == max(map(len, words))),
    "vowels": lambda text: len(re.findall("[aeiou]", text)),
    "evens": lambda numbers: len(EVENS.findall(str(numbers))),
    "parity": lambda numbers: sorted(numbers)[-(len(numbers) % 2)],
    "split_sum": lambda numbers: sum(n * numbers.count(n) for n in set(numbers)),
    "split_largest": lambda numbers: sorted(numbers)[-1],
    "split_evens": lambda numbers: len(EVENS.findall(str(numbers))),
}


def test_every_kind_has_an_independent_answer() -> None:
    assert set(INDEPENDENT) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_depths_are_right(kind: str) -> None:
    for task in generate(7, 200, [kind]):
        argument = task.inputs[FAMILIES[kind].argument]
        assert task.answer == INDEPENDENT[kind](argument)
        assert list(task.inputs) == ["task", FAMILIES[kind].argument]
        assert 1 <= task.depth <= MAX_DEPTH
        if FAMILIES[kind].shape == "split":
            assert len(argument) <= limit_of(task) * 2 ** (task.depth - 1)


def test_generate_is_reproducible_and_covers_kinds_and_depths() -> None:
    tasks = generate(3, 120)
    assert tasks == generate(3, 120)
    assert tasks != generate(4, 120)
    assert {task.kind for task in tasks} == set(KINDS)
    for kind in KINDS:
        expected = {1, 2, 3} if FAMILIES[kind].shape == "split" else {1}
        assert {task.depth for task in generate(5, 60, [kind])} == expected
    assert {task.kind for task in generate(5, 9, ["sort", "parity"])} == {"sort", "parity"}


def test_the_first_message_is_exactly_this() -> None:
    inputs = {
        "task": "Add up the numbers. Split lists longer than 4 in halves for children.",
        "numbers": [3, 5, 7, 11, 2, 8],
    }
    assert user_message(inputs) == (
        '<task type="str">\n'
        "Add up the numbers. Split lists longer than 4 in halves for children.\n"
        "</task>\n"
        '<numbers type="list">\n'
        "[3, 5, 7, 11, 2, 8]\n"
        "</numbers>\n"
        "\n"
        "These inputs are variables in your REPL: task, numbers."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_demonstration_without_slips_solves_its_task_at_the_asked_depth(kind: str) -> None:
    rng = random.Random(0)

    async def run() -> None:
        for task in generate(11, 25, [kind]):
            solved = await solve(task.inputs, _demonstrator(kind, rng))
            assert (solved.value, solved.depth) == (task.answer, task.depth)

    asyncio.run(run())


def test_slips_and_styles_vary_the_demonstrations() -> None:
    task = generate(1, 1, ["split_sum"])[0]
    rng = random.Random(0)
    assert len({demonstrate(task, rng)[-1].code for _ in range(200)}) >= 3
    slips = [demonstrate(t, rng, slip_rate=1.0) for t in generate(2, 20, ["sort"])]
    assert {turns[-1].code for turns in slips} == {"return numbers"}


@pytest.mark.parametrize(
    ("replies", "failure"),
    [
        (["print(1)\nreturn 2"], "printed and returned"),
        (["return undefined"], "NameError"),
        (["if"], "SyntaxError"),
        (["x = 1"] * 10, "too many turns"),
        (["return await ainvoke(task=task)"] * 100, "too many nodes"),
    ],
)
def test_a_bad_reply_fails_the_rehearsal(replies: list[str], failure: str) -> None:
    given = iter(replies)

    async def complete(messages: list[Message]) -> str:
        return next(given)

    with pytest.raises(ReplyFailed, match=failure):
        asyncio.run(solve({"task": "t"}, complete))


def test_names_outlive_a_turn_and_an_empty_one_says_so() -> None:
    seen: list[str] = []
    replies = iter(["import math\nx = [math.pi]", "print(len(x))\nprint('a')", "return x[0] > 3"])

    async def complete(messages: list[Message]) -> str:
        seen.append(messages[-1]["content"])
        return next(replies)

    assert asyncio.run(solve({"task": "t"}, complete)).value is True
    assert seen[1:] == ["(no output)", "1\na"]


def _demonstrator(kind: str, rng: random.Random) -> Any:
    """An agent that knows the demonstration of any conversation of this kind."""

    async def complete(messages: list[Message]) -> str:
        first = messages[0]["content"]
        text, argument = re.findall(r">\n(.*)\n</", first)
        value = argument if 'name type="str"' in first or kind == "vowels" else eval(argument)  # our own rendering
        task = Task(kind, {"task": text, FAMILIES[kind].argument: value}, None, 0)
        return demonstrate(task, rng, slip_rate=0)[len(messages) // 2].code

    return complete
