"""A turn's code as the body of one function: its top-level names declared global, what only modules may do rewritten.

Pure: syntax trees in, syntax trees out. Who runs the function, or writes it to a file, gives it its name and globals.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopLevel:
    """What a turn's code comes to.

    body:      statements for a function whose `names` are global.
    is_async:  whether it awaits at top level.
    futures:   the names imported from `__future__`, each with its line; they are not in the body.
    raises:    positions of the top-level `raise X` statements.
    """

    body: list[ast.stmt]
    names: list[str]
    is_async: bool
    futures: tuple[tuple[str, int], ...]
    raises: frozenset[tuple[int | None, int | None, int | None, int | None]]


def parse_top_level(source: str, filename: str, *, display: str) -> TopLevel:
    """Raises SyntaxError, ValueError (null bytes) or RecursionError/MemoryError for what is no turn.

    display: an expression; it is called with the value of the last statement, when that is an expression.
    """
    tree = ast.parse(source, filename)
    futures: list[tuple[str, int]] = []
    body: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            futures += [(alias.name, statement.lineno) for alias in statement.names]
        else:
            body.append(statement)
    if body and isinstance(body[-1], ast.Expr):
        body[-1] = _displayed(body[-1], display)
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
    return TopLevel(body, names, is_async, tuple(futures), raises)


def _displayed(statement: ast.Expr, display: str) -> ast.Expr:
    """The trailing expression goes through the display hook."""
    call = ast.Call(ast.parse(display, mode="eval").body, [], [])
    for node in ast.walk(call):
        ast.copy_location(node, statement)
    call.args = [statement.value]
    return ast.copy_location(ast.Expr(call), statement)


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
