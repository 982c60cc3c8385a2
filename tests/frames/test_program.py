"""How one turn's code ends, and what it leaves in the namespace."""

from __future__ import annotations

import asyncio
import builtins
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.frames.program import compile_program


def run(source: str, namespace: dict[str, Any] | None = None) -> tuple[str, Any, dict[str, Any]]:
    """`returned`, `fell off`, `raised` (by a top-level raise) or `error`, with the value and the namespace."""
    ns: dict[str, Any] = {"__builtins__": builtins} if namespace is None else namespace
    program = compile_program(source, "<repl_0>")
    try:
        value = program.bind(ns)()
        if program.is_async:
            value = asyncio.run(value)
    except BaseException as error:
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code is not program.code:
            step = step.tb_next
        return ("raised" if program.raised_at_top_level(step) else "error"), error, ns
    return ("fell off" if value == program.fell_off else "returned"), value, ns


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("return 5", 5),
        ("return", None),
        ("if True:\n    return 1", 1),
        ("for i in range(9):\n    if i == 3:\n        return i", 3),
        ("while True:\n    return 2", 2),
        ("try:\n    return 1\nexcept BaseException:\n    pass", 1),
        ("try:\n    return 1\nexcept:\n    pass\nfinally:\n    x = 2", 1),
        ("with open('/dev/null') as f:\n    return 3", 3),
        ("match [1, 2]:\n    case [a, *rest]:\n        return rest", [2]),
        ("import asyncio\nawait asyncio.sleep(0)\nreturn 4", 4),
        ("async def f():\n    return 6\nreturn await f()", 6),
        ("from math import *\nreturn floor(2.5)", 2),
        ("x: int = 7\nreturn x", 7),
        ("from __future__ import annotations\ny: Undefined = 8\nreturn y", 8),
        ("[(last := i) for i in range(3)]\nreturn last", 2),
        ("x = 1\ndef f():\n    global x\n    x += 1\nf()\nreturn x", 2),
        ("import os.path as p, sys\nreturn p.join('a', 'b')", "a/b"),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nreturn f(5)", 120),
        ("class A:\n    y = 3\n    def get(self):\n        return self.y\nreturn A().get()", 3),
        ("async def gen():\n    yield 1\n    yield 2\nreturn [i async for i in gen()]", [1, 2]),
        ("global z\nz = 4\nreturn z", 4),
        ("exec('q = 9', globals())\nreturn q", 9),
    ],
)
def test_a_top_level_return_ends_with_its_value(source: str, expected: object) -> None:
    how, value, _ = run(source)
    assert (how, value) == ("returned", expected)


@pytest.mark.parametrize("source", ["x = 1", "", "# only a comment", "'a string'", "def f():\n    return 1", "None"])
def test_code_without_a_top_level_return_falls_off_its_end(source: str) -> None:
    assert run(source)[0] == "fell off"


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError('x')",
        "raise ValueError('x') from KeyError('y')",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x')",
        "try:\n    raise ValueError('x')\nfinally:\n    done = 1",
        "import asyncio\nawait asyncio.sleep(0)\nraise ValueError('x')",
        "for i in [1]:\n    raise ValueError('x')",
    ],
)
def test_a_top_level_raise_is_told_from_other_errors(source: str) -> None:
    how, error, _ = run(source)
    assert how == "raised"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    "source",
    [
        "1 / 0",
        "assert False",
        "def f():\n    raise ValueError\nf()",
        "(lambda: [][0])()",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise",
        "async def f():\n    raise ValueError\nawait f()",
        "class A:\n    raise ValueError",
        "undefined_name",
        "raise",
    ],
)
def test_incidental_errors_do_not_count_as_raise(source: str) -> None:
    assert run(source)[0] == "error"


@pytest.mark.parametrize("source", ["yield 1", "def f(:", "nonlocal x", "return = 3", "x = (yield)", "break"])
def test_code_that_is_no_program_is_a_syntax_error(source: str) -> None:
    with pytest.raises(SyntaxError):
        compile_program(source, "<repl_0>")


def test_names_stay_from_turn_to_turn_and_deletion_holds() -> None:
    _, _, ns = run("a = 1\nb, (c, *d) = 2, (3, 4)\nimport json as j\ndel a")
    assert "a" not in ns
    assert (ns["b"], ns["c"], ns["d"]) == (2, 3, [4])
    assert run("return b + c", ns)[1] == 5


def test_closures_and_comprehensions_see_top_level_names() -> None:
    assert run("k = 3\nreturn [k * j for j in range(2)], (lambda: k)(), {i for i in (k,)}")[1] == ([0, 3], 3, {3})


def test_nothing_but_the_codes_own_names_enters_the_namespace() -> None:
    _, _, ns = run("a = 1\nfor b in range(2): pass\nwith open('/dev/null') as c: pass")
    assert set(ns) == {"__builtins__", "a", "b", "c"}


_NAMES = st.sampled_from(["a", "b", "c"])
_VALUES = st.integers(-5, 5)


@st.composite
def _programs(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        name, other, value = draw(_NAMES), draw(_NAMES), draw(_VALUES)
        lines.append(
            draw(
                st.sampled_from(
                    [
                        f"{name} = {value}",
                        f"{name} = locals_get('{other}') + {value}",
                        f"for {name} in range({abs(value)}):\n    pass",
                        f"if {value} > 0:\n    {name} = {value}\nelse:\n    {other} = {value}",
                        f"{name} = [i * {value} for i in range(3)][-1]",
                        f"def f_{name}():\n    return {value}\n{name} = f_{name}()",
                        f"try:\n    {name} = 1 // {value}\nexcept ZeroDivisionError:\n    {name} = 0",
                    ]
                )
            )
        )
    return "\n".join(lines)


@given(_programs())
def test_a_program_without_return_leaves_what_plain_exec_leaves(source: str) -> None:
    def namespace() -> dict[str, Any]:
        ns: dict[str, Any] = {"__builtins__": builtins}
        ns["locals_get"] = lambda name: ns.get(name, 0) if not callable(ns.get(name)) else 0
        return ns

    def plain(ns: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in ns.items() if not callable(v) and k != "__builtins__"}

    expected = namespace()
    exec(source, expected)
    got = namespace()
    assert run(source, got)[0] == "fell off"
    assert plain(got) == plain(expected)
