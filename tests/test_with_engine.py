"""Agents on real sampled tokens: the tiny policy behind the embedded engine, over real HTTP."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from jaz_actors import ConfigOverride, IterationLimit, RecursionLimit, SGLang, ainvoke, amap, start, statistics
from jaz_actors.backends.embedded.launch import EmbeddedEngine
from jaz_actors.backends.embedded.tasks import KINDS, generate
from jaz_actors.backends.sglang import Sampling
from jaz_actors.events import LLMQueryExit

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine() as running:
        yield running


def policy(engine: EmbeddedEngine, **sampling: Any) -> ConfigOverride:
    return ConfigOverride(backend=SGLang(engine.url, sampling=Sampling(**{"max_new_tokens": 256, **sampling})))


async def test_the_policy_solves_its_tasks_recursive_ones_included(engine: EmbeddedEngine) -> None:
    tasks = generate(11, 3 * len(KINDS))
    with policy(engine, temperature=0.0), RecursionLimit(4):
        outcomes = [o async for o in amap([task.inputs for task in tasks], IterationLimit(6), progress=False)]
    assert len(outcomes) == len(tasks)
    right = sum(
        o.status == "completed" and o.result() == tasks[o.index].answer for o in outcomes if o.index is not None
    )
    assert right >= 0.8 * len(tasks)


async def test_every_completion_carries_its_tokens(engine: EmbeddedEngine) -> None:
    task = generate(3, 1, ["split_sum"])[0]
    with policy(engine, temperature=0.0):
        invocation = await start(IterationLimit(6), **task.inputs)
        queries = [event async for event in invocation if isinstance(event, LLMQueryExit)]
    assert queries
    for query in queries:
        assert query.completion is not None
        tokens, usage = query.completion.tokens, query.completion.usage
        assert tokens is not None
        assert len(tokens.output_ids) == len(tokens.logprobs) == usage.completion_tokens
        assert len(tokens.prompt_ids) == usage.prompt_tokens
        assert tokens.version_at_return is not None


async def test_cancelling_a_tree_ends_its_requests_at_the_server(engine: EmbeddedEngine) -> None:
    task = generate(3, 1, ["largest"])[0]

    async def state() -> dict[str, int]:
        async with httpx.AsyncClient(base_url=engine.url) as client:
            counters: dict[str, int] = (await client.get("/server_info")).json()["internal_states"][0]
            return counters

    # Hot sampling hardly ever draws the end token, so the requests run until they are ended.
    with policy(engine, temperature=50.0, max_new_tokens=900):
        tasks = [asyncio.ensure_future(ainvoke(**task.inputs)) for _ in range(4)]
        await _until(state, lambda counters: counters["running"] >= 2)
        before = await state()
        for running in tasks:
            running.cancel()
        at = time.monotonic()
        await asyncio.gather(*tasks, return_exceptions=True)
        after = await _until(state, lambda counters: counters["running"] + counters["waiting"] == 0)
    assert time.monotonic() - at < 3
    assert after["disconnected"] + after["aborted"] > before["disconnected"] + before["aborted"]
    while sum(host.live + host.frames for host in await statistics()):
        assert time.monotonic() - at < 3
        await asyncio.sleep(0.02)


async def _until(read: Callable[[], Any], condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(30):
        while not condition(value := await read()):
            await asyncio.sleep(0.02)
    return value


_FAN_OUT = """
import asyncio
from jaz_actors import Scripted, amap, configure
from jaz_actors.live_tree import LiveTree
configure(backend=Scripted(["import time; time.sleep(0.8)", "return i"]), runtime="inline")
async def main():
    async for outcome in amap([{"i": i} for i in range(4)], limit=2): pass
    with LiveTree():
        async for outcome in amap([{"i": i} for i in range(4)], progress=False): pass
asyncio.run(main())
"""


async def test_progress_is_shown_on_a_terminal_and_only_there() -> None:
    quiet = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _FAN_OUT], capture_output=True, timeout=60, check=True
    )
    assert quiet.stdout == b""
    assert quiet.stderr == b""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    program = subprocess.Popen([sys.executable, "-c", _FAN_OUT], stderr=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    shown = await asyncio.to_thread(_read_all, ours)
    assert program.wait() == 0
    assert "4 completed" in shown
    assert "turns/s" in shown
    assert "turn 0" in shown


def _read_all(fd: int) -> str:
    data = b""
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # the other end is closed
            chunk = b""
        if not chunk:
            os.close(fd)
            return data.decode(errors="replace")
        data += chunk
