"""Replies to code, results to observations, values to prompts. Pure."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.code_protocol import NO_OUTPUT, CodeProtocol, Rules
from jaz_actors.errors import ConfigurationError
from jaz_actors.events import InputInfo
from jaz_actors.outcomes import Continue
from jaz_actors.render import abbreviate, value_text

RULES = Rules(30.0, allow_raise=True, reject_finish_on_output=True, recursion=True)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("return 1", "return 1"),
        ("\n\nreturn 1\n", "return 1"),
        ("```python\nreturn 1\n```", "return 1"),
        ("```\nx = 1\nreturn x\n```\n", "x = 1\nreturn x"),
        ("  indented", "  indented"),
        ("", ""),
        # More than the block is not exactly one block: it runs as it stands and fails where all can see.
        ("Sure!\n```python\nreturn 1\n```", "Sure!\n```python\nreturn 1\n```"),
        ("```python\na\n```\n```python\nb\n```", "```python\na\n```\n```python\nb\n```"),
    ],
)
def test_a_reply_is_its_code(reply: str, code: str) -> None:
    assert CodeProtocol().parse(reply).code == code


@pytest.mark.parametrize(
    ("reply", "timeout"),
    [
        ("# timeout: 5\nx", 5.0),
        ("# a comment\n\n#timeout:0.5 # seconds\nx", 0.5),
        ("x = 1\n# timeout: 5", None),
        ("'# timeout: 5'", None),
        ("```python\n# timeout: 7\nx\n```", 7.0),
    ],
)
def test_the_pragma_counts_in_the_leading_comments_alone(reply: str, timeout: float | None) -> None:
    parsed = CodeProtocol().parse(reply)
    assert (parsed.timeout, parsed.error) == (timeout, "")


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "soon", "1e999"])
def test_an_impossible_timeout_runs_nothing(value: str) -> None:
    assert "nothing was run" in CodeProtocol().parse(f"# timeout: {value}\nx = 1").error


@given(st.text())
def test_parsing_never_raises(reply: str) -> None:
    parsed = CodeProtocol().parse(reply)
    assert parsed.timeout is None or 0 < parsed.timeout < math.inf


@given(st.text(max_size=300), st.integers(1, 200), st.floats(0, 1))
def test_abbreviation_keeps_head_and_tail_and_says_what_is_missing(text: str, limit: int, ratio: float) -> None:
    short = abbreviate(text, limit, ratio, "print(x[{start}:{end}])")
    if len(text) <= limit:
        assert short == text
        return
    head = int(limit * ratio)
    end = len(text) - (limit - head)
    assert short.startswith(text[:head])
    assert short.endswith(text[end:])
    assert f"print(x[{head}:{end}])" in short


def test_an_observation_is_the_output_then_the_error() -> None:
    protocol = CodeProtocol()
    assert protocol.observation(Continue("a\n"), 0) == "a"
    assert protocol.observation(Continue("a", "Error\n"), 0) == "a\nError"
    assert protocol.observation(Continue(""), 0) == NO_OUTPUT


def test_the_prompt_says_what_the_configuration_allows() -> None:
    protocol = CodeProtocol()

    def system(rules: Rules, *scope: InputInfo) -> str:
        return protocol.seed(rules, (), scope)[0].content

    full = system(RULES)
    assert "<agents>" in full
    assert "30 seconds" in full
    assert "raise SomeError" in full
    bare = system(Rules(None, allow_raise=False, reject_finish_on_output=False, recursion=False))
    assert "<agents>" not in bare
    assert "seconds" not in bare
    assert "raise SomeError" not in bare
    scoped = system(RULES, InputInfo("db", "Database", "a database"), InputInfo("hidden", "int", None))
    assert '<db type="Database">\na database\n</db>' in scoped
    assert "db, hidden" in scoped
    assert "<hidden" not in scoped


def test_values_are_shown_by_what_they_are() -> None:
    class Tool:
        """Does things."""

        def act(self, x: int) -> str:
            """Act on x."""
            return str(x)

        @property
        def size(self) -> int:
            """How big."""
            return 1

        def _hidden(self) -> None: ...

    def function(a: int, b: str = "x") -> bool:
        """Check a."""
        return bool(a and b)

    async def coroutine(a: int) -> None: ...

    tool = Tool()
    tool.level = 3  # type: ignore[attr-defined]
    assert value_text([1, 2]) == "[1, 2]"
    assert value_text(function) == "function(a: int, b: str = 'x') -> bool\n    Check a."
    assert value_text(coroutine).startswith("async coroutine(a: int)")
    text = value_text(tool)
    assert text.startswith("Does things.")
    assert "level = 3" in text
    assert "act(self, x: int) -> str" in text
    assert "How big." in text
    assert "_hidden" not in text
    assert value_text(Tool).startswith("class Tool")


@pytest.mark.parametrize(
    "bad",
    [
        {"max_input_characters": 0},
        {"max_output_characters": -1},
        {"head_ratio": 1.5},
        {"system_template": "{% if %}"},
        {"user_template": "{{ unclosed"},
    ],
)
def test_impossible_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        CodeProtocol(**bad)  # type: ignore[arg-type]
