"""Gives an ATIF document to the public readers that are installed beside it. Knows nothing of this project.

Run by `.ci/atif-consumers`, in an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def harbor(path: str, document: dict[str, Any]) -> None:
    from harbor.utils.trajectory_validator import TrajectoryValidator

    validator = TrajectoryValidator()
    assert validator.validate(path), validator.get_errors()


def atif(path: str, document: dict[str, Any]) -> None:
    from atif import Trajectory

    Trajectory.model_validate_json(Path(path).read_text("utf-8"))


def nat(path: str, document: dict[str, Any]) -> None:
    from nat.atif import Trajectory

    Trajectory.model_validate_json(Path(path).read_text("utf-8"))


def phoenix(path: str, document: dict[str, Any]) -> None:
    from phoenix.client.helpers.atif import _convert_atif_trajectories_to_spans as convert

    roots = [span for span in convert([document]) if not span.get("parent_id")]
    assert len(roots) == 1, f"{len(roots)} roots instead of one"


def otel(path: str, document: dict[str, Any]) -> None:
    from harbor_atif2otel.convert import convert_trajectory
    from harbor_atif2otel.validate import validate_trajectory

    assert not validate_trajectory(document)
    convert_trajectory(document)


def agentpile(path: str, document: dict[str, Any]) -> None:
    from agentpile import validate

    problems = validate(document)
    assert not problems, problems


def main(path: str) -> int:
    document = json.loads(Path(path).read_text("utf-8"))
    readers: list[Callable[[str, dict[str, Any]], None]] = [harbor, atif, nat, phoenix, otel, agentpile]
    refused = 0
    for reader in readers:
        try:
            reader(path, document)
            print(f"{reader.__name__}: taken")
        except Exception as error:
            refused += 1
            print(f"{reader.__name__}: REFUSED: {type(error).__name__}: {error}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
