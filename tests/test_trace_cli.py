"""Views of a recorded run, and its continuation, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaz_actors.cli import main

SCRIPT = """
import sys
from jaz_actors import Recorder, Scripted, configure, invoke

def answer(request):
    with open(sys.argv[2], "a") as log:
        print(request.invoke_id.path, request.iteration, file=log)
    if request.invoke_id.depth == 1:
        return "print(1)" if request.iteration == 0 else "return [invoke(n=1), invoke(n=2)]"
    return "return n * 10"

configure(backend=Scripted(answer), runtime="inline")
with Recorder(sys.argv[1]):
    print(invoke(task="two"))
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder / "run"), str(folder / "asked")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[10, 20]\n"
    return folder


def test_statistics(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "stats", str(recorded / "run")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["invocations"], figures["roots"], figures["turns"]) == (3, 1, 4)
    assert figures["outcomes"] == {"completed": 3}


def test_views_are_written(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(recorded / "run")
    assert main(["trace", "directory", run, str(tmp_path / "pages")]) == 0
    assert (tmp_path / "pages" / "overview.md").exists()
    assert main(["trace", "html", run, str(tmp_path / "page.html")]) == 0
    assert "<html" in (tmp_path / "page.html").read_text()
    assert main(["trace", "spans", run, str(tmp_path / "spans.json")]) == 0
    assert json.loads((tmp_path / "spans.json").read_text())["resourceSpans"]
    assert main(["trace", "log", run]) == 0
    assert "return n * 10" in capsys.readouterr().out
    assert main(["trace", "diff", run]) == 0


def test_the_workflow_runs_by_itself(recorded: Path, tmp_path: Path) -> None:
    assert main(["trace", "program", str(recorded / "run"), str(tmp_path / "flow")]) == 0
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "flow"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "[10, 20]\n"


def test_resuming_runs_the_program_without_the_model(recorded: Path) -> None:
    asked = (recorded / "asked").read_text()
    run = str(recorded / "run")
    arguments = ["resume", run, str(recorded / "script.py"), run, str(recorded / "asked")]
    command = [sys.executable, "-m", "jaz_actors.cli", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "[10, 20]\n"), ran.stderr
    assert (recorded / "asked").read_text() == asked


def test_mistakes_have_a_message_and_a_status(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "stats", str(tmp_path)]) == 1
    assert "no journal" in capsys.readouterr().err
    (tmp_path / "empty.py").write_text("pass\n")
    assert main(["resume", str(recorded / "run"), str(tmp_path / "empty.py")]) == 1
    assert "opened no Recorder" in capsys.readouterr().err


def test_replaying_runs_the_program_with_recorded_answers(recorded: Path, tmp_path: Path) -> None:
    asked = (recorded / "asked").read_text()
    arguments = [str(tmp_path / "second"), str(recorded / "asked")]
    command = [sys.executable, "-m", "jaz_actors.cli", "replay", str(recorded / "run"), str(recorded / "script.py")]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "[10, 20]\n"), ran.stderr
    assert "replayed 4, live 0" in ran.stderr
    assert (recorded / "asked").read_text() == asked


def test_documents_are_written_checked_split_and_joined(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, parts, whole = tmp_path / "d.json", tmp_path / "parts", tmp_path / "whole.json"
    assert main(["trace", "atif", str(recorded / "run"), str(document)]) == 0
    assert main(["trace", "validate", str(document)]) == 0
    assert main(["trace", "split", str(document), str(parts)]) == 0
    assert len(list(parts.glob("*.json"))) == 3
    assert main(["trace", "join", str(parts), str(whole)]) == 0
    assert json.loads(whole.read_text()) == json.loads(document.read_text())
    whole.write_text(whole.read_text().replace('"step_id": 2', '"step_id": 7'))
    assert main(["trace", "validate", str(whole)]) == 1
    assert "step_id" in capsys.readouterr().out
