"""The small family of tasks that the tiny policy was trained on, with answers computed here, and demonstrations.

A demonstration is what a perfect agent would write, turn by turn, given what each turn prints. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# fmt: off
WORDS = (
    "amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "hazel", "inlet", "jade", "kelp", "lilac", "maple",
    "north", "ocean", "pearl", "quartz", "river", "stone", "tulip", "umber", "violet", "willow", "xenon", "yarrow",
    "zephyr", "elm", "oak", "ivy", "fern", "birch", "aster", "lotus", "meadow", "harbor", "lantern",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Task:
    """kind: the family. inputs: what `invoke` is called with. depth: of the tree that a perfect agent makes."""

    kind: str
    inputs: dict[str, Any]
    answer: Any
    depth: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the demonstration and what it prints (None: it finishes)."""

    code: str
    output: str | None


@dataclass(frozen=True, slots=True)
class _Kind:
    phrasings: tuple[str, ...]
    answer: Callable[[Any], Any]
    finish: str
    combine: str = ""
    look: str = ""


_NUMBERS = {
    "largest": _Kind(
        ("Find the largest number.", "What is the biggest of the numbers?", "Return the maximum of the numbers."),
        max,
        "return max(numbers)",
    ),
    "sort": _Kind(
        ("Sort the numbers.", "Put the numbers in ascending order.", "Return the numbers from small to large."),
        sorted,
        "return sorted(numbers)",
    ),
    "evens": _Kind(
        (
            "Which numbers are even? Look at them, then count them.",
            "Look at the even numbers and say how many there are.",
        ),
        lambda numbers: sum(n % 2 == 0 for n in numbers),
        "return len(even)",
        look="even = [n for n in numbers if n % 2 == 0]\nprint(even)",
    ),
}
_WORD_LISTS = {
    "reverse": _Kind(
        ("Reverse the list of words.", "Return the words in reverse order.", "Turn the order of the words around."),
        lambda words: words[::-1],
        "return words[::-1]",
    ),
    "longest": _Kind(
        ("Find the longest word.", "Which word has the most letters?", "Return the longest of the words."),
        lambda words: max(words, key=len),
        "return max(words, key=len)",
    ),
}
_TEXTS = {
    "vowels": _Kind(
        ("Count the vowels in the text.", "How many vowels does the text have?", "Return the number of vowels."),
        lambda text: sum(text.count(v) for v in "aeiou"),
        'return sum(text.count(v) for v in "aeiou")',
    ),
}
_SPLIT = {
    "split_sum": _Kind(
        ("Add up the numbers.", "Return the sum of the numbers.", "What is the total of the numbers?"),
        sum,
        "return sum(numbers)",
        "left + right",
    ),
    "split_largest": _Kind(_NUMBERS["largest"].phrasings, max, "return max(numbers)", "max(left, right)"),
    "split_evens": _Kind(
        ("Count the even numbers.", "How many numbers are even?", "Return the count of even numbers."),
        lambda numbers: sum(n % 2 == 0 for n in numbers),
        "return sum(n % 2 == 0 for n in numbers)",
        "left + right",
    ),
}
_LIMIT_PHRASINGS = (
    "Split lists longer than {limit} in halves for children.",
    "If there are more than {limit}, give each half to a child.",
)
_LIMITS = (3, 4, 5, 6)
KINDS = (*_NUMBERS, *_WORD_LISTS, *_TEXTS, *_SPLIT)

_HALVES = """import asyncio
half = len(numbers) // 2
left, right = await asyncio.gather(
    ainvoke(task=task, numbers=numbers[:half]),
    ainvoke(task=task, numbers=numbers[half:]),
)
return {combine}"""


def generate(seed: int, count: int, kinds: Sequence[str] = KINDS) -> list[Task]:
    """`count` tasks, the kinds in turn, reproducible by seed. Trees are at most three deep."""
    rng = random.Random(seed)
    return [_make(kinds[index % len(kinds)], rng) for index in range(count)]


def _make(kind: str, rng: random.Random) -> Task:
    if kind in _SPLIT:
        limit = rng.choice(_LIMITS)
        depth = rng.choice((1, 2, 3))
        low, high = (limit * 2 ** (depth - 2) + 1 if depth > 1 else 1), limit * 2 ** (depth - 1)
        numbers = _numbers(rng, rng.randint(low, high))
        text = f"{rng.choice(_SPLIT[kind].phrasings)} {rng.choice(_LIMIT_PHRASINGS).format(limit=limit)}"
        return Task(kind, {"task": text, "numbers": numbers}, _SPLIT[kind].answer(numbers), _depth(len(numbers), limit))
    if kind in _NUMBERS:
        return _task(kind, _NUMBERS[kind], "numbers", _numbers(rng, rng.randint(2, 12)), rng)
    if kind in _WORD_LISTS:
        return _task(kind, _WORD_LISTS[kind], "words", rng.sample(WORDS, rng.randint(2, 7)), rng)
    return _task(kind, _TEXTS[kind], "text", " ".join(rng.sample(WORDS, rng.randint(2, 7))), rng)


def _task(kind: str, family: _Kind, name: str, value: Any, rng: random.Random) -> Task:
    return Task(kind, {"task": rng.choice(family.phrasings), name: value}, family.answer(value), 1)


def _numbers(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(0, 99) for _ in range(count)]


def _depth(count: int, limit: int) -> int:
    return 1 if count <= limit else 1 + _depth(count - count // 2, limit)


def demonstration(task: Task) -> list[Turn]:
    """The turns of a perfect agent on the task's own node of the tree."""
    if task.kind in _SPLIT:
        kind = _SPLIT[task.kind]
        count = len(task.inputs["numbers"])
        limit = next(int(word.strip(".,")) for word in task.inputs["task"].split() if word.strip(".,").isdigit())
        second = kind.finish if count <= limit else _HALVES.format(combine=kind.combine)
        return [Turn("print(len(numbers))", str(count)), Turn(second, None)]
    kind = (_NUMBERS | _WORD_LISTS | _TEXTS)[task.kind]
    if kind.look:
        return [Turn(kind.look, str([n for n in task.inputs["numbers"] if n % 2 == 0])), Turn(kind.finish, None)]
    return [Turn(kind.finish, None)]
