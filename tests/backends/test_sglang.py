"""SGLang's client against a server that speaks /generate."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from jaz_actors.backends.chat_format import HFChatFormat
from jaz_actors.backends.embedded.launch import TINY_POLICY
from jaz_actors.backends.retry import RetryPolicy
from jaz_actors.backends.sglang import Sampling, SGLang
from jaz_actors.errors import (
    ConfigurationError,
    ContextOverflow,
    GenerationAborted,
    MalformedResponse,
    ServerUnavailable,
)
from jaz_actors.messages import Message, Role, Segment, VersionSpan
from tests.backends.asked import ByteFormat, a_request
from tests.backends.fake_server import Answer, Call, Hangs, Reply, fake_server, json_reply

pytestmark = pytest.mark.asyncio

AT_ONCE = RetryPolicy(3, wait_min=0, wait_max=0)


class Engine:
    """Answers "ok" under `version`; `answers` replace the next ones; `info` is /model_info."""

    def __init__(self, *answers: Answer, version: str = "1", info: Any = None) -> None:
        self.answers = list(answers)
        self.version = version
        self.info = {"weight_version": version} if info is None else info
        self.output = [*b"ok", 256]
        self.finish: Any = {"type": "stop", "matched": 256}

    async def __call__(self, call: Call) -> Answer:
        if call.path == "/model_info":
            return json_reply(self.info) if self.info else json_reply({"detail": "Not Found"}, 404)
        if call.path == "/get_model_info":
            return json_reply({"weight_version": "old"})
        if call.path == "/abort_request":
            return Reply(b"")
        return self.answers.pop(0) if self.answers else self.generated(call)

    def generated(self, call: Call) -> Answer:
        meta = {
            "finish_reason": self.finish,
            "prompt_tokens": len(call.json["input_ids"]),
            "completion_tokens": len(self.output),
            "cached_tokens": 5,
            "weight_version": self.version,
            "output_token_logprobs": [[-0.5, i, None] for i in self.output],
        }
        return json_reply({"text": "", "output_ids": self.output, "meta_info": meta})


async def test_a_completion_carries_what_was_sent_and_sampled() -> None:
    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        answer = await backend.complete(a_request("hi"))
        await backend.aclose()
    assert answer.content == "ok"
    assert answer.tokens is not None
    assert answer.tokens.prompt_ids == list(b"hi") == server.calls_of("/generate")[0].json["input_ids"]
    assert answer.tokens.output_ids == [*b"ok", 256]
    assert answer.tokens.logprobs == [-0.5] * 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (
        2,
        3,
        5,
    )


async def test_the_version_at_submission_is_pinned_before_sending_and_names_the_cache() -> None:
    engine = Engine(version="1")
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        seen = []
        for version in ("1", "2", "2"):
            engine.version = version
            tokens = (await backend.complete(a_request())).tokens
            assert tokens is not None
            seen.append((tokens.version_at_submit, tokens.version_at_return))
        backend.note_weight_version("3")
        await backend.complete(a_request())
        await backend.aclose()
    assert seen == [("1", "1"), ("1", "2"), ("2", "2")]
    assert [call.json["extra_key"] for call in server.calls_of("/generate")] == ["1", "1", "2", "3"]


async def test_the_older_name_of_model_info_is_asked_too() -> None:
    async with fake_server(Engine(info={})) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        await backend.complete(a_request())
        await backend.aclose()
    assert server.calls_of("/generate")[0].json["extra_key"] == "old"


async def test_no_rid_is_used_twice_or_is_the_beginning_of_another() -> None:
    busy = json_reply({"error": {"message": "busy"}}, 503)
    async with fake_server(Engine(busy, busy)) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        for iteration in (1, 1, 11):
            await backend.complete(a_request(path="0.1", iteration=iteration))
        await backend.aclose()
    rids = [call.json["rid"] for call in server.calls_of("/generate")]
    assert len(rids) == 5
    assert all(re.fullmatch(r"run:0\.1_t(1|11)_r\d{12}", rid) for rid in rids)
    assert not [(a, b) for a in rids for b in rids if a is not b and b.startswith(a)]


async def test_cancelling_aborts_the_request_by_its_id_before_closing_returns() -> None:
    async with fake_server(Engine(Hangs())) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        task = asyncio.create_task(backend.complete(a_request()))
        (call,) = await server.wait_called("/generate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await backend.aclose()
        aborts = server.calls_of("/abort_request")
    assert [abort.json for abort in aborts] == [{"rid": call.json["rid"]}]


async def test_an_abort_that_fails_is_nobodys_error() -> None:
    async def broken(call: Call) -> Answer:
        if call.path == "/abort_request":
            return json_reply({"error": "no"}, 500)
        return json_reply({}) if call.path == "/model_info" else Hangs()

    async with fake_server(broken) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        task = asyncio.create_task(backend.complete(a_request()))
        await server.wait_called("/generate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await backend.aclose()
        assert len(server.calls_of("/abort_request")) == 1


def broken_off(output: list[int], *, prompt: int, version: str, **finish: Any) -> Answer:
    meta = {
        "finish_reason": {"type": "abort", "message": "paused", **finish},
        "prompt_tokens": prompt,
        "completion_tokens": len(output),
        "weight_version": version,
        "output_token_logprobs": [[-0.25, i, None] for i in output],
    }
    return json_reply({"output_ids": output, "meta_info": meta})


async def test_an_answer_that_is_broken_off_is_gone_on_with() -> None:
    engine = Engine(
        broken_off(list(b"a"), prompt=2, version="2"), broken_off(list(b"bc"), prompt=3, version="2"), version="3"
    )
    engine.info = {"weight_version": "1"}
    async with fake_server(engine) as server:
        backend = SGLang(
            server.url, chat_format=ByteFormat(), sampling=Sampling(max_new_tokens=10, sampling_seed=5), retry=AT_ONCE
        )
        answer = await backend.complete(a_request("hi"))
        await backend.aclose()
    calls = [call.json for call in server.calls_of("/generate")]
    assert [call["input_ids"] for call in calls] == [list(b"hi"), list(b"hia"), list(b"hiabc")]
    assert [call["sampling_params"]["max_new_tokens"] for call in calls] == [10, 9, 7]
    assert len({call["sampling_params"]["sampling_seed"] for call in calls}) == 3
    assert [call["extra_key"] for call in calls] == ["1", "2", "2"]
    assert answer.content == "abcok"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 6)
    tokens = answer.tokens
    assert tokens is not None
    assert tokens.prompt_ids == list(b"hi")
    assert tokens.output_ids == [*b"abcok", 256]
    assert tokens.logprobs == [-0.25] * 3 + [-0.5] * 3
    assert tokens.segments == (Segment(0, 1, "1", "2"), Segment(1, 3, "2", "2"), Segment(3, 6, "2", "3"))
    assert tokens.versions == (
        VersionSpan(0, 1, "1", "2"),
        VersionSpan(1, 3, "2", "2"),
        VersionSpan(3, 6, "2", "3"),
    )
    assert (tokens.version_at_submit, tokens.version_at_return) == ("1", "3")


async def test_spans_that_the_server_tells_are_exact_and_are_moved_to_their_segment() -> None:
    first = json_reply(
        {
            "output_ids": [1, 2, 3],
            "meta_info": {
                "finish_reason": {"type": "abort"},
                "prompt_tokens": 2,
                "completion_tokens": 3,
                "weight_version": "2",
                "weight_versions": [{"version": "1", "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 3}],
                "output_token_logprobs": [[-1.0, i, None] for i in (1, 2, 3)],
            },
        }
    )
    engine = Engine(first, version="2")
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        answer = await backend.complete(a_request("hi"))
        await backend.aclose()
    assert answer.tokens is not None
    assert answer.tokens.versions == (
        VersionSpan(0, 1, "1", "1"),
        VersionSpan(1, 3, "2", "2"),
        VersionSpan(3, 6, "2", "2"),
    )


async def test_what_is_sampled_survives_a_failure_of_the_next_request() -> None:
    engine = Engine(
        broken_off(list(b"ab"), prompt=2, version="1"),
        json_reply({"error": {"message": "restarting"}}, 503),
        broken_off(list(b"c"), prompt=4, version="1", status_code=503, message="shutting down"),
    )
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        answer = await backend.complete(a_request("hi"))
        await backend.aclose()
    assert answer.content == "abcok"
    assert [len(call.json["input_ids"]) for call in server.calls_of("/generate")] == [2, 4, 4, 5]


async def test_an_answer_broken_off_at_its_full_length_is_complete() -> None:
    engine = Engine(broken_off(list(b"abc"), prompt=2, version="1"))
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), sampling=Sampling(max_new_tokens=3), retry=AT_ONCE)
        answer = await backend.complete(a_request("hi"))
        await backend.aclose()
    assert (answer.content, answer.finish_reason) == ("abc", "length")
    assert len(server.calls_of("/generate")) == 1


async def test_an_answer_that_ends_itself_at_its_full_length_has_ended() -> None:
    """SGLang looks at the length before the stop ids."""
    engine = Engine()
    engine.finish = {"type": "length", "length": 3}
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), sampling=Sampling(max_new_tokens=3))
        answer = await backend.complete(a_request())
        await backend.aclose()
    assert (answer.content, answer.finish_reason) == ("ok", "stop")
    assert answer.tokens is not None
    assert 256 not in answer.tokens.suffix_ids


async def test_an_answer_too_deep_to_read_is_malformed() -> None:
    deep = Reply(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    async with fake_server(Engine(deep)) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        with pytest.raises(MalformedResponse):
            await backend.complete(a_request())
        await backend.aclose()


async def test_a_request_that_is_aborted_before_its_first_token_is_sent_again_but_not_for_ever() -> None:
    engine = Engine()
    engine.output, engine.finish = [], {"type": "abort", "message": "paused with abort"}
    async with fake_server(engine) as server:
        backend = SGLang(
            server.url,
            chat_format=ByteFormat(),
            retry=RetryPolicy(3, wait_min=0, wait_max=0, retry_on=(GenerationAborted,)),
        )
        with pytest.raises(GenerationAborted, match="paused with abort"):
            await backend.complete(a_request())
        await backend.aclose()
    assert len(server.calls_of("/generate")) == 4


async def test_a_context_overflow_is_never_sent_again() -> None:
    message = "Requested token count exceeds the model's maximum context length of 8 tokens."
    async with fake_server(Engine(json_reply({"error": {"message": message}}, 400))) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        with pytest.raises(ContextOverflow):
            await backend.complete(a_request())
        await backend.aclose()
    assert len(server.calls_of("/generate")) == 1


async def test_all_requests_of_an_invocation_carry_its_id_as_their_session() -> None:
    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        for iteration in range(2):
            await backend.complete(a_request(path="0.1", iteration=iteration))
        await backend.aclose()
    for call in server.calls_of("/generate"):
        assert (
            call.json["routing_key"] == call.headers["x-smg-routing-key"] == call.headers["x-session-id"] == "run:0.1"
        )


async def test_an_answer_that_comes_late_does_not_take_the_version_back() -> None:
    engine = Engine(version="7")
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        await backend.complete(a_request())
        engine.version = "6"
        late = (await backend.complete(a_request())).tokens
        await backend.complete(a_request())
        await backend.aclose()
    assert late is not None
    assert late.version_at_return == "6"
    assert server.calls_of("/generate")[-1].json["extra_key"] == "7"


async def test_an_answer_that_disagrees_is_refused_and_not_retried() -> None:
    wrong = json_reply({"output_ids": [1], "meta_info": {"finish_reason": "stop", "output_token_logprobs": []}})
    async with fake_server(Engine(wrong)) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        with pytest.raises(MalformedResponse):
            await backend.complete(a_request())
        await backend.aclose()
    assert len(server.calls_of("/generate")) == 1


@pytest.mark.parametrize(("output", "shown"), [([*b"ok", 256], "ok"), ([*b"ok"], "ok"), ([], ""), ([256], "")])
async def test_the_text_is_without_the_id_that_ended_it(output: list[int], shown: str) -> None:
    engine = Engine()
    engine.output = output
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        assert (await backend.complete(a_request())).content == shown
        await backend.aclose()


async def test_a_stop_id_that_is_an_ordinary_token_is_hidden_only_where_it_ended_the_answer() -> None:
    engine = Engine()
    engine.output, engine.finish = list(b"a;b;"), {"type": "stop", "matched": ord(";")}
    async with fake_server(engine) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        assert (await backend.complete(a_request())).content == "a;b"
        engine.finish = {"type": "length", "length": 4}
        assert (await backend.complete(a_request())).content == "a;b;"
        await backend.aclose()


class Outside(ByteFormat):
    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        return [1, 257]


class Nothing(ByteFormat):
    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        return []


@pytest.mark.parametrize(("made", "said"), [(Outside(), "made id 257"), (Nothing(), "no ids")])
async def test_ids_that_would_end_the_server_are_never_sent(made: ByteFormat, said: str) -> None:
    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=made)
        with pytest.raises(ConfigurationError, match=said):
            await backend.complete(a_request())
        await backend.aclose()
    assert server.calls_of("/generate") == []


async def test_the_tokenizer_that_the_server_names_is_used_where_it_exists() -> None:
    async with fake_server(Engine(info={"tokenizer_path": str(TINY_POLICY)})) as server:
        backend = SGLang(server.url)
        answer = await backend.complete(a_request("hi"))
        await backend.aclose()
    expected = HFChatFormat(TINY_POLICY)
    expected.load()
    assert answer.tokens is not None
    (message,) = a_request("hi").messages
    assert answer.tokens.prompt_ids == [*expected.message_ids(message, None), *expected.reply_start_ids()]
    assert answer.content == expected.read([*b"ok", 256], ended=True).content


@pytest.mark.parametrize("info", [{"tokenizer_path": "Qwen/no-folder"}, {"weight_version": "1"}])
async def test_a_tokenizer_that_is_not_here_is_a_configuration_error(info: dict[str, str]) -> None:
    async with fake_server(Engine(info=info)) as server:
        backend = SGLang(server.url)
        with pytest.raises(ConfigurationError):
            await backend.complete(a_request())
        await backend.aclose()


async def test_a_tokenizer_is_read_once_for_many_first_calls() -> None:
    loads = 0

    class Counting(ByteFormat):
        def load(self) -> None:
            nonlocal loads
            loads += 1

    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=Counting())
        await asyncio.gather(*(backend.complete(a_request(path=str(i))) for i in range(20)))
        await backend.aclose()
    assert loads == 1
    assert len(server.calls_of("/model_info")) == 1


async def test_a_first_call_that_is_cancelled_leaves_the_backend_usable() -> None:
    hangs = True

    async def slow_info(call: Call) -> Answer:
        return Hangs() if call.path == "/model_info" and hangs else await Engine()(call)

    async with fake_server(slow_info) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        first = asyncio.create_task(backend.complete(a_request()))
        second = asyncio.create_task(backend.complete(a_request(path="1")))
        await server.wait_called("/model_info")
        hangs = False
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).content == "ok"
        await backend.aclose()


async def test_a_server_that_starts_later_is_waited_for() -> None:
    starting = True

    async def not_yet(call: Call) -> Answer:
        nonlocal starting
        if starting:
            starting = False
            return json_reply({"error": {"message": "starting"}}, 503)
        return await Engine()(call)

    async with fake_server(not_yet) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=AT_ONCE)
        assert (await backend.complete(a_request())).content == "ok"
        await backend.aclose()


async def test_a_long_prompt_is_encoded_as_a_short_one() -> None:
    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=ByteFormat())
        tokens = (await backend.complete(a_request("x" * 30_000))).tokens
        await backend.aclose()
    assert tokens is not None
    assert tokens.prompt_ids == list(b"x" * 30_000)


async def test_a_key_is_sent_and_not_shown() -> None:
    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), api_key="sk-hidden")
        await backend.complete(a_request())
        await backend.aclose()
    assert server.calls[0].headers["authorization"] == "Bearer sk-hidden"
    assert "hidden" not in repr(backend)


async def test_one_of_model_path_and_chat_format() -> None:
    with pytest.raises(ConfigurationError):
        SGLang("http://x", model_path=Path("/m"), chat_format=ByteFormat())


async def test_a_backend_belongs_to_one_loop() -> None:
    async with fake_server(Engine()) as server:
        backend = SGLang(server.url, chat_format=ByteFormat(), retry=RetryPolicy(0))
        await backend.complete(a_request())

        def elsewhere() -> None:
            asyncio.run(_refused_here(backend))

        await asyncio.to_thread(elsewhere)
        await backend.aclose()


async def _refused_here(backend: SGLang) -> None:
    with pytest.raises(ConfigurationError, match="another event loop"):
        await backend.complete(a_request())


async def test_a_server_that_never_comes_is_unavailable() -> None:
    backend = SGLang("http://127.0.0.1:1", chat_format=ByteFormat(), retry=AT_ONCE)
    with pytest.raises(ServerUnavailable):
        await backend.complete(a_request())
    await backend.aclose()
