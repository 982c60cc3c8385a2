"""The folder of a trace: what stands in it and where, and that live and batch writing agree to the byte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jaz_actors import Hook
from jaz_actors.effects import AddMessages, DropMessages, InsertCode, NewMessage
from jaz_actors.events import Event, InvokeExit, LLMQueryExit, LLMQueryRetry, REPLExecSend
from jaz_actors.messages import Usage
from jaz_actors.outcomes import AbortedRecord, Continue, FailedRecord
from jaz_actors.payload import ErrorRecord
from jaz_actors.recorders.directory import Directory, write_directory
from tests.recorders.runs import INLINE, Tape, recorded, shuffled


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().decode() for path in folder.rglob("*") if path.is_file()
    }


def batch(folder: Path, events: list[Event], **options: Any) -> dict[str, str]:
    write_directory(folder, events, **options)
    return files(folder)


def live(folder: Path, events: list[Event], **options: Any) -> dict[str, str]:
    with Directory(folder, **options) as directory:
        for event in events:
            directory.add(event)
    return files(folder)


TREE = {
    "0": [
        "import asyncio\nparts = await asyncio.gather(*[ainvoke(task=n) for n in 'ab'])\nprint(parts)",
        "mine = invoke(key='last', task='c')",
        "return [*parts, mine]",
    ],
    "0.0": ["print('`' * 5)", "return invoke(task='deep')"],
    "0.1": ["1 / 0", "return task"],
    "*": ["return task.upper()"],
}


class TestOfATree:
    pytestmark = INLINE

    async def test_every_file_stands_below_the_turn_that_started_it(self, tmp_path: Path) -> None:
        events = await recorded(TREE, task="all")
        found = batch(tmp_path, events)
        below_0 = ["iter_0/code.py", "iter_0/output.txt", "iter_1/code.py"]
        assert sorted(found) == sorted(
            [
                *("overview.md", "trace.md", "iter_0/code.py", "iter_0/output.txt"),
                *("iter_1/code.py", "iter_1/output.txt", "iter_2/code.py"),
                *(f"iter_0/sub_{n}/{name}" for n in "01" for name in ("overview.md", "trace.md", *below_0)),
                *(f"iter_0/sub_0/iter_1/sub_0/{name}" for name in ("overview.md", "trace.md", "iter_0/code.py")),
                *(f"iter_1/sub_last/{name}" for name in ("overview.md", "trace.md", "iter_0/code.py")),
            ]
        )
        assert found["iter_0/output.txt"] == "['DEEP', 'b']\n"
        assert found["iter_0/sub_1/iter_0/code.py"] == "1 / 0"
        assert "ZeroDivisionError: division by zero" in found["iter_0/sub_1/iter_0/output.txt"]

    async def test_every_link_leads_to_a_file(self, tmp_path: Path) -> None:
        found = batch(tmp_path, await recorded(TREE, task="all"))
        links = [(name, link) for name in found for link in re.findall(r"\]\(([^)]*)\)", found[name])]
        assert len(links) > 12
        for name, link in links:
            assert (tmp_path / name).parent.joinpath(link).is_file(), (name, link)

    async def test_the_overview_says_how_it_went_and_what_was_used(self, tmp_path: Path) -> None:
        text = batch(tmp_path, await recorded(TREE, task="all", data=list(range(500))))["overview.md"]
        assert "- label: `'all'`\n" in text
        assert "- outcome: completed, `['DEEP', 'b', 'C']`\n" in text
        assert "- `task` (str): `'all'`\n" in text
        assert "- `data` (list): `[0, 1, 2" in text
        assert "- own use: 3 queries, " in text
        assert "- with children: 9 queries, " in text
        assert re.search(r"- \[turn 1\]\(iter_1/code.py\): \d+ \+ \d+ tokens: `mine = .*` → no output\n", text)
        assert re.search(r"- \[.*\.last\]\(iter_1/sub_last/overview.md\), turn 1: `'c'`, completed\n", text)

    @pytest.mark.parametrize("seed", range(3))
    async def test_live_and_batch_writing_agree_whatever_came_first(self, tmp_path: Path, seed: int) -> None:
        events = shuffled(await recorded(TREE, task="all"), seed)
        assert live(tmp_path / "live", events) == batch(tmp_path / "batch", events)

    @pytest.mark.parametrize("length", [1, 4, 9, 10, 30, 41])
    async def test_they_agree_on_what_was_killed_at_any_event(self, tmp_path: Path, length: int) -> None:
        events = (await recorded(TREE, task="all"))[:length]
        assert live(tmp_path / "live", events) == batch(tmp_path / "batch", events)

    async def test_the_trace_tells_each_message_once_in_order(self, tmp_path: Path) -> None:
        text = batch(tmp_path, await recorded(TREE, task="all"))["iter_0/sub_0/trace.md"]
        titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert titles[0].startswith("invoked by ")
        assert titles[1:] == [
            "message 0: system, seed",
            "message 1: user, seed",
            "message 2: assistant, assistant, turn 0",
            "message 3: user, observation, turn 0",
            "message 4: assistant, assistant, turn 1",
            "turn 1 returns a str",
            "completed",
        ]
        assert "\n``````\n`````\n``````\n" in text  # a fence of six around five backticks

    async def test_the_trace_tells_what_hooks_changed(self, tmp_path: Path) -> None:
        class Edits(Hook):
            def on_llm_query_enter(self, event: Any) -> Any:
                if event.iteration == 1:
                    return [DropMessages([2], persistent=True), AddMessages((NewMessage("user", "hurry"),))]
                return None

            def on_repl_exec_enter(self, event: Any) -> Any:
                return InsertCode("x = 1\n", at=0) if event.iteration == 0 else None

        found = batch(tmp_path, await recorded(["print(x)", "return x"], Edits(), task="t"))
        text = found["trace.md"]
        assert "## turn 0: hooks change the code\n\n```python\nx = 1\nprint(x)\n```\n" in text
        assert "## turn 1: hooks hide message 2 at position 2 for good\n" in text
        assert "hooks add message 4: user, added, turn 1, at position 4 for this query\n\n```\nhurry\n```\n" in text
        assert "## message 5: assistant, assistant, turn 1\n" in text
        assert found["iter_0/code.py"] == "x = 1\nprint(x)"


def test_retries_and_failures_are_told(tmp_path: Path) -> None:
    tape = Tape(task="t")
    tape.query("x")
    error = ErrorRecord("ServerBusy", "503\nslow down")
    tape.emit(LLMQueryRetry, iteration=0, attempt=1, error=error, wait=0.5)
    tape.emit(LLMQueryExit, iteration=0, status="failed", error=error)
    events = tape.end(FailedRecord(error))
    found = batch(tmp_path, events)
    assert "## turn 0: retry 1 in 0.5 s\n\n```\nServerBusy: 503\nslow down\n```\n" in found["trace.md"]
    assert "## turn 0: query failed by ServerBusy\n" in found["trace.md"]
    assert "- outcome: failed: ServerBusy, `slow down`\n" in found["overview.md"]
    assert "- turn 0: 10 + 5 tokens: → query failed\n" in found["overview.md"]


def test_output_that_no_query_has_shown_is_told_at_the_end(tmp_path: Path) -> None:
    tape = Tape().turn("print(1)", Continue("one\n"))
    events = tape.end(AbortedRecord(ErrorRecord("IterationLimitExceeded", "1 turn")))
    assert "which no query has shown\n\n```\none\n```\n" in batch(tmp_path, events)["trace.md"]


def test_children_without_a_turn_and_without_a_parent_are_there(tmp_path: Path) -> None:
    root = Tape("0")
    made_by_a_hook = Tape("0.judge", parent_iteration=None)
    lost, below = Tape("0.5.1", parent_iteration=2), Tape("0.5.1.0", parent_iteration=0)
    events = [*root.events, *below.events, *lost.events, *made_by_a_hook.events]
    found = batch(tmp_path / "batch", events)
    assert {"sub_judge/trace.md", "lost_parent_0.5.1/trace.md", "lost_parent_0.5.1/iter_0/sub_0/trace.md"} <= {*found}
    assert live(tmp_path / "live", events) == found


def test_later_roots_are_written_when_asked_for(tmp_path: Path) -> None:
    events = [*Tape("0").events, *Tape("1").events, *Tape("1.0", parent_iteration=0).events]
    events += Tape("0", run="other").events
    assert set(batch(tmp_path / "one", events)) == {"overview.md", "trace.md"}
    assert {name.rpartition("/")[0] for name in batch(tmp_path / "all", events, all=True)} == {
        *("", "root_1", "root_1/iter_0/sub_0", "root_other_0"),
    }
    assert live(tmp_path / "live", events, all=True) == files(tmp_path / "all")


def test_live_files_are_there_while_the_invocation_runs(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    for event in Tape(task="t").turn("print(1)", Continue("1\n")).events:
        directory.add(event)
        assert "overview.md" in files(tmp_path)
    assert "not ended" in files(tmp_path)["overview.md"]
    assert "→ `1`" in files(tmp_path)["overview.md"]
    assert "message 1: assistant" in files(tmp_path)["trace.md"]


def test_a_new_recording_in_the_same_folder_begins_its_trace_afresh(tmp_path: Path) -> None:
    events = Tape().returns("return 1", 1)
    assert live(tmp_path, events) == live(tmp_path, events)


def test_overviews_of_many_children_are_not_written_at_each(tmp_path: Path) -> None:
    written = 0

    class Counts(Directory):
        def _write_overview(self, page: Any) -> None:
            nonlocal written
            written += page.invoke_id.path == "0"
            super()._write_overview(page)

    directory = Counts(tmp_path)
    for event in Tape("0").events:
        directory.add(event)
    for number in range(400):
        for event in Tape(f"0.{number}", parent_iteration=0).events[:1]:
            directory.add(event)
    directory.close()
    assert written < 80
    assert files(tmp_path)["overview.md"].count("/overview.md)") == 400


def test_hostile_names_and_texts_stay_in_their_place(tmp_path: Path) -> None:
    evil = Tape("0.../../x", parent_iteration=0)
    tape = Tape("0", task="`a``b\n# no heading").turn("# ```\n" + "`" * 9, Continue("```\n# no heading\n"))
    assert all(not name.startswith("..") for name in batch(tmp_path / "in", [*tape.events, *evil.events]))
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]
    titles = [line for line in files(tmp_path / "in")["overview.md"].splitlines() if line.startswith("# ")]
    assert titles == ["# Invocation 0"]


def test_unknown_usage_is_not_counted_as_free(tmp_path: Path) -> None:
    tape = Tape()
    tape.query("x", usage=Usage())
    assert "0 completion tokens, cost unknown" in batch(tmp_path, tape.events)["overview.md"]


def test_the_code_of_an_execution_that_never_ended_is_there(tmp_path: Path) -> None:
    tape = Tape().query("while 1: pass")
    tape.emit(REPLExecSend, iteration=0, code="while 1: pass")
    found = batch(tmp_path, tape.events)
    assert found["iter_0/code.py"] == "while 1: pass"
    assert "`while 1: pass` → not ended" in found["overview.md"]
    assert not any(isinstance(event, InvokeExit) for event in tape.events)
