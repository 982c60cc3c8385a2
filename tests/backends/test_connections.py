"""How many connections there are, when they are used again and when they are closed."""

from __future__ import annotations

import asyncio
import resource
import ssl

import httpx
import pytest

from jaz_actors.backends import connections
from jaz_actors.backends.connections import RESERVED_FILES, Connections
from tests.backends.fake_server import Answer, Call, Closes, Hangs, Reply, fake_server

pytestmark = pytest.mark.asyncio


def a_client(max_connections: int = 4) -> httpx.AsyncClient:
    transport = Connections(max_connections=max_connections, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return httpx.AsyncClient(transport=transport, timeout=5)


async def good(call: Call) -> Answer:
    return Reply(b"ok")


async def test_a_connection_is_used_again() -> None:
    async with fake_server(good) as server, a_client() as client:
        for _ in range(10):
            assert (await client.get(server.url)).content == b"ok"
        assert server.connections == 1


async def test_requests_beyond_the_connections_wait_and_are_served_in_order() -> None:
    async with fake_server(good) as server, a_client(1) as client:
        await asyncio.gather(*(client.get(f"{server.url}/{i}") for i in range(50)))
        assert [call.path for call in server.calls] == [f"/{i}" for i in range(50)]
        assert server.connections == 1


async def test_failures_and_cancellation_give_their_places_back() -> None:
    answers: list[Answer] = [Closes(), Hangs(), Closes()]

    async def answer(call: Call) -> Answer:
        return answers.pop(0) if answers else Reply(b"ok")

    async with fake_server(answer) as server, a_client(1) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)
        hung = asyncio.create_task(client.get(server.url + "/hung"))
        await server.wait_called("/hung")
        queued = asyncio.create_task(client.get(server.url + "/queued"))
        await asyncio.sleep(0)
        queued.cancel()
        hung.cancel()
        await asyncio.wait({hung, queued})
        assert hung.cancelled()
        assert queued.cancelled()
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)
        assert (await client.get(server.url)).content == b"ok"
        assert server.calls_of("/queued") == []


async def test_a_body_left_half_read_gives_its_place_back() -> None:
    async def long(call: Call) -> Answer:
        return Reply(pieces=[b"x" * 1000] * 50)

    async with fake_server(long) as server, a_client(1) as client:
        for _ in range(3):
            async with client.stream("GET", server.url) as answer:
                async for _ in answer.aiter_raw():
                    break


async def test_idle_connections_are_closed_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    open_now: list[int] = []

    async with fake_server(good) as server, a_client() as client:
        await asyncio.gather(*(client.get(server.url) for _ in range(4)))
        transport = client._transport
        assert isinstance(transport, Connections)
        open_now.append(len(transport._idle))
        monkeypatch.setattr(connections, "KEEPALIVE_SECONDS", -1.0)
        await client.get(server.url)
        open_now.append(len(transport._idle))
    assert open_now == [4, 0]


async def test_closing_while_a_request_is_under_way_closes_its_connection_at_its_end() -> None:
    release = asyncio.Event()

    async def later(call: Call) -> Answer:
        await release.wait()
        return Reply(b"ok")

    async with fake_server(later) as server:
        transport = Connections(max_connections=2, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        client = httpx.AsyncClient(transport=transport)
        task = asyncio.create_task(client.get(server.url + "/x"))
        await server.wait_called("/x")
        await transport.aclose()
        release.set()
        assert (await task).content == b"ok"
        assert not transport._idle
        await client.aclose()


async def test_there_are_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (RESERVED_FILES + 3, 10_000))
    async with fake_server(good) as server, a_client(1024) as client:
        await asyncio.gather(*(client.get(server.url) for _ in range(30)))
        assert server.connections <= 3
    assert "ulimit -n" in caplog.text
