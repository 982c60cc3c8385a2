"""Repeat a failed attempt when its error is on a short list of transport errors. Knows no provider.

Cancellation is not on the list, nor is anything else that is not named: it passes at once, in the wait too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from jaz_actors.errors import ConfigurationError, RateLimited, ServerUnavailable
from jaz_actors.messages import Completion
from jaz_actors.protocols import CompletionRequest, RetryNotice

RETRIED = (RateLimited, ServerUnavailable)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """max_retries: further attempts after the first. min_wait, max_wait: seconds; waits grow exponentially, with jitter.

    A server's own Retry-After, where it gave one, is the least that is waited.
    """

    max_retries: int = 10
    min_wait: float = 0.5
    max_wait: float = 60.0

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigurationError("max_retries", "must be at least 0")
        if not 0 <= self.min_wait <= self.max_wait:
            raise ConfigurationError("min_wait", "must lie between 0 and max_wait")

    async def run(self, request: CompletionRequest, attempt: Callable[[], Awaitable[Completion]]) -> Completion:
        """The first attempt that succeeds, or the last error unchanged. `request.on_retry` is told before each wait."""
        spread = wait_random_exponential(multiplier=self.min_wait, max=self.max_wait)

        def wait(state: RetryCallState) -> float:
            assert state.outcome is not None
            asked = getattr(state.outcome.exception(), "retry_after", None) or 0.0
            return max(self.min_wait, asked, spread(state))

        async def before(state: RetryCallState) -> None:
            assert state.outcome is not None
            assert state.next_action is not None
            error = state.outcome.exception()
            if request.on_retry is not None and isinstance(error, Exception):
                await request.on_retry(RetryNotice(state.attempt_number, error, state.next_action.sleep))

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RETRIED),
            stop=stop_after_attempt(self.max_retries + 1),
            wait=wait,
            before_sleep=before,
            reraise=True,
        )

        async def once() -> Completion:  # the library awaits coroutine functions alone
            return await attempt()

        return await retrying(once)
