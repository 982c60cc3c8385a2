"""What stays at home in the driver: hooks and lent objects. Answers the hosts that ask for them.

User code runs here on threads of its own, never on the runtime's loop.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jaz_actors import refs
from jaz_actors.effects import Effect
from jaz_actors.errors import ConfigurationError, HookFailed, ReferenceGone
from jaz_actors.events import AnyEvent, Event
from jaz_actors.hooks.base import Hook, answer, handled_events
from jaz_actors.host import buffer_decoder, encode_answer, reference_decoder
from jaz_actors.inputs import InputPacker
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.ports import Ports
from jaz_actors.refs import Operation, ReferenceTable, perform
from jaz_actors.shared import SharedBuffers
from jaz_actors.spec import BuiltinHook, HomeHook, HookEntry, LocalHook
from jaz_actors.threads import LoopThread, in_daemon_thread
from jaz_actors.transfer import dumps, error_record, unpack

logger = logging.getLogger(__name__)

REFERENCE_THREADS = 64

_events: msgspec.msgpack.Decoder[AnyEvent] = msgspec.msgpack.Decoder(AnyEvent)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Registered:
    hook: Hook
    users: int


class Home:
    """One driver's hooks and objects. The lock protects the hook table, which any thread may register in."""

    def __init__(self, ports: Ports) -> None:
        self.name = ports.name
        self.table = ReferenceTable(ports.name)
        self.buffers = SharedBuffers()
        self.packer = InputPacker(self.table, self.buffers)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._hooks: dict[int, _Registered] = {}
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        self._hook_thread: LoopThread | None = None
        self._places = asyncio.Semaphore(REFERENCE_THREADS)
        ports.handle("hook", self._on_hook)
        ports.handle("reference", self._on_reference)
        ports.handle("buffer", self._on_buffer)
        ports.on("event", self._on_event)
        refs.install(_AtHome(self))

    # -- hooks

    def enter(self, hook: Hook, *, propagates: bool) -> HookEntry:
        """The form in which a hook goes with an invocation; pair with `leave`. Raises ConfigurationError."""
        to_spec = getattr(hook, "to_spec", None)
        if to_spec is not None:
            return BuiltinHook(_encode(to_spec()), propagates)
        if hook.placement == "local":
            try:
                return LocalHook(dumps(hook), propagates)
            except Exception as error:
                raise ConfigurationError(
                    type(hook).__name__, f"a local hook is pickled, and it cannot be: {error}"
                ) from error
        with self._lock:
            number = next((n for n, entry in self._hooks.items() if entry.hook is hook), None)
            if number is None:
                number = next(self._numbers)
                self._hooks[number] = _Registered(hook, 0)
            self._hooks[number].users += 1
            if self._hook_thread is None:
                self._hook_thread = LoopThread("jaz-hooks")
        tags = frozenset(str(kind.__struct_config__.tag) for kind in handled_events(type(hook)))
        return HomeHook(
            self.name, number, type(hook).__name__, tags, hook.on_error == "ignore", propagates,
            hook.placement == "observer",
        )  # fmt: skip

    def leave(self, entries: Sequence[HookEntry]) -> None:
        with self._lock:
            for entry in entries:
                if isinstance(entry, HomeHook):
                    registered = self._hooks[entry.number]
                    registered.users -= 1
                    if not registered.users:
                        del self._hooks[entry.number]

    async def _on_hook(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        registered = self._hooks.get(int(parts[0]))
        event: Event = _events.decode(parts[1])
        if registered is None or self._hook_thread is None:
            raise HookFailed("a hook", type(event).__name__, "it is no longer active at home")
        try:
            effects: list[Effect] = await asyncio.wrap_future(self._hook_thread.submit(answer(registered.hook, event)))
        except Exception:
            # Only its text travels to the host; where it was raised is known here alone.
            logger.warning("hook %s raised on %s", type(registered.hook).__name__, type(event).__name__, exc_info=True)
            raise
        return [_encode(effects)]

    def _on_event(self, caller: str, parts: list[bytes]) -> None:
        registered = self._hooks.get(int(parts[0]))
        if registered is not None and self._hook_thread is not None:
            self._hook_thread.submit(self._observe(registered.hook, _events.decode(parts[1])))

    async def _observe(self, hook: Hook, event: Event) -> None:
        try:
            await answer(hook, event)
        except Exception:
            logger.warning("observer %s raised on %s", type(hook).__name__, type(event).__name__, exc_info=True)

    async def observed(self) -> None:
        """Wait until observers have seen every event that has arrived."""
        if self._hook_thread is not None:
            await asyncio.wrap_future(self._hook_thread.submit(asyncio.sleep(0)))

    # -- objects

    def remember_loop(self, owner: str, loop: asyncio.AbstractEventLoop | None) -> None:
        """Awaitables of objects lent to `owner` run on the loop that they come from."""
        if loop is not None:
            self._loops[owner] = loop

    def release(self, owner: str) -> None:
        self._loops.pop(owner, None)
        self.table.release(owner)
        self.buffers.release(owner)

    async def _on_reference(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        call = reference_decoder.decode(parts[0])
        answered: Payload | ErrorRecord
        try:
            answered = await self._operate(call.record.type_name, call.operation, call.args)
        except Exception as error:
            answered = error_record(error)
        return [encode_answer(answered)]

    async def _operate(self, description: str, operation: Operation, args: Payload) -> Payload:
        target = self.table.get(operation.number, description)
        owner = self.table.owner(operation.number)

        def work() -> Any:
            arguments: Any = unpack(args)
            return perform(target, operation, *arguments)

        async with self._places:
            result = await in_daemon_thread(work)
        if inspect.isawaitable(result):
            result = await self._awaited(result, owner)
        return await in_daemon_thread(lambda: self.packer.pack("result", result, owner, share=False))

    async def _awaited(self, awaitable: Any, owner: str) -> Any:
        async def wait() -> Any:
            return await awaitable

        its_loop = self._loops.get(owner)
        if its_loop is None or not its_loop.is_running():
            return await wait()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(wait(), its_loop))

    async def _on_buffer(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [self.buffers.content(buffer_decoder.decode(parts[0]))]

    def close(self) -> None:
        refs.install(None)
        if self._hook_thread is not None:
            self._hook_thread.stop()


class _AtHome:
    """The driver's own reference transport: what it lent, it has; what frames lent ended with them."""

    def __init__(self, home: Home) -> None:
        self.home = home.name
        self.table = home.table

    def operate(self, record: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
        raise ReferenceGone(record.type_name, "the agent that lent it is over")

    async def operate_async(self, record: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
        raise ReferenceGone(record.type_name, "the agent that lent it is over")
