"""The seams: what the agent loop is given. Implementations live elsewhere and are loaded late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaz_actors.ids import InvokeId
from jaz_actors.messages import Completion, Message
from jaz_actors.stamps import TokenStamp


@dataclass(frozen=True, slots=True)
class RetryNotice:
    """A failed attempt about to be repeated. `attempt` counts from 1; `wait` is seconds."""

    attempt: int
    error: Exception
    wait: float


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One query of one invocation.

    messages:  what the model is shown, in order; never empty.
    stamps:    the ids that messages have contributed to earlier prompts of the invocation, by message number.
    on_retry:  told before each wait of a retrying backend.
    """

    invoke_id: InvokeId
    iteration: int
    messages: tuple[Message, ...]
    on_retry: Callable[[RetryNotice], Awaitable[None]] | None = None
    stamps: Mapping[int, TokenStamp] = field(default_factory=dict)


@runtime_checkable
class Backend(Protocol):
    """Turns messages into a completion.

    Order and concurrency: `complete` is called concurrently for many invocations and, for one invocation, one turn
    after the other. Life: built by the caller, pickled to each host, opened there by the first call on that host's
    event loop, closed once by the host with `aclose`; a closed backend is not used again. So an instance holds
    configuration until its first call, and must be picklable until then. Cancellation: cancelling the call must end
    the request at the server and is never retried or swallowed. Raises: only `BackendError` and its subclasses for
    whatever the server or transport does.

    Optional attributes: `reports_cost` and `reports_tokens`, whether completions say what they cost and which tokens
    were sampled (False where there is none), and `context_length`, the tokens that prompt and reply may have together
    (None where it is not known).
    """

    @property
    def model(self) -> str:
        """The label under which completions are recorded."""
        ...

    async def complete(self, request: CompletionRequest) -> Completion: ...

    async def aclose(self) -> None: ...
