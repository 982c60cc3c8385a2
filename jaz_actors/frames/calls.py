"""What leaves a frame and what comes in: child invocations, lent objects, borrowed objects. Runs in the frame."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any

import msgspec

from jaz_actors.descriptions import description_of
from jaz_actors.errors import HookActivationError, RecursionLimitExceeded
from jaz_actors.frames.link import Link
from jaz_actors.frames.wire import ChildCall, ReferenceCall, Reply, Serve, Served
from jaz_actors.hooks.base import Hook, check_activation
from jaz_actors.ids import PathCounter
from jaz_actors.inputs import InputPacker
from jaz_actors.payload import Payload, ReferenceRecord
from jaz_actors.refs import Operation, ReferenceTable, perform
from jaz_actors.shared import SharedBuffers
from jaz_actors.transfer import error_record, load_error, unpack

_FRAME = "frame"  # owner of what is lent until the frame's process ends


class FrameCalls:
    """This frame's `invoke` and `ainvoke`, and its reference transport. Safe from any thread.

    The lock orders calls: the ordinal of a child is taken at the moment of the call.
    """

    def __init__(self, home: str, *, depth: int, recursion: bool, children: int) -> None:
        self.home = home
        self.table = ReferenceTable(home)
        self.link: Link
        self._depth = depth
        self._recursion = recursion
        self._lock = threading.Lock()
        self._paths = PathCounter(children)
        self._buffers = SharedBuffers()
        self._packer = InputPacker(self.table, self._buffers)

    def invoke(self, /, *hooks: object, key: str | None = None, **inputs: object) -> Any:
        """Ask a child agent and wait for its result. `task=...` says what to do; it sees only what it is given."""
        child = self._child(hooks, key, inputs)
        try:
            return self._wait(*self.link.call(child))
        finally:
            self._release(child.component)

    def ainvoke(self, /, *hooks: object, key: str | None = None, **inputs: object) -> Coroutine[Any, Any, Any]:
        """The same, awaitable: `await asyncio.gather(ainvoke(...), ainvoke(...))` runs children side by side."""
        return self._await_child(self._child(hooks, key, inputs))

    async def _await_child(self, child: ChildCall) -> Any:
        try:
            return await self._await_call(child)
        finally:
            self._release(child.component)

    def _release(self, owner: str) -> None:
        self.table.release(owner)
        self._buffers.release(owner)

    def operate(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> Any:
        return self._wait(*self.link.call(self._reference(record, operation, args, kwargs)))

    def operate_async(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> Awaitable[Any]:
        return self._await_call(self._reference(record, operation, args, kwargs))

    def _child(self, hooks: tuple[object, ...], key: str | None, inputs: dict[str, object]) -> ChildCall:
        if not self._recursion:
            raise RecursionLimitExceeded(self._depth + 1, self._depth)
        specs = tuple(_hook_spec(hook) for hook in hooks)
        check_activation([hook for hook in hooks if isinstance(hook, Hook)], ())
        with self._lock:
            component = self._paths.take(key)
        return ChildCall(component, self._packer.pack_all(inputs, component, description_of), specs)

    def _reference(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> ReferenceCall:
        return ReferenceCall(record, operation, self._packer.pack("argument", (args, kwargs), _FRAME, share=False))

    def _wait(self, number: int, future: Future[Reply]) -> Any:
        try:
            reply = future.result()
        except BaseException:  # an interrupt: whoever stops waiting also stops the work
            self.link.cancel(number)
            raise
        return _value(reply)

    async def _await_call(self, body: ChildCall | ReferenceCall) -> Any:
        number, future = self.link.call(body)
        try:
            reply = await asyncio.wrap_future(future)
        except BaseException:
            self.link.cancel(number)
            raise
        return _value(reply)

    def serve(self, message: Serve) -> None:
        """Perform an operation on an object lent by this frame, on a thread of its own: it may take its time."""
        threading.Thread(target=self._serve, args=(message,), name="jaz-serve", daemon=True).start()

    def _serve(self, message: Serve) -> None:
        try:
            target = self.table.get(message.operation.number, "an object")
            args, kwargs = _arguments(message.args)
            result = perform(target, message.operation, args, kwargs)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            value = self._pack_served(result)
            self.link.send(Served(message.call, value))
        except BaseException as error:
            self.link.send(Served(message.call, error=error_record(error)))

    def _pack_served(self, value: object) -> Payload:
        return self._packer.pack("result", value, _FRAME, share=False)


def _arguments(payload: Payload) -> Any:
    return unpack(payload)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _value(reply: Reply) -> Any:
    if reply.error is not None:
        raise load_error(reply.error)
    assert reply.value is not None
    return unpack(reply.value)


def _hook_spec(hook: object) -> bytes:
    to_spec = getattr(hook, "to_spec", None)
    if to_spec is None:
        raise HookActivationError(
            type(hook).__name__,
            "agent code may only give the built-in limits and ReturnType to a child; "
            "activate other hooks where the run is started",
        )
    return msgspec.msgpack.encode(to_spec())
