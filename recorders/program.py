"""A recorded root as a Python package that runs by itself: the committed code of every invocation, called by path.

    workflow.py   one function an invocation, named by its path, with its turns in order
    recorded.py   inputs and results by value; `data/` has the pickles of those that are no literals
    _frame.py     what stands in for the runtime (`jaz_actors.recorders.program_frame`)

`python -m PACKAGE` prints the root's result on stdout; what agents print goes to stderr. No model is asked, and nothing
of jaz_actors is imported, unless a pickle or an agent's own code does. What a hook supplied in place of an execution is
not told apart from what the code did: then the code is run. `from __future__` in one turn holds for the whole module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from jaz_actors.events import Event
from jaz_actors.ids import InvokeId
from jaz_actors.recorders.program_text import Invocation, function_text, lost_children
from jaz_actors.recorders.program_values import ValueStore

_INDENT = "    "
_WARNING = """\
WARNING: the values in `data/` are pickles, as they were recorded. Loading a pickle runs code of whoever made it: run
this package only if you trust those who gave the inputs.
"""
_MAIN = '''\
"""Runs the workflow: prints the root's result; what agents print goes to stderr."""

import contextlib
import sys

from .workflow import run

with contextlib.redirect_stdout(sys.stderr):
    result = run()
print(result)
'''


class Workflow:
    """The fold of one root and all below it.

    root:  its invoke id; None is the first root that there is an event of.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = None if root is None else InvokeId.parse(root)
        self._invocations: dict[str, Invocation] = {}

    def add(self, event: Event) -> None:
        invoke_id = InvokeId.parse(event.invoke_id)
        if self._root is None:
            self._root = invoke_id.root
        if invoke_id.root == self._root:
            self._invocations.setdefault(invoke_id.path, Invocation(invoke_id.path)).add(event)

    def files(self) -> dict[str, bytes]:
        """The package, by the names of its files."""
        if self._root is None:
            return {}
        invocations = sorted(self._invocations.values(), key=lambda invocation: _order(invocation.path))
        _name_functions(invocations)
        store = ValueStore()
        recorded = _recorded_module(invocations, self._invocations, store)
        warning = f"\n\n{_WARNING}" if store.files else ""
        texts = {
            "__init__.py": f'"""A workflow of recorded agents: `python -m` this package runs it.{warning}"""\n',
            "__main__.py": _MAIN,
            "_frame.py": files("jaz_actors.recorders").joinpath("program_frame.py").read_text(encoding="utf-8"),
            "recorded.py": f'"""Values of the recording.{warning}"""\n\n{recorded}',
            "workflow.py": _workflow_module(self._root, invocations),
        }
        encoded = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
        return {**encoded, **store.files}

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write the package into `folder`, whose name is then the package's; each file appears whole."""
        for name, content in self.files().items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(content)
            part.replace(path)


def write_workflow(folder: str | os.PathLike[str], events: Iterable[Event], *, root: str | None = None) -> None:
    workflow = Workflow(root)
    for event in events:
        workflow.add(event)
    workflow.write(folder)


def _order(path: str) -> list[tuple[bool, int, str]]:
    """Parents first, ordinals as numbers, then keys."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in path.split(".")]


def _name_functions(invocations: list[Invocation]) -> None:
    """`invocation_0_2_1`; paths that come to the same name are told apart by a number."""
    taken: set[str] = set()
    for invocation in invocations:
        base = name = f"invocation_{re.sub('[^A-Za-z0-9]', '_', invocation.path)}"
        number = 1
        while name in taken:
            number += 1
            name = f"{base}__{number}"
        taken.add(name)
        invocation.function = name


def _recorded_module(invocations: list[Invocation], by_path: dict[str, Invocation], store: ValueStore) -> str:
    tables: dict[str, list[str]] = {"INPUTS": [], "SCOPE": [], "RESULTS": [], "DROPPED": []}
    for invocation in invocations:
        path = repr(invocation.path)
        inputs = {item.name: item.payload for item in invocation.inputs}
        dropped = sorted(invocation.given - inputs.keys())
        above = by_path.get(invocation.path.rpartition(".")[0])
        if above is not None:  # its code gives what the child got; hooks may have added to that
            inputs = {name: payload for name, payload in inputs.items() if name not in invocation.given}
        known = set() if above is None else {item.name for item in above.scope}
        scope = {item.name: item.payload for item in invocation.scope if item.name not in known}
        for table, values in (("INPUTS", inputs), ("SCOPE", scope)):
            if values:
                tables[table].append(f"    {path}: {store.mapping(values, _INDENT)},\n")
        if dropped:
            tables["DROPPED"].append(f"    {path}: {tuple(dropped)!r},\n")
        result = invocation.own_result
        if result is not None:
            tables["RESULTS"].append(f"    {path}: {store.expression(result)},\n")
    text = "".join(
        f"{name} = {{\n{''.join(lines)}}}\n" if lines else f"{name} = {{}}\n" for name, lines in tables.items()
    )
    used = [name for name in ("Missing", "Pickled") if f"{name}(" in text]
    return (f"from ._frame import {', '.join(used)}\n\n" if used else "") + text


def _workflow_module(root: InvokeId, invocations: list[Invocation]) -> str:
    futures: set[str] = set()
    functions = [
        function_text(invocation, lost_children(invocation, invocations), futures) for invocation in invocations
    ]
    table = "".join(f"{_INDENT}{one.path!r}: _recorded({one.path!r}, {one.function}),\n" for one in invocations)
    return "".join(
        [
            f'"""Run {root.run}, root {root.path}: a function for each invocation, by its path."""\n\n',
            f"from __future__ import {', '.join(sorted(futures))}\n\n" if futures else "",
            "from ._frame import RECOVERABLE, Recorded, Workflow\n",
            "from .recorded import DROPPED, INPUTS, RESULTS, SCOPE\n\n\n",
            "\n\n".join(functions),
            "\n\ndef _recorded(path, function):\n",
            f"{_INDENT}inputs, scope = INPUTS.get(path, {{}}), SCOPE.get(path, {{}})\n",
            f"{_INDENT}return Recorded(function, inputs, scope, DROPPED.get(path, ()), RESULTS.get(path))\n\n\n",
            f"RECORDED = {{\n{table}}}\n\n\n",
            f"def run():\n{_INDENT}return Workflow(RECORDED).run({root.path!r})\n",
        ]
    )
