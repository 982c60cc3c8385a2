"""What is repeated, after how long, and what passes at once."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.backends.retry import Retrying, RetryPolicy, with_retries
from jaz_actors.backends.scripted import Scripted
from jaz_actors.errors import (
    BackendError,
    ConfigurationError,
    ContextOverflow,
    MalformedResponse,
    RateLimited,
    ServerUnavailable,
)
from jaz_actors.messages import Completion
from jaz_actors.protocols import Backend, CompletionRequest, RetryNotice
from tests.backends.asked import a_request

BUSY = ServerUnavailable("server", "busy", 503)


class Attempts:
    """Raises each of `failures` in turn, then gives "done"."""

    def __init__(self, failures: Sequence[BaseException]) -> None:
        self.failures = list(failures)
        self.numbers: list[int] = []

    async def __call__(self, number: int) -> str:
        self.numbers.append(number)
        if self.failures:
            raise self.failures.pop(0)
        return "done"


@pytest.mark.asyncio
async def test_errors_on_the_list_are_repeated_and_told_in_order() -> None:
    attempts = Attempts([BUSY, RateLimited("server", "slow down", 429)])
    notices: list[RetryNotice] = []

    async def told(notice: RetryNotice) -> None:
        notices.append(notice)

    policy = RetryPolicy(5, wait_min=0, wait_max=0)
    assert await with_retries(attempts, policy=policy, on_retry=told) == "done"
    assert attempts.numbers == [1, 2, 3]
    assert [(notice.attempt, type(notice.error)) for notice in notices] == [
        (1, ServerUnavailable),
        (2, RateLimited),
    ]


@pytest.mark.asyncio
async def test_the_last_error_is_raised_unchanged() -> None:
    last = ServerUnavailable("server", "the last", 500)
    with pytest.raises(ServerUnavailable) as caught:
        await with_retries(Attempts([BUSY, last]), policy=RetryPolicy(1, wait_min=0, wait_max=0))
    assert caught.value is last


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [
        ContextOverflow("server", "too long", 400),
        MalformedResponse("server", "no"),
        KeyError("ours"),
        asyncio.CancelledError(),
        TimeoutError(),
    ],
)
async def test_everything_else_passes_at_once(error: BaseException) -> None:
    attempts = Attempts([error])
    with pytest.raises(type(error)):
        await with_retries(attempts, policy=RetryPolicy(5, wait_min=0, wait_max=0))
    assert attempts.numbers == [1]


@pytest.mark.asyncio
async def test_the_list_is_the_callers() -> None:
    attempts = Attempts([MalformedResponse("server", "no")])
    policy = RetryPolicy(1, wait_min=0, wait_max=0, retry_on=(MalformedResponse,))
    assert await with_retries(attempts, policy=policy) == "done"


@given(st.integers(1, 10_000), st.floats(0, 10), st.floats(0, 100))
def test_a_wait_lies_between_its_bounds(attempt: int, wait_min: float, more: float) -> None:
    policy = RetryPolicy(wait_min=wait_min, wait_max=wait_min + more)
    assert wait_min <= policy.wait(attempt, BUSY) <= policy.wait_max


@given(st.floats(0, 1000))
def test_what_the_server_asks_for_is_the_least_up_to_the_longest_wait(asked: float) -> None:
    wait = RetryPolicy(wait_min=1, wait_max=60).wait(1, RateLimited("server", "slow down", 429, asked))
    assert min(asked, 60) <= wait <= 60


def test_waits_grow_and_differ() -> None:
    policy = RetryPolicy(wait_min=1, wait_max=1000)
    late = [policy.wait(8, BUSY) for _ in range(200)]
    assert max(late) > max(policy.wait(1, BUSY) for _ in range(200))
    assert len(set(late)) > 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": -1},
        {"max_retries": True},
        {"max_retries": 1.5},
        {"wait_min": -1},
        {"wait_min": 5, "wait_max": 1},
        {"wait_max": float("inf")},
        {"wait_max": float("nan")},
        {"retry_on": (BaseException,)},
        {"retry_on": ("RateLimited",)},
    ],
)
def test_a_policy_that_cannot_work_is_refused_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RetryPolicy(**wrong)


def test_policies_and_errors_with_a_wait_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(RetryPolicy(3))) == RetryPolicy(3)
    error = pickle.loads(pickle.dumps(RateLimited("server", "slow down", 429, 7.5)))
    assert (type(error), error.status, error.retry_after) == (RateLimited, 429, 7.5)


@pytest.mark.asyncio
async def test_any_backend_can_be_repeated() -> None:
    failures: list[BackendError] = [BUSY]

    def answer(request: CompletionRequest) -> str | Completion:
        if failures:
            raise failures.pop()
        return "ok"

    backend = Retrying(Scripted(answer, model="m"), RetryPolicy(1, wait_min=0, wait_max=0))
    assert isinstance(backend, Backend)
    assert (await backend.complete(a_request())).content == "ok"
    assert backend.model == "m"
    await backend.aclose()
