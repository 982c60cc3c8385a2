"""What happens in an invocation, as frozen records. Hooks, loggers and recorders all see these and nothing else.

Three spans, four stages each: `Enter` (what is about to happen), `Send` (what is really sent, after edits),
`Complete` (what came back), `Exit` (how the span ended, on every path). `LLMQueryRetry` lies inside a query.

Event order of one turn: LLMQueryEnter, LLMQuerySend, LLMQueryRetry*, LLMQueryComplete, LLMQueryExit, REPLExecEnter,
REPLExecSend, REPLExecComplete, REPLExecExit; all turns lie between InvokeSend and InvokeComplete, InvokeExit is last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from jaz_actors.messages import Completion, Message
from jaz_actors.outcomes import ExecResult, OutcomeRecord, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput

SpanStatus = Literal["completed", "aborted", "failed"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every event. `timestamp` is seconds since the epoch; `sequence` counts within the invocation.

    `blackboard` holds what the invocation's hooks have written for each other, as of the event before.
    """

    invoke_id: str
    depth: int
    sequence: int
    timestamp: float
    blackboard: dict[str, Any] = {}


class InputInfo(msgspec.Struct, frozen=True, array_like=True):
    """An input as the model sees it: variable name, type name, rendered text (None: bound but not shown)."""

    name: str
    type_name: str
    text: str | None


class InvokeEnter(Event, frozen=True, tag="invoke_enter"):
    """`inputs` and `scope` as the caller gave them; `hooks` are the names of those that see the invocation."""

    parent_id: str | None
    parent_iteration: int | None
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    hooks: tuple[str, ...]


class InvokeSend(Event, frozen=True, tag="invoke_send"):
    """`inputs` as the agent gets them; `added` and `dropped` are the names that hooks changed."""

    inputs: tuple[PackedInput, ...]
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class InvokeComplete(Event, frozen=True, tag="invoke_complete"):
    result: Return | Raise


class InvokeExit(Event, frozen=True, tag="invoke_exit"):
    outcome: OutcomeRecord


class LLMQueryEnter(Event, frozen=True, tag="llm_query_enter"):
    """`messages` is the buffer before edits; message edits index into it.

    can_recurse:      whether the agent has `invoke`.
    can_report_cost:  whether the backend says what its completions cost.
    context_length:   tokens that prompt and reply may have together, None when the backend does not say.
    """

    iteration: int
    messages: tuple[Message, ...]
    model: str
    can_recurse: bool
    can_report_cost: bool = False
    context_length: int | None = None


class MessageDrop(msgspec.Struct, frozen=True):
    position: int
    message: Message
    persistent: bool


class MessageAdd(msgspec.Struct, frozen=True):
    position: int
    messages: tuple[Message, ...]
    persistent: bool


def edited(
    buffer: Sequence[Message],
    drops: Sequence[MessageDrop],
    adds: Sequence[MessageAdd],
    *,
    persistent_only: bool = False,
) -> tuple[Message, ...]:
    """A buffer after the edits of one query, all of them or those that stay. Adds at one position keep their order."""
    dropped = {drop.position for drop in drops if drop.persistent or not persistent_only}
    added: dict[int, list[Message]] = {}
    for add in adds:
        if add.persistent or not persistent_only:
            added.setdefault(add.position, []).extend(add.messages)
    result: list[Message] = []
    for position, message in enumerate(buffer):
        result += added.get(position, ())
        if position not in dropped:
            result.append(message)
    return (*result, *added.get(len(buffer), ()))


class LLMQuerySend(Event, frozen=True, tag="llm_query_send"):
    """`messages` is what the model is shown; `drops` and `adds` say how it differs from the buffer."""

    iteration: int
    messages: tuple[Message, ...]
    model: str
    drops: tuple[MessageDrop, ...] = ()
    adds: tuple[MessageAdd, ...] = ()


class LLMQueryRetry(Event, frozen=True, tag="llm_query_retry"):
    """A failed attempt that will be repeated after `wait` seconds. `attempt` counts from 1."""

    iteration: int
    attempt: int
    error: ErrorRecord
    wait: float


class LLMQueryComplete(Event, frozen=True, tag="llm_query_complete"):
    """`completion` is what the model answered, or, when `supplied`, what a hook gave in its place."""

    iteration: int
    completion: Completion
    supplied: bool = False


class LLMQueryExit(Event, frozen=True, tag="llm_query_exit"):
    """`completion` is the final one when `status` is completed, otherwise `error` is set."""

    iteration: int
    status: SpanStatus
    completion: Completion | None = None
    error: ErrorRecord | None = None


class REPLExecEnter(Event, frozen=True, tag="repl_exec_enter"):
    """`code` as the model wrote it; code edits index into it."""

    iteration: int
    code: str


class REPLExecSend(Event, frozen=True, tag="repl_exec_send"):
    """`code` as it will run, after edits; the variables that hooks have just bound and removed."""

    iteration: int
    code: str
    added_variables: tuple[str, ...] = ()
    dropped_variables: tuple[str, ...] = ()


class REPLExecComplete(Event, frozen=True, tag="repl_exec_complete"):
    iteration: int
    result: ExecResult


class REPLExecExit(Event, frozen=True, tag="repl_exec_exit"):
    """`result` is the final one when `status` is completed, otherwise `error` is set."""

    iteration: int
    status: SpanStatus
    result: ExecResult | None = None
    error: ErrorRecord | None = None


AnyEvent = (
    InvokeEnter
    | InvokeSend
    | InvokeComplete
    | InvokeExit
    | LLMQueryEnter
    | LLMQuerySend
    | LLMQueryRetry
    | LLMQueryComplete
    | LLMQueryExit
    | REPLExecEnter
    | REPLExecSend
    | REPLExecComplete
    | REPLExecExit
)

EVENT_TYPES: tuple[type[Event], ...] = AnyEvent.__args__
