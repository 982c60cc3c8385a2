"""Which error an answer's status, headers and body stand for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.backends.refusals import error_of_answer, explain, is_context_overflow
from jaz_actors.errors import BackendError, RateLimited, RequestRefused, ServerUnavailable


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"m","code":"c"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"object":"error","message":"m","type":"BadRequest"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"loc":["body"],"msg":"m"}]}', '[{"loc":["body"],"msg":"m"}]'),
        (b"plain m", "plain m"),
        (b"x" * 600, "x" * 500 + "..."),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_every_shape_of_body_is_understood(body: bytes, message: str) -> None:
    said = explain(body)
    assert said is not None
    assert said.message == message


def test_an_empty_body_is_named_by_its_status() -> None:
    assert error_of_answer("b", 502, {}, b"").message == "Bad Gateway"
    assert error_of_answer("b", 599, {}, b"").message == "no explanation"


@given(st.integers(300, 599), st.binary(max_size=80))
def test_whatever_comes_is_one_of_our_errors_with_its_status(status: int, body: bytes) -> None:
    error = error_of_answer("b", status, {}, body)
    assert isinstance(error, BackendError)
    assert error.status == status
    assert str(error)


@pytest.mark.parametrize(
    "message",
    [
        "The input (5000 tokens) is longer than the model's context length (2048 tokens).",
        "Requested token count exceeds the model's maximum context length of 2048 tokens.",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit",
        "the request exceeds the available context size",
        "Input length (9 tokens) exceeds the maximum allowed length (8 tokens).",
    ],
)
def test_a_prompt_that_does_not_fit_is_recognised(message: str) -> None:
    assert is_context_overflow(message)


@pytest.mark.parametrize("message", ["temperature must be non-negative", "max_tokens is too large: 9. At most 8"])
def test_other_refusals_are_not_taken_for_it(message: str) -> None:
    assert not is_context_overflow(message)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "9", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_read(status: int, headers: dict[str, str], seconds: float | None) -> None:
    error = error_of_answer("b", status, headers, b"")
    assert isinstance(error, (RateLimited, ServerUnavailable))
    assert error.retry_after == seconds


def test_a_date_to_wait_for_is_read() -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    error = error_of_answer("b", 429, {"retry-after": when}, b"")
    assert isinstance(error, RateLimited)
    assert error.retry_after is not None
    assert 90 < error.retry_after <= 100


def test_a_redirect_says_where_to() -> None:
    error = error_of_answer("b", 301, {"location": "https://elsewhere/v1"}, b"")
    assert type(error) is RequestRefused
    assert "https://elsewhere/v1" in str(error)
