"""The front door: `invoke`, `ainvoke`, `start`, `amap`.

Everything about an invocation is fixed here, at the moment of the call: its path, its inputs, its hooks, its
configuration. In agent code the same functions start children of the agent's own invocation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence, Sized
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from jaz_actors.capture import capture
from jaz_actors.config import ConfigOverride, Configs, get_configs
from jaz_actors.descriptions import description_of
from jaz_actors.errors import ConfigurationError, InputRefused, InvocationCancelled, KeyRefused
from jaz_actors.events import Event, InvokeExit
from jaz_actors.frames.entry import caller
from jaz_actors.hooks.base import Hook
from jaz_actors.ids import InvokeId
from jaz_actors.outcomes import AbortedRecord, FailedRecord, OutcomeRecord
from jaz_actors.payload import PackedInput
from jaz_actors.results import Outcome, outcome_of
from jaz_actors.runtime import Run, current_run, open_run
from jaz_actors.spec import HookEntry, InvocationSpec, InvocationStatus
from jaz_actors.transfer import error_record

logger = logging.getLogger(__name__)

# How long a cancelled caller waits for what it started to end.
ENDING_SECONDS = 10.0


def invoke(*local: Hook | ConfigOverride, key: str | None = None, **inputs: object) -> Any:
    """Run an agent on a task until it returns a value; blocks.

    local:   hooks for this invocation, and at most one ConfigOverride.
    key:     the invocation's name in its path instead of an ordinal; must be new.
    inputs:  what the agent gets, as variables; `task` says what to do by convention.

    Returns what the agent returned. Raises what it raised; the error of the limit that ended it; InputRefused,
    KeyRefused, ConfigurationError or HookActivationError before anything starts; BackendError and InfrastructureError
    when model server or runtime failed.
    """
    calls = caller()
    if calls is not None:
        return calls.invoke(*local, key=key, **inputs)
    call = _prepare(local, key, inputs)
    if call.run.thread.owns_current_thread():
        raise ConfigurationError("invoke", "called on the runtime's own thread; use ainvoke there")
    return call.wait().result()


def ainvoke(*local: Hook | ConfigOverride, key: str | None = None, **inputs: object) -> Coroutine[Any, Any, Any]:
    """`invoke` for `await`. The path is taken, and the inputs are copied, when it is called, not when it is awaited.

    Cancelling it cancels the whole subtree, requests to the model included.
    """
    calls = caller()
    if calls is not None:
        return calls.ainvoke(*local, key=key, **inputs)
    return _result(_prepare(local, key, inputs))


async def _result(call: _Call) -> Any:
    return (await call.outcome()).result()


class Invocation:
    """A started invocation: `await` its result, ask what it does, cancel it, or iterate over its events."""

    def __init__(self, call: _Call, events: _EventQueue) -> None:
        self._call = call
        self._events = events
        self._future = call.submit()

    @property
    def id(self) -> InvokeId:
        return self._call.spec.invoke_id

    async def outcome(self) -> Outcome:
        """How it ended, as a value; never raises for how it ended. Waiting for it may be cancelled freely."""
        try:
            record = await asyncio.shield(asyncio.wrap_future(self._future))
        except asyncio.CancelledError:
            if not self._future.cancelled():
                raise
            await self._call.ended()
            record = _cancelled(self._call.spec)
        return self._call.outcome_of(record)

    async def result(self) -> Any:
        """What it returned, or what it raised."""
        return (await self.outcome()).result()

    def __await__(self) -> Any:
        return self.result().__await__()

    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> None:
        """End it and everything below it; its outcome is Aborted."""
        self._call.cancel(self._future)

    async def status(self) -> InvocationStatus | None:
        """What it is doing right now; None before it has a host and after its end."""
        run = self._call.run
        return await asyncio.wrap_future(run.thread.submit(run.status(self.id.path)))

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events of the invocation and of everything below it, from the start until its own InvokeExit."""
        while True:
            event = await self._events.next()
            if event is None:
                return
            yield event
            if isinstance(event, InvokeExit) and event.invoke_id == str(self.id):
                return


class _EventQueue(Hook):
    """Collects an invocation's events for whoever iterates over it."""

    placement = "observer"

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def on_any(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self) -> Event | None:
        return await self._queue.get()

    def end(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)


async def start(*local: Hook | ConfigOverride, key: str | None = None, **inputs: object) -> Invocation:
    """Start an invocation and return at once; it runs whether or not anyone awaits it. Arguments as for `invoke`."""
    if (calls := caller()) is not None:
        raise ConfigurationError("start", f"{calls.subject} call invoke and ainvoke")
    queue = _EventQueue()
    return Invocation(_prepare(local, key, inputs, watcher=queue), queue)


