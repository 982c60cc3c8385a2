"""A recorded turn as the source text of a function that does the same. Pure; runs nothing.

Comments and layout stay where the code can stand in a function as it is; what only a module may do is written anew.
"""

from __future__ import annotations
import __future__

import ast
import io
import re
import tokenize
from collections.abc import Collection
from dataclasses import dataclass

from jaz_actors.toplevel import TopLevel, parse_top_level

SHOW = "__show__"
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class TurnSource:
    """text: the definition of the function, not indented. futures: what the module must import from `__future__`."""

    text: str
    futures: frozenset[str]


def turn_source(code: str, name: str, *, taken: Collection[str]) -> TurnSource | None:
    """None for code that does not compile. `taken` are names around the function that its code must not see."""
    code = re.sub(r"\r\n?", "\n", code)
    try:
        parts = parse_top_level(code, "<turn>", display=SHOW)
        futures = frozenset(future for future, _ in parts.futures)
        if not futures <= set(__future__.all_feature_names):
            return None
        head = _head(parts, name, taken)
        text = _placed(_shown(code, parts), parts, head) or _placed(_anew(parts), parts, head)
        if text is not None:
            compile(text, "<turn>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return None if text is None else TurnSource(text, futures)


def commented(text: str) -> str:
    """The text as comment lines."""
    lines = text.replace("\0", "\\0").replace("\r", "\n").split("\n")
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def _head(parts: TopLevel, name: str, taken: Collection[str]) -> str:
    used = {node.id for statement in parts.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    names = sorted({*parts.names, *(used & set(taken))})
    declared = f"{_INDENT}global {', '.join(names)}\n" if names else ""
    return f"{'async ' if parts.is_async else ''}def {name}():\n{declared}"


def _anew(parts: TopLevel) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(parts.body, [])))


def _placed(text: str, parts: TopLevel, head: str) -> str | None:
    """The text, indented, below the head; None unless it then reads as the very same statements."""
    try:
        function = head + indented(text) + ("" if parts.body else f"{_INDENT}pass\n")
        again = ast.parse(function).body[0]
    except (SyntaxError, ValueError, tokenize.TokenError):
        return None
    assert isinstance(again, (ast.FunctionDef, ast.AsyncFunctionDef))
    body = again.body[1:] if isinstance(again.body[0], ast.Global) else again.body
    wanted = parts.body or [ast.Pass()]
    return function if [ast.dump(node) for node in body] == [ast.dump(node) for node in wanted] else None


def indented(text: str) -> str:
    """Every line moved to the right, but for those that begin inside a string."""
    inside: set[int] = set()
    openings: list[int] = []  # of f-strings, which are several tokens from Python 3.12 on
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind.endswith("STRING_START"):
            openings.append(token.start[0])
        elif kind.endswith("STRING_END"):
            inside.update(range(openings.pop() + 1, token.end[0] + 1))
    lines = text.split("\n")
    moved = [line if not line or number in inside else _INDENT + line for number, line in enumerate(lines, start=1)]
    return "\n".join(moved).rstrip("\n") + "\n"


def _shown(code: str, parts: TopLevel) -> str:
    """The code with its trailing expression given to the display hook."""
    last = parts.body[-1] if parts.body else None
    match last:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[value])) if name == SHOW:
            lines = [line.encode() for line in code.split("\n")]
            assert last.end_lineno is not None
            row, end = last.lineno - 1, last.end_lineno - 1
            more = isinstance(value, ast.Tuple)
            lines[end] = _inserted(lines[end], last.end_col_offset or 0, b"))" if more else b")")
            lines[row] = _inserted(lines[row], last.col_offset, f"{SHOW}({'(' if more else ''}".encode())
            return b"\n".join(lines).decode()
        case _:
            return code


def _inserted(line: bytes, at: int, text: bytes) -> bytes:
    return line[:at] + text + line[at:]
