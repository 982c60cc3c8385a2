"""`invoke` in tools and hooks that answer an invocation from outside its frame: what they start are its children.

They run below it: with its hooks, scope and configuration, at the next depth, and end with it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from jaz_actors.capture import capture
from jaz_actors.descriptions import description_of
from jaz_actors.errors import ConfigurationError
from jaz_actors.hooks.base import Hook
from jaz_actors.ids import check_key
from jaz_actors.inputs import InputPacker
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.refs import ReferenceTable
from jaz_actors.shared import SharedBuffers
from jaz_actors.spec import ChildRequest, HookEntry
from jaz_actors.threads import submit

_owners = itertools.count()
_answer_decoder: msgspec.msgpack.Decoder[tuple[Payload | None, ErrorRecord | None]] = msgspec.msgpack.Decoder(
    tuple[Payload | None, ErrorRecord | None]
)
_encode = msgspec.msgpack.Encoder().encode
child_request_decoder = msgspec.msgpack.Decoder(ChildRequest)


def encode_answer(answer: Payload | ErrorRecord) -> bytes:
    return _encode((None, answer) if isinstance(answer, ErrorRecord) else (answer, None))


def decode_answer(data: bytes) -> Payload | ErrorRecord:
    value, error = _answer_decoder.decode(data)
    answer = value if value is not None else error
    assert answer is not None
    return answer


class Hooks(Protocol):
    """Turns hooks given to a child into entries; `HookHome` is one."""

    def enter_all(self, ambient: Sequence[Hook], positional: Sequence[Hook], owner: str) -> tuple[HookEntry, ...]: ...

    def leave(self, entries: Sequence[HookEntry]) -> None: ...


class Server:
    """What a process needs to make calls for others: one a driver, one a host.

    load / load_error:  open results; hosts open plain data alone.
    must_await:         whether the current thread is one that must not block.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        packer: InputPacker,
        hooks: Hooks,
        release: Callable[[str], None],
        load: Callable[[Payload], Any],
        load_error: Callable[[ErrorRecord], BaseException],
        must_await: Callable[[], bool],
    ) -> None:
        self.loop = loop
        self.packer = packer
        self.hooks = hooks
        self.release = release
        self.load = load
        self.load_error = load_error
        self.must_await = must_await


class ServedCalls:
    """A `Caller` for one answer. `ask` sends the request to the parent's host, on the server's loop."""

    subject = "hooks and tools"

    def __init__(self, server: Server, path: str, prefix: str, ask: Callable[[ChildRequest], Awaitable[bytes]]) -> None:
        self._server = server
        self._path = path
        self._prefix = prefix
        self._ask = ask

    def invoke(self, /, *local: object, key: str | None = None, **inputs: object) -> Any:
        if self._server.must_await():
            raise ConfigurationError("invoke", "it would block every other hook; use `await ainvoke(...)` here")
        request, owner = self._request(local, key, inputs)
        future = submit(self._answer(request, owner), self._server.loop)
        try:
            answer = future.result()
        except BaseException:
            future.cancel()
            raise
        return self._value(answer)

    def ainvoke(self, /, *local: object, key: str | None = None, **inputs: object) -> Coroutine[Any, Any, Any]:
        return self._await(*self._request(local, key, inputs))

    async def _await(self, request: ChildRequest, owner: str) -> Any:
        future = submit(self._answer(request, owner), self._server.loop)
        return self._value(await asyncio.wrap_future(future))

    def _request(
        self, local: tuple[object, ...], key: str | None, inputs: dict[str, object]
    ) -> tuple[ChildRequest, str]:
        if key is not None:
            check_key(key)
        captured = capture(local, inputs)
        if captured.others:
            raise ConfigurationError(
                "invoke", f"{self.subject} give hooks to a child, not {captured.others[0]!r}; "
                "set components around the root, `with ConfigOverride(..., depth=N):`",
            )  # fmt: skip
        server = self._server
        owner = f"served-{next(_owners)}"
        entries: tuple[HookEntry, ...] = ()
        try:
            packed = server.packer.pack_all(captured.inputs, owner, description_of)
            scope = server.packer.pack_all(captured.scope, owner, description_of)
            entries = server.hooks.enter_all(captured.ambient, captured.positional, owner)
        except BaseException:
            server.release(owner)
            raise
        return ChildRequest(self._path, self._prefix, key, packed, scope, entries), owner

    async def _answer(self, request: ChildRequest, owner: str) -> bytes:
        try:
            return await self._ask(request)
        finally:
            self._server.hooks.leave(request.hooks)
            self._server.release(owner)

    def _value(self, answer: bytes) -> Any:
        result = decode_answer(answer)
        if isinstance(result, ErrorRecord):
            raise self._server.load_error(result)
        return self._server.load(result)


def host_packer(name: str) -> tuple[InputPacker, Callable[[str], None]]:
    """A packer for hooks that run in a host, and what releases an owner's values."""
    table, buffers = ReferenceTable(name), SharedBuffers()

    def release(owner: str) -> None:
        table.release(owner)
        buffers.release(owner)

    return InputPacker(table, buffers), release
