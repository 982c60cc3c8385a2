"""Requests and notices between the processes of one run, over ZMQ with CURVE. `Ports` for several processes.

Every process binds one PULL socket and connects one PUSH socket to each other process that it talks to, so all that
goes from A to B, replies included, keeps the order in which A sent it. Only holders of the run's keys get through.
Knows nothing of what is said.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from jaz_actors import errors
from jaz_actors.errors import ChannelClosed, ConfigurationError, JazError, RemoteError
from jaz_actors.ports import Handler, Listener
from jaz_actors.transfer import qualified_name

logger = logging.getLogger(__name__)

_BATCH = 200
_LINGER_MS = 1000
_CANCEL_SECONDS = 5.0
_COPY_BELOW = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChannelKeys:
    """The key pairs of one run: one for the listening side of every process, one for the connecting side."""

    server_public: bytes
    server_secret: bytes = field(repr=False)
    client_public: bytes
    client_secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> ChannelKeys:
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return cls(server_public, server_secret, client_public, client_secret)


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """First part of every message. `number` ties a reply, an error or a cancellation to its request."""

    kind: Literal["hello", "request", "reply", "error", "cancel", "notice"]
    sender: str
    number: int = 0
    method: str = ""


class _Failure(msgspec.Struct, frozen=True, array_like=True):
    """An exception as plain data: one of ours by its class and fields, any other as text."""

    type_name: str
    message: str
    fields: list[str | int | float | None] | None = None


_encode = msgspec.msgpack.Encoder().encode
_header = msgspec.msgpack.Decoder(_Header)
_failure = msgspec.msgpack.Decoder(_Failure)


@dataclass(slots=True)
class _Pending:
    peer: str
    reply: asyncio.Future[list[bytes]]


class Peer:
    """This process's end of the channel. Belongs to one event loop; `start` before use, `aclose` in every case."""

    def __init__(self, name: str, keys: ChannelKeys, *, address: str = "127.0.0.1") -> None:
        self._name = name
        self._keys = keys
        self._address = address
        self._context = zmq.Context()
        self._inbox: zmq.Socket[bytes] | None = None
        self._fd = -1
        self._guard: ThreadAuthenticator | None = None
        self._outboxes: dict[str, zmq.Socket[bytes]] = {}
        self._endpoints: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._serving: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._handlers: dict[str, Handler] = {}
        self._listeners: dict[str, Listener] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self.endpoint = ""

    @property
    def name(self) -> str:
        return self._name

    # -- life

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = _guard(self._context, self._keys)
        inbox = self._inbox = self._context.socket(zmq.PULL)
        inbox.setsockopt(zmq.LINGER, 0)
        inbox.setsockopt(zmq.RCVHWM, 0)
        inbox.curve_server = True
        inbox.curve_publickey = self._keys.server_public
        inbox.curve_secretkey = self._keys.server_secret
        port = inbox.bind_to_random_port(f"tcp://{self._address}")
        self.endpoint = f"tcp://{self._address}:{port}"
        self._fd = int(inbox.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._readable)
        self._readable()

    def connect(self, name: str, endpoint: str) -> None:
        """Learn where another process listens. A process that gets a first message learns it by itself."""
        self._endpoints[name] = endpoint
        self._gone.pop(name, None)

    def forget(self, name: str, reason: str) -> None:
        """The process is dead: what it was asked for fails, what it asked for is cancelled."""
        self._gone[name] = reason
        self._endpoints.pop(name, None)
        outbox = self._outboxes.pop(name, None)
        if outbox is not None:
            outbox.close(linger=0)
        for number, pending in list(self._pending.items()):
            if pending.peer == name:
                del self._pending[number]
                if not pending.reply.done():
                    pending.reply.set_exception(ChannelClosed(name, reason))
        for (caller, _), task in list(self._serving.items()):
            if caller == name:
                task.cancel()

    async def aclose(self) -> None:
        """Outstanding requests fail, handlers are cancelled, what was sent is given a second to leave. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for pending in self._pending.values():
            if not pending.reply.done():
                pending.reply.set_exception(ChannelClosed(pending.peer, "this process closed it"))
        self._pending.clear()
        tasks = list(self._serving.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._inbox is not None:
            self._loop.remove_reader(self._fd)
            self._inbox.close()
        for outbox in self._outboxes.values():
            outbox.close(linger=_LINGER_MS)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.stop)
        # Terminating waits for the linger, so it must not hold up the loop.
        await asyncio.to_thread(self._context.term)

    # -- speaking

    async def request(self, peer: str, method: str, *parts: bytes) -> list[bytes]:
        number = next(self._numbers)
        reply: asyncio.Future[list[bytes]] = self._loop.create_future()
        self._send(peer, _Header("request", self._name, number, method), parts)
        self._pending[number] = _Pending(peer, reply)
        try:
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            await self._cancel(peer, number, reply)
            raise

    async def _cancel(self, peer: str, number: int, reply: asyncio.Future[list[bytes]]) -> None:
        """Cancel the handler, and give it a moment to end: what it started is over when this returns."""
        reply.add_done_callback(_seen)
        try:
            if not reply.done() and not self._closed:
                self._send(peer, _Header("cancel", self._name, number), ())
                await asyncio.wait({reply}, timeout=_CANCEL_SECONDS)
        except ChannelClosed:
            logger.debug("%s: %s is gone and cannot be told", self._name, peer)
        finally:
            self._pending.pop(number, None)
            reply.cancel()

    def notify(self, peer: str, method: str, *parts: bytes) -> None:
        self._send(peer, _Header("notice", self._name, 0, method), parts)

    def handle(self, method: str, handler: Handler) -> None:
        self._handlers[method] = handler

    def on(self, method: str, listener: Listener) -> None:
        self._listeners[method] = listener

    def _send(self, peer: str, header: _Header, parts: Sequence[bytes]) -> None:
        outbox = self._outboxes.get(peer) or self._open(peer)
        small = all(len(part) < _COPY_BELOW for part in parts)
        try:
            outbox.send_multipart([_encode(header), *parts], zmq.NOBLOCK, copy=small)
        except zmq.Again:
            raise ChannelClosed(peer, "it refused the connection") from None

    def _open(self, peer: str) -> zmq.Socket[bytes]:
        if self._closed:
            raise ChannelClosed(peer, "this process closed it")
        if peer in self._gone:
            raise ChannelClosed(peer, self._gone[peer])
        endpoint = self._endpoints.get(peer)
        if endpoint is None:
            raise ChannelClosed(peer, "its address is not known")
        outbox = self._context.socket(zmq.PUSH)
        outbox.setsockopt(zmq.SNDHWM, 0)
        outbox.setsockopt(zmq.LINGER, _LINGER_MS)
        outbox.curve_serverkey = self._keys.server_public
        outbox.curve_publickey = self._keys.client_public
        outbox.curve_secretkey = self._keys.client_secret
        outbox.connect(endpoint)
        self._outboxes[peer] = outbox
        outbox.send_multipart([_encode(_Header("hello", self._name)), self.endpoint.encode()])
        return outbox

    # -- listening

    def _readable(self) -> None:
        inbox = self._inbox
        if inbox is None or inbox.closed:
            return
        for _ in range(_BATCH):
            try:
                parts = inbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                header = _header.decode(parts[0])
            except msgspec.MsgspecError:
                logger.warning("%s: dropped a message that is none", self._name)
                continue
            self._received(header, parts[1:])
        # The descriptor signals changes only: what is left must be fetched without another signal.
        self._loop.call_soon(self._readable)

    def _received(self, header: _Header, parts: list[bytes]) -> None:
        if header.sender in self._gone:
            return
        match header.kind:
            case "request":
                key = (header.sender, header.number)
                self._serving[key] = asyncio.create_task(self._serve(key, header.method, parts))
            case "reply" | "error":
                pending = self._pending.pop(header.number, None)
                if pending is not None and not pending.reply.done():
                    if header.kind == "reply":
                        pending.reply.set_result(parts)
                    else:
                        pending.reply.set_exception(_exception(parts))
            case "cancel":
                task = self._serving.get((header.sender, header.number))
                if task is not None:
                    task.cancel()
            case "notice":
                listener = self._listeners.get(header.method)
                if listener is None:
                    logger.warning("%s: no one listens to %r", self._name, header.method)
                    return
                try:
                    listener(header.sender, parts)
                except Exception:
                    logger.exception("%s: %r from %s raised", self._name, header.method, header.sender)
            case "hello" if parts:
                self._endpoints.setdefault(header.sender, parts[0].decode(errors="replace"))

    async def _serve(self, key: tuple[str, int], method: str, parts: list[bytes]) -> None:
        caller, number = key
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise ConfigurationError(method, f"{self._name} does not answer that")
            reply = await handler(caller, parts)
            self._answer(caller, _Header("reply", self._name, number), reply or ())
        except asyncio.CancelledError:
            failure = _Failure("ChannelClosed", "", [self._name, "it gave the request up"])
            self._answer(caller, _Header("error", self._name, number), (_encode(failure),))
            raise
        except Exception as error:
            self._answer(caller, _Header("error", self._name, number), (_encode(_described(error)),))
        finally:
            self._serving.pop(key, None)

    def _answer(self, caller: str, header: _Header, parts: Sequence[bytes]) -> None:
        try:
            self._send(caller, header, parts)
        except ChannelClosed:
            logger.debug("%s: %s is gone and gets no answer", self._name, caller)


def _seen(reply: asyncio.Future[list[bytes]]) -> None:
    """Take note of an error that no one waits for any more."""
    if not reply.cancelled():
        reply.exception()


def _guard(context: zmq.Context[zmq.Socket[bytes]], keys: ChannelKeys) -> ThreadAuthenticator:
    """Lets in who connects with the run's client key, and no one else."""

    class RunOnly:
        def callback(self, domain: str, key: bytes) -> bool:
            return key == keys.client_public

    guard = ThreadAuthenticator(context)
    guard.start()
    guard.configure_curve_callback(domain="*", credentials_provider=RunOnly())
    return guard


def _described(error: Exception) -> _Failure:
    plain = isinstance(error, JazError) and all(isinstance(f, (str, int, float, type(None))) for f in error.args)
    return _Failure(
        type(error).__name__ if isinstance(error, JazError) else qualified_name(type(error)),
        str(error),
        list(error.args) if plain else None,
    )


def _exception(parts: list[bytes]) -> Exception:
    try:
        failure = _failure.decode(parts[0])
    except (IndexError, msgspec.MsgspecError):
        return RemoteError("unknown", "the answer was an error that cannot be read")
    cls = getattr(errors, failure.type_name, None)
    if failure.fields is not None and isinstance(cls, type) and issubclass(cls, JazError):
        try:
            return cls(*failure.fields)
        except TypeError:
            pass
    return RemoteError(failure.type_name, failure.message)
