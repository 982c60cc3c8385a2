"""THE MAIN FLOW: one invocation, turn by turn. Query the model, run its code, show it what happened.

Given everything it uses: a backend, a REPL, a protocol and a dispatcher. Knows neither Ray nor ZMQ, no process and no
"current" invocation, and never opens a value.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import msgspec

from jaz_actors import events
from jaz_actors.code_protocol import CodeProtocol, ParsedCode, Rules
from jaz_actors.effects import DisableRecursion, Effect
from jaz_actors.errors import InvocationCancelled, TimeLimitExceeded
from jaz_actors.events import Event
from jaz_actors.frames.wire import HistoryItem, Ready
from jaz_actors.hooks.dispatch import Dispatcher
from jaz_actors.hooks.folds import (
    Bindings,
    bound_inputs,
    combined,
    fold_abort,
    fold_bindings,
    fold_blackboard,
    fold_code,
    fold_completion,
    fold_exec_result,
    fold_invoke_result,
    resolve_message_edits,
)
from jaz_actors.ids import InvokeId
from jaz_actors.inputs import RESERVED
from jaz_actors.messages import Completion, Message, Usage
from jaz_actors.outcomes import (
    AbortedRecord,
    Aborting,
    CompletedRecord,
    Continue,
    ExecResult,
    FailedRecord,
    OutcomeRecord,
    Raise,
    RaisedRecord,
    Return,
)
from jaz_actors.payload import ErrorRecord, PackedInput
from jaz_actors.protocols import Backend, CompletionRequest, RetryNotice
from jaz_actors.stamps import Stamps
from jaz_actors.teardown import to_its_end
from jaz_actors.transfer import error_record, sendable

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=Event)
State = Literal["waiting for a place", "starting", "waiting for the model", "executing", "waiting for a child", "over"]


class Repl(Protocol):
    """What the loop needs of a REPL; `frames.repl.ReplSession` is one. `execute` raises Aborting for a fatal error,
    `rebind` EffectConflict and DropTargetMissing."""

    async def rebind(self, bindings: Bindings) -> None: ...

    async def execute(self, code: str, filename: str, number: int, *, timeout: float | None = None) -> ExecResult: ...

    def remember(self, item: HistoryItem) -> None: ...

    @property
    def waiting(self) -> bool: ...

    async def end_calls(self) -> None: ...

    async def aclose(self) -> None: ...


class OpenRepl(Protocol):
    """Starts the invocation's REPL once the hooks have had their say. Raises InputRefused, FrameStartFailed."""

    def __call__(self, inputs: tuple[PackedInput, ...], *, recursion: bool) -> Awaitable[tuple[Repl, Ready]]: ...


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where an invocation stands in its tree. Fixed at the moment of the call."""

    invoke_id: InvokeId
    parent_iteration: int | None
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    hooks: tuple[str, ...]


@dataclass(slots=True)
class Progress:
    """What the invocation does right now. Written by its loop, read by anyone on the same event loop."""

    state: State = "starting"
    since: float = field(default_factory=time.monotonic)
    iteration: int = 0
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, None))

    def enter(self, state: State) -> None:
        self.state = state
        self.since = time.monotonic()

    def count(self, usage: Usage) -> None:
        self.usage = Usage(
            (self.usage.prompt_tokens or 0) + (usage.prompt_tokens or 0),
            (self.usage.completion_tokens or 0) + (usage.completion_tokens or 0),
            (self.usage.cached_tokens or 0) + (usage.cached_tokens or 0),
            None if usage.cost_usd is None else (self.usage.cost_usd or 0.0) + usage.cost_usd,
        )


class AgentLoop:
    """One invocation. `run()` once; cancel its task to end it early.

    end_children:  ends what hooks and tools have started for the invocation.
    time_limit:    seconds that it may take once it runs.
    """

    def __init__(
        self,
        lineage: Lineage,
        *,
        backend: Backend,
        protocol: CodeProtocol,
        rules: Callable[[bool], Rules],
        open_repl: OpenRepl,
        dispatcher: Dispatcher,
        end_children: Callable[[], Awaitable[None]],
        time_limit: float | None = None,
    ) -> None:
        self.lineage = lineage
        self.progress = Progress()
        self._backend = backend
        self._protocol = protocol
        self._rules = rules
        self._open_repl = open_repl
        self._dispatcher = dispatcher
        self._end_children = end_children
        self._repl: Repl | None = None
        self._recursion = True
        self._sequence = 0
        self._next_number = 0
        self._buffer: tuple[Message, ...] = ()
        self._stamps = Stamps()
        self._blackboard = dispatcher.blackboard
        self._time_limit = time_limit
        self._deadline: asyncio.Timeout = asyncio.Timeout(None)

    async def run(self) -> OutcomeRecord:
        """The outcome; never raises but for cancellation, which every Exit event has seen by then."""
        self._deadline = asyncio.timeout(self._time_limit)
        try:
            async with self._deadline:
                result = await self._invoke()
            outcome: OutcomeRecord = (
                CompletedRecord(result.value) if isinstance(result, Return) else RaisedRecord(result.error)
            )
        except Aborting as aborting:
            outcome = AbortedRecord(aborting.error)
        except asyncio.CancelledError as cancelled:
            await to_its_end(self._close(AbortedRecord(self._record(cancelled))))
            raise
        except Exception as error:
            expired = isinstance(error, TimeoutError) and self._deadline.expired()
            outcome = AbortedRecord(self._out_of_time()) if expired else FailedRecord(error_record(error))
        return await to_its_end(self._close(outcome))

    def _out_of_time(self) -> ErrorRecord:
        assert self._time_limit is not None
        return error_record(TimeLimitExceeded(self._time_limit), traceback_text="")

    def _record(self, error: BaseException) -> ErrorRecord:
        """What a span is told that an error ends."""
        if isinstance(error, Aborting):
            return error.error
        if not isinstance(error, asyncio.CancelledError):
            return error_record(error)
        if self._deadline.expired():
            return self._out_of_time()
        cancelled = InvocationCancelled(str(self.lineage.invoke_id), "its caller gave it up")
        return error_record(cancelled, traceback_text="")

    async def _close(self, outcome: OutcomeRecord) -> OutcomeRecord:
        """End the REPL, tell the hooks; a hook that fails even here makes the outcome Failed."""
        try:
            if self._repl is not None:
                await self._repl.aclose()
            await self._end_children()
            self.progress.enter("over")
            await self._emit(events.InvokeExit, outcome=outcome)
        except Exception as error:
            return FailedRecord(error_record(error))
        return outcome

    # -- the flow

    async def _invoke(self) -> Return | Raise:
        lineage = self.lineage
        parent = lineage.invoke_id.parent
        effects = await self._emit(
            events.InvokeEnter,
            parent_id=None if parent is None else str(parent),
            parent_iteration=lineage.parent_iteration,
            inputs=lineage.inputs,
            scope=lineage.scope,
            hooks=lineage.hooks,
        )
        self._recursion = not any(isinstance(effect, DisableRecursion) for effect in effects)
        bindings = fold_bindings("InvokeEnter", effects)
        taken = RESERVED | {item.name for item in lineage.scope}
        inputs = bound_inputs("InvokeEnter", lineage.inputs, bindings, taken=taken)
        effects = await self._emit(
            events.InvokeSend,
            inputs=inputs,
            added=tuple(item.name for item in bindings.added),
            dropped=tuple(item.name for item in lineage.inputs if item.name in bindings.dropped),
        )
        result = fold_invoke_result("InvokeSend", None, effects)
        if result is None:
            result = await self._converse(inputs)
        effects = await self._emit(events.InvokeComplete, result=result)
        return fold_invoke_result("InvokeComplete", result, effects) or result

    async def _converse(self, inputs: tuple[PackedInput, ...]) -> Return | Raise:
        self._repl, shown = await self._open_repl(inputs, recursion=self._recursion)
        self._buffer = self._protocol.seed(self._rules(self._recursion), shown.inputs, shown.scope)
        self._next_number = len(self._buffer)
        iteration = 0
        while True:
            self.progress.iteration = iteration
            completion = await self._query(iteration)
            result = await self._execute(self._protocol.parse(completion.content), iteration)
            if not isinstance(result, Continue):
                return result
            self._repl.remember(HistoryItem(completion.content, result.text))
            self._append("user", self._protocol.observation(result, iteration), "observation", iteration)
            iteration += 1

    async def _query(self, iteration: int) -> Completion:
        try:
            answer, completion = await self._query_stages(iteration)
        except (Exception, asyncio.CancelledError) as error:
            await self._exit_failed(events.LLMQueryExit, iteration, error)
            raise
        await self._emit(events.LLMQueryExit, iteration=iteration, status="completed", completion=completion)
        self.progress.count(completion.usage)
        self._append("assistant", completion.content, "assistant", iteration)
        self._stamps.said(self._buffer[-1], answer, completion)
        return completion

    async def _query_stages(self, iteration: int) -> tuple[Completion, Completion]:
        """The answer as it came, and as hooks left it."""
        self.progress.enter("waiting for the model")
        effects = await self._emit(
            events.LLMQueryEnter,
            iteration=iteration,
            messages=self._buffer,
            model=self._backend.model,
            can_recurse=self._recursion,
            can_report_cost=getattr(self._backend, "reports_cost", False),
            context_length=getattr(self._backend, "context_length", None),
        )
        edits = resolve_message_edits(self._buffer, effects, next_number=self._next_number, iteration=iteration)
        self._next_number = edits.next_number
        effects = await self._emit(
            events.LLMQuerySend,
            iteration=iteration,
            messages=edits.shown,
            model=self._backend.model,
            drops=edits.drops,
            adds=edits.adds,
        )
        supplied = fold_completion("LLMQuerySend", effects)
        answer = _encodable(supplied or await self._complete(edits.shown, iteration))
        if supplied is None and answer.tokens is not None:
            self._stamps.sent(edits.shown, answer.tokens)
        effects = await self._emit(
            events.LLMQueryComplete, iteration=iteration, completion=answer, supplied=supplied is not None
        )
        # Persistent edits stay only once the query has succeeded.
        self._buffer = edits.kept
        changed = fold_completion("LLMQueryComplete", effects)
        return answer, answer if changed is None else _encodable(changed)

    async def _complete(self, messages: tuple[Message, ...], iteration: int) -> Completion:
        async def told(notice: RetryNotice) -> None:
            await self._emit(
                events.LLMQueryRetry,
                iteration=iteration,
                attempt=notice.attempt,
                error=error_record(notice.error, traceback_text=""),
                wait=notice.wait,
            )

        request = CompletionRequest(self.lineage.invoke_id, iteration, messages, told, self._stamps.known)
        return await self._backend.complete(request)

    async def _execute(self, parsed: ParsedCode, iteration: int) -> ExecResult:
        try:
            result = await self._execute_stages(parsed, iteration)
        except (Exception, asyncio.CancelledError) as error:
            await to_its_end(self._end_calls())
            await self._exit_failed(events.REPLExecExit, iteration, error)
            raise
        await self._emit(events.REPLExecExit, iteration=iteration, status="completed", result=result)
        return result

    async def _end_calls(self) -> None:
        """What the code has started ends before its execution does."""
        assert self._repl is not None
        await self._repl.end_calls()
        await self._end_children()

    async def _execute_stages(self, parsed: ParsedCode, iteration: int) -> ExecResult:
        assert self._repl is not None
        self.progress.enter("executing")
        effects = await self._emit(events.REPLExecEnter, iteration=iteration, code=parsed.code)
        bindings = fold_bindings("REPLExecEnter", effects)
        code = fold_code(parsed.code, effects)
        if bindings:
            await self._repl.rebind(bindings)
        effects = await self._emit(
            events.REPLExecSend,
            iteration=iteration,
            code=code,
            added_variables=tuple(item.name for item in bindings.added),
            dropped_variables=tuple(sorted(bindings.dropped)),
        )
        result = fold_exec_result("REPLExecSend", None, effects)
        if result is None and parsed.error:
            result = Continue("", parsed.error)
        if result is None:
            filename = f"<repl_{iteration}>"
            result = await self._repl.execute(code, filename, iteration, timeout=parsed.timeout)
        effects = await self._emit(events.REPLExecComplete, iteration=iteration, result=result)
        return fold_exec_result("REPLExecComplete", result, effects) or result

    # -- small pieces

    def _append(
        self,
        role: Literal["user", "assistant"],
        content: str,
        kind: Literal["assistant", "observation"],
        iteration: int,
    ) -> None:
        self._buffer = (*self._buffer, Message(role, content, kind, self._next_number, iteration))
        self._next_number += 1

    async def _emit(self, kind: type[E], **fields: object) -> list[Effect]:
        """The effects of one event. Raises Aborting when a hook asked for that."""
        number = self._sequence
        self._sequence += 1
        if not self._dispatcher.wants(kind):
            return []
        event = kind(
            invoke_id=str(self.lineage.invoke_id),
            depth=self.lineage.invoke_id.depth,
            sequence=number,
            timestamp=time.time(),
            blackboard=self._blackboard,
            **fields,
        )
        effects = await self._dispatcher.emit(event)
        self._blackboard = fold_blackboard(kind.__name__, self._blackboard, effects)
        abort = fold_abort(effects)
        if abort is not None:
            raise Aborting(abort.error)
        return effects

    async def _exit_failed(
        self, kind: type[events.LLMQueryExit] | type[events.REPLExecExit], iteration: int, error: BaseException
    ) -> None:
        """Tell the hooks that a span does not complete; `error` goes on, whatever they say to it."""
        aborted = isinstance(error, (Aborting, asyncio.CancelledError))
        status = "aborted" if aborted else "failed"
        try:
            await to_its_end(self._emit(kind, iteration=iteration, status=status, error=self._record(error)))
        except Aborting as also:
            if isinstance(error, Aborting):
                raise Aborting(combined([error.error, also.error])) from None
            logger.info("a hook aborts what has ended already: %s", also)
        except Exception as failure:
            error.add_note(f"Then {failure}")
            logger.warning("a hook failed while a span ended: %s", failure)


def _encodable(completion: Completion) -> Completion:
    content = sendable(completion.content)
    return completion if content is completion.content else msgspec.structs.replace(completion, content=content)
