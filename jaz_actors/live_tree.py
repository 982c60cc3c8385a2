"""The tree of running invocations, live on a terminal. An observer: it never delays what it shows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from jaz_actors import events
from jaz_actors.hooks.base import Hook
from jaz_actors.ids import InvokeId

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SHOWN_ROOTS = 12
_MARKS = {"completed": "[green]✓[/]", "raised": "[yellow]![/]", "aborted": "[yellow]∎[/]", "failed": "[red]✗[/]"}


@dataclass(slots=True)
class _Node:
    path: str
    label: str = ""
    state: str = "starting"
    turn: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


class LiveTree(Hook):
    """`with LiveTree(): ...` draws every tree started inside, on stderr by default, if that is a terminal.

    The lock protects the tree: events come in on the runtime's hook thread, drawing happens on the display's.
    """

    placement = "observer"
    on_error = "ignore"

    def __init__(self, *, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._lock = threading.Lock()
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[str, _Node] = {}
        self._counts: Counter[str] = Counter()
        self._turns = self._tokens = 0
        self._started = time.monotonic()
        console = console or Console(stderr=True)
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=5, transient=True)
        self._shown = console.is_terminal

    def on_invoke_enter(self, event: events.InvokeEnter) -> None:
        path = InvokeId.parse(event.invoke_id).path
        parent, _, _ = path.rpartition(".")
        with self._lock:
            node = self._nodes[path] = _Node(path, ", ".join(item.name for item in event.inputs))
            above = self._nodes.get(parent)
            (self._roots if above is None else above.children)[path] = node
            self._counts["running"] += 1

    def on_llm_query_exit(self, event: events.LLMQueryExit) -> None:
        with self._lock:
            self._turns += 1
            if event.completion is not None:
                self._tokens += event.completion.usage.completion_tokens or 0
            node = self._nodes.get(InvokeId.parse(event.invoke_id).path)
            if node is not None:
                node.turn = event.iteration
                node.state = "executing"

    def on_invoke_exit(self, event: events.InvokeExit) -> None:
        path = InvokeId.parse(event.invoke_id).path
        status = str(event.outcome.__struct_config__.tag)
        with self._lock:
            self._counts["running"] -= 1
            self._counts[status] += 1
            node = self._nodes.get(path)
            if node is not None:
                node.state = status
            if path in self._roots:  # a finished tree leaves the display and the memory
                self._forget(self._roots.pop(path))

    def _forget(self, node: _Node) -> None:
        self._nodes.pop(node.path, None)
        for child in node.children.values():
            self._forget(child)

    def _draw(self) -> RenderableType:
        from rich.tree import Tree

        with self._lock:
            seconds = max(1e-9, time.monotonic() - self._started)
            counts = ", ".join(f"{n} {name}" for name, n in self._counts.items() if n)
            rates = f"{self._turns / seconds:.0f} turns/s, {self._tokens / seconds:.0f} tokens/s"
            tree = Tree(f"[bold]{counts or 'starting'}[/]  {rates}")
            for node in list(self._roots.values())[:SHOWN_ROOTS]:
                _add(tree, node)
            if len(self._roots) > SHOWN_ROOTS:
                tree.add(f"… and {len(self._roots) - SHOWN_ROOTS} more")
            return tree

    def __enter__(self) -> Self:
        super().__enter__()
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._shown:
            self._live.stop()
        super().__exit__(kind, error, traceback)


def _add(tree: object, node: _Node) -> None:
    from rich.tree import Tree

    assert isinstance(tree, Tree)
    branch = tree.add(f"{_MARKS.get(node.state, '·')} {node.path}  turn {node.turn}  {node.state}")
    for child in node.children.values():
        _add(branch, child)
