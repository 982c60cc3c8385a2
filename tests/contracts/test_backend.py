"""What every backend keeps, whatever is behind it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from jaz_actors.backends.openai import OpenAI
from jaz_actors.backends.retry import RetryPolicy
from jaz_actors.backends.scripted import Scripted
from jaz_actors.backends.sglang import SGLang
from jaz_actors.errors import (
    AuthenticationFailed,
    BackendError,
    ContextOverflow,
    MalformedResponse,
    ModelNotFound,
    RateLimited,
    RequestRefused,
    ServerUnavailable,
)
from jaz_actors.protocols import Backend, RetryNotice
from tests.backends.asked import ByteFormat, a_request
from tests.backends.fake_server import Answer, Call, Closes, FakeServer, Hangs, Reply, fake_server, json_reply

pytestmark = pytest.mark.asyncio

AT_ONCE = RetryPolicy(3, wait_min=0, wait_max=0)
PATHS = {"openai": "/v1/chat/completions", "openai-stream": "/v1/chat/completions", "sglang": "/generate"}


def good(call: Call) -> Reply:
    """The answer "ok" in the API that was called."""
    if call.path == "/generate":
        ids = [*b"ok", 256]
        meta = {
            "id": call.json["rid"],
            "finish_reason": {"type": "stop", "matched": 256},
            "prompt_tokens": len(call.json["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 2,
            "weight_version": "7",
            "output_token_logprobs": [[-0.5, i, None] for i in ids],
        }
        return json_reply({"text": "ok", "output_ids": ids, "meta_info": meta})
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    if not call.json.get("stream"):
        message = {"role": "assistant", "content": "ok"}
        return json_reply({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    return Reply(
        headers={"content-type": "text/event-stream"},
        pieces=[
            b'data: {"choices":[{"delta":{"role":"assistant","content":"o"}}]}\n\n',
            b'data: {"choices":[{"delta":{"content":"k"},"finish_reason":"stop"}]}\n\n',
            b'data: {"choices":[],"usage":' + msgspec.json.encode(usage) + b"}\n\ndata: [DONE]\n\n",
        ],
    )


@dataclass
class Served:
    """A server, the kind of backend that talks to it, and the answers it gives before it gives good ones."""

    kind: str
    server: FakeServer
    first: list[Answer]
    opened: list[Backend]

    def backend(self, **options: Any) -> Backend:
        options = {"retry": AT_ONCE} | options
        made: Backend
        if self.kind == "sglang":
            made = SGLang(self.server.url, chat_format=ByteFormat(), **options)
        else:
            url = self.server.url + "/v1"
            made = OpenAI("m", base_url=url, api_key="sk-key", stream=self.kind == "openai-stream", **options)
        self.opened.append(made)
        return made

    @property
    def asked(self) -> list[Call]:
        return self.server.calls_of(PATHS[self.kind])


@pytest_asyncio.fixture(params=["openai", "openai-stream", "sglang"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    first: list[Answer] = []
    opened: list[Backend] = []

    async def answer(call: Call) -> Answer:
        if call.path == "/model_info":
            return json_reply({"weight_version": "7"})
        if call.path == "/abort_request":
            return Reply(b"")
        return first.pop(0) if first else good(call)

    async with fake_server(answer) as server:
        yield Served(request.param, server, first, opened)
        for backend in opened:
            await backend.aclose()


@pytest.fixture(params=["scripted", "openai", "openai-stream", "sglang"])
def backend(request: pytest.FixtureRequest) -> Callable[[FakeServer], Backend]:
    def build(server: FakeServer) -> Backend:
        if request.param == "scripted":
            return Scripted(["ok"])
        return Served(request.param, server, [], []).backend()

    return build


@pytest_asyncio.fixture
async def good_server() -> AsyncIterator[FakeServer]:
    async def answer(call: Call) -> Answer:
        return json_reply({"weight_version": "7"}) if call.path == "/model_info" else good(call)

    async with fake_server(answer) as server:
        yield server


async def test_a_backend_is_pickled_before_its_first_use_and_answers_there(
    backend: Callable[[FakeServer], Backend], good_server: FakeServer
) -> None:
    copy = pickle.loads(pickle.dumps(backend(good_server)))
    assert isinstance(copy, Backend)
    answer = await copy.complete(a_request())
    assert (answer.content, answer.finish_reason, answer.model) == ("ok", "stop", copy.model)
    assert answer.usage.prompt_tokens
    assert answer.usage.completion_tokens
    await copy.aclose()


async def test_calls_for_many_invocations_run_at_once(
    backend: Callable[[FakeServer], Backend], good_server: FakeServer
) -> None:
    made = backend(good_server)
    answers = await asyncio.gather(*(made.complete(a_request(path=str(i))) for i in range(100)))
    assert {answer.content for answer in answers} == {"ok"}
    await made.aclose()


async def test_closing_is_idempotent_also_where_nothing_was_opened(
    backend: Callable[[FakeServer], Backend], good_server: FakeServer
) -> None:
    made = backend(good_server)
    await made.aclose()
    await made.aclose()


async def test_requests_that_overlap_at_the_server_are_all_answered(served: Served) -> None:
    here, everyone = 0, asyncio.Event()

    async def together(call: Call) -> Answer:
        nonlocal here
        if call.path == "/model_info":
            return json_reply({})
        here += 1
        if here == 20:
            everyone.set()
        await everyone.wait()
        return good(call)

    served.server.answer = together
    backend = served.backend()
    async with asyncio.timeout(10):
        await asyncio.gather(*(backend.complete(a_request(path=str(i))) for i in range(20)))


async def test_no_more_requests_are_at_the_server_than_connections(served: Served) -> None:
    here = most = 0

    async def counting(call: Call) -> Answer:
        nonlocal here, most
        if call.path == "/model_info":
            return json_reply({})
        here += 1
        most = max(most, here)
        await asyncio.sleep(0)
        here -= 1
        return good(call)

    served.server.answer = counting
    backend = served.backend(max_connections=4)
    answers = await asyncio.gather(*(backend.complete(a_request(path=str(i))) for i in range(200)))
    assert len(answers) == 200
    assert most <= 4
    assert served.server.connections <= 5


async def test_cancelling_ends_the_request_at_the_server_and_is_not_retried(served: Served) -> None:
    served.first.append(Hangs())
    task = asyncio.create_task(served.backend().complete(a_request()))
    await served.server.wait_called(PATHS[served.kind])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(2):
        await served.server.gone.wait()
    assert len(served.asked) == 1


async def test_cancelling_during_the_wait_for_a_retry_passes_at_once(served: Served) -> None:
    served.first.append(json_reply({"error": {"message": "busy"}}, 503))
    waiting = asyncio.Event()

    async def told(notice: RetryNotice) -> None:
        waiting.set()

    backend = served.backend(retry=RetryPolicy(3, wait_min=60, wait_max=60))
    task = asyncio.create_task(backend.complete(a_request(on_retry=told)))
    await waiting.wait()
    task.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(served.asked) == 1


async def test_two_failures_are_told_and_then_it_succeeds(served: Served) -> None:
    served.first += [json_reply({"error": {"message": "busy"}}, 503), Closes()]
    notices: list[RetryNotice] = []

    async def told(notice: RetryNotice) -> None:
        notices.append(notice)

    answer = await served.backend().complete(a_request(on_retry=told))
    assert answer.content == "ok"
    assert [notice.attempt for notice in notices] == [1, 2]
    assert all(isinstance(notice.error, ServerUnavailable) for notice in notices)
    assert len(served.asked) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (json_reply({"error": {"message": "no such field"}}, 400), RequestRefused),
        (json_reply({"error": "unknown field `bogus`"}, 400), RequestRefused),
        (json_reply({"object": "error", "message": "wrong type"}, 400), RequestRefused),
        (json_reply({"error": {"message": "who are you"}}, 401), AuthenticationFailed),
        (json_reply({"error": {"message": "not you"}}, 403), AuthenticationFailed),
        (json_reply({"detail": "Not Found"}, 404), ModelNotFound),
        (Reply(b"", 302, {"location": "https://elsewhere"}), RequestRefused),
        (
            json_reply({"error": {"message": "The input (5 tokens) is longer than the model's context length"}}, 400),
            ContextOverflow,
        ),
        (
            json_reply({"error": {"message": "too much", "code": "context_length_exceeded"}}, 400),
            ContextOverflow,
        ),
        (Reply(b"<html>no</html>"), MalformedResponse),
        (Reply(b'{"choices": [{'), MalformedResponse),
        (Reply(b'{"choices": 3, "meta_info": 3}'), MalformedResponse),
    ],
)
async def test_what_would_fail_again_is_a_typed_error_after_one_attempt(
    served: Served, answer: Reply, error: type[BackendError]
) -> None:
    if served.kind == "openai-stream" and answer.status == 200:
        answer = Reply(pieces=[b"data: " + answer.body + b"\n\n"])
    served.first.append(answer)
    with pytest.raises(error) as caught:
        await served.backend().complete(a_request())
    assert type(caught.value) is error
    assert len(served.asked) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (json_reply({"error": {"message": "slow down"}}, 429, **{"retry-after": "0"}), RateLimited),
        (json_reply({"error": {"message": "broken"}}, 500), ServerUnavailable),
        (Closes(), ServerUnavailable),
        (Reply(b'{"half', claims=500), ServerUnavailable),
        (
            Reply(pieces=[b'data: {"choices":[{"delta":{"content":"o"}}]}\n\n'], breaks_off=True),
            ServerUnavailable,
        ),
    ],
)
async def test_what_may_pass_is_a_typed_error_after_the_last_attempt(
    served: Served, answer: Answer, error: type[BackendError]
) -> None:
    served.first += [answer] * 10
    with pytest.raises(error) as caught:
        await served.backend().complete(a_request())
    assert type(caught.value) is error
    assert len(served.asked) == AT_ONCE.max_retries + 1


async def test_a_server_that_is_not_there_is_unavailable(served: Served) -> None:
    served.server.url = "http://127.0.0.1:1"
    with pytest.raises(ServerUnavailable):
        await served.backend(retry=RetryPolicy(0)).complete(a_request())


async def test_a_silent_server_is_unavailable_after_the_timeout(served: Served) -> None:
    served.first.append(Hangs())
    with pytest.raises(ServerUnavailable, match="Timeout on reading"):
        await served.backend(timeout=0.05, retry=RetryPolicy(0)).complete(a_request())


async def test_a_backend_pickles_as_its_configuration_after_use_too(served: Served) -> None:
    backend = served.backend()
    await backend.complete(a_request())
    copy = pickle.loads(pickle.dumps(backend))
    assert (await copy.complete(a_request())).content == "ok"
    await copy.aclose()


async def test_a_closed_backend_refuses(served: Served) -> None:
    backend = served.backend()
    await backend.aclose()
    with pytest.raises(RequestRefused, match="closed"):
        await backend.complete(a_request())


async def test_a_failure_of_on_retry_is_the_callers_to_see(served: Served) -> None:
    served.first.append(json_reply({}, 503))

    async def fails(notice: RetryNotice) -> None:
        raise LookupError("the caller's own")

    with pytest.raises(LookupError, match="the caller's own"):
        await served.backend().complete(a_request(on_retry=fails))


async def test_cancelling_a_scripted_delay_passes_at_once() -> None:
    task = asyncio.create_task(Scripted(["ok"], delay=60).complete(a_request()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
