"""An HTTP server on real sockets that answers, or misbehaves, as a test says. Knows no API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """claims: the content length that is said, where it is not the body's own. pieces: sent in its place."""

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    claims: int | None = None
    pieces: Sequence[bytes] | None = None
    breaks_off: bool = False


class Hangs:
    """No answer until the client is gone."""


class Closes:
    """The connection is closed in place of an answer."""


Answer = Reply | Hangs | Closes
AnswerFunction = Callable[[Call], Awaitable[Answer]]


def json_reply(body: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(msgspec.json.encode(body), status, headers)


class FakeServer:
    """`answer` decides; `calls` are the requests in order; `gone` is set when a waiting client has left."""

    def __init__(self, answer: AnswerFunction) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.received = asyncio.Condition()
        self.gone = asyncio.Event()
        self.connections = 0
        self.url = ""

    async def wait_called(self, path: str, count: int = 1) -> list[Call]:
        """The calls of a path, once there are so many."""
        async with asyncio.timeout(5), self.received:
            await self.received.wait_for(lambda: len(self.calls_of(path)) >= count)
        return self.calls_of(path)

    def calls_of(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (call := await _read(reader)) is not None:
                async with self.received:
                    self.calls.append(call)
                    self.received.notify_all()
                answer = await self.answer(call)
                if isinstance(answer, Hangs):
                    await reader.read(1)
                    self.gone.set()
                    return
                if isinstance(answer, Closes) or not await _write(writer, answer):
                    return
        except ConnectionError:
            self.gone.set()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Call | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Call(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    """False when the connection is to be closed."""
    chunked = reply.pieces is not None
    length = len(reply.body) if reply.claims is None else reply.claims
    framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(length)}
    headers = {"content-type": "application/json"} | reply.headers | framing
    lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if not chunked:
        writer.write(reply.body)
    for piece in reply.pieces or ():
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
    if chunked and not reply.breaks_off:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not reply.breaks_off and (reply.claims is None or reply.claims == len(reply.body))


@contextlib.asynccontextmanager
async def fake_server(answer: AnswerFunction) -> AsyncIterator[FakeServer]:
    fake = FakeServer(answer)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(fake._serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
