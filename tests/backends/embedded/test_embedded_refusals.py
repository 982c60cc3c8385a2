"""What the server refuses, by status and by the shape of the body; after each, it serves on."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.asyncio

OBJECT = "error.message"
STRING = "error"
MESSAGE = "message"
IDS = [4, 5, 6]

REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "longer than the context": ({"input_ids": [5] * 5000}, OBJECT, "The input (5000 tokens) is longer than"),
    "as long as the context": ({"input_ids": [5] * 1024}, OBJECT, "The input (1024 tokens) is longer than"),
    "too many tokens in all": (
        {"input_ids": [5] * 1000, "sampling_params": {"max_new_tokens": 25}},
        OBJECT,
        "Requested token count exceeds the model's maximum context length",
    ),
    "empty ids": ({"input_ids": []}, OBJECT, "input_ids cannot be empty."),
    "an empty prompt of a batch": ({"input_ids": [[5], []]}, OBJECT, "input_ids cannot be empty."),
    "no input": ({}, OBJECT, "Either text, input_ids or input_embeds should be provided."),
    "unknown sampling key": (
        {"input_ids": IDS, "sampling_params": {"bogus": 1}},
        STRING,
        "unknown field `bogus`, expected one of ",
    ),
    "negative temperature": ({"input_ids": IDS, "sampling_params": {"temperature": -1}}, OBJECT, "temperature must be"),
    "top_p of 0": ({"input_ids": IDS, "sampling_params": {"top_p": 0}}, OBJECT, "top_p must be"),
    "top_k of 0": ({"input_ids": IDS, "sampling_params": {"top_k": 0}}, OBJECT, "top_k must be"),
    "min_p over 1": ({"input_ids": IDS, "sampling_params": {"min_p": 2}}, OBJECT, "min_p must be"),
    "negative length": (
        {"input_ids": IDS, "sampling_params": {"max_new_tokens": -1}},
        OBJECT,
        "max_new_tokens must be",
    ),
    "n of 0": ({"input_ids": IDS, "sampling_params": {"n": 0}}, OBJECT, "n must be"),
    "sampling value of a wrong type": (
        {"input_ids": IDS, "sampling_params": {"max_new_tokens": "x"}},
        OBJECT,
        "Expected",
    ),
    "a parameter that is not served": (
        {"input_ids": IDS, "sampling_params": {"frequency_penalty": 0.5}},
        OBJECT,
        "frequency_penalty is not supported",
    ),
    "a field that is not served": (
        {"input_ids": IDS, "return_entropy": True},
        OBJECT,
        "return_entropy is not supported",
    ),
    "ids of a wrong type": ({"input_ids": "abc"}, MESSAGE, "Expected"),
    "ids and lists of ids": ({"input_ids": [1, [2]]}, MESSAGE, "input_ids must be"),
    "an id above the vocabulary": ({"input_ids": [4, 999_999]}, OBJECT, "Token id 999999 is outside the vocabulary"),
    "a negative id": ({"input_ids": [4, -1]}, OBJECT, "Token id -1 is outside the vocabulary"),
    "parameters for fewer prompts": (
        {"input_ids": [[4], [5]], "sampling_params": [{}]},
        OBJECT,
        "sampling_params has 1 entries for 2 prompts.",
    ),
    "one rid twice": ({"input_ids": [[4], [5]], "rid": ["a", "a"]}, OBJECT, "Duplicate request ID"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_refused_in_the_apis_own_shape(client: Any, case: str, stream: bool) -> None:
    body, shape, message = REFUSALS[case]
    answer = await client.http.post("/generate", json={**body, "stream": stream})
    assert answer.status_code == 400
    given = answer.json()
    match shape:
        case "error.message":
            assert given["error"]["message"].startswith(message)
        case "error":
            assert given["error"].startswith(message)
        case _:
            assert given["object"] == "error"
            assert given["message"].startswith(message)
    assert len((await client.generate())["output_ids"]) == 8


async def test_a_body_that_is_no_json_is_refused(client: Any) -> None:
    for path in ("/generate", "/abort_request"):
        answer = await client.http.post(path, content=b"{not json")
        assert answer.status_code == 400
        assert answer.json()["object"] == "error"


async def test_unknown_and_unset_fields_are_ignored(client: Any) -> None:
    plain = await client.generate()
    assert (await client.generate(bogus=1, priority=3))["output_ids"] == plain["output_ids"]
    unset = await client.generate(sampling={"stop": None, "top_p": None}, return_logprob=None, extra_key=None)
    assert unset["output_ids"] == plain["output_ids"]


async def test_an_unknown_path_is_not_found(client: Any) -> None:
    answer = await client.http.get("/nothing")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    assert (await client.http.get("/generate")).status_code == 405
