"""Events made by hand: invocations of any shape, without running them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from jaz_actors.events import (
    Event,
    InvokeComplete,
    InvokeEnter,
    InvokeExit,
    InvokeSend,
    LLMQueryComplete,
    LLMQueryEnter,
    LLMQueryExit,
    LLMQueryRetry,
    LLMQuerySend,
    REPLExecComplete,
    REPLExecEnter,
    REPLExecExit,
    REPLExecSend,
)
from jaz_actors.messages import Completion, Message, SampledTokens, Usage
from jaz_actors.outcomes import (
    AbortedRecord,
    CompletedRecord,
    Continue,
    ExecResult,
    FailedRecord,
    OutcomeRecord,
    Raise,
    RaisedRecord,
    Return,
)
from jaz_actors.payload import ErrorRecord, PackedInput, Payload

SYSTEM = "You write Python. " * 50
RUN = "0192f00dcafe01234567"


def payload(preview: str, type_name: str = "str") -> Payload:
    return Payload(b"never loaded", (), type_name, preview)


def invocation(
    path: str,
    *,
    turns: int = 2,
    start: float = 1_700_000_000.0,
    status: str = "completed",
    tokens: bool = False,
    retries: int = 0,
    parent_iteration: int | None = None,
    said: str = "hello",
) -> list[Event]:
    """Its events: each turn takes 0.3 seconds of query and 0.1 of execution."""
    invoke_id = f"{RUN}:{path}"
    made: list[Event] = []
    clock = start

    def emit(kind: type[Event], **fields: object) -> None:
        made.append(
            kind(
                invoke_id=invoke_id,
                depth=path.count(".") + 1,
                sequence=len(made),
                timestamp=clock,
                **fields,  # type: ignore[arg-type]
            )
        )

    inputs = (PackedInput("task", payload(repr(said))),)
    parent = f"{RUN}:{path.rpartition('.')[0]}" if "." in path else None
    if parent and parent_iteration is None:
        parent_iteration = 0
    emit(InvokeEnter, parent_id=parent, parent_iteration=parent_iteration, inputs=inputs, scope=(), hooks=("Watch",))
    emit(InvokeSend, inputs=inputs)
    buffer = [Message("system", SYSTEM, "seed", 0), Message("user", f"task {path}: {said}", "seed", 1)]
    ids = list(range(100, 120))
    for iteration in range(turns):
        last = iteration == turns - 1
        code = f"return {said!r}  # {path}" if last else f"print({said!r}, {iteration}, {path!r})"
        emit(LLMQueryEnter, iteration=iteration, messages=tuple(buffer), model="m1", can_recurse=True)
        emit(LLMQuerySend, iteration=iteration, messages=tuple(buffer), model="m1")
        for attempt in range(1, retries + 1):
            clock += 0.05
            error = ErrorRecord("jaz_actors.errors.RateLimited", "429 slow down")
            emit(LLMQueryRetry, iteration=iteration, attempt=attempt, error=error, wait=0.05)
        clock += 0.3
        record = None
        if tokens:
            new = [1000 + iteration * 10 + number for number in range(4)]
            record = SampledTokens(list(ids), new, [-0.1, -3.0, -0.0001, -9.5], "v1", "v2")
            ids += [*new, 7, 8]
        usage = Usage(sum(len(message.content) // 4 for message in buffer), len(code) // 4, 0, 0.001)
        completion = Completion(code, "stop", "m1-answering", usage, record)
        emit(LLMQueryComplete, iteration=iteration, completion=completion)
        emit(LLMQueryExit, iteration=iteration, status="completed", completion=completion)
        buffer.append(Message("assistant", code, "assistant", len(buffer), iteration))
        emit(REPLExecEnter, iteration=iteration, code=code)
        emit(REPLExecSend, iteration=iteration, code=code)
        clock += 0.1
        result = _result(status, said) if last else Continue(f"{said} {iteration} {path}\n")
        emit(REPLExecComplete, iteration=iteration, result=result)
        emit(REPLExecExit, iteration=iteration, status="completed", result=result)
        if isinstance(result, Continue):
            buffer.append(Message("user", result.text.rstrip("\n"), "observation", len(buffer), iteration))
    if status in ("completed", "raised"):
        assert isinstance(result, (Return, Raise))
        emit(InvokeComplete, result=result)
    emit(InvokeExit, outcome=_outcome(status, said))
    return made


def _result(status: str, said: str) -> ExecResult:
    if status == "completed":
        return Return(payload(repr(said)))
    if status == "raised":
        return Raise(ErrorRecord("ValueError", said, "Traceback: here"))
    return Continue("on and on\n", "NameError: x\n")


def _outcome(status: str, said: str) -> OutcomeRecord:
    match status:
        case "completed":
            return CompletedRecord(payload(repr(said)))
        case "raised":
            return RaisedRecord(ErrorRecord("ValueError", said, "Traceback: here"))
        case "aborted":
            return AbortedRecord(ErrorRecord("jaz_actors.errors.IterationLimitExceeded", "2 turns"))
    return FailedRecord(ErrorRecord("jaz_actors.errors.FrameLost", "signal 9"))


def run_of(size: int, *, turns: int = 2) -> Iterator[Event]:
    """`size` invocations: a root, a tenth of the rest below it, the others below those. Each whole before the next."""
    middle = max(1, size // 10)
    yield from invocation("0", turns=turns)
    for number in range(1, size):
        path = f"0.{number - 1}" if number <= middle else f"0.{number % middle}.{number // middle}"
        status = ("raised", "aborted", "failed")[number % 3] if number % 10 == 0 else "completed"
        yield from invocation(path, turns=turns, start=1_700_000_000.0 + number * 0.01, status=status)


def interleaved(streams: Sequence[Sequence[Event]], seed: int) -> Iterator[Event]:
    """The streams mixed by chance, each in its own order."""
    chance = random.Random(seed)
    left = [events for stream in streams for events in [iter(stream)] * len(stream)]
    chance.shuffle(left)
    for stream in left:
        yield next(stream)
