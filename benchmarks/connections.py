"""Requests to one server from one process: how far the clients are from the cheapest one that there can be.

A server in a process of its own reads each request, waits, and sends an answer made before. `ideal` is a client of bare
sockets that keeps its connections, writes bytes made before and looks only for the length of the answer. Bodies are
those of a query: 4,000 ids in, 200 ids with log-probabilities out. A first round opens the connections, the next uses
them again; the fastest of several rounds counts.

This process looks for garbage as rarely as hosts do.

    python benchmarks/connections.py [--concurrency 10 100 500 2000] [--think 0.2] [--httpx-up-to 500]

httpx looks through its whole pool for each request: 2,000 at once take it minutes, so it is left out there by default.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection

import httpx
import msgspec

from jaz_actors import garbage
from jaz_actors.backends.generate_api import Sampling, generate_body
from jaz_actors.backends.http_client import Endpoint, HttpClient

ROUNDS = 3
HEAD_END = b"\r\n\r\n"
Request = Callable[[], Awaitable[object]]

BODY = generate_body(list(range(4000)), Sampling().parameters((2,)), rid="r", weight_version="1", session="run:0")


def _answer() -> bytes:
    logprobs = [[-0.123456 - n / 1000, n, None] for n in range(200)]
    meta = {"id": "r", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 4000}
    meta |= {"completion_tokens": 200, "weight_version": "1", "output_token_logprobs": logprobs}
    body = msgspec.json.encode({"text": "x" * 600, "output_ids": list(range(200)), "meta_info": meta})
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class _Server(asyncio.Protocol):
    """Answers `think` seconds after a whole request, on connections that stay open."""

    def __init__(self, answer: bytes, think: float) -> None:
        self._answer, self._think = answer, think
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            end = self._data.find(HEAD_END)
            if end < 0:
                return
            whole = end + len(HEAD_END) + _content_length(bytes(self._data[:end]))
            if len(self._data) < whole:
                return
            del self._data[:whole]
            asyncio.get_running_loop().call_later(self._think, self._send)

    def _send(self) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(self._answer)


def _content_length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


def _serve(pipe: Connection, think: float) -> None:
    async def run() -> None:
        answer = _answer()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Server(answer, think), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.poll, None)

    asyncio.run(run())


class _Bare:
    """The ideal: connections kept in a list, the same bytes written each time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        head = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._request = head % len(BODY) + BODY

    async def post(self) -> None:
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        head = await reader.readuntil(HEAD_END)
        await reader.readexactly(_content_length(head))
        self._idle.append((reader, writer))

    async def aclose(self) -> None:
        for _, writer in self._idle:
            writer.close()


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds for all requests of a round; CPU of this process."""

    cold: float
    warm: float
    warm_cpu: float


async def _measured(request: Request, count: int) -> _Times:
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS + 1):
        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(request() for _ in range(count)))
        rounds.append((time.perf_counter() - begun, time.process_time() - cpu))
    return _Times(rounds[0][0], *min(rounds[1:]))


async def _clients(stack: AsyncExitStack, port: int, count: int) -> dict[str, Request]:
    url = f"http://127.0.0.1:{port}"
    bare = _Bare(port)
    stack.push_async_callback(bare.aclose)
    ours = HttpClient("ours", Endpoint(url, max_connections=4096))
    stack.push_async_callback(ours.aclose)
    limits = httpx.Limits(max_connections=4096, max_keepalive_connections=4096)
    raised = await stack.enter_async_context(httpx.AsyncClient(timeout=600, limits=limits))
    plain = await stack.enter_async_context(httpx.AsyncClient(timeout=600))
    headers = {"content-type": "application/json"}
    clients: dict[str, Request] = {
        "ideal": bare.post,
        "ours": lambda: ours.post("/generate", BODY),
        "httpx, pool raised": lambda: raised.post(f"{url}/generate", content=BODY, headers=headers),
        "httpx, as it comes": lambda: plain.post(f"{url}/generate", content=BODY, headers=headers),
    }
    return clients


async def _run(port: int, counts: list[int], think: float, httpx_up_to: int) -> None:
    print(f"think time {think * 1000:.0f} ms, request {len(BODY):,} bytes, answer {len(_answer()):,} bytes")
    print(f"{'requests at once':<18}{'client':<22}{'cold s':>9}{'warm s':>9}{'CPU s':>9}{'warm / ideal':>14}")
    for count in counts:
        ideal = 0.0
        async with AsyncExitStack() as stack:
            for name, request in (await _clients(stack, port, count)).items():
                if name.startswith("httpx") and count > httpx_up_to:
                    continue
                times = await _measured(request, count)
                ideal = ideal or times.warm
                row = f"{times.cold:>9.3f}{times.warm:>9.3f}{times.warm_cpu:>9.3f}{times.warm / ideal:>14.2f}"
                print(f"{count:<18}{name:<22}{row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[10, 100, 500, 2000])
    parser.add_argument("--think", type=float, default=0.2, help="seconds before each answer")
    parser.add_argument("--httpx-up-to", type=int, default=500, help="requests at once")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs, args.think), daemon=True)
    server.start()
    garbage.settle()
    try:
        asyncio.run(_run(pipe.recv(), args.concurrency, args.think, args.httpx_up_to))
    finally:
        server.kill()
        server.join()


if __name__ == "__main__":
    main()