async def amap(
    items: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
    *local: Hook | ConfigOverride,
    limit: int = 256,
    keys: Callable[[int], str] | None = None,
    progress: bool | None = None,
    **common: object,
) -> AsyncIterator[Outcome]:
    """One invocation for each item's inputs, at most `limit` at a time; yields outcomes as they finish.

    No outcome touches another invocation: one that raises or fails is yielded like any other. `index` of an outcome
    is its item's place. `common` are inputs of all; they are copied once. An item whose inputs or key are refused gives
    a Failed outcome. `progress` shows a live bar on a terminal; None shows it when stderr is one. Closing the iterator
    cancels what is still running.
    """
    from jaz_actors.progress import progress_bar

    if limit < 1:
        raise ConfigurationError("limit", "must be at least 1")
    if (calls := caller()) is not None:
        raise ConfigurationError("amap", f"{calls.subject} use asyncio.gather over ainvoke")
    run = current_run()
    shared = _Shared(run, common)
    running: set[asyncio.Task[Outcome]] = set()
    # Tasks report themselves: waiting for the first of a set costs time in proportion to the set, at every outcome.
    finished: asyncio.Queue[asyncio.Task[Outcome]] = asyncio.Queue()
    total = len(items) if isinstance(items, Sized) else None
    source = _numbered(items)
    exhausted = False
    try:
        with progress_bar(run, total, show=progress) as bar:
            while True:
                while not exhausted and len(running) < limit:
                    try:
                        index, item = await anext(source)
                    except StopAsyncIteration:
                        exhausted = True
                        break
                    key = None if keys is None else keys(index)
                    task = asyncio.create_task(_mapped(local, key, item, shared, index))
                    running.add(task)
                    task.add_done_callback(finished.put_nowait)
                if not running:
                    return
                task = await finished.get()
                running.discard(task)
                outcome = task.result()
                bar.count(outcome)
                yield outcome
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        shared.release()


async def _mapped(
    local: tuple[Hook | ConfigOverride, ...], key: str | None, item: Mapping[str, object], shared: _Shared, index: int
) -> Outcome:
    try:
        call = _prepare(local, key, dict(item), shared=shared)
    except (InputRefused, KeyRefused) as error:
        path = InvokeId(shared.run.id, shared.run.next_path(None))
        return outcome_of(FailedRecord(error_record(error, traceback_text="")), path, index)
    return await call.outcome(index)


async def _numbered(
    items: Iterable[Mapping[str, object]] | AsyncIterable[Mapping[str, object]],
) -> AsyncIterator[tuple[int, Mapping[str, object]]]:
    index = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield index, item
            index += 1
    else:
        for item in items:
            yield index, item
            index += 1


class _Shared:
    """Inputs packed once for many invocations."""

    def __init__(self, run: Run, inputs: Mapping[str, object]) -> None:
        self.run = run
        self.names = frozenset(inputs)
        self._owner = f"shared-{id(self)}"
        self.packed: tuple[PackedInput, ...] = ()
        if inputs:
            self.packed = run.home.packer.pack_all(inputs, self._owner, description_of)

    def release(self) -> None:
        self.run.home.release(self._owner)


@dataclass(frozen=True, slots=True)
class _Call:
    """A prepared invocation: everything about it is decided, nothing has started."""

    run: Run
    spec: InvocationSpec
    dedicated: bool
    release: Callable[[], None]
    over: Future[None]

    def submit(self) -> Future[OutcomeRecord]:
        return self.run.thread.submit(self.run.execute(self.spec, dedicated=self.dedicated, ended=self.release))

    def wait(self) -> Outcome:
        """Block until it is over; an interrupt of the waiting thread cancels it."""
        future = self.submit()
        try:
            return self.outcome_of(future.result())
        except FutureCancelled:
            return self.outcome_of(_cancelled(self.spec))
        except BaseException:
            self.cancel(future)
            # Whoever goes on may count on it that nothing below still runs; a second interrupt does not wait.
            wait([self.over], timeout=ENDING_SECONDS)
            raise

    async def outcome(self, index: int | None = None) -> Outcome:
        future = self.submit()
        try:
            record = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.cancel(future)
                await self.ended()
                raise
            record = _cancelled(self.spec)
        return self.outcome_of(record, index)

    async def ended(self) -> None:
        """Wait, within reason, until nothing of a cancelled invocation runs any more."""
        await asyncio.wait({asyncio.shield(asyncio.wrap_future(self.over))}, timeout=ENDING_SECONDS)

    def outcome_of(self, record: OutcomeRecord, index: int | None = None) -> Outcome:
        return outcome_of(record, self.spec.invoke_id, index)

    def cancel(self, future: Future[OutcomeRecord]) -> None:
        future.cancel()


