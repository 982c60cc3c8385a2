"""Run one compiled turn in this process: outcome, traceback and interrupt. Knows nothing of sockets or hosts."""

from __future__ import annotations

import asyncio
import linecache
import signal
import sys
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from jaz_actors.frames.program import Program, compile_program


class TurnTimeout(BaseException):
    """Raised in the running code when its turn is over its time. Not an `Exception`: retry loops let it pass."""

    def __str__(self) -> str:
        return "the turn ran out of time"


@dataclass(frozen=True, slots=True)
class Ended:
    """How the code ended: `returned` (then `value` counts), or `raised` at top level, or with an incidental `error`.

    `error_text` is the traceback as the agent is to see it.
    """

    returned: bool = False
    value: Any = None
    raised: Exception | None = None
    error: BaseException | None = None
    error_text: str = ""
    timed_out: bool = False


class Runner:
    """Executes turns in one namespace on the main thread; owns the process's interrupt signal and event loop."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._running = False
        self._timed_out = False
        signal.signal(signal.SIGINT, self._interrupt)
        sys.displayhook = self._display

    def run(self, source: str, filename: str) -> Ended:
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        self._timed_out = False
        program: Program | None = None
        try:
            self._running = True
            program = compile_program(source, filename)
            value = self._call(program)
            self._running = False
        except BaseException as error:
            self._running = False
            return self._ended_by(error, program)
        if self._timed_out:
            return Ended(error_text="", timed_out=True)
        if type(value) is bytes and value == program.fell_off:
            return Ended()
        return Ended(returned=True, value=value)

    def _call(self, program: Program) -> Any:
        result = program.bind(self._namespace)()
        if program.is_async:
            return self._run_coroutine(result)
        return result

    def _run_coroutine(self, coroutine: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(self._task)
        finally:
            self._task = None

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if not self._running:
            return
        self._timed_out = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None and asyncio.current_task(loop) is None:
            # Between tasks: an exception raised here would break the loop itself.
            loop.call_soon_threadsafe(task.cancel)
            return
        raise TurnTimeout

    def _ended_by(self, error: BaseException, program: Program | None) -> Ended:
        if self._timed_out:
            return Ended(error=error, error_text=_where(error, program), timed_out=True)
        own = _own_traceback(error, program)
        if program is not None and isinstance(error, Exception) and program.raised_at_top_level(own):
            return Ended(raised=error, error=error, error_text=_text(error, program))
        return Ended(error=error, error_text=_text(error, program))

    def _display(self, value: Any) -> None:
        if value is not None:
            print(repr(value))
            self._namespace["_"] = value


def _own_traceback(error: BaseException, program: Program | None) -> TracebackType | None:
    """The traceback from the program's own frame on: what runs it is not the agent's business."""
    step = error.__traceback__
    while step is not None and program is not None and step.tb_frame.f_code is not program.code:
        step = step.tb_next
    return step


def _where(error: BaseException, program: Program | None) -> str:
    """Where the code was when it was interrupted, without this module's own part in it."""
    frames = [entry for entry in traceback.extract_tb(_own_traceback(error, program)) if entry.filename != __file__]
    return "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames)]) if frames else ""


def _text(error: BaseException, program: Program | None) -> str:
    own = _own_traceback(error, program)
    if program is None or own is None:
        return "".join(traceback.format_exception_only(error))
    return "".join(traceback.format_exception(type(error), error, own))
