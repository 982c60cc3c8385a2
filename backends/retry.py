"""Repeating what may succeed the next time. Knows no server: errors decide by their class.

Only errors on an allow-list are repeated; everything else, cancellation first of all, passes at once, also
during a wait.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from tenacity import RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.asyncio import AsyncRetrying

from jaz_actors.errors import BackendError, ConfigurationError, RateLimited, ServerUnavailable
from jaz_actors.messages import Completion
from jaz_actors.protocols import Backend, CompletionRequest, RetryNotice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and after how long.

    max_retries:  repetitions after the first attempt; 0 for none.
    wait_min, wait_max:  seconds. A wait is drawn evenly between wait_min and a bound that is twice wait_min
        at first and doubles with each attempt. Where the server says how long to wait, it is at least that
        long. It is never longer than wait_max.
    retry_on:  the allow-list.
    """

    max_retries: int = 10
    _: KW_ONLY
    wait_min: float = 1.0
    wait_max: float = 60.0
    retry_on: tuple[type[BackendError], ...] = (RateLimited, ServerUnavailable)

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int) or self.max_retries < 0:
            raise ConfigurationError("max_retries", f"{self.max_retries!r} is not a count")
        if not (0 <= self.wait_min <= self.wait_max and math.isfinite(self.wait_max)):
            raise ConfigurationError(
                "wait_min, wait_max",
                f"need 0 <= wait_min <= wait_max < infinity, got {self.wait_min!r} and {self.wait_max!r}",
            )
        wrong = [kind for kind in self.retry_on if not (isinstance(kind, type) and issubclass(kind, BackendError))]
        if wrong:
            raise ConfigurationError("retry_on", f"{wrong[0]!r} is not a class of BackendError")

    def wait(self, attempt: int, error: Exception) -> float:
        """Seconds between the failure of `attempt`, counted from 1, and the next one."""
        doublings = min(attempt, 64)  # beyond, the power alone would overflow a float
        drawn = random.uniform(self.wait_min, min(self.wait_max, self.wait_min * 2.0**doublings))
        asked = getattr(error, "retry_after", None)
        if asked is not None:
            # Those who were told the same number must not all come back in the same instant.
            drawn = max(drawn, asked + random.uniform(0, self.wait_min))
        return min(self.wait_max, drawn)


async def with_retries(
    attempt: Callable[[int], Awaitable[T]],
    *,
    policy: RetryPolicy,
    on_retry: Callable[[RetryNotice], Awaitable[None]] | None = None,
) -> T:
    """The first success of `attempt`, which is given its number, counted from 1.

    `on_retry` is awaited before each wait. Raises the last error unchanged.
    """
    number = 0

    async def next_attempt() -> T:
        nonlocal number
        number += 1
        return await attempt(number)

    async def tell(state: RetryCallState) -> None:
        if on_retry is not None:
            await on_retry(RetryNotice(state.attempt_number, _error_of(state), state.upcoming_sleep))

    retrying = AsyncRetrying(
        sleep=asyncio.sleep,
        retry=retry_if_exception_type(policy.retry_on),
        stop=stop_after_attempt(policy.max_retries + 1),
        wait=lambda state: policy.wait(state.attempt_number, _error_of(state)),
        before_sleep=tell,
        reraise=True,
    )
    return await retrying(next_attempt)


def _error_of(state: RetryCallState) -> Exception:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, Exception), "a wait follows an error"
    return error


class Retrying:
    """Any backend, repeated. OpenAI and SGLang do this themselves; it is for backends of one's own."""

    def __init__(self, backend: Backend, policy: RetryPolicy | None = None) -> None:
        self._backend = backend
        self._policy = policy or RetryPolicy()

    @property
    def model(self) -> str:
        return self._backend.model

    @property
    def reports_cost(self) -> bool:
        return getattr(self._backend, "reports_cost", False)

    @property
    def reports_tokens(self) -> bool:
        return getattr(self._backend, "reports_tokens", False)

    @property
    def context_length(self) -> int | None:
        return getattr(self._backend, "context_length", None)

    async def complete(self, request: CompletionRequest) -> Completion:
        return await with_retries(
            lambda _: self._backend.complete(request), policy=self._policy, on_retry=request.on_retry
        )

    async def aclose(self) -> None:
        await self._backend.aclose()

    def __repr__(self) -> str:
        return f"Retrying({self._backend!r}, {self._policy!r})"
