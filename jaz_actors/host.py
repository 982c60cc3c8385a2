"""A host: runs the agent loops of many invocations and owns their frames. The same class serves inline and on Ray.

Model code never runs here and no value made by it is opened here, so a host is as clean after an invocation as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from jaz_actors.admission import Admission
from jaz_actors.code_protocol import Rules
from jaz_actors.config import Config
from jaz_actors.errors import (
    ChannelClosed,
    ConfigurationError,
    FrameLost,
    HookActivationError,
    HostDied,
    KeyRefused,
    RecorderLost,
    ReferenceGone,
)
from jaz_actors.frames import posix
from jaz_actors.frames.entry import acting_for
from jaz_actors.frames.process import FrameOptions, Zygote
from jaz_actors.frames.repl import ReplSession
from jaz_actors.frames.wire import Check, ChildCall, Limits, Ready, ReferenceCall
from jaz_actors.hooks.base import Hook, check_return_types
from jaz_actors.hosted_hooks import HostedHooks, OpenedHooks
from jaz_actors.ids import check_component
from jaz_actors.loop import AgentLoop, Lineage, Repl
from jaz_actors.outcomes import AbortedRecord, CompletedRecord, FailedRecord, OutcomeRecord, RaisedRecord
from jaz_actors.payload import ErrorRecord, PackedInput, Payload, SharedBuffer
from jaz_actors.ports import Ports
from jaz_actors.recorders.entries import ToolAnswer
from jaz_actors.recording import Feed
from jaz_actors.served_calls import (
    ServedCalls,
    Server,
    child_request_decoder,
    decode_answer,
    encode_answer,
    host_packer,
)
from jaz_actors.shared import SharedBuffers
from jaz_actors.spec import (
    BuiltinHook,
    ChildRequest,
    HomeHook,
    HookEntry,
    HostStatistics,
    InvocationSpec,
    InvocationStatus,
)
from jaz_actors.teardown import end_all, to_its_end
from jaz_actors.transfer import error_record, load_plain, pack, plain_error

logger = logging.getLogger(__name__)

# A host keeps children to itself up to here; beyond it one event loop would be the bottleneck of the whole tree.
CHILDREN_AT_HOME = 64
# What a cancelled invocation waits for its record.
RECORD_SECONDS = 5.0

_encode = msgspec.msgpack.Encoder().encode
spec_decoder = msgspec.msgpack.Decoder(InvocationSpec)
outcome_decoder: msgspec.msgpack.Decoder[OutcomeRecord] = msgspec.msgpack.Decoder(OutcomeRecord)
reference_decoder = msgspec.msgpack.Decoder(ReferenceCall)
buffer_decoder = msgspec.msgpack.Decoder(SharedBuffer)


class Invocation:
    """One live invocation of this host."""

    def __init__(self, spec: InvocationSpec) -> None:
        self.spec = spec
        self.loop: AgentLoop | None = None
        self.repl: ReplSession | None = None
        self.frames: list[int] = []
        self.queued_since = time.monotonic()
        self.set_waiting: Callable[[bool], None] = lambda waiting: None
        self.tasks: set[asyncio.Task[object]] = set()
        self.hooks: OpenedHooks | None = None
        self._waits = 0
        self._asked: Counter[str] = Counter()
        self._children: set[str] = set()

    @property
    def feeds(self) -> tuple[Feed, ...]:
        return () if self.hooks is None else self.hooks.feeds

    def wait(self, waiting: bool) -> None:
        """Count one more, or one less, thing elsewhere that the invocation waits for."""
        self._waits += 1 if waiting else -1
        self.set_waiting(self._waits > 0)

    def child_path(self, component: str) -> str:
        """The path of a new child. Raises KeyRefused for one that there has been."""
        if component in self._children:
            raise KeyRefused(component, "another child of the same parent has had it")
        self._children.add(component)
        return f"{self.spec.path}.{component}"

    def component(self, prefix: str, key: str | None) -> str:
        """The path component of a child that a hook or tool asks for."""
        if key is not None:
            return f"{prefix}-{key}"
        self._asked[prefix] += 1
        return f"{prefix}-{self._asked[prefix] - 1}"

    def status(self, host: str) -> InvocationStatus:
        if self.loop is None:
            waited = time.monotonic() - self.queued_since
            return InvocationStatus(str(self.spec.invoke_id), host, "waiting for a place", waited, 0)
        progress = self.loop.progress
        state = progress.state
        if state == "executing" and self.repl is not None and self.repl.waiting:
            state = "waiting for a child"
        return InvocationStatus(
            str(self.spec.invoke_id),
            host,
            state,
            time.monotonic() - progress.since,
            progress.iteration,
            progress.usage.prompt_tokens or 0,
            progress.usage.completion_tokens or 0,
        )


class Host:
    """Runs invocations for whoever asks through its ports. Belongs to one event loop; `aclose` ends everything.

    max_running:  invocations that may run at once; those that wait for a child or an object at home do not count.
    """

    def __init__(self, ports: Ports, *, max_running: int) -> None:
        posix.allow_many_files()
        self._ports = ports
        self.name = ports.name
        self.admission = Admission(max_running)
        self._zygotes: dict[bytes, Zygote] = {}
        self._configs: dict[bytes, Config] = {}
        self._buffers = SharedBuffers()
        self._live: dict[str, Invocation] = {}
        self._by_frame: dict[int, Invocation] = {}
        self._frame_numbers = itertools.count()
        self._tasks: dict[str, set[asyncio.Task[object]]] = {}
        self._members: list[str] = [self.name]
        self._placed: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._turns = self._prompt_tokens = self._completion_tokens = 0
        self._closing = False
        self._feeds: dict[str, Feed] = {}
        self._hooks = HostedHooks(ports, self._ask_frame_hook, self._tell_frame_hook, self._calls, self._feed)
        packer, release = host_packer(self.name)
        self._server = Server(
            loop=asyncio.get_running_loop(),
            packer=packer,
            hooks=BuiltinsOnly(),
            release=release,
            load=load_plain,
            load_error=plain_error,
            must_await=lambda: True,
        )
        ports.handle("invoke", self._on_invoke)
        ports.handle("child", self._on_child)
        ports.handle("reference", self._on_reference)
        ports.handle("buffer", self._on_buffer)
        ports.handle("status", self._on_status)
        ports.handle("statistics", self._on_statistics)
        ports.handle("settle", self._on_settle)

    # -- set-up

    def add_config(self, key: bytes, config: Config) -> None:
        """Make a configuration known without pickling; for a host in the process that made it."""
        self._configs[key] = config

    def set_members(self, names: Sequence[str]) -> None:
        """The hosts of the run, this one included, that children may be placed on."""
        self._members = list(names)

    async def prepare(self, config: bytes) -> None:
        """Start what the configuration needs ahead of its first invocation."""
        await self._zygote(self._config(config).repl.frames).start()

    def _config(self, data: bytes) -> Config:
        config = self._configs.get(data)
        if config is None:
            config = pickle.loads(data)
            if not isinstance(config, Config):
                raise ConfigurationError("config", f"expected a Config, got a {type(config).__name__}")
            self._configs[data] = config
        return config

    def _feed(self, recorder: str) -> Feed:
        feed = self._feeds.get(recorder)
        if feed is None:
            feed = self._feeds[recorder] = Feed(self._ports, recorder)
        return feed

    def _zygote(self, options: FrameOptions) -> Zygote:
        key = pickle.dumps(options)
        zygote = self._zygotes.get(key)
        if zygote is None:
            zygote = self._zygotes[key] = Zygote(options, name=self.name)
        return zygote

    # -- invocations

    async def _on_invoke(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [_encode(await self.run(spec_decoder.decode(parts[0])))]

    async def run(self, spec: InvocationSpec) -> OutcomeRecord:
        """One invocation, from admission to outcome. Cancel it to end it and everything below it."""
        path = spec.path
        invocation = self._live[path] = Invocation(spec)
        task = asyncio.current_task()
        assert task is not None
        tasks = self._tasks.setdefault(spec.caller, set())
        tasks.add(task)
        try:
            outcome = await self._admitted(invocation)
        except asyncio.CancelledError:
            self._outcomes["aborted"] += 1
            raise
        finally:
            tasks.discard(task)
            self._live.pop(path, None)
            for number in invocation.frames:
                self._by_frame.pop(number, None)
            self._buffers.release(path)
            self._hooks.close(spec)
            self._count(invocation)
        self._outcomes[_status(outcome)] += 1
        return outcome

    async def _admitted(self, invocation: Invocation) -> OutcomeRecord:
        async with self.admission.place() as place:
            invocation.set_waiting = place.set_waiting
            try:
                loop = await self._assemble(invocation)
            except Exception as error:
                return FailedRecord(error_record(error))
            invocation.loop = loop
            # What the invocation's hooks in this host start is started for it.
            with acting_for(self._calls(self.name, str(invocation.spec.invoke_id))):
                try:
                    outcome = await loop.run()
                except asyncio.CancelledError:
                    await to_its_end(self._recorded_soon(invocation))
                    raise
        return await self._recorded(invocation, outcome)

    async def _recorded_soon(self, invocation: Invocation) -> None:
        """Of a cancelled invocation nobody waits for the outcome, but its record should have an end."""
        with contextlib.suppress(TimeoutError, RecorderLost):
            async with asyncio.timeout(RECORD_SECONDS):
                for feed in invocation.feeds:
                    await feed.acknowledged()

    async def _recorded(self, invocation: Invocation, outcome: OutcomeRecord) -> OutcomeRecord:
        """The outcome, once every event that led to it is safe."""
        try:
            for feed in invocation.feeds:
                await feed.acknowledged()
        except RecorderLost as error:
            return FailedRecord(error_record(error, traceback_text=""))
        return outcome

    def _count(self, invocation: Invocation) -> None:
        if invocation.loop is not None:
            progress = invocation.loop.progress
            self._turns += progress.iteration + 1
            self._prompt_tokens += progress.usage.prompt_tokens or 0
            self._completion_tokens += progress.usage.completion_tokens or 0

    async def _assemble(self, invocation: Invocation) -> AgentLoop:
        spec = invocation.spec
        config = self._config(spec.config)
        backend = config.backend
        if backend is None:
            raise ConfigurationError("backend", "none is configured; call configure(backend=...) first")
        hooks = invocation.hooks = self._hooks.open(spec)
        check_return_types(hooks.here)
        checks = _checks(hooks.here)
        limits = [limit for hook in hooks.here if (limit := hook.time_limit()) is not None]

        async def open_repl(inputs: tuple[PackedInput, ...], *, recursion: bool) -> tuple[Repl, Ready]:
            shared = {b: await self._bring(b, spec) for b in shared_buffers((*inputs, *spec.scope))}
            session = invocation.repl = ReplSession(
                self._zygote(config.repl.frames),
                config.repl,
                home=lambda: self._frame_home(invocation),
                on_call=lambda body: self._answer(invocation, body),
                on_waiting=invocation.wait,
            )
            protocol = config.protocol
            bounds = Limits(protocol.max_input_characters, protocol.head_ratio)
            try:
                ready = await session.open(
                    inputs,
                    spec.scope,
                    bounds,
                    depth=spec.invoke_id.depth,
                    recursion=recursion,
                    checks=checks,
                    shared=shared,
                )
            except BaseException:
                await session.aclose()
                raise
            return session, ready

        return AgentLoop(
            Lineage(
                spec.invoke_id,
                spec.parent_iteration,
                spec.inputs,
                spec.scope,
                hooks.names,
            ),
            backend=backend,
            protocol=config.protocol,
            rules=lambda recursion: Rules(
                config.repl.timeout, config.repl.allow_raise, config.repl.reject_finish_on_output, recursion
            ),
            open_repl=open_repl,
            dispatcher=hooks.dispatcher,
            end_children=lambda: end_all(invocation.tasks),
            time_limit=min(limits, default=None),
        )

    def _frame_home(self, invocation: Invocation) -> str:
        """A name by which objects that the invocation's next frame lends are found."""
        number = next(self._frame_numbers)
        self._by_frame[number] = invocation
        invocation.frames.append(number)
        return f"{self.name}/{number}"

    # -- what frames ask for

    async def _answer(self, parent: Invocation, body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
        if isinstance(body, ReferenceCall):
            return await self._used(parent, body)
        for entry in body.hooks:
            if isinstance(entry, HomeHook) and entry.home not in (f"{self.name}/{n}" for n in parent.frames):
                raise HookActivationError(entry.facts.name, "it does not live in the frame that gives it")
        check_component(body.component)
        path = parent.child_path(body.component)
        try:
            inputs, scope = self._adopted(body.inputs, path), self._adopted(body.scope, path)
            return await self._child(parent, path, inputs, scope, body.hooks, caller=self.name)
        finally:
            self._buffers.release(path)

    async def _child(
        self,
        parent: Invocation,
        path: str,
        inputs: tuple[PackedInput, ...],
        scope: tuple[PackedInput, ...],
        hooks: Sequence[HookEntry],
        *,
        caller: str,
    ) -> Payload | ErrorRecord:
        spec = parent.spec
        assert parent.loop is not None
        assert parent.hooks is not None
        names = {item.name for item in scope}
        child = InvocationSpec(
            spec.run,
            path,
            caller,
            parent.loop.progress.iteration,
            inputs,
            (*(item for item in spec.scope if item.name not in names), *scope),
            spec.child_config(),
            (*parent.hooks.propagating, *hooks),
            spec.config if spec.tree_config is None else spec.tree_config,
            spec.config_by_depth,
        )
        outcome = await self._place(child)
        return outcome.value if isinstance(outcome, CompletedRecord) else outcome.error

    async def _used(self, parent: Invocation, call: ReferenceCall) -> Payload | ErrorRecord:
        """The answer of an object elsewhere; recorded, so that a resumed run need not ask again."""
        answer = await self._reference(call, parent.spec.path)
        if parent.feeds:
            value, error = (None, answer) if isinstance(answer, ErrorRecord) else (answer, None)
            invoke_id = str(parent.spec.invoke_id)
            record = ToolAnswer(invoke_id, call.number, call.operation.verb, call.operation.name, value, error)
            for feed in parent.feeds:
                await feed.note(record)
        return answer

    # -- children that hooks and tools ask for

    def _calls(self, host: str, invoke_id: str) -> ServedCalls:
        path = invoke_id.partition(":")[2]
        return ServedCalls(self._server, path, "hook", lambda request: self._ask_child(host, request))

    async def _ask_child(self, host: str, request: ChildRequest) -> bytes:
        if host == self.name:
            return await self._serve_child(self.name, request)
        return (await self._ports.request(host, "child", _encode(request)))[0]

    async def _on_child(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [await self._serve_child(caller, child_request_decoder.decode(parts[0]))]

    async def _serve_child(self, caller: str, request: ChildRequest) -> bytes:
        parent = self._live.get(request.parent)
        if parent is None or parent.loop is None:
            raise ConfigurationError("invoke", "the invocation on whose behalf it was called is over")
        path = parent.child_path(parent.component(request.prefix, request.key))
        work = self._child(parent, path, request.inputs, request.scope, request.hooks, caller=caller)
        task = asyncio.create_task(work)
        parent.tasks.add(task)
        parent.wait(True)
        try:
            return encode_answer(await task)
        finally:
            parent.wait(False)
            parent.tasks.discard(task)

    async def _place(self, child: InvocationSpec) -> OutcomeRecord:
        """Run a child here while there is room, else on the less loaded of two other hosts."""
        host = self.name
        if self._placed[host] >= CHILDREN_AT_HOME and len(self._members) > 1:
            host = min(random.sample(self._members, 2), key=lambda name: self._placed[name])
        self._placed[host] += 1
        try:
            if host == self.name:
                # A task of its own: admission and cancellation are kept for tasks.
                return await asyncio.ensure_future(self.run(child))
            return outcome_decoder.decode((await self._ports.request(host, "invoke", _encode(child)))[0])
        except ChannelClosed as error:
            lost = FailedRecord(error_record(HostDied(host, error.reason), traceback_text=""))
            await self._hooks.lost(child, lost)
            return lost
        finally:
            self._placed[host] -= 1

    def _adopted(self, inputs: tuple[PackedInput, ...], owner: str) -> tuple[PackedInput, ...]:
        """The frame's big buffers held by this host, so that they outlive the frame."""
        if not any(shared_buffers(inputs)):
            return inputs
        return tuple(
            msgspec.structs.replace(
                item,
                payload=msgspec.structs.replace(
                    item.payload,
                    buffers=tuple(
                        self._buffers.adopt(b, owner) if isinstance(b, SharedBuffer) else b
                        for b in item.payload.buffers
                    ),
                ),
            )
            for item in inputs
        )

    async def _bring(self, buffer: SharedBuffer, spec: InvocationSpec) -> int:
        """A descriptor of the buffer's memory on this machine, held until the invocation is over."""
        held = self._buffers.held(buffer, spec.path)
        if held is None:
            (content,) = await self._ports.request(spec.caller, "buffer", _encode(buffer))
            held = self._buffers.place(buffer, content, spec.path)
        return held.fd

    async def _on_buffer(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [self._buffers.content(buffer_decoder.decode(parts[0]))]

    # -- objects by reference, and hooks in frames

    async def _reference(self, call: ReferenceCall, invoker: str) -> Payload | ErrorRecord:
        home, _, frame = call.record.home.partition("/")
        if home != self.name:
            try:
                return decode_answer((await self._ports.request(home, "reference", _encode(call), invoker.encode()))[0])
            except ChannelClosed as error:
                raise ReferenceGone(call.record.type_name, f"its home {home} is gone: {error.reason}") from error
        repl = self._session(frame)
        if repl is None:
            raise ReferenceGone(call.record.type_name, "the agent that lent it is over")
        return await repl.operate(call.operation, call.args)

    def _session(self, frame: str) -> ReplSession | None:
        invocation = self._by_frame.get(int(frame)) if frame else None
        return None if invocation is None else invocation.repl

    async def _on_reference(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        try:
            answer = await self._reference(reference_decoder.decode(parts[0]), parts[1].decode())
        except Exception as error:
            answer = error_record(error, traceback_text="")
        return [encode_answer(answer)]

    async def _ask_frame_hook(self, home: str, number: int, event: bytes) -> bytes:
        repl = self._session(home.partition("/")[2])
        if repl is None:
            raise FrameLost("a hook lived there")
        return await repl.ask_hook(number, event)

    def _tell_frame_hook(self, home: str, number: int, event: bytes) -> None:
        repl = self._session(home.partition("/")[2])
        if repl is not None:
            repl.tell_hook(number, event)

    # -- asked from outside

    async def _on_status(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        invocation = self._live.get(parts[0].decode())
        return [] if invocation is None else [_encode(invocation.status(self.name))]

    async def _on_statistics(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [_encode(self.statistics())]

    async def _on_settle(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        """Once this is answered, whatever this host told the caller before has arrived there."""
        return []

    def statistics(self) -> HostStatistics:
        live = [invocation.status(self.name) for invocation in self._live.values()]
        return HostStatistics(
            self.name,
            os.getpid(),
            len(live),
            self.admission.running,
            self.admission.queued,
            sum(zygote.frames for zygote in self._zygotes.values()),
            dict(Counter(status.state for status in live)),
            {status: self._outcomes[status] for status in ("completed", "raised", "aborted", "failed")},
            self._turns + sum(status.iteration for status in live),
            self._prompt_tokens + sum(status.prompt_tokens for status in live),
            self._completion_tokens + sum(status.completion_tokens for status in live),
        )

    def peer_gone(self, name: str) -> None:
        """A process of the run has died: what it had asked for is cancelled, and it gets no more children."""
        with contextlib.suppress(ValueError):
            self._members.remove(name)
        for task in self._tasks.pop(name, ()):
            task.cancel()

    async def aclose(self) -> None:
        """Cancel every invocation, end every frame, close every backend. Idempotent."""
        if self._closing:
            return
        self._closing = True
        tasks = {task for tasks in self._tasks.values() for task in tasks if not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for zygote in self._zygotes.values():
            await zygote.aclose()
        for feed in self._feeds.values():
            await feed.aclose()
        for config in self._configs.values():
            if config.backend is not None:
                await config.backend.aclose()


def shared_buffers(inputs: Sequence[PackedInput]) -> list[SharedBuffer]:
    found = (b for item in inputs for b in item.payload.buffers if isinstance(b, SharedBuffer))
    return list(dict.fromkeys(found))


def _status(outcome: OutcomeRecord) -> str:
    match outcome:
        case CompletedRecord():
            return "completed"
        case RaisedRecord():
            return "raised"
        case AbortedRecord():
            return "aborted"
        case _:
            return "failed"


def _checks(hooks: Sequence[Hook]) -> tuple[Check, ...]:
    """The checks of returned values, each known to its hook by its number."""
    checks: list[Check] = []
    for hook in hooks:
        check = hook.return_check()
        if check is not None:
            hook.numbered(len(checks))
            checks.append(check)
    return tuple(checks)


class BuiltinsOnly:
    """What hooks that run in a host may give to the children they start: there is no process for others to live in."""

    def enter_all(self, ambient: Sequence[Hook], positional: Sequence[Hook], owner: str) -> tuple[HookEntry, ...]:
        entries: list[HookEntry] = []
        for hook in (*ambient, *positional):
            to_spec = getattr(hook, "to_spec", None)
            if to_spec is None:
                raise HookActivationError(type(hook).__name__, "hooks that run in a host give built-in hooks alone")
            entries.append(BuiltinHook(_encode(to_spec(lambda name, value: pack(value))), propagates=False))
        return tuple(entries)

    def leave(self, entries: Sequence[HookEntry]) -> None:
        pass
