"""What /generate answers: the rows of the contract that do not refuse and do not end early."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
import torch

from jaz_actors.backends.embedded.tasks import generate, user_message

pytestmark = pytest.mark.asyncio

PROMPTS = [[4 + (7 * i + 3 * j) % 500 for j in range(5 + 9 * i)] for i in range(16)]


async def test_ids_logprobs_and_counts_tell_one_story(client: Any) -> None:
    answer = await client.generate(rid="my-request", return_logprob=True, return_prompt_token_ids=True)
    meta = answer["meta_info"]
    assert meta["id"] == "my-request"
    assert meta["prompt_tokens"] == 5
    assert meta["completion_tokens"] == len(answer["output_ids"]) == meta["output_token_logprobs_length"] == 8
    assert [row[1] for row in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [row[2] for row in meta["output_token_logprobs"]] == [None] * 8
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 8}]
    assert meta["e2e_latency"] > 0
    assert answer["prompt_token_ids"] == [4, 5, 6, 7, 8]


async def test_without_return_logprob_there_are_none(client: Any) -> None:
    assert "output_token_logprobs" not in (await client.generate())["meta_info"]


async def test_text_is_what_the_ids_decode_to(client: Any, tokenizer: Any) -> None:
    answer = await client.generate(sampling={"skip_special_tokens": False})
    assert answer["text"] == tokenizer.decode(answer["output_ids"])


@pytest.mark.parametrize("temperature", [0, 0.5, 1.0])
async def test_logprobs_equal_teacher_forcing_at_that_temperature(client: Any, model: Any, temperature: float) -> None:
    prompt = PROMPTS[6]
    sampling = {"temperature": temperature, "max_new_tokens": 40, "sampling_seed": 5}
    answer = await client.generate(prompt, sampling=sampling, return_logprob=True)
    expected = _forced(model, prompt, answer["output_ids"], temperature or 1.0)
    given = [row[0] for row in answer["meta_info"]["output_token_logprobs"]]
    assert given == pytest.approx(expected, abs=1e-4)


async def test_a_prompt_of_many_chunks_is_scored_like_one(client: Any, model: Any) -> None:
    prompt = [4 + (13 * j) % 500 for j in range(700)]
    answer = await client.generate(prompt, return_logprob=True, logprob_start_len=0)
    rows = answer["meta_info"]["input_token_logprobs"]
    assert [row[1] for row in rows] == prompt
    assert rows[0][0] is None
    expected = _forced(model, prompt[:1], prompt[1:], 1.0)
    assert [row[0] for row in rows[1:]] == pytest.approx(expected, abs=1e-3)


async def test_prompt_logprobs_may_start_later_and_need_no_output(client: Any) -> None:
    fields = {"return_logprob": True, "return_text_in_logprobs": True}
    whole = await client.generate(PROMPTS[0], logprob_start_len=0, **fields)
    part = await client.generate(PROMPTS[0], sampling={"max_new_tokens": 0}, logprob_start_len=2, **fields)
    rows = part["meta_info"]["input_token_logprobs"]
    assert rows[0][:2] == [None, PROMPTS[0][2]]
    assert rows[1:] == whole["meta_info"]["input_token_logprobs"][3:]
    assert all(isinstance(row[2], str) for row in rows)
    assert part["output_ids"] == []


async def test_greedy_output_does_not_depend_on_the_company(client: Any) -> None:
    sampling = {"max_new_tokens": 48}
    alone = [(await client.generate(prompt, sampling=sampling))["output_ids"] for prompt in PROMPTS]
    together = await asyncio.gather(*(client.generate(prompt, sampling=sampling) for prompt in PROMPTS))
    assert [answer["output_ids"] for answer in together] == alone


async def test_greedy_output_is_the_models_own(client: Any, model: Any) -> None:
    answer = await client.generate(PROMPTS[3], sampling={"max_new_tokens": 30})
    ids = model.generate(torch.tensor([PROMPTS[3]]), max_new_tokens=30, min_new_tokens=30, do_sample=False)
    # min_new_tokens forbids the end token, which ignore_eos does not.
    until_end = next((i for i, token in enumerate(answer["output_ids"]) if token == 3), 30)
    assert answer["output_ids"][:until_end] == ids[0, len(PROMPTS[3]) :].tolist()[:until_end]


async def test_a_batch_answers_in_its_order(client: Any) -> None:
    singles = [await client.generate(prompt) for prompt in PROMPTS[:5]]
    batch = await client.generate(PROMPTS[:5], rid="many")
    assert [answer["output_ids"] for answer in batch] == [answer["output_ids"] for answer in singles]
    assert [answer["meta_info"]["id"] for answer in batch] == [f"many_{index}" for index in range(5)]


async def test_a_batch_may_have_its_own_parameters_a_prompt(client: Any) -> None:
    sampling = [client.sampling(max_new_tokens=count) for count in (1, 5, 3)]
    body = {"input_ids": PROMPTS[:3], "sampling_params": sampling, "rid": ["a", "b", "c"]}
    answers = (await client.http.post("/generate", json=body)).json()
    assert [(a["meta_info"]["id"], len(a["output_ids"])) for a in answers] == [("a", 1), ("b", 5), ("c", 3)]


async def test_n_samples_differ_and_a_seed_repeats_them(client: Any) -> None:
    sampling = {"n": 3, "temperature": 3.0, "sampling_seed": 11, "max_new_tokens": 24}
    first, second = [await client.generate(PROMPTS[9], sampling=sampling) for _ in range(2)]
    assert [a["output_ids"] for a in first] == [a["output_ids"] for a in second]
    assert len({tuple(a["output_ids"]) for a in first}) == 3


async def test_a_seed_repeats_whatever_else_runs(client: Any) -> None:
    sampling = {"temperature": 3.0, "sampling_seed": 3, "max_new_tokens": 32}
    alone = await client.generate(PROMPTS[2], sampling=sampling)
    company = [client.generate(prompt, sampling={"temperature": 1.0}) for prompt in PROMPTS]
    among, *_ = await asyncio.gather(client.generate(PROMPTS[2], sampling=sampling), *company)
    assert among["output_ids"] == alone["output_ids"]
    other = await client.generate(PROMPTS[2], sampling=sampling | {"sampling_seed": 4})
    assert other["output_ids"] != alone["output_ids"]


async def test_top_k_of_one_is_greedy(client: Any) -> None:
    greedy = await client.generate(PROMPTS[4])
    for one in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert (await client.generate(PROMPTS[4], sampling={"temperature": 1.0, **one}))["output_ids"] == greedy[
            "output_ids"
        ]


@pytest.mark.parametrize("no_stop_trim", [False, True])
async def test_a_stop_token_ends_it_and_is_kept_in_the_ids(client: Any, tokenizer: Any, no_stop_trim: bool) -> None:
    ids = (await client.generate(PROMPTS[5]))["output_ids"]
    stop = ids[3]
    count = ids.index(stop) + 1
    sampling = {
        "ignore_eos": False,
        "stop_token_ids": [stop],
        "no_stop_trim": no_stop_trim,
        "skip_special_tokens": False,
    }
    answer = await client.generate(PROMPTS[5], sampling=sampling)
    if answer["meta_info"]["finish_reason"]["matched"] == stop:
        assert answer["output_ids"] == ids[:count]
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    kept = answer["output_ids"] if no_stop_trim else answer["output_ids"][:-1]
    assert answer["text"] == tokenizer.decode(kept)


async def test_the_end_token_ends_it_unless_ignored(client: Any, tokenizer: Any) -> None:
    prompt = _chat(tokenizer)
    ended = await client.generate(prompt, sampling={"ignore_eos": False, "max_new_tokens": 100})
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": tokenizer.eos_token_id}
    assert ended["output_ids"][-1] == tokenizer.eos_token_id
    ignored = await client.generate(prompt, sampling={"max_new_tokens": 100})
    assert len(ignored["output_ids"]) == 100


async def test_a_stop_string_ends_it_and_trims_the_text(client: Any, tokenizer: Any) -> None:
    prompt = _chat(tokenizer)
    whole = (await client.generate(prompt, sampling={"ignore_eos": False, "max_new_tokens": 60}))["text"]
    stop = whole[4:7]
    trimmed = await client.generate(prompt, sampling={"stop": [stop, "never"], "max_new_tokens": 60})
    assert trimmed["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert trimmed["text"] == whole[: whole.index(stop)]
    kept = await client.generate(prompt, sampling={"stop": stop, "max_new_tokens": 60, "no_stop_trim": True})
    assert stop in kept["text"]
    assert kept["output_ids"] == trimmed["output_ids"]


async def test_no_new_tokens_is_an_answer(client: Any) -> None:
    answer = await client.generate(sampling={"max_new_tokens": 0})
    assert answer["output_ids"] == []
    assert answer["text"] == ""
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


async def test_a_prompt_of_one_token(client: Any) -> None:
    assert len((await client.generate([9]))["output_ids"]) == 8


async def test_the_whole_context_can_be_used(client: Any) -> None:
    answer = await client.generate([5] * 1000, sampling={"max_new_tokens": 24})
    assert len(answer["output_ids"]) == 24


async def test_text_and_ids_of_it_are_the_same_request(client: Any, tokenizer: Any) -> None:
    of_ids = await client.generate(tokenizer.encode("Sort the numbers."))
    of_text = await client.generate(None, text="Sort the numbers.")
    assert of_text["output_ids"] == of_ids["output_ids"]
    both = await client.generate(tokenizer.encode("Sort the numbers."), text="something else")
    assert both["output_ids"] == of_ids["output_ids"]


async def test_frames_are_cumulative_and_the_last_is_the_answer(client: Any) -> None:
    whole = await client.generate(sampling={"max_new_tokens": 64}, return_logprob=True)
    body = {"input_ids": [4, 5, 6, 7, 8], "sampling_params": client.sampling(max_new_tokens=64), "stream": True}
    frames = await _frames(client, {**body, "return_logprob": True})
    assert len(frames) > 1
    for earlier, later in itertools.pairwise(frames):
        count = len(earlier["output_ids"])
        assert earlier["meta_info"]["finish_reason"] is None
        assert later["output_ids"][:count] == earlier["output_ids"]
        assert later["meta_info"]["output_token_logprobs_length"] > count
    last = frames[-1]
    assert (last["output_ids"], last["text"]) == (whole["output_ids"], whole["text"])
    assert last["meta_info"]["weight_versions"][0]["end"] == 64
    assert last["meta_info"]["e2e_latency"] > 0


async def test_a_streamed_batch_marks_its_frames(client: Any) -> None:
    sampling = [client.sampling(max_new_tokens=count) for count in (3, 9)]
    frames = await _frames(client, {"input_ids": PROMPTS[:2], "sampling_params": sampling, "stream": True})
    finished = {f["index"]: len(f["output_ids"]) for f in frames if f["meta_info"]["finish_reason"]}
    assert finished == {0: 3, 1: 9}


async def test_a_prefix_is_cached_for_its_key_only(client: Any) -> None:
    prompt = [4 + (11 * j) % 500 for j in range(60)]
    cached = [
        (await client.generate(ids, extra_key=key))["meta_info"]["cached_tokens"]
        for ids, key in (
            (prompt, "v1"),
            (prompt, "v1"),
            ([*prompt[:40], 7, 8, 9], "v1"),
            (prompt, "v2"),
            (prompt, None),
        )
    ]
    assert cached == [0, 59, 40, 0, 0]


async def test_a_cached_prefix_changes_nothing(client: Any) -> None:
    prompt = [4 + (17 * j) % 500 for j in range(90)]
    cold, warm = [await client.generate(prompt, extra_key="same", return_logprob=True) for _ in range(2)]
    assert warm["meta_info"]["cached_tokens"] == 89
    assert warm["output_ids"] == cold["output_ids"]
    logprobs = [[row[0] for row in one["meta_info"]["output_token_logprobs"]] for one in (cold, warm)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)


async def test_flushing_forgets_prefixes(client: Any) -> None:
    prompt = [4 + (19 * j) % 500 for j in range(50)]
    await client.generate(prompt, extra_key="flushed")
    for method in ("GET", "POST"):
        assert (await client.http.request(method, "/flush_cache")).status_code == 200
    assert (await client.generate(prompt, extra_key="flushed"))["meta_info"]["cached_tokens"] == 0


async def test_information(client: Any) -> None:
    assert (await client.http.get("/health")).status_code == 200
    for path in ("/model_info", "/get_model_info"):
        info = (await client.http.get(path)).json()
        assert info["is_generation"] is True
        assert info["weight_version"] == "default"
        assert info["model_path"] == info["tokenizer_path"]
    before = await client.state()
    await client.generate()
    after = await client.state()
    assert after["total_requests"] - before["total_requests"] == 1
    assert after["generated_tokens"] - before["generated_tokens"] == 8
    assert after["running"] == after["waiting"] == 0


def _forced(model: Any, prompt: list[int], output: list[int], temperature: float) -> list[float]:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    forced: list[float] = logprobs[torch.arange(len(output)), output].tolist()
    return forced


def _chat(tokenizer: Any) -> list[int]:
    task = generate(0, 1, ["sort"])[0]
    messages = [{"role": "user", "content": user_message(task.inputs)}]
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


async def _frames(client: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with client.http.stream("POST", "/generate", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
