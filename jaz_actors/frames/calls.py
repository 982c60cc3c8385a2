"""What leaves a frame and what comes in: child invocations, lent objects, borrowed objects. Runs in the frame."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any

from jaz_actors.capture import capture
from jaz_actors.descriptions import description_of
from jaz_actors.errors import ConfigurationError, HookError, InputRefused, RecursionLimitExceeded
from jaz_actors.frames.link import Link
from jaz_actors.frames.wire import AskHook, ChildCall, HookAnswered, ReferenceCall, Reply, Serve, Served, Setup
from jaz_actors.hook_home import HookHome
from jaz_actors.ids import PathCounter
from jaz_actors.inputs import InputPacker
from jaz_actors.payload import Payload, ReferenceRecord
from jaz_actors.refs import Operation, ReferenceTable, perform
from jaz_actors.shared import SharedBuffers
from jaz_actors.transfer import error_record, load_error, unpack

_FRAME = "frame"  # owner of what is lent until the frame's process ends


class FrameCalls:
    """This frame's `invoke` and `ainvoke`, its reference transport, and the hooks that its code gives to children.

    Safe from any thread. The lock orders calls: the ordinal of a child is taken at the moment of the call.
    """

    subject = "agent code"

    def __init__(self, setup: Setup) -> None:
        self.home = setup.home
        self.table = ReferenceTable(setup.home)
        self.link: Link
        self._depth = setup.depth
        self._recursion = setup.recursion
        self._scope = frozenset(item.name for item in setup.scope)
        self._lock = threading.Lock()
        self._paths = PathCounter(setup.children)
        self._references = setup.references
        self._buffers = SharedBuffers()
        self._packer = InputPacker(self.table, self._buffers)
        self.hooks = HookHome(setup.home, self._packer, owner=lambda invoke_id: _FRAME, trusted=False)

    def invoke(self, /, *hooks: object, key: str | None = None, **inputs: object) -> Any:
        """Ask a child agent and wait for its result. `task=...` says what to do; it sees only what it is given."""
        child = self._child(hooks, key, inputs)
        try:
            if self.hooks.owns_current_thread():
                raise ConfigurationError("invoke", "it would block every other hook; use `await ainvoke(...)` here")
            return self._wait(*self.link.call(child))
        finally:
            self._release(child)

    def ainvoke(self, /, *hooks: object, key: str | None = None, **inputs: object) -> Coroutine[Any, Any, Any]:
        """The same, awaitable: `await asyncio.gather(ainvoke(...), ainvoke(...))` runs children side by side."""
        return self._await_child(self._child(hooks, key, inputs))

    async def _await_child(self, child: ChildCall) -> Any:
        try:
            return await self._await_call(child)
        finally:
            self._release(child)

    def _release(self, child: ChildCall) -> None:
        self.hooks.leave(child.hooks)
        self.table.release(child.component)
        self._buffers.release(child.component)

    def operate(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> Any:
        return self._wait(*self.link.call(self._reference(record, operation, args, kwargs)))

    def operate_async(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> Awaitable[Any]:
        return self._await_call(self._reference(record, operation, args, kwargs))

    def _child(self, hooks: tuple[object, ...], key: str | None, inputs: dict[str, object]) -> ChildCall:
        if not self._recursion:
            raise RecursionLimitExceeded(self._depth + 1, self._depth)
        captured = capture(hooks, inputs)
        if captured.others:
            raise ConfigurationError("invoke", f"agent code gives hooks to a child, not {captured.others[0]!r}")
        clash = self._scope & inputs.keys()
        if clash:
            raise InputRefused(min(clash), "every agent of this tree has an input of that name")
        with self._lock:
            component = self._paths.take(key)
        inherited = captured.scope.items()
        return ChildCall(
            component,
            self._packer.pack_all(captured.inputs, component, description_of),
            self._packer.pack_all(dict(inherited), component, description_of),
            self.hooks.enter_all(captured.ambient, captured.positional, component),  # type: ignore[arg-type]
        )

    def _reference(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> ReferenceCall:
        with self._lock:
            number, self._references = self._references, self._references + 1
        packed = self._packer.pack("argument", (args, kwargs), _FRAME, share=False)
        return ReferenceCall(record, operation, packed, number)

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

    def serve(self, message: Serve | AskHook) -> None:
        """Perform an operation on an object lent by this frame, on a thread of its own: it may take its time."""
        if isinstance(message, AskHook):
            self._serve_hook(message)
            return
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

    def _serve_hook(self, message: AskHook) -> None:
        call = message.call
        if call is None:
            self.hooks.observe(message.hook, message.event)
            return

        def answered(future: Future[bytes]) -> None:
            error = future.exception()
            if error is None:
                self.link.send(HookAnswered(call, future.result()))
            else:
                fields = error.args if isinstance(error, HookError) else ("a hook", "an event", str(error))
                self.link.send(HookAnswered(call, error=(type(error).__name__, tuple(map(str, fields)))))

        self.hooks.answer(message.hook, message.event, None).add_done_callback(answered)

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
