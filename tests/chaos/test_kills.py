"""Processes are killed at random while a recorded run goes on: nothing is lost, mislabelled or left hanging."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from jaz_actors import Completed, ConfigOverride, Failed, Outcome, Recorder, Scripted, amap, configure, errors, shutdown
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.atif import Trajectories
from jaz_actors.recorders.atif_check import validate
from jaz_actors.recorders.runs import RecordedRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.ray]

ROOTS = 40
ZYGOTE = "jaz_actors.frames.zygote"


@pytest.fixture(scope="module", autouse=True)
def _ray(ray_cluster: None) -> Any:
    configure(runtime="ray", max_actors=2)
    yield
    shutdown()


SPAWN = """
import asyncio
try:
    got = await asyncio.gather(*(ainvoke(n=n) for n in range(2)))
except Exception as error:
    got = repr(error)
print(got)
"""


def answer(request: CompletionRequest) -> str:
    if request.invoke_id.depth == 1:
        return SPAWN if request.iteration == 0 else "return i"
    return ["x = n", "import time\ntime.sleep(0.01)\nprint(n)", "return n"][min(request.iteration, 2)]


def victims(kind: str) -> list[psutil.Process]:
    """Processes of this run: `frame`, `zygote`, `host` or `recorder`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            parent = process.parent()
            if parent is not None and ZYGOTE in " ".join(parent.cmdline()):
                what = "frame"
            elif ZYGOTE in line:
                what = "zygote"
            else:
                what = {"HostActor": "host", "RecorderActor": "recorder"}.get(
                    line.removeprefix("ray::").partition(".")[0], ""
                )
            if what == kind:
                found.append(process)
    return found


async def outcomes(folder: Path) -> list[Outcome]:
    with ConfigOverride(backend=Scripted(answer, delay=lambda request: random.random() * 0.03)), Recorder(folder):
        return [outcome async for outcome in amap(({"i": i} for i in range(ROOTS)), limit=12)]


@pytest.mark.parametrize("kind", ["frame", "zygote", "recorder", "host"])
@pytest.mark.parametrize("again", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 25))])
async def test_whatever_is_killed_every_outcome_is_true_and_every_event_is_kept(
    kind: str, again: int, tmp_path: Path
) -> None:
    work = asyncio.ensure_future(outcomes(tmp_path))
    killed = 0
    async with asyncio.timeout(90):
        while not work.done():
            await asyncio.wait({work}, timeout=0.15)
            if killed >= (2 if kind in ("host", "recorder") else 6):
                continue
            found = victims(kind)
            if found and not work.done():
                with contextlib.suppress(psutil.Error):
                    random.choice(found).kill()
                    killed += 1
        ended = await work
    assert killed
    assert len(ended) == ROOTS
    counts = Counter(type(outcome) for outcome in ended)
    assert counts[Completed] + counts[Failed] == ROOTS
    for outcome in ended:
        if isinstance(outcome, Completed):
            assert outcome.value == outcome.index
        else:
            assert isinstance(outcome.error, errors.InfrastructureError)  # type: ignore[attr-defined]
    if kind != "host":
        assert counts[Completed] == ROOTS
    recorded = RecordedRun(tmp_path).invocations()
    for outcome in ended:
        if isinstance(outcome, Completed):
            assert recorded[outcome.id.path].finished
            assert len(recorded[outcome.id.path].turns()) >= 2  # one more for each lost frame
    trajectories = Trajectories()
    for event in RecordedRun(tmp_path).events():
        trajectories.add(event)
    assert [problem for document in trajectories.documents() for problem in validate(document)] == []
