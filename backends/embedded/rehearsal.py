"""A bare stand-in for the runtime: replies run in one process and children are solved recursively. For measuring only.

It trusts the code, so run nothing in it but the tiny policy's. The real runtime isolates every invocation.
"""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from jaz_actors.backends.embedded.tasks import user_message

MAX_TURNS = 6
MAX_NODES = 64

Message = dict[str, str]
Complete = Callable[[list[Message]], Awaitable[str]]


class ReplyFailed(Exception):
    """The code of a reply raised, printed and returned in one turn, or the limit of turns or nodes was reached."""


@dataclass(frozen=True, slots=True)
class Solved:
    """depth: of the tree below and with this node."""

    value: Any
    depth: int


@dataclass(slots=True)
class Count:
    """Nodes of one tree. Shared by its invocations."""

    nodes: int = 0


async def solve(inputs: dict[str, Any], complete: Complete, count: Count | None = None) -> Solved:
    """Raises ReplyFailed."""
    count = count or Count()
    count.nodes += 1
    if count.nodes > MAX_NODES:
        raise ReplyFailed("too many nodes")
    below = [0]

    async def ainvoke(**child: Any) -> Any:
        solved = await solve(child, complete, count)
        below.append(solved.depth)
        return solved.value

    repl = Repl({**inputs, "ainvoke": ainvoke})
    messages: list[Message] = [{"role": "user", "content": user_message(inputs)}]
    for _ in range(MAX_TURNS):
        code = await complete(messages)
        turn = await repl.run(code)
        if turn.returned:
            if turn.printed:
                raise ReplyFailed("printed and returned in one turn")
            return Solved(turn.value, 1 + max(below))
        observation = turn.printed.rstrip("\n") or "(no output)"
        messages += [{"role": "assistant", "content": code}, {"role": "user", "content": observation}]
    raise ReplyFailed("too many turns")


@dataclass(frozen=True, slots=True)
class Turn:
    printed: str
    returned: bool
    value: Any


class Repl:
    """A namespace that outlives its turns; a top-level `return` ends one."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._printed: list[str] = []
        self._names: dict[str, Any] = {**variables, "print": self._print, "__unfinished__": _UNFINISHED}

    async def run(self, code: str) -> Turn:
        self._printed.clear()
        try:
            exec(compile(_as_function(code), "<reply>", "exec"), self._names)
            value = await self._names["__turn__"]()
        except ReplyFailed:
            raise
        except Exception as error:
            raise ReplyFailed(f"{type(error).__name__}: {error}") from error
        returned = value is not _UNFINISHED
        return Turn("".join(self._printed), returned, value if returned else None)

    def _print(self, *values: object) -> None:
        self._printed.append(" ".join(map(str, values)) + "\n")


class _Unfinished:
    pass


_UNFINISHED = _Unfinished()


def _as_function(code: str) -> ast.Module:
    """`async def __turn__()` of the code, with every name it binds global."""
    body = ast.parse(code).body
    names = sorted({name for node in body for name in _bound(node)})
    module = ast.parse("async def __turn__(): pass")
    function = module.body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    function.body = [ast.Global(names)] if names else []
    function.body += body
    function.body.append(ast.Return(ast.Name("__unfinished__", ast.Load())))
    return ast.fix_missing_locations(module)


def _bound(node: ast.AST) -> set[str]:
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id)
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in inner.names}
    return found
