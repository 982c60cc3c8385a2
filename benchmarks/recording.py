"""What recording costs: a recorder against a bare pipe of the same events, invocations with a recorder and without.

    python benchmarks/recording.py [--events N] [--invocations N] [--runtime ray|inline]

Every figure is a ratio of two measurements of this run, on this machine; the JSON line at the end holds them all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from jaz_actors import ConfigOverride, Recorder, Scripted, ainvoke, configure, shutdown
from jaz_actors.ports import LocalPorts
from jaz_actors.recorders.collector import Collector
from jaz_actors.recorders.runs import RecordedRun
from jaz_actors.recording import Feed, RecorderService

TURNS = ["x = 1", "print(x)", "return x"]


def events(count: int) -> list[object]:
    """Real ones: of invocations with three turns, over and over."""
    with tempfile.TemporaryDirectory() as folder:
        with ConfigOverride(backend=Scripted(TURNS)), Recorder(folder):
            asyncio.run(_some(8))
        found = list(RecordedRun(folder).events())
    return [found[i % len(found)] for i in range(count)]


async def _some(count: int) -> None:
    await asyncio.gather(*(ainvoke(task="t") for _ in range(count)))


async def recorder_rate(sample: list[object], folder: Path) -> float:
    parties: dict[str, LocalPorts] = {}
    host, ports = LocalPorts("host", parties), LocalPorts("recorder", parties)
    collector = Collector(folder, run_id="benchmark")
    await collector.open()
    RecorderService(ports, collector)
    feed = Feed(host, "recorder")
    begun = time.perf_counter()
    for event in sample:
        await feed.event(event)  # type: ignore[arg-type]
    await feed.acknowledged()
    seconds = time.perf_counter() - begun
    await collector.aclose()
    return len(sample) / seconds


def pipe_rate(sample: list[object]) -> float:
    """msgspec and ZMQ alone: encoded, sent to a thread of this process, decoded not at all."""
    context = zmq.Context()
    out, into = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    for socket in (out, into):
        socket.setsockopt(zmq.SNDHWM if socket is out else zmq.RCVHWM, 0)
    into.bind("inproc://pipe")
    out.connect("inproc://pipe")
    encode = msgspec.msgpack.Encoder().encode
    begun = time.perf_counter()
    for event in sample:
        out.send(encode(event))
    for _ in sample:
        into.recv()
    seconds = time.perf_counter() - begun
    out.close()
    into.close()
    context.term()
    return len(sample) / seconds


async def invocations(count: int) -> float:
    with ConfigOverride(backend=Scripted(TURNS)):
        await _some(min(count, 50))
        begun = time.perf_counter()
        await _some(count)
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--invocations", type=int, default=200)
    parser.add_argument("--runtime", choices=("ray", "inline"), default="ray")
    args = parser.parse_args()
    configure(runtime=args.runtime)
    figures: dict[str, object] = {"benchmark": "recording", "runtime": args.runtime, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = events(args.events)
        figures["pipe_events_per_s"] = round(pipe_rate(sample))
        figures["recorder_events_per_s"] = round(asyncio.run(recorder_rate(sample, folder / "rate")))
        plain, recorded = [], []
        for number in range(3):
            plain.append(asyncio.run(invocations(args.invocations)))
            with Recorder(folder / f"run-{number}"):
                recorded.append(asyncio.run(invocations(args.invocations)))
        figures["invocations_ms"] = round(min(plain) * 1000, 1)
        figures["recorded_invocations_ms"] = round(min(recorded) * 1000, 1)
        figures["recorded_over_plain"] = round(min(recorded) / min(plain), 3)
    shutdown()
    figures["recorder_over_pipe"] = round(figures["recorder_events_per_s"] / figures["pipe_events_per_s"], 3)  # type: ignore[operator]
    for name, value in figures.items():
        print(f"{name:<28} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
