"""How many connections there are, when they are used again and when they are closed."""

from __future__ import annotations

import asyncio
import gzip
import resource

import pytest

from jaz_actors.backends import http_client
from jaz_actors.backends.http_client import RESERVED_FILES, Endpoint, HttpClient
from jaz_actors.errors import ConfigurationError, MalformedResponse, RequestRefused, ServerUnavailable
from tests.backends.fake_server import Answer, Call, Closes, FakeServer, Hangs, Reply, fake_server

pytestmark = pytest.mark.asyncio


class Client(HttpClient):
    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def a_client(server: FakeServer, max_connections: int = 4) -> Client:
    return Client("here", Endpoint(server.url, max_connections=max_connections, timeout=5))


async def good(call: Call) -> Answer:
    return Reply(b"ok")


async def test_a_connection_is_used_again() -> None:
    async with fake_server(good) as server, a_client(server) as client:
        for _ in range(10):
            assert await client.get("/") == b"ok"
        assert server.connections == 1


async def test_requests_beyond_the_connections_wait_and_are_served_in_order() -> None:
    async with fake_server(good) as server, a_client(server, 1) as client:
        await asyncio.gather(*(client.get(f"/{i}") for i in range(50)))
        assert [call.path for call in server.calls] == [f"/{i}" for i in range(50)]
        assert server.connections == 1


async def test_failures_and_cancellation_give_their_places_back() -> None:
    answers: list[Answer] = [Closes(), Hangs(), Closes()]

    async def answer(call: Call) -> Answer:
        return answers.pop(0) if answers else Reply(b"ok")

    async with fake_server(answer) as server, a_client(server, 1) as client:
        with pytest.raises(ServerUnavailable):
            await client.post("/", b"{}")
        hung = asyncio.create_task(client.post("/hung", b"{}"))
        await server.wait_called("/hung")
        queued = asyncio.create_task(client.post("/queued", b"{}"))
        await asyncio.sleep(0)
        queued.cancel()
        hung.cancel()
        await asyncio.wait({hung, queued})
        assert hung.cancelled()
        assert queued.cancelled()
        with pytest.raises(ServerUnavailable):
            await client.post("/", b"{}")
        assert await client.post("/", b"{}") == b"ok"
        assert server.calls_of("/queued") == []


async def test_cancelling_a_request_closes_its_connection() -> None:
    async def hang(call: Call) -> Answer:
        return Hangs()

    async with fake_server(hang) as server, a_client(server) as client:
        hung = asyncio.create_task(client.post("/hung", b"{}"))
        await server.wait_called("/hung")
        hung.cancel()
        async with asyncio.timeout(5):
            await server.gone.wait()


async def test_a_request_that_changes_something_is_not_sent_twice_by_itself() -> None:
    """A connection that the server has closed in the meantime is indistinguishable from a request that it dropped."""
    answers: list[Answer] = [Reply(b"ok"), Closes()]

    async def answer(call: Call) -> Answer:
        return answers.pop(0) if answers else Reply(b"again")

    async with fake_server(answer) as server, a_client(server) as client:
        await client.post("/", b"1")
        with pytest.raises(ServerUnavailable):
            await client.post("/", b"2")
        assert [call.body for call in server.calls] == [b"1", b"2"]


async def test_a_body_left_half_read_gives_its_place_back() -> None:
    async def long(call: Call) -> Answer:
        return Reply(pieces=[b"x" * 1000] * 50)

    async with fake_server(long) as server, a_client(server, 1) as client:
        for _ in range(3):
            async with client.stream("GET", "/") as answer:
                async for _ in answer.content.iter_any():
                    break


async def test_a_compressed_answer_is_read_and_a_broken_one_is_malformed() -> None:
    answers = [Reply(gzip.compress(b"ok"), headers={"content-encoding": "gzip"})]
    answers.append(Reply(b"no gzip at all", headers={"content-encoding": "gzip"}))

    async def answer(call: Call) -> Answer:
        return answers.pop(0)

    async with fake_server(answer) as server, a_client(server) as client:
        assert await client.get("/") == b"ok"
        with pytest.raises(MalformedResponse):
            await client.get("/")


async def test_a_redirection_is_refused_and_says_where_to() -> None:
    async def answer(call: Call) -> Answer:
        return Reply(b"", 307, {"location": "http://elsewhere/"})

    async with fake_server(answer) as server, a_client(server) as client:
        with pytest.raises(RequestRefused, match="http://elsewhere/"):
            await client.get("/")
        assert len(server.calls) == 1


async def test_idle_connections_are_not_used_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "KEEPALIVE_SECONDS", 0.05)
    async with fake_server(good) as server, a_client(server) as client:
        for _ in range(3):
            await client.get("/")
            await asyncio.sleep(0.2)
        assert server.connections == 3


async def test_closing_ends_what_is_under_way() -> None:
    async def hang(call: Call) -> Answer:
        return Hangs()

    async with fake_server(hang) as server:
        client = a_client(server)
        task = asyncio.create_task(client.get("/x"))
        await server.wait_called("/x")
        await client.aclose()
        await client.aclose()
        with pytest.raises((ServerUnavailable, RequestRefused)):
            await task
        with pytest.raises(RequestRefused, match="closed"):
            await client.get("/x")


async def test_there_are_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (RESERVED_FILES + 3, 10_000))
    async with fake_server(good) as server, a_client(server, 1024) as client:
        await asyncio.gather(*(client.get("/") for _ in range(30)))
        assert server.connections <= 3
    assert "ulimit -n" in caplog.text


@pytest.mark.parametrize(
    "url", ["", "here", "ftp://host", "http://", "http://[::1", "http://host:no", "http://h:99999"]
)
async def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        Endpoint(url)


async def test_what_is_secret_in_a_url_is_not_shown() -> None:
    shown = Endpoint("http://me:secret@host:81/v1?key=secret#secret").shown
    assert shown == "http://host:81/v1"
    with pytest.raises(ConfigurationError) as refused:
        Endpoint("ftp://me:secret@host/")
    assert "secret" not in str(refused.value)


async def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_server(good) as server:
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "")
        async with Client("there", Endpoint("http://model.example/v1", timeout=5)) as client:
            assert await client.get("/x") == b"ok"
        assert [call.path for call in server.calls] == ["http://model.example/v1/x"]


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 10_000
    async with fake_server(good) as server, a_client(server) as client:
        await client.post("/", body, {"x-more": "1"})
        (call,) = server.calls
        assert call.body == body
        assert call.headers["content-type"] == "application/json"
        assert call.headers["x-more"] == "1"
