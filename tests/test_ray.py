"""What only several processes can show: hosts that die, caps, dedicated hosts, two drivers, no leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import numpy as np
import psutil
import pytest

from jaz_actors import (
    Completed,
    ConfigOverride,
    Failed,
    Scripted,
    ainvoke,
    amap,
    configure,
    errors,
    shutdown,
    start,
    statistics,
)
from jaz_actors.protocols import CompletionRequest

pytestmark = [pytest.mark.asyncio, pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CHAIN = "return 0 if left == 0 else 1 + invoke(left=left - 1)"


@pytest.fixture(autouse=True)
def _fresh_runtime() -> Iterator[None]:
    configure(runtime="ray", max_actors=2, max_running=None)
    yield
    shutdown()
    configure(max_actors=None, max_running=None)


async def _hosts(count: int) -> list[int]:
    """Process ids of the hosts, once there are `count`."""
    async with asyncio.timeout(30):
        while len(hosts := await statistics()) < count:
            await asyncio.sleep(0.05)
    return [host.pid for host in hosts]


async def test_a_killed_host_fails_its_invocations_quickly_and_no_others() -> None:
    code = "import time\ntime.sleep(3)\nreturn i"
    with ConfigOverride(backend=Scripted([code])):
        started = [await start(i=i) for i in range(12)]
        victim = (await _hosts(2))[0]
        frames = list(psutil.Process(victim).children(recursive=True))
        at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        outcomes = [await invocation.outcome() for invocation in started]
    counts = Counter(type(outcome) for outcome in outcomes)
    assert sum(counts.values()) == 12
    assert counts[Failed] >= 1
    assert counts[Completed] >= 1
    assert counts[Failed] + counts[Completed] == 12
    assert all(isinstance(o.error, errors.HostDied) for o in outcomes if isinstance(o, Failed))
    assert time.monotonic() - at < 3 + 5
    _, alive = psutil.wait_procs(frames, timeout=3)
    assert alive == []
    async with asyncio.timeout(20):
        while list(Path(tempfile.gettempdir()).glob(f"jaz-frames-{victim}-*")):
            await asyncio.sleep(0.05)
    with ConfigOverride(backend=Scripted(["return 5"])):
        assert await ainvoke() == 5


async def test_failures_of_a_killed_host_arrive_within_five_seconds() -> None:
    with ConfigOverride(backend=Scripted(["return 1"], delay=1000.0)):
        started = [await start() for _ in range(8)]
        for pid in await _hosts(2):
            os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        outcomes = [await invocation.outcome() for invocation in started]
    assert time.monotonic() - at < 5
    assert {type(outcome) for outcome in outcomes} == {Failed}


async def test_a_cap_with_parents_waiting_for_children_does_not_lock_up() -> None:
    shutdown()
    configure(max_actors=1, max_running=4)
    with ConfigOverride(backend=Scripted([CHAIN])):
        async with asyncio.timeout(30):
            assert await asyncio.gather(*(ainvoke(left=1) for _ in range(4))) == [1] * 4
            assert await asyncio.gather(*(ainvoke(left=5) for _ in range(6))) == [5] * 6


async def test_the_cap_holds_for_newcomers() -> None:
    shutdown()
    configure(max_actors=1, max_running=3)
    peak = 0
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal peak
        while not done.is_set():
            for host in await statistics():
                peak = max(peak, host.running)
            await asyncio.sleep(0.01)

    with ConfigOverride(backend=Scripted(["import time\ntime.sleep(0.1)\nreturn i"])):
        watcher = asyncio.ensure_future(watch())
        got = [outcome.result() async for outcome in amap([{"i": i} for i in range(15)])]
        done.set()
        await watcher
    assert sorted(got) == list(range(15))
    assert peak == 3


async def test_children_spill_over_to_other_hosts_when_their_own_is_full() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "import asyncio\nreturn await asyncio.gather(*(ainvoke(i=i) for i in range(200)))"
        return "return i"

    with ConfigOverride(backend=Scripted(answer)):
        assert await ainvoke(ConfigOverride(backend=Scripted(["return 0"]))) == 0
        await _hosts(2)
        assert await ainvoke() == list(range(200))
        assert all(sum(host.outcomes.values()) > 1 for host in await statistics())


async def test_a_dedicated_invocation_has_a_host_of_its_own_that_ends_with_it() -> None:
    with ConfigOverride(backend=Scripted(["return 1"], delay=1.0)):
        shared = await start()
        dedicated = await start(ConfigOverride(dedicated=True))
        while (status := await dedicated.status()) is None:
            await asyncio.sleep(0.05)
        its_host = status.host
        while (other := await shared.status()) is None and not shared.done():
            await asyncio.sleep(0.05)
        assert other is None or other.host != its_host
        assert await dedicated == 1
        async with asyncio.timeout(15):
            while its_host in {host.host for host in await statistics()}:
                await asyncio.sleep(0.05)


_DRIVER = """
import asyncio, sys
import ray
from jaz_actors import ConfigOverride, Scripted, ainvoke, amap, configure, statistics
configure(backend=Scripted(["x = who", "return x, i"]), max_actors=2)
async def main():
    got = [o.result() async for o in amap([{"i": i} for i in range(20)], who=sys.argv[1])]
    assert sorted(got) == [(sys.argv[1], i) for i in range(20)], got
    assert sum(sum(h.outcomes.values()) for h in await statistics()) == 20
    print("done", sys.argv[1])
