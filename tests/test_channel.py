"""Requests and notices between processes: order, cancellation, errors, death, keys, garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaz_actors import errors
from jaz_actors.channel import ChannelKeys, Peer


@asynccontextmanager
async def two_peers() -> AsyncIterator[tuple[Peer, Peer]]:
    keys = ChannelKeys.generate()
    a, b = Peer("a", keys), Peer("b", keys)
    await a.start()
    await b.start()
    a.connect("b", b.endpoint)

    async def echo(caller: str, parts: list[bytes]) -> Sequence[bytes]:
        return [caller.encode(), *parts]

    b.handle("echo", echo)
    try:
        yield a, b
    finally:
        await a.aclose()
        await b.aclose()


@pytest.mark.asyncio
async def test_many_requests_at_once_get_their_own_answers() -> None:
    async with two_peers() as (a, _):
        got = await asyncio.gather(*(a.request("b", "echo", str(i).encode()) for i in range(1000)))
    assert got == [[b"a", str(i).encode()] for i in range(1000)]


@pytest.mark.asyncio
async def test_large_parts_arrive_whole() -> None:
    async with two_peers() as (a, _):
        part = bytes(range(256)) * (1 << 16)
        assert await a.request("b", "echo", part, b"", b"x") == [b"a", part, b"", b"x"]


@pytest.mark.asyncio
async def test_a_process_that_is_spoken_to_can_speak_back() -> None:
    async with two_peers() as (a, b):

        async def ask_back(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            return await b.request(caller, "name")

        async def name(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            return [a.name.encode()]

        b.handle("ask back", ask_back)
        a.handle("name", name)
        assert await a.request("b", "ask back") == [b"a"]


@pytest.mark.asyncio
async def test_what_is_sent_before_a_reply_arrives_before_it() -> None:
    seen: list[bytes] = []
    async with two_peers() as (a, b):

        async def talk(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            for i in range(100):
                b.notify(caller, "note", str(i).encode())
            return [b"done"]

        b.handle("talk", talk)
        a.on("note", lambda caller, parts: seen.append(parts[0]))
        await a.request("b", "talk")
        assert seen == [str(i).encode() for i in range(100)]


@pytest.mark.asyncio
async def test_cancelling_a_request_cancels_its_handler_and_waits_for_it() -> None:
    ended: list[str] = []
    async with two_peers() as (a, b):
        began = asyncio.Event()

        async def endless(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")
            return []

        b.handle("endless", endless)
        task = asyncio.ensure_future(a.request("b", "endless"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["ended"]


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (errors.HostDied("h", "why"), errors.HostDied),
        (errors.ReferenceGone("x", "why"), errors.ReferenceGone),
        (LookupError("foreign"), errors.RemoteError),
    ],
)
@pytest.mark.asyncio
async def test_errors_of_ours_arrive_as_themselves_and_others_by_name(
    raised: Exception, arrives: type[Exception]
) -> None:
    async with two_peers() as (a, b):

        async def fail(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            raise raised

        b.handle("fail", fail)
        with pytest.raises(arrives) as caught:
            await a.request("b", "fail")
        assert str(raised) in str(caught.value)


@pytest.mark.asyncio
async def test_an_unknown_method_and_an_unknown_peer_are_named() -> None:
    async with two_peers() as (a, _):
        with pytest.raises(errors.ConfigurationError, match="no such"):
            await a.request("b", "no such")
        with pytest.raises(errors.ChannelClosed, match="nobody"):
            await a.request("nobody", "echo")


@pytest.mark.asyncio
async def test_death_ends_what_was_asked_of_the_dead_and_what_they_asked_for() -> None:
    async with two_peers() as (a, b):
        began, ended = asyncio.Event(), asyncio.Event()

        async def endless(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return []

        b.handle("endless", endless)
        task = asyncio.ensure_future(a.request("b", "endless"))
        await began.wait()
        a.forget("b", "it died")
        with pytest.raises(errors.ChannelClosed, match="it died"):
            await task
        with pytest.raises(errors.ChannelClosed, match="it died"):
            await a.request("b", "echo")
        b.forget("a", "it died")
        await asyncio.wait_for(ended.wait(), 5)


@pytest.mark.asyncio
async def test_closing_fails_what_is_outstanding_and_may_be_repeated() -> None:
    async with two_peers() as (a, b):
        began = asyncio.Event()

        async def endless(caller: str, parts: list[bytes]) -> Sequence[bytes]:
            began.set()
            await asyncio.Event().wait()
            return []

        b.handle("endless", endless)
        task = asyncio.ensure_future(a.request("b", "endless"))
        await began.wait()
        await a.aclose()
        await a.aclose()
        with pytest.raises(errors.ChannelClosed):
            await task


@pytest.mark.asyncio
async def test_without_the_runs_keys_nothing_gets_through() -> None:
    async with two_peers() as (_, b):
        keys = b._keys
        stranger = Peer("stranger", ChannelKeys(keys.server_public, keys.server_secret, *zmq.curve_keypair()))
        await stranger.start()
        stranger.connect("b", b.endpoint)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.request("b", "echo", b"secret"), 0.5)
        await stranger.aclose()


@pytest.mark.asyncio
async def test_keys_are_not_in_their_repr() -> None:
    keys = ChannelKeys.generate()
    assert keys.server_secret.decode() not in repr(keys)
    assert keys.client_secret.decode() not in repr(keys)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=4), max_size=20))
def test_garbage_from_a_holder_of_the_keys_is_dropped(messages: list[list[bytes]]) -> None:
    async def scenario() -> None:
        async with two_peers() as (a, b):
            raw = b._context.socket(zmq.PUSH)
            raw.setsockopt(zmq.LINGER, 0)
            raw.curve_serverkey = b._keys.server_public
            raw.curve_publickey = b._keys.client_public
            raw.curve_secretkey = b._keys.client_secret
            raw.connect(b.endpoint)
            for message in messages:
                raw.send_multipart(message)
            assert await a.request("b", "echo", b"still here") == [b"a", b"still here"]
            raw.close()

    asyncio.run(scenario())
