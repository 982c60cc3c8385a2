"""Templates become text and inputs. The type exists on Python 3.14 alone, so its shape stands for it here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from jaz_actors import errors, templates


@dataclass
class Interpolation:
    value: object
    expression: str


class Shape:
    """Iterates as a template does: texts, and interpolations with value and expression."""

    def __init__(self, *parts: str | Interpolation) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[str | Interpolation]:
        return iter(self._parts)


@pytest.fixture(autouse=True)
def _standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "Template", Shape)


def test_names_are_quoted_and_bound_and_other_expressions_numbered() -> None:
    report, other = [1], [2]
    task = Shape("Sum ", Interpolation(report, "report"), " and ", Interpolation(other, "x[0]"), " and ",
                 Interpolation(other, "x[0]"), ".")  # fmt: skip
    assert templates.lowered({"task": task, "n": 3}) == {
        "task": "Sum `report` and `_arg0` and `_arg0`.",
        "n": 3,
        "report": report,
        "_arg0": other,
    }


def test_one_name_is_one_object() -> None:
    report = [1]
    assert templates.lowered({"task": Shape(Interpolation(report, "report")), "report": report})["report"] is report
    with pytest.raises(errors.InputRefused, match="report"):
        templates.lowered({"task": Shape(Interpolation(report, "report")), "report": [1]})
    with pytest.raises(errors.InputRefused, match="it is a template"):
        templates.lowered({"task": Shape("x"), "other": Shape(Interpolation(1, "task"))})


def test_inputs_without_templates_are_themselves() -> None:
    inputs = {"task": "plain"}
    assert templates.lowered(inputs) is inputs