asyncio.run(main())
"""


async def test_two_drivers_on_one_cluster_do_not_disturb_each_other(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    script = tmp_path / "driver.py"
    script.write_text(_DRIVER)
    environment = os.environ | {"RAY_ADDRESS": address}
    drivers = [
        subprocess.Popen(
            [sys.executable, script, name], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for name in ("one", "two")
    ]
    said = await asyncio.gather(*(asyncio.to_thread(driver.communicate, timeout=60) for driver in drivers))
    for driver, (output, _), name in zip(drivers, said, ("one", "two"), strict=True):
        assert driver.returncode == 0, output.decode()
        assert f"done {name}" in output.decode()


async def test_a_driver_that_is_killed_leaves_no_host_or_frame_behind(tmp_path: Path) -> None:
    import ray

    script = tmp_path / "driver.py"
    script.write_text(
        "import asyncio, os\n"
        "from jaz_actors import Scripted, ainvoke, configure, start, statistics\n"
        "configure(backend=Scripted(['while True: pass']), max_actors=2)\n"
        "async def main():\n"
        "    started = [await start() for _ in range(4)]\n"
        "    while sum(h.frames for h in await statistics()) < 4: await asyncio.sleep(0.05)\n"
        "    print(*(h.pid for h in await statistics()), flush=True)\n"
        "    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    driver = subprocess.Popen(
        [sys.executable, script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert driver.stdout is not None
    hosts = [psutil.Process(int(pid)) for pid in (await asyncio.to_thread(driver.stdout.readline)).split()]
    below = [process for host in hosts for process in [host, *host.children(recursive=True)]]
    assert len(below) >= 2 + 2 + 1
    driver.kill()
    driver.wait()
    driver.stdout.close()
    _, alive = await asyncio.to_thread(psutil.wait_procs, below, timeout=15)
    assert alive == []


async def test_a_configuration_that_cannot_be_pickled_is_refused_at_once() -> None:
    lock = __import__("threading").Lock()

    def answer(request: CompletionRequest) -> str:
        return "return 1" if lock else ""

    with pytest.raises(errors.ConfigurationError, match="pickled"):
        await ainvoke(ConfigOverride(backend=Scripted(answer)))


async def test_options_cannot_change_while_the_runtime_is_open() -> None:
    with ConfigOverride(backend=Scripted(["return 1"])):
        await ainvoke()
    with pytest.raises(errors.ConfigurationError, match="shutdown"):
        configure(runtime="inline")


async def test_shutdown_aborts_what_runs() -> None:
    with ConfigOverride(backend=Scripted(["return 1"], delay=1000.0)):
        invocation = await start()
        await _hosts(2)
        await asyncio.to_thread(shutdown)
        outcome = await invocation.outcome()
    assert outcome.status in ("aborted", "failed")


@pytest.mark.parametrize("runtime", ["inline", "ray"])
async def test_ctrl_c_ends_the_program_and_everything_it_started(runtime: str, tmp_path: Path) -> None:
    import ray

    script = tmp_path / "driver.py"
    script.write_text(
        "import sys, threading, time, asyncio\n"
        "from jaz_actors import Scripted, configure, invoke, statistics\n"
        f"configure(backend=Scripted(['while True: pass']), runtime={runtime!r}, max_actors=1)\n"
        "def tell():\n"
        "    while True:\n"
        "        hosts = asyncio.run(statistics())\n"
        "        if sum(h.states.get('executing', 0) for h in hosts):\n"
        "            print(*(h.pid for h in hosts), flush=True)\n"
        "            return\n"
        "        time.sleep(0.05)\n"
        "threading.Thread(target=tell, daemon=True).start()\n"
        "try:\n"
        "    invoke(task='never ends')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    sys.exit(130)\n"
    )
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    driver = subprocess.Popen(
        [sys.executable, script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert driver.stdout is not None
    hosts = [psutil.Process(int(pid)) for pid in (await asyncio.to_thread(driver.stdout.readline)).split()]
    below = [child for host in hosts for child in host.children(recursive=True)]
    assert len(below) >= 2
    driver.send_signal(signal.SIGINT)
    said, _ = await asyncio.to_thread(driver.communicate, timeout=30)
    assert driver.returncode == 130, said.decode()
    assert b"interrupted" in said
    _, alive = await asyncio.to_thread(psutil.wait_procs, below, timeout=10)
    assert alive == []


@pytest.mark.parametrize("runtime", ["inline", "ray"])
async def test_a_users_module_is_importable_at_every_depth_and_a_program_ends_cleanly(
    runtime: str, tmp_path: Path
) -> None:
    import ray

    (tmp_path / "mytools.py").write_text(
        "class Point:\n    def __init__(self, x): self.x = x\n\ndef double(x):\n    return 2 * x\n"
    )
    (tmp_path / "program.py").write_text(
        "from jaz_actors import Scripted, configure, invoke\n"
        "from mytools import Point, double\n"
        "def answer(request):\n"
        "    if request.invoke_id.depth < 3:\n"
        "        return 'return invoke(double=double, p=p)'\n"
        "    return 'import mytools\\np.x = mytools.double(double(p.x))\\nreturn p'\n"
        f"configure(backend=Scripted(answer), runtime={runtime!r}, max_actors=1)\n"
        "print(invoke(double=double, p=Point(10)).x)\n"
    )
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", tmp_path / "program.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
    )
    assert (ran.returncode, ran.stdout) == (0, "40\n"), ran.stderr
    assert "Traceback" not in ran.stderr


def _processes_of_ours() -> dict[str, list[psutil.Process]]:
    """Hosts, zygotes and frames below this process."""
    found: dict[str, list[psutil.Process]] = {"host": [], "zygote": [], "frame": []}
    for process in psutil.Process().children(recursive=True):
        try:
            if "HostActor" in " ".join(process.cmdline()):
                found["host"].append(process)
            elif "frames.zygote" in " ".join(process.cmdline()):
                above = process.parent()
                is_frame = above is not None and "frames.zygote" in " ".join(above.cmdline())
                found["frame" if is_frame else "zygote"].append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(("seed", "kinds"), [(1, ("frame", "zygote")), (2, ("frame", "zygote", "host"))])
async def test_whatever_is_killed_every_outcome_is_right_or_typed(seed: int, kinds: tuple[str, ...]) -> None:
    tree = (
        "import asyncio, time\n"
        "if left == 0:\n    time.sleep(0.1)\n    return 1\n"
        "return 1 + sum(await asyncio.gather(*(ainvoke(left=left - 1) for _ in range(3))))"
    )
    rng = random.Random(seed)
    done = asyncio.Event()

    async def kill() -> None:
        while not done.is_set():
            await asyncio.sleep(0.3)
            victims = _processes_of_ours()
            kind = rng.choice(kinds)
            if victims[kind]:
                with contextlib.suppress(psutil.Error):
                    rng.choice(victims[kind]).kill()

    with ConfigOverride(backend=Scripted(lambda request: tree, delay=0.02)):
        killer = asyncio.ensure_future(kill())
        async with asyncio.timeout(90):
            outcomes = [o async for o in amap([{"left": 2} for _ in range(30)], limit=10, progress=False)]
        done.set()
        await killer
    assert len(outcomes) == 30
    for outcome in outcomes:
        if isinstance(outcome, Completed):
            assert outcome.value == 13
        else:
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, errors.InfrastructureError)
    if "host" not in kinds:
        assert {type(outcome) for outcome in outcomes} == {Completed}
    async with asyncio.timeout(10):
        while sum(host.live + host.frames for host in await statistics()):
            await asyncio.sleep(0.05)


async def test_a_ray_reference_is_resolved_and_its_array_shared() -> None:
    import ray

    array = ray.put(np.arange(1 << 20))
    with ConfigOverride(backend=Scripted(["return int(a.sum()), a.flags.writeable"])):
        got = await asyncio.gather(*(ainvoke(a=array) for _ in range(6)))
    assert got == [(int(np.arange(1 << 20).sum()), False)] * 6

    @ray.remote
    def fail() -> None:
        raise LookupError("no object")

    with pytest.raises(errors.InputRefused, match="'a' was refused: Ray cannot resolve it"):
        await ainvoke(ConfigOverride(backend=Scripted(["return 1"])), a=fail.remote())
