"""Compile one turn's code so that top-level `return`, `raise` and `await` mean what the protocol says.

The turn becomes the body of one function whose top-level names are declared global: `return` inside `try`, `with`,
`for` or `match` is then Python's own, `finally` blocks run, and nothing is added to the user's namespace. A top-level
`raise X` is recognised afterwards from the position in the traceback, so it cannot be forged or swallowed by a rewrite.
Knows nothing of frames, hosts or output.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType, TracebackType
from typing import Any

from jaz_actors.toplevel import parse_top_level


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled turn.

    raises:    positions of the top-level `raise X` statements.
    fell_off:  what the function gives when the code ends without a `return`: random, so no code can mean it.
    """

    code: CodeType
    is_async: bool
    fell_off: bytes
    raises: frozenset[tuple[int | None, int | None, int | None, int | None]]

    def bind(self, namespace: dict[str, Any]) -> Callable[[], Any]:
        return FunctionType(self.code, namespace, "<module>")

    def raised_at_top_level(self, traceback: TracebackType | None) -> bool:
        """Whether the exception with this traceback (starting at this program's own frame) came from `raise X`."""
        if traceback is None or traceback.tb_frame.f_code is not self.code:
            return False
        positions = list(self.code.co_positions())
        start, end, column, end_column = positions[traceback.tb_lasti // 2]
        return (start, end, column, end_column) in self.raises


def compile_program(source: str, filename: str) -> Program:
    """Raises SyntaxError, ValueError (null bytes) or RecursionError/MemoryError for what does not compile."""
    parts = parse_top_level(source, filename, display="__import__('sys').displayhook")
    flags = 0
    for name, line in parts.futures:
        flags |= _future_flag(name, line, filename)
    fell_off = os.urandom(16)
    function = _wrap([*parts.body, ast.Return(ast.Constant(fell_off))], parts.names, is_async=parts.is_async)
    module = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
    outer = compile(module, filename, "exec", flags=flags, dont_inherit=True)
    code = next(constant for constant in outer.co_consts if inspect.iscode(constant))
    return Program(code.replace(co_name="<module>", co_qualname="<module>"), parts.is_async, fell_off, parts.raises)


def _future_flag(name: str, line: int, filename: str) -> int:
    import __future__

    flag = getattr(getattr(__future__, name, None), "compiler_flag", None)
    if flag is None:
        raise SyntaxError(f"future feature {name} is not defined", (filename, line, 1, None))
    return int(flag)


def _wrap(body: list[ast.stmt], names: list[str], *, is_async: bool) -> ast.FunctionDef | ast.AsyncFunctionDef:
    # A leading string would become the function's docstring and an empty body is no function at all.
    statements: list[ast.stmt] = [ast.Pass(), *body]
    if names:
        statements.insert(0, ast.Global(names))
    template = ast.parse(f"{'async ' if is_async else ''}def f(): pass").body[0]
    assert isinstance(template, (ast.FunctionDef, ast.AsyncFunctionDef))
    template.body = statements
    return template
