"""One invocation's REPL, seen from its host: turns with deadlines, and a fresh frame when one is lost.

A turn always ends as an observation or a finish: what the code does to its own process is not the invocation's
failure. Only a frame that cannot be started is. Knows no model, no hook and no prompt.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from jaz_actors.errors import (
    ConfigurationError,
    DropTargetMissing,
    EffectConflict,
    FrameLost,
    FrameStartFailed,
    HookFailed,
    InputRefused,
    InvalidEffect,
)
from jaz_actors.frames import posix
from jaz_actors.frames.process import FrameOptions, FrameProcess, Zygote
from jaz_actors.frames.wire import (
    AskHook,
    Call,
    CancelCall,
    Check,
    ChildCall,
    Execute,
    Finished,
    FromFrame,
    HistoryItem,
    HookAnswered,
    Limits,
    Loading,
    Ready,
    Rebind,
    Rebound,
    ReferenceCall,
    Reply,
    Serve,
    Served,
    Setup,
    SetupFailed,
)
from jaz_actors.hooks.folds import Bindings
from jaz_actors.outcomes import Aborting, Continue, ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload, SharedBuffer
from jaz_actors.refs import Operation
from jaz_actors.transfer import error_record

logger = logging.getLogger(__name__)

START_ATTEMPTS = 3
FINISH_REFUSED = (
    "RuntimeError: nothing was finished, because this turn also printed. "
    "Read the output first; then return or raise in a turn that prints nothing.\n"
)


@dataclass(frozen=True, slots=True)
class REPL:
    """How an invocation's code is run.

    timeout:        seconds of the frame's own time a turn may take; waiting for a child, or for an object at home,
                    does not count. None is no limit. `# timeout: N` in the code overrides it.
    grace:          seconds between the interrupt and the kill.
    allow_raise:    whether a top-level `raise` ends the invocation.
    reject_finish_on_output:  whether a turn that printed may also finish.
    frames:         how the processes are made; hosts keep one zygote for each different value.
    """

    timeout: float | None = 30.0
    grace: float = 1.0
    allow_raise: bool = True
    reject_finish_on_output: bool = True
    frames: FrameOptions = field(default_factory=FrameOptions)

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise ConfigurationError("timeout", "must be a positive number of seconds, or None")
        if not 0 <= self.grace < float("inf"):
            raise ConfigurationError("grace", "must be a number of seconds, at least 0")


class TurnClock:
    """The frame's own time in one turn: wall time, or CPU time only while it has calls outstanding elsewhere."""

    def __init__(self, pid: int, *, waiting: bool) -> None:
        self._pid = pid
        self._own = 0.0
        self._waiting = waiting
        self._mark = self._now()

    def _now(self) -> float:
        return posix.cpu_seconds(self._pid) if self._waiting else time.monotonic()

    def set_waiting(self, waiting: bool) -> None:
        if waiting != self._waiting:
            self._own = self.elapsed()
            self._waiting = waiting
            self._mark = self._now()

    def elapsed(self) -> float:
        return self._own + max(0.0, self._now() - self._mark)


CallHandler = Callable[[ChildCall | ReferenceCall], Awaitable[Payload | ErrorRecord]]


