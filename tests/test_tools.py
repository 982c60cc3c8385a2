"""The bundled tools, on real shells and files."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from jaz_actors import ConfigOverride, Scripted, invoke
from jaz_actors.render import abbreviate
from jaz_actors.tools import bash, edit, read, software_tools

SOON = 20.0  # far less than what the commands below would take, in seconds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def promptly() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


def _wait_ended(pid: int) -> None:
    deadline = time.monotonic() + SOON
    while not _ended(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.005)


def _ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)  # of a parent that is not ours
    except psutil.NoSuchProcess:
        return True


# bash


def test_a_command_runs_in_the_current_directory_and_its_streams_are_merged_in_order(folder: Path) -> None:
    command = "for i in 1 2 3; do echo out $i; echo err $i >&2; done; pwd; [[ a == a ]] && echo bash"
    assert bash(command) == f"out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n{folder}\nbash\n"


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("true", ""),
        ("exit 3", "[exit status 3]"),
        ("printf x; exit 3", "x\n[exit status 3]"),
        ("echo x; exit 3", "x\n[exit status 3]"),
        ("kill -9 $$", "[exit status 137]"),
        ("exec >&- 2>&-; exit 4", "[exit status 4]"),
        ("cat; read line; echo $?", "1\n"),
        ("printf '\\xff\\xc3'", "\ufffd\ufffd"),
        ("echo late | tee >(cat >&2) >/dev/null", "late\n"),
    ],
)
def test_output_then_status(command: str, output: str) -> None:
    assert bash(command) == output


def test_the_shell_leads_a_process_group() -> None:
    shell, group = bash("echo $$; cut -d' ' -f5 /proc/$$/stat").split()
    assert shell == group != str(os.getpgrp())


def test_a_timeout_kills_the_whole_group_and_keeps_the_output() -> None:
    output = bash("sleep 1000 & echo $!; (trap '' TERM INT; sleep 1000); wait", timeout=1.0)
    pid, end = output.splitlines()
    assert end == "[timed out after 1 s: the shell and its process group were killed]"
    _wait_ended(int(pid))


def test_a_command_that_writes_without_end_is_stopped_in_time() -> None:
    output = bash("yes", timeout=0.3, max_output=1000)
    assert len(output) < 1300
    assert "bytes more were not kept" in output or "characters left out" in output
    assert "timed out" in output.splitlines()[-1]


def test_a_timeout_may_be_longer_than_any_clock_counts() -> None:
    assert bash("echo a", timeout=float("inf")) == bash("echo a", timeout=1e12) == "a\n"


def test_what_stays_in_the_background_is_not_waited_for_and_goes_on() -> None:
    pid = int(bash("sleep 1000 & echo $!"))
    try:
        assert not _ended(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    _wait_ended(pid)


def test_what_writes_in_the_background_is_not_waited_for(folder: Path) -> None:
    bash("yes & echo $! > pid")
    _wait_ended(int(Path("pid").read_text()))  # by its first write after the call


class TurnOver(BaseException):
    pass


def test_an_interrupt_of_the_caller_kills_the_group(folder: Path) -> None:
    def interrupt(signum: int, frame: object) -> None:
        raise TurnOver

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(TurnOver):
            # More than a pipe holds: the signal comes when the caller is reading.
            bash(f"sleep 1000 & echo $! > pid; head -c 200000 /dev/zero; kill -USR1 {os.getpid()}; sleep 1000")
    finally:
        signal.signal(signal.SIGUSR1, before)
    _wait_ended(int(Path("pid").read_text()))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_long_output_is_cut_in_the_middle(text: str, limit: int) -> None:
    assert bash(f"printf %s {shlex.quote(text)}", max_output=limit) == abbreviate(text, limit, 0.5)


def test_much_output_is_not_held(folder: Path) -> None:
    command = "echo first; head -c 60000000 /dev/zero | tr '\\0' x; echo; echo last"
    tracemalloc.start()
    try:
        output = bash(command, max_output=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_000_000
    assert output.startswith("first\nxxx")
    assert output.endswith("xxx\nlast\n")
    dropped = len("first\n") + 60_000_000 + len("\nlast\n") - 2 * 2**20
    assert f"; {dropped:,} bytes more were not kept …]" in output


@pytest.mark.parametrize("character", ["x", "é", "😀"])
def test_as_much_output_is_shown_as_was_asked_for_however_it_is_encoded(character: str, folder: Path) -> None:
    Path("text").write_text(character * 2_000_000)
    output = bash("cat text", max_output=1_200_000)
    assert output.count(character) == 1_200_000
    assert "\ufffd" not in output


# read


def test_lines_are_numbered_from_the_start_asked_for(folder: Path) -> None:
    Path("text").write_bytes(b"a\n\tb\r\n\xff\x0bc\n\nlast")
    assert read("text") == "     1\ta\n     2\t\tb\n     3\t\ufffd\x0bc\n     4\t\n     5\tlast"
    assert (
        read(Path("text"), start=2, lines=2) == "     2\t\tb\n     3\t\ufffd\x0bc\n[2 more lines; the next is start=4]"
    )
    assert read("text", start=5) == "     5\tlast"
    assert read("text", start=6) == "[text has 5 lines]"
    Path("empty").touch()
    assert read("empty") == "[empty has 0 lines]"


LINES = (
    st.text("ab\té😀", max_size=6) | st.integers(1990, 2010).map("😀".__mul__) | st.integers(0, 90_000).map("x".__mul__)
)


@given(st.lists(LINES), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 12), st.integers(1, 12))
@settings(deadline=None)
def test_read_shows_the_lines_and_counts_the_rest(lines: list[str], end: str, ended: bool, start: int, n: int) -> None:
    assume(not lines or ended or lines[-1])
    with tempfile.NamedTemporaryFile() as file:
        file.write((end.join(lines) + (end if ended and lines else "")).encode())
        file.flush()
        shown = read(file.name, start=start, lines=n).splitlines()
    expected = [f"{number:>6}\t{_cut(line)}" for number, line in enumerate(lines, 1)][start - 1 :][:n]
    left = len(lines) - (start - 1) - n
    if not expected:
        expected = [f"[{file.name} has {len(lines)} lines]"]
    elif left > 0:
        expected.append(f"[{left} more lines; the next is start={start + n}]")
    assert shown == expected


def _cut(line: str) -> str:
    return line if len(line) <= 2000 else f"{line[:2000]} [… line cut]"


def test_a_huge_line_is_not_held(folder: Path) -> None:
    with Path("huge").open("wb") as file:
        file.write(b"x" * 10_000)
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\nnext\n")
    tracemalloc.start()
    try:
        first, second = read("huge", lines=1).splitlines()
        third = read("huge", start=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first == f"     1\t{'x' * 2000} [… line cut]"
    assert second == "[1 more lines; the next is start=2]"
    assert third == "     2\tnext"
    assert peak < 4_000_000


def test_what_is_no_text_file_is_refused(folder: Path) -> None:
    Path("binary").write_bytes(b"x" * 8191 + b"\0")
    os.mkfifo("pipe")
    with pytest.raises(ValueError, match="binary is a binary file"):
        read("binary")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        read("pipe")
    with pytest.raises(IsADirectoryError):
        read(folder)
    with pytest.raises(FileNotFoundError):
        read("missing")
    for wrong in ({"start": 0}, {"lines": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            read("binary", **wrong)
    Path("late").write_bytes(b"x" * 8192 + b"\0")
    assert read("late").endswith("[… line cut]")


# edit


def test_an_edit_answers_with_a_diff(folder: Path) -> None:
    Path("text").write_text("".join(f"line {i}\n" for i in range(1, 101)) + "end")
    assert edit("text", "line 50\n", "line fifty\nmore\n").splitlines() == [
        "--- text", "+++ text", "@@ -47,7 +47,8 @@",
        " line 47", " line 48", " line 49", "-line 50", "+line fifty", "+more", " line 51", " line 52", " line 53",
    ]  # fmt: skip
    assert edit("text", "end", "END").splitlines()[-4:] == [
        "-end", "\\ No newline at end of file", "+END", "\\ No newline at end of file",
    ]  # fmt: skip
    assert len(edit("text", "line", "row", count=100)) < 4200


def test_a_text_that_is_not_there_as_often_as_said_changes_nothing(folder: Path) -> None:
    text = "a\nb a\n\n" + "c\n" * 40
    Path("text").write_text(text)
    with pytest.raises(ValueError, match=r"found 2 times \(lines 1, 2\) in text, not 1"):
        edit("text", "a", "x")
    with pytest.raises(ValueError, match="found 0 times in text, not 3"):
        edit("text", "z", "x", count=3)
    with pytest.raises(ValueError, match=r"found 40 times \(lines 4, 5, .*, 23, …\)"):
        edit("text", "c", "x")
    with pytest.raises(ValueError, match="nothing to do"):
        edit("text", "a", "a", count=2)
    assert Path("text").read_text() == text


def test_an_empty_old_text_makes_a_file_and_replaces_none(folder: Path) -> None:
    edit("new/deep/file", "", "é\r\n")
    assert Path("new/deep/file").read_bytes() == "é\r\n".encode()
    with pytest.raises(FileExistsError):
        edit("new/deep/file", "", "other")
    with pytest.raises(UnicodeEncodeError):
        edit("broken", "", "\ud800")
    assert list(folder.iterdir()) == [folder / "new"]


def test_an_edit_keeps_the_mode_other_bytes_and_links(folder: Path) -> None:
    Path("file").write_bytes(b"\xff\0 old \r \x85\n")
    Path("file").chmod(0o751)
    Path("link").symlink_to("file")
    edit("link", "old", "new")
    assert Path("link").is_symlink()
    assert Path("file").read_bytes() == b"\xff\0 new \r \x85\n"
    assert stat.S_IMODE(Path("file").stat().st_mode) == 0o751


def test_an_edit_is_done_in_one_step_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("old")
    with Path("file").open() as reader:
        edit("file", "old", "new")
        assert reader.read() == "old"

    def fail(*args: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(shutil, "copymode", fail)
    with pytest.raises(OSError, match="full"):
        edit("file", "new", "newer")
    assert Path("file").read_text() == "new"
    assert list(folder.iterdir()) == [folder / "file"]


def test_what_is_no_file_is_not_edited(folder: Path) -> None:
    os.mkfifo("pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        edit("pipe", "a", "b")
    with pytest.raises(IsADirectoryError):
        edit(folder, "a", "b")
    with pytest.raises(FileNotFoundError):
        edit("missing", "a", "b")


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, str, str]:
    """A text, a part of it, and what is to come instead."""
    text = draw(st.text("abé\n", min_size=1, max_size=60))
    at = draw(st.integers(0, len(text) - 1))
    old = text[at : draw(st.integers(at + 1, len(text)))]
    new = draw(st.text("abcé\n", max_size=10))
    assume(old != new)
    return text, old, new


@given(edits(), st.sampled_from(["\n", "\r\n"]))
@settings(deadline=None)
def test_an_edit_is_a_replacement_in_the_file_s_own_line_ends_and_can_be_undone(
    edit_: tuple[str, str, str], end: str
) -> None:
    text, old, new = edit_
    count = text.count(old)
    changed = text.replace(old, new)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "file")
        path.write_bytes(text.replace("\n", end).encode())
        edit(path, old, new, count=count)
        # A file without any line end has no line ends of its own.
        assert path.read_bytes() == changed.replace("\n", end if "\n" in text else "\n").encode()
        if new and changed.replace(new, old) == text and "\n" in text:
            edit(path, new, old, count=changed.count(new))
            assert path.read_bytes() == text.replace("\n", end if "\n" in changed else "\n").encode()


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@given(edits())
@example(("\n\n\naaaa", "\naaaa", "\n\naaaa"))
@settings(max_examples=50, deadline=None)
def test_the_diff_of_an_edit_makes_the_new_file_of_the_old_one(edit_: tuple[str, str, str]) -> None:
    text, old, new = edit_
    with tempfile.TemporaryDirectory() as name:
        path, copy = Path(name, "file"), Path(name, "copy")
        path.write_text("".join(f"{i}\n" for i in range(20)) + text)
        copy.write_text(path.read_text())
        diff = edit(path, old, new, count=path.read_text().count(old))
        subprocess.run(["patch", "--quiet", str(copy)], input=diff, text=True, check=True)
        assert copy.read_text() == path.read_text()


def test_changes_far_apart_in_a_long_file_are_told_without_a_diff(folder: Path) -> None:
    Path("long").write_text("first mark\n" + "same\n" * 9000 + "mark\nlast\n")
    answer = edit("long", "mark", "sign", count=2)
    assert answer == "long: changed between lines 1 and 9003, too far apart for a diff"
    assert "@@ -5000,7 +5000,7 @@" not in edit("long", "first", "one")


# all of them


@pytest.mark.usefixtures("runtime")
def test_an_agent_uses_the_tools_in_its_own_folder() -> None:
    code = """
tools.edit("main.py", "", "print(1)\\n")
tools.edit("main.py", "1", "2")
return tools.read("main.py") + tools.bash("python3 main.py; pwd"), __import__("os").getcwd()
"""
    text, place = invoke(ConfigOverride(backend=Scripted([code])), tools=software_tools())
    assert text == f"     1\tprint(2)2\n{place}\n"
    assert place != str(Path.cwd())
