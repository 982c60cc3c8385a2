"""Patches found in what agents printed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jaz_actors.outcomes import Continue
from jaz_actors.recorders.git_diff import extract_diffs, last_diff
from tests.recorders.runs import INLINE, Tape, recorded


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    def git(*arguments: str, text: str = "") -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    return git


@pytest.fixture
def patch(git: Callable[..., str], tmp_path: Path) -> str:
    """A diff with an edit, a new file without a last newline, a removal, a rename, a mode and a binary file."""
    for name, text in {"a.txt": "1\n2\n\n3\n", "b.txt": "b\n", "c.txt": "c\n" * 30, "run.sh": "ls\n"}.items():
        (tmp_path / name).write_text(text)
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "a.txt").write_text("1\nzwei\n\n3\n")
    (tmp_path / "new.txt").write_text("no newline")
    (tmp_path / "b.txt").unlink()
    (tmp_path / "c.txt").rename(tmp_path / "d.txt")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "x.bin").write_bytes(bytes(range(256)))
    git("add", "-A")
    patch = git("diff", "--cached", "--binary", "-M")
    git("reset", "-q", "--hard")
    return patch


def test_a_diff_among_other_output_is_found_whole_and_applies(git: Callable[..., str], patch: str) -> None:
    found = last_diff(f"running git diff\n{patch}done: 6 files\n")
    assert found is not None
    assert found.rstrip("\n") == patch.rstrip("\n")
    git("apply", "--index", text=found)
    assert git("diff", "--cached", "--binary", "-M") == patch


ONE = "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
TWO = ONE.replace("+b", "+c")


@pytest.mark.parametrize(
    "output", ["", "no diff --git here\n", ONE[:-4], ONE.replace("+b", "[… 9 left out …]"), f"> {ONE}"]
)
def test_text_that_is_no_whole_diff_is_none(output: str) -> None:
    assert last_diff(output) is None


def test_the_last_of_several_counts_and_a_broken_one_does_not() -> None:
    assert last_diff(f"before:\n{ONE}after:\n{TWO}") == TWO
    assert last_diff(f"{ONE}then\n{TWO[:-4]}") == ONE
    assert last_diff(ONE + TWO) == ONE + TWO


def test_the_last_of_a_root_does_not_depend_on_the_order_of_arrival() -> None:
    root, child = Tape("0"), Tape("0.0", parent_iteration=0)
    for tape, text in ((child, ONE), (root, "nothing"), (root, TWO)):
        tape.turn("print(diff)", Continue(text))
    other = Tape("1").turn("print(diff)", Continue(ONE))
    for events in (
        [*root.events, *child.events, *other.events],
        [*other.events, *child.events, *root.events],
    ):
        found = extract_diffs(events)
        assert {name: (diff.invoke_id, diff.iteration) for name, diff in found.items()} == {
            "run:0": ("run:0", 1),
            "run:1": ("run:1", 0),
        }
        assert found["run:0"].text == TWO


class TestOfARun:
    pytestmark = INLINE

    async def test_what_a_child_prints_is_its_roots(self) -> None:
        events = await recorded({"0": ["return invoke(diff=diff)"], "*": ["print(diff)", "return 1"]}, diff=ONE)
        ((root, found),) = extract_diffs(events).items()
        assert found.text == ONE
        assert found.invoke_id == f"{root}.0"