class ReplSession:
    """The REPL of one invocation. Owned by its agent loop; one turn at a time; `aclose` in every case."""

    def __init__(
        self,
        zygote: Zygote,
        options: REPL,
        *,
        home: Callable[[], str],
        on_call: CallHandler,
        on_waiting: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        self._zygote = zygote
        self._options = options
        self._home = home
        self._on_call = on_call
        self._on_waiting = on_waiting
        self._frame: FrameProcess | None = None
        self._setup: Setup | None = None
        self._descriptors: tuple[int, ...] = ()
        self._history: list[HistoryItem] = []
        self._unsent_history = 0
        self._answer: asyncio.Future[FromFrame | Aborting | str] | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._children = 0
        self._references = 0
        self._loading = ""
        self._served: dict[int, asyncio.Future[Served | HookAnswered]] = {}
        self._serve_number = 0
        self._clock: TurnClock | None = None
        self._limit: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stop_reason = ""
        self._fresh_output = False
        self._names: tuple[str, ...] = ()

    async def open(
        self,
        inputs: tuple[PackedInput, ...],
        scope: tuple[PackedInput, ...],
        limits: Limits,
        *,
        depth: int = 1,
        recursion: bool,
        checks: tuple[Check, ...] = (),
        shared: dict[SharedBuffer, int],
    ) -> Ready:
        """Fork a frame with these inputs. `shared` gives an open descriptor for each shared buffer.

        Raises InputRefused for an input that cannot be loaded or shown there, FrameStartFailed otherwise.
        """
        self._setup = Setup("", inputs, scope, limits, depth, recursion, checks, shared=tuple(shared))
        self._descriptors = tuple(shared.values())
        return await self._fresh_frame()

    async def _fresh_frame(self) -> Ready:
        """Raises FrameStartFailed only when several attempts in a row failed: one may have hit a dying zygote."""
        for _ in range(START_ATTEMPTS - 1):
            try:
                return await self._try_frame()
            except FrameStartFailed as error:
                logger.warning("%s; trying again", error)
        return await self._try_frame()

    async def _try_frame(self) -> Ready:
        assert self._setup is not None
        frame = self._frame = await self._zygote.fork()
        frame.on_message = self._received
        frame.on_end = lambda reason: self._ended(frame, reason)
        setup = msgspec.structs.replace(
            self._setup,
            home=self._home(),
            history=tuple(self._history),
            children=self._children,
            references=self._references,
        )
        self._loading = ""
        self._unsent_history = 0
        self._fresh_output = False
        self._answer = asyncio.get_running_loop().create_future()
        frame.begin_turn(fresh=False)
        frame.send(setup, self._descriptors)
        try:
            async with asyncio.timeout(self._options.timeout):
                answer = await self._answer
        except TimeoutError:
            frame.kill()
            raise InputRefused(
                self._loading or "inputs", f"loading and showing it took over {self._options.timeout:g} s"
            ) from None
        if isinstance(answer, Ready):
            return answer
        if isinstance(answer, SetupFailed):
            raise InputRefused(answer.name, answer.reason)
        raise FrameStartFailed(f"{answer}: {frame.take_output().strip()[-500:]}" if frame.output_bytes else str(answer))

    async def rebind(self, bindings: Bindings) -> None:
        """Unbind and bind variables of the namespace.

        Raises DropTargetMissing or EffectConflict, and then nothing has changed.
        """
        assert self._frame is not None
        if not self._frame.alive:
            return  # the next turn says that the variables are lost
        self._answer = asyncio.get_running_loop().create_future()
        drop, required = tuple(sorted(bindings.dropped)), tuple(sorted(bindings.required))
        self._frame.send(Rebind(drop, required, bindings.added))
        try:
            async with asyncio.timeout(self._options.timeout):
                answer = await self._answer
        except TimeoutError:
            self._frame.kill()
            raise EffectConflict("REPLExecEnter", f"binding variables took over {self._options.timeout:g} s") from None
        if not isinstance(answer, Rebound):
            return
        if answer.missing:
            raise DropTargetMissing("variable", answer.missing)
        if answer.taken:
            raise EffectConflict("REPLExecEnter", f"the variable {answer.taken!r} to be added is {answer.reason}")

    async def execute(self, code: str, filename: str, number: int, *, timeout: float | None = None) -> ExecResult:
        """Run one turn. `timeout` overrides the options' for this turn. Raises Aborting for a fatal error."""
        assert self._frame is not None
        frame = self._frame
        self._limit = timeout if timeout is not None else self._options.timeout
        self._stop_reason = ""
        if not frame.alive:
            return await self._recovered("", "the process had ended between turns")
        past = tuple(self._history[len(self._history) - self._unsent_history :])
        self._unsent_history = 0
        self._answer = asyncio.get_running_loop().create_future()
        descriptors = frame.begin_turn(fresh=self._fresh_output)
        frame.send(Execute(number, code, filename, past, bool(descriptors)), descriptors)
        for fd in descriptors:
            os.close(fd)
        self._clock = TurnClock(frame.pid, waiting=bool(self._calls))
        self._arm(self._limit)
        try:
            answer = await self._answer
        finally:
            self._disarm()
            self._clock = None
        output = frame.take_output()
        if isinstance(answer, Aborting):
            frame.kill()
            raise answer
        if isinstance(answer, Finished):
            if answer.fatal is not None:
                raise Aborting(answer.fatal)
            self._fresh_output = answer.has_children
            self._names = answer.names
            return self._result(answer, output, printed=frame.output_bytes > answer.stderr_bytes)
        return await self._recovered(output, str(answer))

    def remember(self, item: HistoryItem) -> None:
        """Add a finished turn to `__history__`; the frame learns of it with its next message."""
        self._history.append(item)
        self._unsent_history += 1

    def _result(self, finished: Finished, output: str, *, printed: bool) -> ExecResult:
        if finished.timed_out:
            return Continue(output, f"{finished.error}{self._time_is_up()} Variables are kept.\n")
        finishes = finished.value is not None or finished.raised is not None
        if finishes and printed and self._options.reject_finish_on_output:
            return Continue(output, FINISH_REFUSED)
        if finished.value is not None:
            return Return(finished.value, finished.rejections)
        if finished.raised is not None:
            if not self._options.allow_raise:
                return Continue(output, finished.raised.traceback)
            return Raise(finished.raised)
        return Continue(output, finished.error)

    async def _recovered(self, output: str, how: str) -> Continue:
        """The frame is gone: a fresh one takes its place, and the agent is told what that cost."""
        self._cancel_calls()
        reason = self._stop_reason or f"The REPL process ended: {how}."
        lost = f" Lost: {', '.join(self._names)}." if self._names else ""
        self._names = ()
        await self._fresh_frame()
        error = (
            f"{reason} A fresh process was started: the inputs and __history__ are there again, "
            f"all other variables and files of the working directory are not.{lost}\n"
        )
        return Continue(output, error)

    def _time_is_up(self) -> str:
        return f"TimeoutError: the turn was stopped after {self._limit:g} s of its own time."

    # -- deadline

    def _arm(self, seconds: float | None) -> None:
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.01, seconds), self._check_deadline)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_deadline(self) -> None:
        if self._clock is None or self._limit is None or self._frame is None:
            return
        left = self._limit - self._clock.elapsed()
        if left > 0:
            # While waiting, own time is CPU time, which several threads may use at more than one a second.
            self._arm(left / 4 if self._calls else left)
            return
        self._stop_reason = self._time_is_up() + " It did not react to the interrupt, so its process was ended."
        self._frame.interrupt()
        self._timer = asyncio.get_running_loop().call_later(self._options.grace, self._frame.kill)

    # -- what the frame says

    def _received(self, message: FromFrame) -> None:
        match message:
            case Call():
                self._calls[message.call] = asyncio.create_task(self._answer_call(message))
                self._waiting_changed()
            case CancelCall():
                task = self._calls.get(message.call)
                if task is not None:
                    task.cancel()
            case Loading():
                self._loading = message.name
            case Served() | HookAnswered():
                future = self._served.pop(message.call, None)
                if future is not None and not future.done():
                    future.set_result(message)
            case _:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)

    def _ended(self, frame: FrameProcess, reason: str) -> None:
        if frame is not self._frame:
            return
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reason)
        for future in self._served.values():
            if not future.done():
                future.set_exception(FrameLost(reason))
        self._served.clear()

    async def _answer_call(self, call: Call) -> None:
        frame = self._frame
        assert frame is not None
        if isinstance(call.body, ChildCall):
            self._children = max(self._children, _next_ordinal(call.body.component))
        else:
            self._references = max(self._references, call.body.number + 1)
        try:
            answer = await self._on_call(call.body)
            if isinstance(answer, ErrorRecord) and answer.fatal:
                self._stop(answer)
                return
            reply = Reply(call.call, error=answer) if isinstance(answer, ErrorRecord) else Reply(call.call, answer)
        except Exception as error:
            reply = Reply(call.call, error=error_record(error, traceback_text=""))
        finally:
            self._calls.pop(call.call, None)
            self._waiting_changed()
        frame.send(reply)

    def _waiting_changed(self) -> None:
        self._on_waiting(bool(self._calls))
        if self._clock is not None:
            self._clock.set_waiting(bool(self._calls))
            if not self._calls and self._timer is not None and self._limit is not None and not self._stop_reason:
                self._disarm()
                self._arm(self._limit - self._clock.elapsed())

    @property
    def waiting(self) -> bool:
        """Whether the code waits for a child or an object elsewhere."""
        return bool(self._calls)

    # -- objects lent by the frame

    async def operate(self, operation: Operation, args: Payload) -> Payload | ErrorRecord:
        """Perform an operation on an object that this frame lent. Raises FrameLost when the frame is gone."""
        served = await self._serve(lambda number: Serve(number, operation, args), "it lent an object")
        assert isinstance(served, Served)
        if served.error is not None:
            return served.error
        assert served.value is not None
        return served.value

    async def ask_hook(self, hook: int, event: bytes) -> bytes:
        """The encoded effects of a hook that lives in this frame. Raises FrameLost, or what the hook's home raised."""
        answered = await self._serve(lambda number: AskHook(hook, event, number), "a hook lived there")
        assert isinstance(answered, HookAnswered)
        if answered.error is not None:
            kind, fields = answered.error
            raise InvalidEffect(*fields) if kind == "InvalidEffect" else HookFailed(*fields)
        return answered.effects

    def tell_hook(self, hook: int, event: bytes) -> None:
        if self._frame is not None and self._frame.alive:
            self._frame.send(AskHook(hook, event))

    async def _serve(self, message: Callable[[int], Serve | AskHook], why: str) -> Served | HookAnswered:
        frame = self._frame
        if frame is None or not frame.alive:
            raise FrameLost(f"{why} that is now out of reach")
        number = self._serve_number = self._serve_number + 1
        future: asyncio.Future[Served | HookAnswered] = asyncio.get_running_loop().create_future()
        self._served[number] = future
        frame.send(message(number))
        try:
            return await future
        finally:
            self._served.pop(number, None)

    def _stop(self, error: ErrorRecord) -> None:
        """A fatal error does not reach the code: the turn, and with it the invocation, ends."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Aborting(error))

    def _cancel_calls(self) -> list[asyncio.Task[None]]:
        tasks = list(self._calls.values())
        for task in tasks:
            task.cancel()
        return tasks

    async def end_calls(self) -> None:
        """End the calls that the code has outstanding; returns when they are over."""
        tasks = self._cancel_calls()
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """End the frame, and the calls that it still has outstanding; returns when those are over."""
        tasks = self._cancel_calls()
        frame, self._frame = self._frame, None
        if frame is not None:
            # A future whose waiter was cancelled is cancelled itself: the frame has not answered.
            busy = self._answer is not None and (not self._answer.done() or self._answer.cancelled())
            if busy or self._fresh_output:
                frame.kill()
            frame.release()
        if tasks:
            await asyncio.wait(tasks)


def _next_ordinal(component: str) -> int:
    return int(component) + 1 if component.isdigit() else 0
