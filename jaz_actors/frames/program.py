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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, TracebackType
from typing import Any


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
    tree = ast.parse(source, filename)
    flags = 0
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            flags |= _future_flags(statement, filename)
        else:
            body.append(statement)
    if body and isinstance(body[-1], ast.Expr):
        body[-1] = _displayed(body[-1])
    top = list(_own_nodes(body))
    for node in top:
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            raise SyntaxError("'yield' outside function", (filename, node.lineno, node.col_offset + 1, None))
        if isinstance(node, ast.Nonlocal):
            raise SyntaxError(
                "nonlocal declaration not allowed at module level",
                (filename, node.lineno, node.col_offset + 1, None),
            )
    raises = frozenset(
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
        for node in top
        if isinstance(node, ast.Raise) and node.exc is not None
    )
    is_async = any(_awaits(node) for node in top)
    names = sorted(set(_bound_names(top)))
    body = [_TopLevel().visit(statement) for statement in body]
    fell_off = os.urandom(16)
    function = _wrap([*body, ast.Return(ast.Constant(fell_off))], names, is_async=is_async)
    module = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
    outer = compile(module, filename, "exec", flags=flags, dont_inherit=True)
    code = next(constant for constant in outer.co_consts if inspect.iscode(constant))
    return Program(code.replace(co_name="<module>", co_qualname="<module>"), is_async, fell_off, raises)


def _future_flags(statement: ast.ImportFrom, filename: str) -> int:
    import __future__

    flags = 0
    for alias in statement.names:
        flag = getattr(getattr(__future__, alias.name, None), "compiler_flag", None)
        if flag is None:
            raise SyntaxError(f"future feature {alias.name} is not defined", (filename, statement.lineno, 1, None))
        flags |= flag
    return flags


def _displayed(statement: ast.Expr) -> ast.Expr:
    """The trailing expression goes through sys.displayhook, which prints it and keeps it as `_`."""
    hook = ast.parse("__import__('sys').displayhook(None)", mode="eval").body
    assert isinstance(hook, ast.Call)
    for node in ast.walk(hook):
        ast.copy_location(node, statement)
    hook.args = [statement.value]
    return ast.copy_location(ast.Expr(hook), statement)


def _wrap(body: list[ast.stmt], names: list[str], *, is_async: bool) -> ast.FunctionDef | ast.AsyncFunctionDef:
    # A leading string would become the function's docstring and an empty body is no function at all.
    statements: list[ast.stmt] = [ast.Pass(), *body]
    if names:
        statements.insert(0, ast.Global(names))
    template = ast.parse(f"{'async ' if is_async else ''}def f(): pass").body[0]
    assert isinstance(template, (ast.FunctionDef, ast.AsyncFunctionDef))
    template.body = statements
    return template


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node that runs in the program's own scope: not the bodies of functions, lambdas and classes."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += node.decorator_list
            pending += _defaults(node.args)
        elif isinstance(node, ast.Lambda):
            pending += _defaults(node.args)
        elif isinstance(node, ast.ClassDef):
            pending += node.decorator_list
            pending += node.bases
            pending += [keyword.value for keyword in node.keywords]
        else:
            pending += ast.iter_child_nodes(node)


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def _awaits(node: ast.AST) -> bool:
    if isinstance(node, ast.GeneratorExp):
        # An async generator expression is an object; only what it awaits eagerly (its first iterable) is ours.
        return False
    return isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (
        isinstance(node, ast.comprehension) and bool(node.is_async)
    )


def _bound_names(nodes: list[ast.AST]) -> Iterator[str]:
    comprehension_targets = {
        id(name)
        for node in nodes
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                # Comprehensions have a scope of their own, except for what `:=` binds.
                if id(node) not in comprehension_targets:
                    yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    if alias.name != "*":
                        yield alias.asname or alias.name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case _:
                type_alias = getattr(ast, "TypeAlias", None)
                if type_alias is not None and isinstance(node, type_alias):
                    yield node.name.id


class _TopLevel(ast.NodeTransformer):
    """Rewrites what is legal in a module but not in a function that declares its names global."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if all(alias.name != "*" for alias in node.names):
            return node
        text = f"from {'.' * node.level}{node.module or ''} import *"
        call = ast.parse(f"__import__('builtins').exec({text!r}, __import__('builtins').globals())").body[0]
        for child in ast.walk(call):
            ast.copy_location(child, node)
        return call
