"""One run of one driver: its loop thread, its hosts, its home. Opened by the first invocation, closed by `shutdown`.

Knows how an invocation travels from the caller's thread to a host and its outcome back; not what hosts do with it.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import psutil

from jaz_actors.config import Config
from jaz_actors.errors import (
    ChannelClosed,
    ConfigurationError,
    HostDied,
    InvocationCancelled,
    JazError,
    RuntimeClosed,
)
from jaz_actors.home import Home
from jaz_actors.host import Host, outcome_decoder
from jaz_actors.ids import PathCounter, new_run_id
from jaz_actors.outcomes import AbortedRecord, FailedRecord, OutcomeRecord
from jaz_actors.ports import LocalPorts, Ports
from jaz_actors.recorders.collector import Collector
from jaz_actors.recording import RecorderService, RecorderSpec
from jaz_actors.spec import HostStatistics, InvocationSpec, InvocationStatus
from jaz_actors.threads import LoopThread
from jaz_actors.transfer import error_record

DRIVER = "driver"
FRAME_BYTES = 8 * 2**20

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_status_decoder = msgspec.msgpack.Decoder(InvocationStatus)
_statistics_decoder = msgspec.msgpack.Decoder(HostStatistics)


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Where invocations run.

    runtime:      `ray` (host actors, on a cluster or this machine) or `inline` (a host in this process; frames are
                  processes of their own in both).
    max_actors:   host actors at most; None is one a CPU of the cluster. Hosts take several invocations each.
    max_running:  invocations running at once over all hosts, not counting those that wait for a child; None is by
                  memory.
    ray_address:  the cluster to join; None is the one that Ray finds, else a new one on this machine.
    """

    runtime: Literal["ray", "inline"] = "ray"
    max_actors: int | None = None
    max_running: int | None = None
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.runtime not in ("ray", "inline"):
            raise ConfigurationError("runtime", f"must be 'ray' or 'inline', got {self.runtime!r}")
        for name in ("max_actors", "max_running"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(name, f"must be a whole number of at least 1, or None, got {value!r}")


class Pool(Protocol):
    """The hosts of a run. Belongs to the runtime's loop."""

    async def start(self) -> None: ...

    async def choose(self, *, dedicated: bool) -> str:
        """The name of a host for a new root, growing the pool as needed. Raises HostStartFailed."""
        ...

    def done(self, host: str) -> None:
        """A root placed on `host` is over."""
        ...

    @property
    def names(self) -> Sequence[str]: ...

    def config_key(self, config: Config) -> bytes:
        """What stands for a configuration in a spec. Raises ConfigurationError when it cannot be sent."""
        ...

    def why_closed(self, host: str) -> str | None:
        """Why a host died; None when it lives."""
        ...

    async def start_recorder(self, name: str, spec: RecorderSpec) -> None:
        """Start a recorder that hosts reach by name, and start it again whenever it dies. Raises JournalError."""
        ...

    async def end_recorder(self, name: str) -> None:
        """Close a recorder's journal."""
        ...

    async def aclose(self) -> None: ...


def default_max_running() -> int:
    """By memory: half of what is free, at a generous size a live frame."""
    return max(16, int(psutil.virtual_memory().available // 2 // FRAME_BYTES))


class InlinePool:
    """One host in this process."""

    def __init__(self, parties: dict[str, LocalPorts], options: RuntimeOptions) -> None:
        self._options = options
        self._ports = LocalPorts("host-0", parties)
        self._parties = parties
        self._host: Host | None = None
        self._configs = 0
        self._recorders: dict[str, tuple[LocalPorts, Collector]] = {}

    async def start(self) -> None:
        self._host = Host(self._ports, max_running=self._options.max_running or default_max_running())

    async def choose(self, *, dedicated: bool) -> str:
        return self._ports.name

    def done(self, host: str) -> None:
        pass

    @property
    def names(self) -> Sequence[str]:
        return [self._ports.name]

    def config_key(self, config: Config) -> bytes:
        key = f"inline-{self._configs}".encode()
        self._configs += 1
        assert self._host is not None
        self._host.add_config(key, config)
        return key

    def why_closed(self, host: str) -> str | None:
        return None

    async def start_recorder(self, name: str, spec: RecorderSpec) -> None:
        collector = Collector(spec.folder, run_id=spec.run_id, fsync=spec.fsync, interval=spec.interval)
        try:
            await collector.open()
        except BaseException:
            await collector.aclose()
            raise
        ports = LocalPorts(name, self._parties)
        RecorderService(ports, collector)
        self._recorders[name] = (ports, collector)

    async def end_recorder(self, name: str) -> None:
        entry = self._recorders.pop(name, None)
        if entry is not None:
            ports, collector = entry
            ports.close()
            await collector.aclose()

    async def aclose(self) -> None:
        if self._host is not None:
            await self._host.aclose()
        for name in list(self._recorders):
            await self.end_recorder(name)
        self._ports.close()


class Run:
    """A driver's session. Any thread may start invocations; everything else happens on its loop thread."""

    def __init__(self, options: RuntimeOptions, run_id: str | None = None) -> None:
        self.options = options
        self.id = run_id or new_run_id()
        self._paths = PathCounter()
        self._paths_lock = threading.Lock()  # ordinals are taken in program order
        self._keys: dict[tuple[int, int, int], tuple[Config, bytes]] = {}
        self._where: dict[str, str] = {}
        self._live: set[asyncio.Task[OutcomeRecord]] = set()
        self._recorder_numbers = itertools.count()
        self._closed = False
        owns_ray = False
        if options.runtime == "ray":
            from jaz_actors.cluster.connect import join_ray

            owns_ray = join_ray(options)
        self.thread = LoopThread("jaz-runtime")
        try:
            self.ports, self.pool, self.home = self.thread.submit(self._open(owns_ray=owns_ray)).result()
        except BaseException:
            self.thread.stop()
            raise

    async def _open(self, *, owns_ray: bool) -> tuple[Ports, Pool, Home]:
        ports: Ports
        pool: Pool
        if self.options.runtime == "inline":
            parties: dict[str, LocalPorts] = {}
            ports, pool = LocalPorts(DRIVER, parties), InlinePool(parties, self.options)
        else:
            from jaz_actors.cluster.connect import open_cluster

            ports, pool = await open_cluster(self.id, self.options, owns_ray=owns_ray)
        home = Home(ports)
        try:
            await pool.start()
        except BaseException:
            await pool.aclose()
            home.close()
            raise
        return ports, pool, home

    def start_recorder(self, spec: RecorderSpec) -> str:
        """Start a recorder and give its name. Blocks; from any thread but the runtime's own. Raises JournalError."""
        name = f"recorder-{next(self._recorder_numbers)}"
        self.thread.submit(self.pool.start_recorder(name, spec)).result()
        return name

    def end_recorders(self, names: Sequence[str]) -> None:
        async def end() -> None:
            await asyncio.gather(*(self.pool.end_recorder(name) for name in names))

        if not self._closed:
            self.thread.submit(end()).result()

    def run_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the runtime's loop and wait for it; from any thread but the runtime's own."""
        if self._closed:
            work.close()
            raise RuntimeClosed("shutdown() was called")
        return self.thread.submit(work).result()

    def next_path(self, key: str | None) -> str:
        with self._paths_lock:
            return self._paths.take(key)

    def config_key(self, config: Config) -> bytes:
        """By identity of the components, so that an override given a thousand times is sent, and opened, once."""
        identity = (id(config.backend), id(config.repl), id(config.protocol))
        known = self._keys.get(identity)
        if known is None:
            # The configuration is kept with its key: an id means nothing once its object is gone.
            known = self._keys[identity] = (config, self.pool.config_key(config))
        return known[1]

    async def execute(self, spec: InvocationSpec, *, dedicated: bool, ended: Callable[[], None]) -> OutcomeRecord:
        """Run a root invocation on some host; `ended` is called on every path, once it is over."""
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        try:
            return await self._execute(spec, dedicated=dedicated)
        finally:
            self._live.discard(task)
            ended()

    async def _execute(self, spec: InvocationSpec, *, dedicated: bool) -> OutcomeRecord:
        if self._closed:
            return FailedRecord(error_record(RuntimeClosed("shutdown() was called"), traceback_text=""))
        try:
            host = await self.pool.choose(dedicated=dedicated)
        except JazError as error:
            return FailedRecord(error_record(error))
        self._where[spec.path] = host
        try:
            reply = await self.ports.request(host, "invoke", _encode(spec))
            if any(hook for hook in spec.hooks if getattr(hook, "observer", False)):
                await self._settle(other_than=host)
                await self.home.hooks.observed()
            return outcome_decoder.decode(reply[0])
        except ChannelClosed as error:
            if self._closed:
                return FailedRecord(error_record(RuntimeClosed("shutdown() was called"), traceback_text=""))
            reason = self.pool.why_closed(host) or error.reason
            lost = FailedRecord(error_record(HostDied(host, reason), traceback_text=""))
            await self.home.lost(spec, lost)
            await self.home.hooks.observed()
            return lost
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Its host gave it up, not its caller.
            cancelled = InvocationCancelled(str(spec.invoke_id), "its host was closed")
            return AbortedRecord(error_record(cancelled, traceback_text=""))
        finally:
            self._where.pop(spec.path, None)
            self.pool.done(host)

    async def _settle(self, *, other_than: str) -> None:
        """Wait until what hosts have told observers has arrived; `other_than` has just answered, so its words have."""
        others = [name for name in self.pool.names if name != other_than]
        await asyncio.gather(*(self.ports.request(name, "settle") for name in others), return_exceptions=True)

    async def status(self, path: str) -> InvocationStatus | None:
        host = self._where.get(path.partition(".")[0])
        if host is None:
            return None
        reply = await self.ports.request(host, "status", path.encode())
        return _status_decoder.decode(reply[0]) if reply else None

    async def statistics(self) -> list[HostStatistics]:
        names = list(self.pool.names)
        replies = await asyncio.gather(
            *(self.ports.request(name, "statistics") for name in names), return_exceptions=True
        )
        return [_statistics_decoder.decode(reply[0]) for reply in replies if not isinstance(reply, BaseException)]

    def close(self) -> None:
        """Cancel what runs, end every host. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.thread.submit(self._close()).result()
        finally:
            self.home.close()
            self.thread.stop()

    async def _close(self) -> None:
        for task in list(self._live):
            task.cancel()
        if self._live:
            await asyncio.wait(self._live)
        await self.pool.aclose()


_options = RuntimeOptions()
_run: Run | None = None
_lock = threading.Lock()  # one run at a time in this process


def set_options(**changes: Any) -> None:
    """Change where invocations run. Raises ConfigurationError while a run is open with other options."""
    global _options
    unknown = changes.keys() - set(RuntimeOptions.__slots__)
    if unknown:
        raise ConfigurationError(min(unknown), f"no such option; there are {', '.join(RuntimeOptions.__slots__)}")
    options = replace(_options, **changes)
    with _lock:
        if _run is not None and options != _run.options:
            raise ConfigurationError(", ".join(changes), "the runtime is open already; call shutdown() first")
        _options = options


def current_run() -> Run:
    """The open run of this process; opens one."""
    global _run
    with _lock:
        if _run is None:
            _run = Run(_options)
        return _run


def continue_run(run_id: str) -> None:
    """Open the run as the continuation of another. Raises ConfigurationError when one is open already."""
    global _run
    with _lock:
        if _run is not None and _run.id != run_id:
            raise ConfigurationError("resume", "the runtime is open already, as another run; call shutdown() first")
        if _run is None:
            _run = Run(_options, run_id)


def open_run() -> Run | None:
    return _run


def shutdown() -> None:
    """Close the run: live invocations are aborted, hosts and frames ended. The next invocation opens a new one."""
    global _run
    with _lock:
        run, _run = _run, None
    if run is not None:
        run.close()


# Closing needs threads, which the interpreter has already ended when `atexit` functions run. Thread pools end in the
# same phase, and end after this only because their module was imported before.
importlib.import_module("concurrent.futures.thread")
getattr(threading, "_register_atexit", atexit.register)(shutdown)
