"""OpenAI's client: what its answers may look like, and what must never be seen."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from jaz_actors.backends.openai import KEY_VARIABLE, OpenAI
from jaz_actors.backends.retry import RetryPolicy
from jaz_actors.errors import (
    AuthenticationFailed,
    BackendError,
    ConfigurationError,
    ContentFiltered,
    ContextOverflow,
    GenerationAborted,
    MalformedResponse,
    RateLimited,
    RequestRefused,
    ServerUnavailable,
)
from jaz_actors.messages import Completion
from tests.backends.asked import a_request
from tests.backends.fake_server import Answer, Call, FakeServer, Reply, fake_server, json_reply

pytestmark = pytest.mark.asyncio


async def answered(reply: Reply, **options: Any) -> tuple[Completion, FakeServer]:
    """What a backend makes of one answer."""

    async def answer(call: Call) -> Answer:
        return reply

    async with fake_server(answer) as server:
        options = {"retry": RetryPolicy(0), "api_key": "sk-secret", **options}
        backend = OpenAI("m", base_url=server.url + "/v1/", **options)
        try:
            return await backend.complete(a_request("hi")), server
        finally:
            await backend.aclose()


def choice(content: Any = "ok", finish: str | None = "stop", **message: Any) -> Reply:
    return json_reply({"choices": [{"message": {"content": content} | message, "finish_reason": finish}]})


def streamed(*events: Any, done: bool = True) -> Reply:
    lines = [b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return Reply(pieces=[b": a comment\n\n", *lines, *([b"data: [DONE]\n\n"] if done else [])])


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content} | more, "finish_reason": finish}]}


async def test_the_request_has_the_messages_and_the_fields_that_were_set() -> None:
    _, server = await answered(choice(), temperature=0.5, max_tokens=7, extra_body={"seed": 3})
    (call,) = server.calls
    assert call.path == "/v1/chat/completions"
    assert call.json == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "max_tokens": 7,
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [("ok", "ok"), (None, ""), ("", ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")],
)
async def test_content_in_any_form_becomes_text(content: Any, text: str) -> None:
    assert (await answered(choice(content)))[0].content == text


@pytest.mark.parametrize(
    ("said", "meant"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("tool_calls", "unknown"), (None, "unknown")],
)
async def test_finish_reasons_are_mapped(said: str | None, meant: str) -> None:
    assert (await answered(choice(finish=said)))[0].finish_reason == meant


async def test_counts_that_a_server_does_not_give_are_none() -> None:
    usage = (await answered(choice()))[0].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (None, None, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("whole", "pieces", "error"),
    [
        (choice(None, refusal="I will not"), [delta(refusal="I will "), delta(refusal="not")], ContentFiltered),
        (choice("par", "content_filter"), [delta("par", "content_filter")], ContentFiltered),
        (choice("par", "abort"), [delta("par", "abort")], GenerationAborted),
    ],
)
async def test_an_answer_that_was_withheld_is_an_error(
    stream: bool, whole: Reply, pieces: list[Any], error: type[BackendError]
) -> None:
    with pytest.raises(error):
        await answered(streamed(*pieces) if stream else whole, stream=stream)


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        ({"message": "upstream is down", "code": 502}, ServerUnavailable),
        ({"message": "slow down", "code": 429}, RateLimited),
        ({"message": "maximum context length is 8", "code": "context_length_exceeded"}, ContextOverflow),
        ({"message": "flagged", "code": "content_filter"}, ContentFiltered),
        ({"message": "bad", "code": 400}, RequestRefused),
        ("just text", ServerUnavailable),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_inside_an_answer_with_status_200_is_an_error(
    stream: bool, inner: Any, error: type[BackendError]
) -> None:
    body = {"error": inner}
    with pytest.raises(error) as caught:
        await answered(streamed(delta("o"), body) if stream else json_reply(body), stream=stream)
    assert type(caught.value) is error


async def test_no_choice_is_malformed() -> None:
    with pytest.raises(MalformedResponse):
        await answered(json_reply({"choices": []}))


async def test_a_stream_is_joined() -> None:
    pieces = [delta("a\u2028b "), delta(None), delta("é", "stop"), {"choices": [], "usage": {"prompt_tokens": 4}}]
    answer, server = await answered(streamed(*pieces), stream=True)
    assert (answer.content, answer.finish_reason, answer.usage.prompt_tokens) == ("a\u2028b é", "stop", 4)
    assert server.calls[0].json["stream_options"] == {"include_usage": True}


async def test_a_stream_may_end_without_a_mark_once_the_answer_has() -> None:
    assert (await answered(streamed(delta("ok", "stop"), done=False), stream=True))[0].content == "ok"
    with pytest.raises(ServerUnavailable, match="ended before"):
        await answered(streamed(delta("ok"), done=False), stream=True)


async def test_an_empty_account_is_not_waited_for() -> None:
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    with pytest.raises(RequestRefused):
        await answered(json_reply(body, 429), retry=RetryPolicy(5))


async def test_a_key_that_a_server_quotes_is_not_repeated() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        await answered(json_reply({"error": {"message": "Incorrect key: sk-secret."}}, 401))
    assert "sk-secret" not in str(caught.value)
    assert "Incorrect key" in str(caught.value)


async def test_the_key_is_read_from_the_environment_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(call: Call) -> Answer:
        return choice()

    monkeypatch.setenv(KEY_VARIABLE, "sk-of-the-driver")
    async with fake_server(answer) as server:
        pickled = pickle.dumps(OpenAI("m", base_url=server.url))
        assert b"sk-of-the-driver" not in pickled
        monkeypatch.setenv(KEY_VARIABLE, "sk-of-the-host")
        backend = pickle.loads(pickled)
        await backend.complete(a_request())
        assert b"sk-of-the-host" not in pickle.dumps(backend)
        await backend.aclose()
    assert server.calls[0].headers["authorization"] == "Bearer sk-of-the-host"


async def test_without_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    _, server = await answered(choice(), api_key=None)
    assert "authorization" not in server.calls[0].headers


async def test_no_repr_shows_a_key() -> None:
    backend = OpenAI("m", base_url="https://user:sk-in-url@host/v1?key=sk-query", api_key="sk-secret")
    shown = repr(backend) + repr(vars(backend)) + repr(vars(backend._client))
    assert "sk-secret" not in shown
    assert "sk-in-url" not in repr(backend)
    assert "sk-query" not in repr(backend)


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://host"},
        {"base_url": "http://"},
        {"api_key": "sk-with\nnewline"},
        {"api_key": ""},
        {"timeout": 0},
        {"max_connections": 0},
        {"extra_body": {"messages": []}},
        {"extra_body": {"temperature": 1}, "temperature": 0},
        {"extra_body": {"x": object()}},
    ],
)
async def test_what_cannot_work_is_refused_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAI("m", **wrong)
    assert "sk-with" not in str(caught.value)
