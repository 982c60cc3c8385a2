"""What an agent writes on its own node of a task's tree, turn by turn: the policy's training text. Knows no model.

Replies vary in style, and a few are slips with a wrong answer: the policy should be a distribution with something left
to learn, and not one memorised string a task.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from jaz_actors.backends.embedded.tasks import FAMILIES, Task

SLIP_RATE = 0.03
MAIN_STYLE_RATE = 0.7


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply and what it prints; None: it finishes."""

    code: str
    observation: str | None


@dataclass(frozen=True, slots=True)
class Replies:
    """Styles of the finishing code, the first the most frequent; combine joins the results of two children."""

    finish: tuple[str, ...]
    slip: str
    combine: str = ""


_LARGEST = ("return max(numbers)", "return sorted(numbers)[-1]")
_EVEN_COUNT = ("return sum(n % 2 == 0 for n in numbers)", "return len([n for n in numbers if n % 2 == 0])")
REPLIES = {
    "largest": Replies(_LARGEST, "return numbers[-1]"),
    "sort": Replies(("return sorted(numbers)", "numbers.sort()\nreturn numbers"), "return numbers"),
    "reverse": Replies(("return words[::-1]", "return list(reversed(words))"), "return sorted(words)"),
    "longest": Replies(("return max(words, key=len)",), "return max(words)"),
    "vowels": Replies(
        ('return sum(text.count(v) for v in "aeiou")', 'return sum(c in "aeiou" for c in text)'), "return len(text)"
    ),
    "evens": Replies(("return len(even)", "count = len(even)\nreturn count"), "return sum(even)"),
    "split_sum": Replies(
        ("return sum(numbers)", "total = sum(numbers)\nreturn total"), "return len(numbers)", "left + right"
    ),
    "split_largest": Replies(_LARGEST, "return numbers[-1]", "max(left, right)"),
    "split_evens": Replies(_EVEN_COUNT, "return len(numbers) // 2", "left + right"),
}
_LOOK_LENGTH = "print(len(numbers))"
_LOOK_EVEN = "even = [n for n in numbers if n % 2 == 0]\nprint(even)"
_HALVES = (
    """\
import asyncio
half = len(numbers) // 2
left, right = await asyncio.gather(
    ainvoke(task=task, numbers=numbers[:half]),
    ainvoke(task=task, numbers=numbers[half:]),
)
return {combine}""",
    """\
import asyncio
half = len(numbers) // 2
parts = numbers[:half], numbers[half:]
left, right = await asyncio.gather(*[ainvoke(task=task, numbers=part) for part in parts])
return {combine}""",
)


def demonstrate(task: Task, rng: random.Random, *, slip_rate: float = SLIP_RATE) -> list[Turn]:
    """The turns of one agent. With slip_rate 0 the answer is always the task's."""
    slips = rng.random() < slip_rate
    numbers = task.inputs.get("numbers", [])
    if task.kind == "parity":
        smallest = (len(numbers) % 2 == 0) != slips
        return [
            Turn(_LOOK_LENGTH, str(len(numbers))),
            Turn("return min(numbers)" if smallest else "return max(numbers)", None),
        ]
    replies = REPLIES[task.kind]
    finish = replies.slip if slips else _styled(replies.finish, rng)
    match FAMILIES[task.kind].shape:
        case "once":
            return [Turn(finish, None)]
        case "look":
            return [Turn(_LOOK_EVEN, str([n for n in numbers if n % 2 == 0])), Turn(finish, None)]
        case "split":
            if len(numbers) > limit_of(task):
                finish = _styled(_HALVES, rng).format(combine="left" if slips else replies.combine)
            return [Turn(_LOOK_LENGTH, str(len(numbers))), Turn(finish, None)]


def limit_of(task: Task) -> int:
    """The length above which the task's wording asks for children."""
    found = re.search(r"\d+", task.inputs["task"])
    if found is None:
        raise ValueError(f"{task.kind} names no limit: {task.inputs['task']!r}")
    return int(found[0])


def _styled(styles: tuple[str, ...], rng: random.Random) -> str:
    return styles[0] if len(styles) == 1 or rng.random() < MAIN_STYLE_RATE else rng.choice(styles[1:])
