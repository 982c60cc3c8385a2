"""What stays at home in the driver: hooks and lent objects. Answers the hosts that ask for them.

User code runs here on threads of its own, never on the runtime's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jaz_actors import refs
from jaz_actors.errors import FatalError, ReferenceGone
from jaz_actors.frames.entry import Caller, acting_for
from jaz_actors.frames.wire import ReferenceCall
from jaz_actors.hook_home import HookHome, event_decoder
from jaz_actors.host import buffer_decoder, reference_decoder
from jaz_actors.hosted_hooks import lost_exit
from jaz_actors.inputs import InputPacker
from jaz_actors.outcomes import FailedRecord
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.ports import Ports
from jaz_actors.recorders.entries import ToolAnswer
from jaz_actors.refs import Operation, ReferenceTable, lends, perform
from jaz_actors.served_calls import ServedCalls, Server, encode_answer
from jaz_actors.shared import SharedBuffers
from jaz_actors.spec import ChildRequest, HomeHook, InvocationSpec
from jaz_actors.threads import in_daemon_thread
from jaz_actors.transfer import error_record, load_error, unpack

REFERENCE_THREADS = 64

_encode = msgspec.msgpack.Encoder().encode


class Home:
    """One driver's hooks and objects. Made on the runtime's loop.

    recorded:  set by a replay: what an object answered to a call (path, number, verb, name), None when it is not known.
    """

    def __init__(self, ports: Ports) -> None:
        self.name = ports.name
        self._ports = ports
        self.table = ReferenceTable(ports.name)
        self.buffers = SharedBuffers()
        self.packer = InputPacker(self.table, self.buffers)
        self.hooks = HookHome(ports.name, self.packer, owner=lambda invoke_id: invoke_id.root.path, trusted=True)
        self.recorded: Callable[[str, int, str, str], ToolAnswer | None] | None = None
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        self._places = asyncio.Semaphore(REFERENCE_THREADS)
        runtime = threading.get_ident()
        self._server = Server(
            loop=asyncio.get_running_loop(),
            packer=self.packer,
            hooks=self.hooks,
            release=self.release,
            load=unpack,
            load_error=load_error,
            must_await=lambda: self.hooks.owns_current_thread() or threading.get_ident() == runtime,
        )
        ports.handle("hook", self._on_hook)
        ports.handle("reference", self._on_reference)
        ports.handle("buffer", self._on_buffer)
        ports.on("event", self._on_event)
        refs.install(_AtHome(self))

    # -- hooks

    def _calls(self, host: str, path: str, prefix: str) -> ServedCalls:
        async def ask(request: ChildRequest) -> bytes:
            return (await self._ports.request(host, "child", _encode(request)))[0]

        return ServedCalls(self._server, path, prefix, ask)

    async def _on_hook(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        invoke_id = event_decoder.decode(parts[2]).invoke_id
        calls = self._calls(caller, invoke_id.partition(":")[2], "hook")
        return [await asyncio.wrap_future(self.hooks.answer(int(parts[1]), parts[2], calls))]

    def _on_event(self, caller: str, parts: list[bytes]) -> None:
        self.hooks.observe(int(parts[1]), parts[2])

    async def lost(self, spec: InvocationSpec, outcome: FailedRecord) -> None:
        """Tell the hooks here of the end of a root whose host died."""
        event = lost_exit(spec, outcome)
        data = _encode(event)
        for entry in spec.hooks:
            if isinstance(entry, HomeHook) and str(event.__struct_config__.tag) in entry.facts.handles:
                if entry.observer:
                    self.hooks.observe(entry.number, data)
                else:
                    with contextlib.suppress(Exception):  # logged where it was raised; the root has failed already
                        await asyncio.wrap_future(self.hooks.answer(entry.number, data, None))

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
        if (known := self._recorded_answer(call, parts[1].decode())) is not None:
            return [encode_answer(known)]
        calls = self._calls(caller, parts[1].decode(), f"tool{call.number}")
        answered: Payload | ErrorRecord
        try:
            answered = await self._operate(call.record.type_name, call.operation, call.args, calls)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            answered = error_record(error)
        return [encode_answer(answered)]

    def _recorded_answer(self, call: ReferenceCall, path: str) -> Payload | ErrorRecord | None:
        """What a replay says that the object answered. An answer that lends an object is void in another process."""
        if self.recorded is None:
            return None
        answer = self.recorded(path, call.number, call.operation.verb, call.operation.name)
        if answer is None or (answer.value is not None and lends(answer.value)):
            return None
        return answer.value or answer.error

    async def _operate(self, description: str, operation: Operation, args: Payload, calls: Caller) -> Payload:
        target = self.table.get(operation.number, description)
        owner = self.table.owner(operation.number)

        def work() -> Any:
            arguments: Any = unpack(args)
            try:
                with acting_for(calls):
                    return perform(target, operation, *arguments)
            except (SystemExit, KeyboardInterrupt) as error:
                # On an event loop these would end the loop; to the agent's tree they mean the same as a fatal error.
                raise FatalError(f"the tool raised {type(error).__name__}: {error}") from error

        async with self._places:
            result = await in_daemon_thread(work)
        if inspect.isawaitable(result):
            with acting_for(calls):
                result = await self._awaited(result, owner)
        return await in_daemon_thread(lambda: self.packer.pack("result", result, owner, share=False))

    async def _awaited(self, awaitable: Any, owner: str) -> Any:
        async def wait() -> Any:
            return await awaitable

        its_loop = self._loops.get(owner)
        if its_loop is None or not its_loop.is_running():
            return await wait()
        # The task there starts with a copy of this context, so what it starts is started for the same invocation.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(wait(), its_loop))

    async def _on_buffer(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [self.buffers.content(buffer_decoder.decode(parts[0]))]

    def close(self) -> None:
        refs.install(None)
        self.hooks.close()


class _AtHome:
    """The driver's own reference transport: what it lent, it has; what frames lent ended with them."""

    def __init__(self, home: Home) -> None:
        self.home = home.name
        self.table = home.table

    def operate(self, record: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
        raise ReferenceGone(record.type_name, "the agent that lent it is over")

    async def operate_async(self, record: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
        raise ReferenceGone(record.type_name, "the agent that lent it is over")
