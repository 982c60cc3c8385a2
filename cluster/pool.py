"""The hosts of one run as Ray actors: started on demand, watched, ended. Not on the way of any message between them."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jaz_actors.channel import ChannelKeys, Peer
from jaz_actors.cluster.host import HostActor, Member
from jaz_actors.cluster.recorder import RecorderActor
from jaz_actors.config import Config
from jaz_actors.errors import ConfigurationError, HostStartFailed, JournalError
from jaz_actors.recording import RecorderSpec
from jaz_actors.runtime import RuntimeOptions, default_max_running
from jaz_actors.transfer import dumps

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
CLOSE_SECONDS = 10.0
INITIAL_HOSTS = 2
RECORDER_RETRY_SECONDS = 1.0

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Host:
    """placed: roots that this driver has running there."""

    name: str
    actor: Any
    pid: int
    endpoint: str
    dedicated: bool
    watcher: asyncio.Task[None]
    placed: int = 0


@dataclass(slots=True)
class _Recorder:
    name: str
    actor: Any
    endpoint: str
    spec: RecorderSpec
    watcher: asyncio.Task[None]


class RayPool:
    """Belongs to the runtime's loop."""

    def __init__(self, run: str, peer: Peer, keys: ChannelKeys, options: RuntimeOptions, *, owns_ray: bool) -> None:
        self._run = run
        self._peer = peer
        self._keys = keys
        self._owns_ray = owns_ray
        self._max_actors = options.max_actors or max(1, int(ray.cluster_resources().get("CPU", 1)))
        total = options.max_running or default_max_running()
        self._max_running = math.ceil(total / self._max_actors)
        self._hosts: dict[str, _Host] = {}
        self._recorders: dict[str, _Recorder] = {}
        self._dead: dict[str, str] = {}
        self._started = 0
        self._growing: set[asyncio.Task[_Host]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        # Two at once: a burst that arrives before the pool has grown would otherwise all land on one host.
        initial = min(INITIAL_HOSTS, self._max_actors)
        await asyncio.gather(*(self._start_host(dedicated=False) for _ in range(initial)))

    @property
    def names(self) -> Sequence[str]:
        return list(self._hosts)

    def config_key(self, config: Config) -> bytes:
        try:
            return dumps(config)
        except Exception as error:
            raise ConfigurationError(
                "config", f"its components are pickled for the hosts, and cannot be: {error}"
            ) from error

    async def choose(self, *, dedicated: bool) -> str:
        if dedicated:
            host = await self._start_host(dedicated=True)
            host.placed = 1
            return host.name
        shared = [host for host in self._hosts.values() if not host.dedicated]
        if not shared:
            shared = [await self._first_to_start()]
        elif all(host.placed for host in shared):
            self._grow(len(shared))
        host = min(random.sample(shared, min(2, len(shared))), key=lambda host: host.placed)
        host.placed += 1
        return host.name

    async def _first_to_start(self) -> _Host:
        if not self._growing:
            self._grow(0)
        return await asyncio.shield(next(iter(self._growing)))

    def _grow(self, have: int) -> None:
        if have + len(self._growing) < self._max_actors and not self._closed and not self._growing:
            task = asyncio.create_task(self._start_host(dedicated=False))
            self._growing.add(task)
            task.add_done_callback(self._grown)

    def _grown(self, task: asyncio.Task[_Host]) -> None:
        self._growing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.warning("a further host did not start: %s", task.exception())

    def done(self, host: str) -> None:
        entry = self._hosts.get(host)
        if entry is None:
            return
        entry.placed -= 1
        if entry.dedicated:
            closing = asyncio.create_task(self._close_host(entry))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def why_closed(self, host: str) -> str | None:
        return self._dead.get(host)

    async def _start_host(self, *, dedicated: bool) -> _Host:
        name = f"host-{self._started}"
        self._started += 1
        actor: Any = ray.remote(HostActor).options(num_cpus=0, max_restarts=0, max_concurrency=64).remote(
            name, self._keys, self._max_running
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_SECONDS):
                endpoint, pid = await actor.start.remote(self._peer.name, self._peer.endpoint)
        except TimeoutError:
            ray.kill(actor)
            raise HostStartFailed(name, f"no answer within {START_SECONDS:.0f} s; is the cluster full?") from None
        except RayError as error:
            raise HostStartFailed(name, str(error).strip().splitlines()[0]) from error
        logger.info("%s runs as process %d", name, pid)
        self._peer.connect(name, endpoint)
        watcher = asyncio.create_task(self._watch(name, actor))
        host = self._hosts[name] = _Host(name, actor, pid, endpoint, dedicated, watcher)
        self._tell_members()
        return host

    def _tell_members(self) -> None:
        members = [Member(host.name, host.endpoint, not host.dedicated) for host in self._hosts.values()]
        members += [Member(recorder.name, recorder.endpoint, False) for recorder in self._recorders.values()]
        data = _encode(members)
        for host in self._hosts.values():
            self._peer.notify(host.name, "members", data)

    async def _watch(self, name: str, actor: Any) -> None:
        try:
            await actor.watch.remote()
            reason = "it was closed"
        except RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[0] if lines else type(error).__name__
        if self._closed:
            return
        dead = self._hosts.pop(name, None)
        self._dead[name] = reason
        self._peer.forget(name, reason)
        self._tell_gone(name, reason)
        if dead is not None:
            await asyncio.to_thread(_sweep, dead.pid)

    def _tell_gone(self, name: str, reason: str) -> None:
        for host in self._hosts.values():
            self._peer.notify(host.name, "gone", name.encode(), reason.encode())
        self._tell_members()

    # -- recorders

    async def start_recorder(self, name: str, spec: RecorderSpec) -> None:
        # On the driver's own node, where the folder is that the user named.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(RecorderActor).options(
            num_cpus=0, max_restarts=0, max_concurrency=64, scheduling_strategy=here
        ).remote(name, self._keys, spec)  # fmt: skip
        members = [(self._peer.name, self._peer.endpoint), *((h.name, h.endpoint) for h in self._hosts.values())]
        try:
            async with asyncio.timeout(START_SECONDS):
                endpoint, pid = await actor.start.remote(members)
        except TimeoutError:
            ray.kill(actor)
            raise HostStartFailed(name, f"no answer within {START_SECONDS:.0f} s; is the cluster full?") from None
        except RayTaskError as error:
            ray.kill(actor)
            raise error.cause from None
        except RayError as error:
            raise HostStartFailed(name, str(error).strip().splitlines()[0]) from error
        logger.info("%s runs as process %d", name, pid)
        self._peer.connect(name, endpoint)
        self._recorders[name] = _Recorder(
            name, actor, endpoint, spec, asyncio.create_task(self._watch_recorder(name, actor))
        )
        self._tell_members()

    async def _watch_recorder(self, name: str, actor: Any) -> None:
        try:
            await actor.watch.remote()
            return
        except RayError as error:
            reason = str(error).strip().splitlines()[0]
        dead = self._recorders.pop(name, None)
        if self._closed or dead is None:
            return
        logger.warning("%s died and is started again: %s", name, reason)
        self._peer.forget(name, reason)
        self._tell_gone(name, reason)
        while not self._closed:
            try:
                await self.start_recorder(name, dead.spec)
                return
            except (HostStartFailed, JournalError) as error:
                logger.warning("%s does not start: %s; trying again", name, error)
                await asyncio.sleep(RECORDER_RETRY_SECONDS)

    async def end_recorder(self, name: str) -> None:
        recorder = self._recorders.pop(name, None)
        if recorder is None:
            return
        recorder.watcher.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await recorder.actor.close.remote()
        except (TimeoutError, RayError):
            logger.warning("%s did not close in time and is killed", name)
        ray.kill(recorder.actor)

    async def _close_host(self, host: _Host) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await host.actor.close.remote()
        except (TimeoutError, RayError):
            logger.warning("%s did not close in time and is killed", host.name)
        ray.kill(host.actor)

    async def aclose(self) -> None:
        """End every host and, where this run started it, Ray itself. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for task in self._growing:
            task.cancel()
        await asyncio.gather(*self._growing, return_exceptions=True)
        hosts = list(self._hosts.values())
        await asyncio.gather(*self._closing, *(self._close_host(host) for host in hosts if not host.dedicated))
        await asyncio.gather(*(self._close_host(host) for host in self._hosts.values() if host.dedicated))
        for host in hosts:
            host.watcher.cancel()
        for name in list(self._recorders):
            await self.end_recorder(name)
        await asyncio.gather(*(host.watcher for host in hosts), return_exceptions=True)
        await self._peer.aclose()
        if self._owns_ray:
            await asyncio.to_thread(ray.shutdown)


def _sweep(pid: int) -> None:
    """Remove the folders of a host that was killed, if it ran on this machine: Ray kills its zygote with it."""
    if psutil.pid_exists(pid):
        return
    for folder in Path(tempfile.gettempdir()).glob(f"jaz-frames-{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)
