"""The main job, end to end on this machine: a fan-out of recursive agents on the embedded engine's tiny policy."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jaz_actors.backends.embedded.launch import EmbeddedEngine
from jaz_actors.backends.embedded.tasks import Task, generate
from jaz_actors.backends.sglang import Sampling, SGLang
from jaz_actors.config import configure
from jaz_actors.frontdoor import amap, statistics
from jaz_actors.hooks.limits import IterationLimit, RecursionLimit
from jaz_actors.live_tree import LiveTree
from jaz_actors.results import Completed, Outcome
from jaz_actors.runtime import current_run, shutdown

MAX_TURNS = 6
MAX_DEPTH = 4
DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    tasks: int = 64
    seed: int = 1
    temperature: float = 0.7
    runtime: str = "ray"
    json: bool = False


class Peak:
    """Samples processes and private memory of everything below this process, on a thread of its own."""

    def __init__(self) -> None:
        self.processes = 0
        self.private_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="jaz-peak", daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.2):
            private = count = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    memory = process.memory_info()
                except psutil.Error:
                    continue
                count += 1
                private += max(0, memory.rss - memory.shared)
            self.processes = max(self.processes, count)
            self.private_bytes = max(self.private_bytes, private)


def run_demo(options: DemoOptions) -> int:
    """0 when every invocation ended without an infrastructure failure and nothing was left behind."""
    started = time.monotonic()
    tasks = generate(options.seed, options.tasks)
    with Peak() as peak, EmbeddedEngine() as engine:
        backend = SGLang(
            engine.url, sampling=Sampling(temperature=options.temperature, max_new_tokens=256), model="tiny-policy"
        )
        configure(backend=backend, runtime=options.runtime)
        current_run()
        ready = time.monotonic() - started
        try:
            outcomes, totals, seconds = asyncio.run(_fan_out(tasks))
        finally:
            shutdown()
    left = _left_behind(totals["hosts"])
    report = _report(tasks, outcomes, totals, seconds) | {
        "peak_processes": peak.processes,
        "peak_private_mib": round(peak.private_bytes / 2**20),
        "left_behind": left,
        "start_seconds": round(ready, 1),
        "total_seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report, indent=2)) if options.json else _print(tasks, outcomes, report)
    accounted = sum(report["outcomes"].values()) == options.tasks
    return 0 if accounted and not report["outcomes"].get("failed") and not left else 1


async def _fan_out(tasks: list[Task]) -> tuple[list[Outcome], dict[str, Any], float]:
    outcomes: dict[int, Outcome] = {}
    started = time.monotonic()
    with RecursionLimit(MAX_DEPTH), LiveTree():
        async for outcome in amap([task.inputs for task in tasks], IterationLimit(MAX_TURNS), progress=False):
            assert outcome.index is not None
            outcomes[outcome.index] = outcome
    seconds = time.monotonic() - started
    hosts = await statistics()
    totals = {
        "turns": sum(host.turns for host in hosts),
        "tokens": sum(host.completion_tokens for host in hosts),
        "invocations": sum(sum(host.outcomes.values()) for host in hosts),
        "hosts": [host.pid for host in hosts],
    }
    return [outcomes[index] for index in range(len(tasks))], totals, seconds


def _report(tasks: list[Task], outcomes: list[Outcome], totals: dict[str, Any], seconds: float) -> dict[str, Any]:
    by_kind: dict[str, list[int]] = {}
    for task, outcome in zip(tasks, outcomes, strict=True):
        right, of = by_kind.setdefault(task.kind, [0, 0])
        by_kind[task.kind] = [right + _is_right(task, outcome), of + 1]
    return {
        "requested": len(tasks),
        "outcomes": dict(Counter(outcome.status for outcome in outcomes)),
        "right": sum(right for right, _ in by_kind.values()),
        "right_by_kind": {kind: f"{right}/{of}" for kind, (right, of) in by_kind.items()},
        "invocations": totals["invocations"],
        "turns": totals["turns"],
        "tokens": totals["tokens"],
        "seconds": round(seconds, 2),
        "turns_per_second": round(totals["turns"] / seconds, 1),
        "tokens_per_second": round(totals["tokens"] / seconds),
    }


def _is_right(task: Task, outcome: Outcome) -> bool:
    return isinstance(outcome, Completed) and outcome.value == task.answer


def _print(tasks: list[Task], outcomes: list[Outcome], report: dict[str, Any]) -> None:
    for task, outcome in zip(tasks, outcomes, strict=True):
        mark = "ok   " if _is_right(task, outcome) else "WRONG" if isinstance(outcome, Completed) else "-    "
        got = repr(outcome.value) if isinstance(outcome, Completed) else repr(outcome)
        expected = "" if _is_right(task, outcome) else f"  expected {task.answer!r}"
        print(f"{mark} {outcome.id.path:>3}  depth {task.depth}  {task.kind:13}  {_short(got)}{_short(expected)}")
    print()
    counts = ", ".join(f"{count} {status}" for status, count in report["outcomes"].items())
    print(f"{report['requested']} requested: {counts}; {report['right']} right answers from the tiny policy")
    print(f"by kind: {', '.join(f'{kind} {score}' for kind, score in report['right_by_kind'].items())}")
    print(
        f"{report['invocations']} invocations, {report['turns']} turns, {report['tokens']} sampled tokens in "
        f"{report['seconds']} s: {report['turns_per_second']} turns/s, {report['tokens_per_second']} tokens/s"
    )
    print(
        f"peak: {report['peak_processes']} processes, {report['peak_private_mib']} MiB private memory; "
        f"{report['total_seconds']} s in all, of which {report['start_seconds']} s to start engine and runtime"
    )
    if report["left_behind"]:
        print(f"LEFT BEHIND: {', '.join(report['left_behind'])}", file=sys.stderr)


def _short(text: str) -> str:
    return text if len(text) <= 70 else text[:69] + "…"


def _left_behind(hosts: list[int]) -> list[str]:
    """Processes below this one, and folders of the hosts, that are still there a while after shutdown."""
    gone_by = time.monotonic() + DRAIN_SECONDS
    while True:
        left = [p for p in psutil.Process().children(recursive=True) if p.is_running() and p.status() != "zombie"]
        if not left or time.monotonic() > gone_by:
            break
        psutil.wait_procs(left, timeout=0.2)
    folders = [path for pid in hosts for path in Path(tempfile.gettempdir()).glob(f"jaz-frames-{pid}-*")]
    return [*(f"process {p.pid}" for p in left), *(str(path) for path in folders)]
