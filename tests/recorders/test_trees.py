"""Any tree of agents, with any concurrency, edits and errors, is replayed to the same results and the same record."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaz_actors import ConfigOverride, Hook, Raised, Recorder, Scripted, TrajectoryReplay, configure, shutdown, start
from jaz_actors.effects import AddMessages, DropMessages, InsertCode, NewMessage
from jaz_actors.events import Event
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.atif import Trajectories
from jaz_actors.recorders.atif_check import validate
from jaz_actors.recorders.atif_files import join, split
from jaz_actors.recorders.runs import RecordedRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", autouse=True)
def _inline() -> Any:
    configure(runtime="inline")
    yield
    shutdown()


@dataclass(frozen=True)
class Node:
    """An agent: what each turn does before the last, how it ends, and whom it calls in one turn."""

    turns: tuple[str, ...]
    ends: str
    children: tuple[Node, ...] = ()
    together: bool = False


PIECES = [
    "x = 1",
    "print('out')",
    "1 / 0",
    "import sys\nprint('err', file=sys.stderr)",
    "",
    "def f(:",
    "await __import__('asyncio').sleep(0.001)",
]
ENDS = ["return 'done'", "raise ValueError('no')", "return got if 'got' in globals() else None"]

leaves = st.builds(Node, st.lists(st.sampled_from(PIECES), max_size=3).map(tuple), st.sampled_from(ENDS))
trees = st.recursive(
    leaves,
    lambda below: st.builds(
        Node,
        st.lists(st.sampled_from(PIECES), max_size=2).map(tuple),
        st.sampled_from(ENDS),
        st.lists(below, min_size=1, max_size=3).map(tuple),
        st.booleans(),
    ),
    max_leaves=6,
)


TOGETHER = """
import asyncio
got = await asyncio.gather(*CALLS, return_exceptions=True)
got = [str(g) for g in got]
"""
IN_TURN = """
got = []
for call in CALLS:
    try:
        got.append(await call)
    except ValueError as error:
        got.append(str(error))
"""


def replies(node: Node) -> list[str]:
    if not node.children:
        return [*node.turns, node.ends]
    calls = f"[ainvoke(n=n) for n in range({len(node.children)})]"
    code = (TOGETHER if node.together else IN_TURN).strip().replace("CALLS", calls)
    return [*node.turns, code, node.ends]


def scripts(node: Node, path: str = "") -> dict[str, list[str]]:
    found = {path: replies(node)}
    for number, child in enumerate(node.children):
        found |= scripts(child, f"{path}.{number}")
    return found


class Edits(Hook):
    """Edits that depend on nothing but the invocation and the turn, so that a replay makes the same."""

    def on_llm_query_enter(self, event: Any) -> Any:
        draw = random.Random(f"{event.invoke_id.partition('.')[2]} {event.iteration}")
        edits: list[Any] = []
        if draw.random() < 0.4:
            edits.append(AddMessages((NewMessage("user", f"note {draw.random()}"),), persistent=draw.random() < 0.5))
        if draw.random() < 0.4 and len(event.messages) > 3:
            edits.append(DropMessages((2,), persistent=draw.random() < 0.5))
        return edits

    def on_repl_exec_enter(self, event: Any) -> Any:
        return InsertCode("# edited\n") if event.iteration % 2 else None


def normalised(run: RecordedRun) -> dict[str, bytes]:
    """Each invocation's events as bytes, without times, the run and the root that they are of, and who answered."""

    def plain(event: Event) -> Event:
        own = event.invoke_id.partition(".")[2]
        fields: dict[str, Any] = {"timestamp": 0.0, "invoke_id": own}
        if getattr(event, "parent_id", None):
            fields["parent_id"] = event.parent_id.partition(".")[2]  # type: ignore[attr-defined]
        if hasattr(event, "hooks"):
            fields["hooks"] = ()
        if hasattr(event, "supplied"):
            fields["supplied"] = False
        return msgspec.structs.replace(event, **fields)

    return {
        path.partition(".")[2]: msgspec.msgpack.encode([plain(event) for event in invocation.events])
        for path, invocation in run.invocations().items()
    }


_keys = itertools.count()


async def run(backend: Scripted, *hooks: Hook) -> tuple[str, Any]:
    key = f"tree{next(_keys)}"
    with ConfigOverride(backend=backend):
        for hook in hooks:
            hook.__enter__()
        try:
            outcome = await (await start(key=key)).outcome()
        finally:
            for hook in reversed(hooks):
                hook.__exit__(None, None, None)
    return key, str(outcome.error) if isinstance(outcome, Raised) else outcome.result()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees, st.booleans())
def test_any_tree_replays_to_the_same_result_and_the_same_record(tree: Node, edits: bool) -> None:
    by_path = scripts(tree)

    def answer(request: CompletionRequest) -> str:
        _, dot, below = request.invoke_id.path.partition(".")
        return by_path[f"{dot}{below}"][request.iteration]

    def nobody(request: CompletionRequest) -> str:
        raise AssertionError("the model was asked")

    with tempfile.TemporaryDirectory() as name:
        then, now = Path(name, "then"), Path(name, "now")
        extra = [Edits()] if edits else []
        backend = Scripted(answer, delay=lambda request: random.random() * 0.005)
        key, expected = asyncio.run(run(backend, *extra, Recorder(then)))
        recorded = RecordedRun(then)
        for version in recorded.versions:
            version.invoke_id = version.invoke_id.replace(key, f"tree{int(key[4:]) + 1}")
        replay = TrajectoryReplay(recorded)
        _, got = asyncio.run(run(Scripted(nobody), *extra, Recorder(now), replay))
        assert got == expected
        assert replay.report.live == 0
        assert replay.report.divergences == []
        assert normalised(RecordedRun(now)) == normalised(RecordedRun(then))
        trajectories = Trajectories()
        for event in RecordedRun(then).events():
            trajectories.add(event)
        (document,) = trajectories.documents()
        assert validate(document) == []
        assert join(split(document)) == document
