"""Statements 1 to 17 and 30 to 34 of the conformance list: what `/generate` answers, refuses and ends.

See docs/sglang-conformance.md for the list and for how to put it to a server.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contracts.sglang.served import LONG, PROMPT, Served, lines_of
from tests.contracts.sglang.teacher import Teacher


def test_01_the_rid_comes_back(served: Served) -> None:
    assert served.generate(rid="mine_1")["meta_info"]["id"] == "mine_1"


def test_02_ids_logprobs_and_counts_agree(served: Served) -> None:
    answer = served.generate(sampling={"temperature": 1.0})
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == len(meta["output_token_logprobs"]) == 8
    assert meta["prompt_tokens"] == len(PROMPT)


def test_03_logprobs_name_the_ids(served: Served) -> None:
    answer = served.generate(sampling={"temperature": 1.0})
    assert [token for _, token, _ in answer["meta_info"]["output_token_logprobs"]] == answer["output_ids"]


def test_04_greedy_is_deterministic(served: Served) -> None:
    assert len({tuple(served.generate()["output_ids"]) for _ in range(3)}) == 1


def test_05_prompt_logprobs_on_request(served: Served, teacher: Teacher) -> None:
    rows = served.generate(logprob_start_len=0)["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in rows] == PROMPT
    assert rows[0][0] is None
    expected = teacher.of(PROMPT[:1], PROMPT[1:])
    assert [logprob for logprob, _, _ in rows[1:]] == pytest.approx(expected, abs=1e-4)


def test_06_top_logprobs(served: Served, teacher: Teacher) -> None:
    answer = served.generate(top_logprobs_num=3)
    tops = answer["meta_info"]["output_top_logprobs"]
    assert [len(top) for top in tops] == [3] * 8
    table = teacher.logprobs([*PROMPT, *answer["output_ids"]])
    for place, top in enumerate(tops):
        best = table[len(PROMPT) - 1 + place].topk(3)
        assert [logprob for logprob, _, _ in top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert top[0][1] == answer["output_ids"][place]


def test_07_text_in_logprobs(served: Served) -> None:
    rows = served.generate(return_text_in_logprobs=True)["meta_info"]["output_token_logprobs"]
    assert all(isinstance(text, str) for _, _, text in rows)


def test_08_a_batch_answers_in_order(served: Served) -> None:
    prompts = [[4 + n, *PROMPT] for n in range(6)]
    together = served.generate(prompts)
    assert [answer["output_ids"] for answer in together] == [served.generate(ids)["output_ids"] for ids in prompts]


def test_09_n_of_two_answers_two(served: Served) -> None:
    answers = served.generate(sampling={"n": 2, "temperature": 1.0})
    assert [len(answer["output_ids"]) for answer in answers] == [8, 8]


def test_10_a_stop_token_stays_without_trim(served: Served) -> None:
    ids = served.generate()["output_ids"]
    stop = ids[4]
    answer = served.generate(
        sampling={"stop_token_ids": [stop], "no_stop_trim": True, "skip_special_tokens": False, "ignore_eos": False}
    )
    assert answer["output_ids"] == ids[: ids.index(stop) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_11_no_new_tokens(served: Served) -> None:
    answer = served.generate(sampling={"max_new_tokens": 0})
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"]["type"] == "length"


def test_12_the_length_ends_it(served: Served) -> None:
    assert served.generate()["meta_info"]["finish_reason"] == {"type": "length", "length": 8}


def _error_message(body: Any) -> str:
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("body", "where", "says"),
    [
        ({"input_ids": [5] * 300_000}, "error.message", "is longer than the model's context length"),
        (
            {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 10**7}},
            "error.message",
            "Requested token count exceeds the model's maximum context length",
        ),
        ({"input_ids": []}, "error.message", "input_ids cannot be empty."),
        ({}, "error.message", "Either text, input_ids or input_embeds should be provided."),
        ({"input_ids": PROMPT, "sampling_params": {"bogus": 1}}, "error", "unknown field `bogus`, expected one of"),
        ({"input_ids": PROMPT, "sampling_params": {"temperature": -1}}, "error.message", ""),
        ({"input_ids": "abc"}, "message", ""),
    ],
    ids=["prompt too long", "request too long", "no ids", "no input", "unknown key", "temperature", "wrong type"],
)
def test_13_errors_have_their_status_and_shape(served: Served, body: dict[str, Any], where: str, says: str) -> None:
    answer = served.http.post("/generate", json=body)
    assert answer.status_code == 400
    found: Any = answer.json()
    if where == "message":
        assert found["object"] == "error"
    for key in where.split("."):
        found = found[key]
    assert isinstance(found, str)
    assert says in found
    assert len(served.generate()["output_ids"]) == 8


def test_13_an_id_outside_the_vocabulary_is_refused(served: Served, pytestconfig: pytest.Config) -> None:
    if not (served.is_ours or pytestconfig.getoption("--sglang-may-kill")):
        pytest.skip("it ends SGLang 0.5.23; --sglang-may-kill sends it all the same")
    assert served.post("/generate", input_ids=[4, 10**6]).status_code == 400
    assert len(served.generate()["output_ids"]) == 8


def test_13_an_unknown_path_is_not_found(served: Served) -> None:
    answer = served.http.get("/nothing_here")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_14_frames_are_cumulative_and_the_last_is_whole(served: Served) -> None:
    whole = served.generate()
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": params, "stream": True, "return_logprob": True}
    with served.http.stream("POST", "/generate", json=body) as response:
        *frames, last = list(lines_of(response))
    assert last == "[DONE]"
    read = [json.loads(frame) for frame in frames]
    lengths = [len(frame["output_ids"]) for frame in read]
    assert lengths == sorted(lengths)
    assert all(frame["output_ids"] == whole["output_ids"][:n] for frame, n in zip(read, lengths, strict=True))
    assert all(frame["meta_info"]["finish_reason"] is None for frame in read[:-1])
    assert read[-1]["output_ids"] == whole["output_ids"]
    assert read[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]


def test_15_the_cache_is_its_keys_own(served: Served) -> None:
    prompt = [4 + n % 90 for n in range(200)]
    first = served.generate(prompt, extra_key="a")["meta_info"]["cached_tokens"]
    again = served.generate(prompt, extra_key="a")["meta_info"]["cached_tokens"]
    other = served.generate(prompt, extra_key="b")["meta_info"]["cached_tokens"]
    assert (first, again > 0, other) == (0, True, 0)


def test_16_an_aborted_request_answers_what_it_has(served: Served) -> None:
    asked = served.long(rid="to_abort")
    served.http.post("/abort_request", json={"rid": "to_abort"})
    meta = asked.result(30)["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] < LONG


def test_17_a_client_that_leaves_ends_its_request(served: Served) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}}
    with httpx.Client(base_url=served.url, timeout=0.3) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post("/generate", json=body)
    served.until(lambda load: load["num_running_reqs"] == 0)


def test_30_loads_count_what_runs_and_waits(served: Served) -> None:
    with served.paused("in_place"):
        asked = [served.later() for _ in range(3)]
        served.until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 3)
    assert all(len(one.result(30)["output_ids"]) == 8 for one in asked)
    served.until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_31_logprobs_are_those_of_the_scaled_distribution(served: Served, teacher: Teacher, temperature: float) -> None:
    answer = served.generate(sampling={"temperature": temperature, "max_new_tokens": 40})
    logprobs = [logprob for logprob, _, _ in answer["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(teacher.of(PROMPT, answer["output_ids"], temperature), abs=1e-4)


def test_32_other_requests_change_no_greedy_answer(served: Served) -> None:
    prompts = [[4 + n, 9, *PROMPT, 20 + n] for n in range(12)]
    alone = [served.generate(ids)["output_ids"] for ids in prompts]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda ids: served.generate(ids)["output_ids"], prompts))
    assert together == alone


def test_33_an_unknown_field_is_ignored(served: Served) -> None:
    assert served.generate(no_such_field=1)["output_ids"] == served.generate()["output_ids"]


def test_34_an_unknown_sampling_key_is_refused(served: Served) -> None:
    answer = served.post("/generate", input_ids=PROMPT, sampling_params={"no_such_key": 1})
    assert answer.status_code == 400
    assert "no_such_key" in answer.json()["error"]
