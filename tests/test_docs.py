"""The programs of the README and the guide run unchanged and print what is printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A program, and the output that stands right after it.
_PROGRAM = re.compile(r"```python\n((?:(?!```).)*)```\n+```\n((?:(?!```).)*)```", re.DOTALL)


def _programs() -> list[object]:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for number, match in enumerate(_PROGRAM.finditer(page.read_text(encoding="utf-8"))):
            found.append(pytest.param(match.group(1), match.group(2), id=f"{page.name}-{number}"))
    return found


def test_there_are_programs() -> None:
    assert len(_programs()) >= 6


@pytest.mark.parametrize(("program", "output"), _programs())
def test_a_program_prints_what_the_page_says(program: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=tmp_path,
        env=os.environ | {"PYTHONDEVMODE": "0"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == output
