"""The command: help, usage errors, and the whole demo at a small size."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from jaz_actors.cli import main


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "demo" in said
    assert "serve" in said


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--tasks", "0"], ["demo", "--runtime", "moon"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["inline", "ray"])
def test_the_demo_ends_with_every_invocation_accounted_for_and_nothing_left(runtime: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "jaz_actors.cli", "demo", "--tasks", "18", "--runtime", runtime, "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["requested"] == sum(report["outcomes"].values()) == 18
    assert report["outcomes"].get("failed", 0) == 0
    assert report["left_behind"] == []
    assert report["invocations"] > 18
    assert report["tokens"] > 0
    # The policy was trained for these tasks: far below this, it is not the policy that answers.
    assert report["right"] >= 12
