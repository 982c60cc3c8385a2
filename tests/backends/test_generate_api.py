"""Answers of /generate: good ones are read, anything that does not agree is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.backends.generate_api import Sampling, generate_body, read_generated
from jaz_actors.errors import (
    BackendError,
    ConfigurationError,
    ContextOverflow,
    GenerationAborted,
    MalformedResponse,
    RequestRefused,
    ServerUnavailable,
)

VOCABULARY = 50
PROMPT = 3
ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)
some_ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8)


def an_answer(output: list[int], **meta: Any) -> dict[str, Any]:
    base = {
        "id": "r",
        "finish_reason": {"type": "length", "length": len(output)},
        "prompt_tokens": PROMPT,
        "completion_tokens": len(output),
        "cached_tokens": 1,
        "weight_version": "3",
        "output_token_logprobs": [[-0.25 * n, i, None] for n, i in enumerate(output)],
        "output_token_logprobs_length": len(output),
    }
    return {"text": "", "output_ids": output, "meta_info": base | meta}


def read(answer: dict[str, Any]) -> Any:
    return read_raw(msgspec.json.encode(answer))


def read_raw(data: bytes) -> Any:
    return read_generated("SGLang", data, prompt_length=PROMPT, vocabulary=VOCABULARY)


@given(ids)
def test_a_good_answer_is_read_exactly(output: list[int]) -> None:
    generated = read(an_answer(output))
    assert generated.output_ids == output
    assert generated.logprobs == [-0.25 * n for n in range(len(output))]
    assert (generated.finish_reason, generated.cached_tokens, generated.weight_version) == ("length", 1, "3")


@given(ids, st.sampled_from(["completion_tokens", "output_token_logprobs_length", "prompt_tokens"]), st.data())
def test_a_count_that_disagrees_is_refused(output: list[int], name: str, data: st.DataObject) -> None:
    right = PROMPT if name == "prompt_tokens" else len(output)
    wrong = data.draw(st.integers(0, 20).filter(lambda n: n != right))
    with pytest.raises(MalformedResponse):
        read(an_answer(output, **{name: wrong}))


@given(some_ids, st.data())
def test_logprobs_of_another_length_are_refused(output: list[int], data: st.DataObject) -> None:
    answer = an_answer(output)
    kept = data.draw(st.integers(0, len(output) - 1))
    entries = answer["meta_info"]["output_token_logprobs"]
    answer["meta_info"]["output_token_logprobs"] = data.draw(st.sampled_from([entries[:kept], [*entries, entries[0]]]))
    with pytest.raises(MalformedResponse):
        read(answer)


@given(some_ids, st.data())
def test_logprobs_of_other_ids_are_refused(output: list[int], data: st.DataObject) -> None:
    answer = an_answer(output)
    index = data.draw(st.integers(0, len(output) - 1))
    other = data.draw(st.integers(0, VOCABULARY - 1).filter(lambda i: i != output[index]))
    answer["meta_info"]["output_token_logprobs"][index][1] = other
    with pytest.raises(MalformedResponse, match="log-probability is for"):
        read(answer)


@given(
    some_ids,
    st.sampled_from([b"NaN", b"-Infinity", b"Infinity", b"null", b'"-0.5"', b"-1e999", b"[]", b"true"]),
)
def test_logprobs_that_are_no_finite_numbers_are_refused(output: list[int], written: bytes) -> None:
    answer = an_answer(output)
    answer["meta_info"]["output_token_logprobs"][-1][0] = -777.5
    with pytest.raises(MalformedResponse):
        read_raw(msgspec.json.encode(answer).replace(b"-777.5", written))


@given(some_ids, st.one_of(st.integers(VOCABULARY, 10**6), st.integers(-100, -1)))
def test_ids_outside_the_vocabulary_are_refused(output: list[int], bad: int) -> None:
    with pytest.raises(MalformedResponse, match="outside the vocabulary"):
        read(an_answer([*output, bad]))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        read_raw(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["output_ids", "meta_info", "finish_reason", "output_token_logprobs", "completion_tokens"]),
)
def test_any_other_value_in_a_field_is_refused_or_agrees(value: Any, name: str) -> None:
    answer = an_answer([4, 5])
    target = answer if name in answer else answer["meta_info"]
    target[name] = value
    try:
        generated = read(answer)
    except BackendError:
        return
    assert len(generated.output_ids) == len(generated.logprobs) == 2
    assert all(math.isfinite(logprob) for logprob in generated.logprobs)


@pytest.mark.parametrize("name", ["output_ids", "meta_info"])
def test_a_missing_part_is_refused(name: str) -> None:
    answer = an_answer([1])
    del answer[name]
    with pytest.raises(MalformedResponse):
        read(answer)


def test_an_unfinished_answer_is_refused() -> None:
    with pytest.raises(MalformedResponse):
        read(an_answer([1], finish_reason=None))


def test_a_bare_finish_reason_is_read() -> None:
    assert read(an_answer([1], finish_reason="stop")).finish_reason == "stop"


def test_an_id_that_ended_the_answer_is_told() -> None:
    assert read(an_answer([1, 2], finish_reason={"type": "stop", "matched": 2})).stopped_by == 2
    assert read(an_answer([1, 2], finish_reason={"type": "stop", "matched": "text"})).stopped_by is None


def test_no_new_tokens_are_an_answer() -> None:
    assert read(an_answer([])).output_ids == []


@pytest.mark.parametrize("finish", ["abort", {"type": "abort", "message": "by request", "status_code": None}])
def test_an_abort_before_the_first_token_is_an_abort(finish: Any) -> None:
    with pytest.raises(GenerationAborted):
        read({"text": "", "meta_info": {"id": "r", "finish_reason": finish}})


def test_an_abort_with_some_tokens_has_them_and_says_why() -> None:
    aborted = read(an_answer([1], finish_reason={"type": "abort", "message": "weights", "status_code": 503}))
    assert (aborted.output_ids, aborted.finish_reason) == ([1], "abort")
    assert isinstance(aborted.aborted, ServerUnavailable)
    assert isinstance(read(an_answer([1], finish_reason="abort")).aborted, GenerationAborted)


def test_an_abort_with_an_error_and_without_tokens_is_that_error() -> None:
    with pytest.raises(RequestRefused, match="bad"):
        read(an_answer([], finish_reason={"type": "abort", "message": "bad", "status_code": 400}))


@given(some_ids, st.sampled_from([-9999.0, -1000.0, 0.5, 2.0]))
def test_logprobs_that_no_token_has_are_refused(output: list[int], logprob: float) -> None:
    answer = an_answer(output)
    answer["meta_info"]["output_token_logprobs"][-1][0] = logprob
    with pytest.raises(MalformedResponse):
        read(answer)


@given(ids, st.lists(st.integers(0, 8), max_size=4))
def test_spans_of_versions_are_read_where_they_cover_the_answer(output: list[int], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(output)) for cut in cuts), len(output)]
    spans = [{"version": n, "start": a, "end": b} for n, (a, b) in enumerate(itertools.pairwise(edges))]
    read_spans = read(an_answer(output, weight_versions=spans)).versions
    assert [(s.start, s.end, s.oldest, s.newest) for s in read_spans] == [
        (s["start"], s["end"], str(s["version"]), str(s["version"])) for s in spans
    ]
    for wrong in ({"start": 0, "end": len(output) + 1}, {"start": 1, "end": len(output) + 1}):
        with pytest.raises(MalformedResponse, match="weight_versions"):
            read(an_answer(output, weight_versions=[{"version": "1", **wrong}]))


def test_an_abort_for_length_is_a_context_overflow() -> None:
    message = "Input length (9 tokens) exceeds the maximum allowed length (8 tokens)."
    with pytest.raises(ContextOverflow):
        read(an_answer([], finish_reason={"type": "abort", "message": message}))


def test_the_body_asks_for_everything_that_was_sampled() -> None:
    body = msgspec.json.decode(
        generate_body(
            [1, 2], Sampling(max_new_tokens=99, top_k=5).parameters((9,)), rid="r", weight_version="3", session="run:0"
        )
    )
    assert body == {
        "input_ids": [1, 2],
        "sampling_params": {
            "temperature": 1.0,
            "max_new_tokens": 99,
            "top_p": 1.0,
            "top_k": 5,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "stop_token_ids": [9],
        },
        "return_logprob": True,
        "rid": "r",
        "routing_key": "run:0",
        "extra_key": "3",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"max_new_tokens": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": 0},
        {"min_p": 2},
    ],
)
def test_impossible_sampling_is_refused_before_anything_starts(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Sampling(**wrong)