def _cancelled(spec: InvocationSpec) -> OutcomeRecord:
    error = InvocationCancelled(str(spec.invoke_id), "it was cancelled")
    return AbortedRecord(error_record(error, traceback_text=""))


def _prepare(
    local: tuple[Hook | ConfigOverride, ...],
    key: str | None,
    inputs: dict[str, object],
    *,
    watcher: _EventQueue | None = None,
    shared: _Shared | None = None,
) -> _Call:
    captured = capture(local, inputs)
    override = _override(captured.others)
    if shared is not None and (twice := shared.names & (captured.inputs.keys() | captured.scope.keys())):
        raise InputRefused(min(twice), "it is given for all items as well")
    chosen = get_configs(override)
    if chosen.own.backend is None:
        raise ConfigurationError("backend", "none is configured; call configure(backend=...) first")
    _check_tokens(captured.ambient, captured.positional, chosen)
    run = current_run() if shared is None else shared.run
    own, tree = run.config_key(chosen.own), run.config_key(chosen.tree)
    by_depth = {depth: run.config_key(config) for depth, config in chosen.by_depth.items()}
    path = run.next_path(key)
    home = run.home
    entries: tuple[HookEntry, ...] = ()
    try:
        packed = home.packer.pack_all(captured.inputs, path, description_of)
        packed_scope = home.packer.pack_all(captured.scope, path, description_of)
        entries = home.hooks.enter_all(captured.ambient, captured.positional, path)
        if watcher is not None:
            entries = (*entries, home.hooks.enter(watcher, propagates=True, owner=path))
        home.remember_loop(path, _running_loop())
    except BaseException:
        home.hooks.leave(entries)
        home.release(path)
        raise
    set_up: list[Hook] = []

    over: Future[None] = Future()

    def release(error: BaseException | None = None) -> None:
        home.hooks.leave(entries)
        home.release(path)
        for hook in reversed(set_up):
            try:
                hook.teardown(error)
            except Exception:
                logger.warning("teardown of %s raised", type(hook).__name__, exc_info=True)
        if watcher is not None:
            watcher.end()
        over.set_result(None)

    try:
        for hook in captured.positional:
            hook.setup()
            set_up.append(hook)
    except BaseException as error:
        release(error)
        raise

    common = () if shared is None else shared.packed
    spec = InvocationSpec(
        run.id, path, run.ports.name, None, (*packed, *common), packed_scope, own, entries,
        None if tree == own else tree, by_depth,
    )  # fmt: skip
    return _Call(run, spec, chosen.own.dedicated, release, over)


def _check_tokens(ambient: Sequence[Hook], positional: Sequence[Hook], chosen: Configs) -> None:
    """A text backend in a run whose tokens are wanted is found here, not when training has begun."""
    own = next((hook for hook in (*ambient, *positional) if hook.demands_tokens), None)
    below = next((hook for hook in ambient if hook.demands_tokens), None)
    configs = [(own, chosen.own), *((below, config) for config in (chosen.tree, *chosen.by_depth.values()))]
    for hook, config in configs:
        backend = config.backend
        if hook is not None and backend is not None and not getattr(backend, "reports_tokens", False):
            raise ConfigurationError(
                "backend",
                f"{type(hook).__name__} demands the tokens that are sampled, and {backend!r} does not tell them",
            )


def _override(others: tuple[object, ...]) -> ConfigOverride | None:
    for item in others:
        if not isinstance(item, ConfigOverride):
            raise ConfigurationError("invoke", f"positional arguments are hooks and a ConfigOverride, got {item!r}")
        if item.depth is not None:
            raise ConfigurationError("ConfigOverride", "one for a depth is activated with `with`")
    if len(others) > 1:
        raise ConfigurationError("ConfigOverride", "an invocation takes at most one")
    return others[0] if others else None  # type: ignore[return-value]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def statistics() -> list[Any]:
    """A heartbeat of every host: live invocations by state, outcomes, turns, tokens. Empty when nothing runs."""
    run = open_run()
    if run is None:
        return []
    return await asyncio.wrap_future(run.thread.submit(run.statistics()))
