"""A live bar for a fan-out: outcomes by kind, turns and tokens a second. Silent when stderr is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaz_actors.results import Outcome
    from jaz_actors.runtime import Run

_REFRESH_SECONDS = 0.5


class Bar(Protocol):
    def count(self, outcome: Outcome) -> None: ...


class _NoBar:
    def count(self, outcome: Outcome) -> None:
        pass


@contextmanager
def progress_bar(run: Run, total: int | None, *, show: bool | None) -> Iterator[Bar]:
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield _NoBar()
        return
    bar = _RichBar(run, total)
    try:
        yield bar
    finally:
        bar.close()


class _RichBar:
    """Polls the hosts' heartbeats on a thread of its own, so that it costs the invocations nothing."""

    def __init__(self, run: Run, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._run = run
        self._counts: Counter[str] = Counter()
        self._started = time.monotonic()
        self._baseline: tuple[int, int] | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rates]}"),
            console=Console(stderr=True),
            transient=False,
        )
        self._task = self._progress.add_task("invocations", total=total, rates="")
        self._stop = threading.Event()
        self._progress.start()
        self._thread = threading.Thread(target=self._refresh, name="jaz-progress", daemon=True)
        self._thread.start()

    def count(self, outcome: Outcome) -> None:
        self._counts[outcome.status] += 1
        counted = ", ".join(f"{n} {status}" for status, n in sorted(self._counts.items()))
        self._progress.update(self._task, advance=1, description=counted)

    def _refresh(self) -> None:
        while not self._stop.wait(_REFRESH_SECONDS):
            self._show()

    def _show(self) -> None:
        try:
            hosts = self._run.thread.submit(self._run.statistics()).result(timeout=2)
        except Exception:  # a bar is no reason to end anything, and a closing run answers no one
            return
        turns = sum(host.turns for host in hosts)
        tokens = sum(host.completion_tokens for host in hosts)
        if self._baseline is None:
            self._baseline = (turns, tokens)
        seconds = max(1e-9, time.monotonic() - self._started)
        states: Counter[str] = Counter()
        for host in hosts:
            states.update(host.states)
        live = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        turn_rate = (turns - self._baseline[0]) / seconds
        token_rate = (tokens - self._baseline[1]) / seconds
        self._progress.update(self._task, rates=f"{turn_rate:.0f} turns/s  {token_rate:.0f} tokens/s  {live}")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._progress.stop()
