"""Text log lines, and the Markdown made of them: complete, nested, and never mixed up."""

from __future__ import annotations

import io
import random
import re
from collections import defaultdict
from collections.abc import Iterable

import pytest

from jaz_actors.events import Event
from jaz_actors.outcomes import Continue
from jaz_actors.recorders.textlog import TextLog, to_markdown
from tests.recorders.runs import INLINE, Tape, recorded, shuffled


def lines_of(events: Iterable[Event]) -> list[str]:
    stream = io.StringIO()
    log = TextLog(stream)
    for event in events:
        log.add(event)
    return stream.getvalue().splitlines(keepends=True)


def test_a_line_is_time_id_kind_and_text() -> None:
    lines = lines_of(Tape("0", task="add").turn("1 + 1", Continue("2\n")).events)
    assert lines == [
        "1970-01-01T00:01:40.000+00:00 run:0 enter invoked\n",
        "1970-01-01T00:01:40.000+00:00 run:0 | task: str = 'add'\n",
        "1970-01-01T00:01:42.000+00:00 run:0 message message 0: system, seed\n",
        "1970-01-01T00:01:42.000+00:00 run:0 | be good\n",
        "1970-01-01T00:01:45.000+00:00 run:0 message message 1: assistant, assistant, turn 0\n",
        "1970-01-01T00:01:45.000+00:00 run:0 | 1 + 1\n",
    ]


def test_the_same_text_stands_in_the_markdown() -> None:
    code = "text = '''\n\n```\n# no heading\n'''\r\n"
    text = to_markdown(lines_of(Tape("0").turn(code, Continue("")).events))
    assert "\n````\ntext = '''\n\n```\n# no heading\n'''\\r\n````\n" in text


class TestOfConcurrentChildren:
    pytestmark = INLINE

    SCRIPT = {  # noqa: RUF012
        "0": ["import asyncio\nreturn await asyncio.gather(*[ainvoke(task=n) for n in range(3)])"],
        "*": ["print('I am', task)", "return task"],
        "0.1": ["x = invoke(task='deep')", "return task"],
        "0.1.0": ["return 'deep'"],
    }

    @pytest.mark.parametrize("seed", range(3))
    async def test_each_has_its_own_lines_below_its_parent(self, seed: int) -> None:
        text = to_markdown(lines_of(shuffled(await recorded(self.SCRIPT, task="t"), seed)))
        sections = re.split(r"^#+ Invocation \S+:\d+", text, flags=re.MULTILINE)[1:]
        names = re.findall(r"^(#+) Invocation \S+:\d+(\S*)$", text, re.MULTILINE)
        assert sorted(names) == [("#", ""), ("##", ".0"), ("##", ".1"), ("##", ".2"), ("###", ".1.0")]
        by_name = {name: body for (_, name), body in zip(names, sections, strict=True)}
        assert "I am 0" in by_name[".0"]
        assert "I am 2" in by_name[".2"]
        assert text.count("\nI am 0\n") == 1

    async def test_lines_that_are_mixed_within_entries_come_out_the_same(self) -> None:
        lines = lines_of(await recorded(self.SCRIPT, task="t"))
        queues: dict[str, list[str]] = defaultdict(list)
        for line in lines:
            queues[line.split(" ")[1]].append(line)
        ordered = [line for name in sorted(queues) for line in queues[name]]
        choice, mixed = random.Random(1), list[str]()
        left = {name: list(queue) for name, queue in sorted(queues.items())}
        for name in sorted(left):  # parents begin first
            mixed.append(left[name].pop(0))
        while any(left.values()):
            mixed.append(left[choice.choice([name for name in left if left[name]])].pop(0))
        whole = to_markdown(ordered).split("\n")
        assert sorted(to_markdown(mixed).split("\n")) == sorted(whole)


def test_other_lines_are_skipped_and_lost_parents_leave_their_children() -> None:
    lines = ["Traceback\n", "\n", *lines_of(Tape("0.3").events), "2020-01-01T00:00:00+00:00 run:0 unknown x\n"]
    lines += lines_of(Tape("0.3.1.1", parent_iteration=2).events)
    assert to_markdown(lines) == (
        "# Invocation run:0.3\n\n## invoked by 0\n\n## Invocation run:0.3.1.1\n\n### invoked by 0.3.1 in its turn 2\n\n"
    )


def test_nesting_may_be_deeper_than_headings_and_recursion() -> None:
    path, lines = "0", list[str]()
    for _ in range(1200):
        lines += lines_of(Tape(path).events)
        path += ".0"
    assert "###### Invocation run:0.0.0.0.0.0.0\n" in to_markdown(lines)
