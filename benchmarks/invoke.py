"""What an invocation costs: throughput, a model with latency, CPU-bound and blocking code, memory, and the fork floor.

    python benchmarks/invoke.py [--runtime ray|inline] [--quick]

Every figure is a ratio of two measurements of this run, on this machine; the JSON line at the end holds them all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from jaz_actors import ConfigOverride, Scripted, ainvoke, amap, by_reference, configure, shutdown
from jaz_actors import statistics as host_statistics

TURNS = ["x = 1", "x += 1", "return x"]
LOOP = "total = 0\nfor i in range(200_000):\n    total += i * i"
MODEL_SECONDS = 0.05


async def timed(work: Callable[[], Awaitable[Any]], *, repeat: int = 3) -> float:
    """Best of `repeat`, in seconds."""
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


async def fan_out(count: int, **inputs: object) -> None:
    async for outcome in amap([{"i": i} for i in range(count)], limit=count, progress=False, **inputs):
        outcome.result()


def bare_fork(count: int) -> float:
    """Seconds of an `os.fork` of this process, with exit and wait."""
    started = time.perf_counter()
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return (time.perf_counter() - started) / count


def bare_exec(source: str, count: int) -> float:
    """CPU seconds of one plain `exec` of this source."""
    code = compile(source, "bare", "exec")
    seconds = []
    for _ in range(count):
        started = time.process_time()
        exec(code, {})
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


async def live_frame_bytes(count: int) -> float:
    """Private memory of one idle frame among `count` that wait for their second turn."""
    backend = Scripted(["x = 1", "return x"], delay=lambda request: 0.0 if request.iteration == 0 else 30.0)
    with ConfigOverride(backend=backend):
        tasks = [asyncio.ensure_future(ainvoke(i=i)) for i in range(count)]
        while sum(host.states.get("waiting for the model", 0) for host in await host_statistics()) < count:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        frames = [
            process
            for process in psutil.Process().children(recursive=True)
            if "jaz_actors.frames.zygote" in " ".join(process.cmdline()) and not process.children()
        ]
        sample = frames[:: max(1, len(frames) // 20)]
        private = statistics.mean(process.memory_full_info().uss for process in sample)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return private


async def measure(sizes: list[int]) -> dict[str, float]:
    figures: dict[str, float] = {}
    cores = os.cpu_count() or 1

    figures["fork_floor_ms"] = bare_fork(200) * 1e3
    with ConfigOverride(backend=Scripted(TURNS)):
        await fan_out(20)
        for size in sizes:
            figures[f"instant_{size}_ms"] = await timed(lambda size=size: fan_out(size)) * 1e3
    largest = max(sizes)
    per_invocation = figures[f"instant_{largest}_ms"] / largest
    figures["cpu_ms_per_invocation"] = per_invocation * cores
    figures["cpu_over_fork_floor"] = per_invocation * cores / figures["fork_floor_ms"]

    with ConfigOverride(backend=Scripted(TURNS, delay=MODEL_SECONDS)):
        for size in sizes:
            seconds = await timed(lambda size=size: fan_out(size), repeat=2)
            figures[f"model_50ms_{size}_ms"] = seconds * 1e3
    ideal = len(TURNS) * MODEL_SECONDS * 1e3
    figures["model_50ms_over_ideal_at_1"] = figures[f"model_50ms_{min(sizes)}_ms"] / ideal

    plain = bare_exec(LOOP, 30)
    timed_loop = f"import time\nstarted = time.process_time()\n{LOOP}\nreturn time.process_time() - started"
    count = 20 * cores
    with ConfigOverride(backend=Scripted([timed_loop])):
        in_frames = [o.result() async for o in amap([{} for _ in range(count)], limit=cores, progress=False)]
    figures["loop_200k_plain_exec_cpu_ms"] = plain * 1e3
    figures["loop_200k_in_frames_cpu_ms"] = statistics.median(in_frames) * 1e3
    figures["loop_200k_over_plain_exec"] = statistics.median(in_frames) / plain
    with ConfigOverride(backend=Scripted([f"{LOOP}\nreturn total"])):
        wall = await timed(lambda: fan_out(count), repeat=2)
    figures["loop_200k_cores_busy"] = count * statistics.median(in_frames) / wall

    with ConfigOverride(backend=Scripted(["import time\ntime.sleep(0.05)\nreturn 1"])):
        figures["blocking_50ms_code_50_ms"] = await timed(lambda: fan_out(50)) * 1e3
    with ConfigOverride(backend=Scripted(["return tool()"])):
        tool = by_reference(_blocking_tool)
        figures["blocking_50ms_tool_at_home_50_ms"] = await timed(lambda: fan_out(50, tool=tool)) * 1e3

    figures["live_frame_private_mib"] = await live_frame_bytes(largest) / 2**20
    return figures


def _blocking_tool() -> int:
    time.sleep(0.05)
    return 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=("ray", "inline"), default="ray")
    parser.add_argument("--quick", action="store_true", help="up to 100 invocations instead of 500")
    args = parser.parse_args()
    configure(runtime=args.runtime, max_actors=os.cpu_count())
    sizes = [1, 10, 100] if args.quick else [1, 10, 100, 500]
    try:
        figures = asyncio.run(measure(sizes))
    finally:
        shutdown()
    for name, value in figures.items():
        print(f"{name:36s} {value:10.2f}")
    print(
        json.dumps(
            {
                "benchmark": "invoke",
                "runtime": args.runtime,
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                **{name: round(value, 3) for name, value in figures.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
