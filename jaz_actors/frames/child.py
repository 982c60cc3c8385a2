"""The frame's own process: build the namespace, run turns, answer the host. Started by the zygote after a fork."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from jaz_actors import refs
from jaz_actors.errors import FatalError, InputRefused
from jaz_actors.events import InputInfo
from jaz_actors.frames import entry
from jaz_actors.frames.calls import FrameCalls
from jaz_actors.frames.link import Link
from jaz_actors.frames.output import Output
from jaz_actors.frames.runner import Ended, Runner
from jaz_actors.frames.wire import (
    Check,
    Execute,
    Finished,
    HistoryItem,
    Limits,
    Loading,
    Ready,
    Rebind,
    Rebound,
    Setup,
    SetupFailed,
)
from jaz_actors.outcomes import Rejection
from jaz_actors.payload import PackedInput, SharedBuffer
from jaz_actors.render import abbreviate, type_name, value_text
from jaz_actors.shared import map_shared
from jaz_actors.transfer import error_record, pack, sendable, unpack

_NAMES_REPORTED = 50

# What one value's own code may take to say how the value reads, in seconds. A value is shown once an invocation.
SHOW_SECONDS = 2.0
_PLAIN = frozenset({"str", "int", "float", "bool", "NoneType", "bytes", "complex"})


@dataclass(slots=True)
class HistoryEntry:
    """One past turn: the model's whole reply, the whole output, and the exception that ended the code, if one did."""

    llm_response: str
    repl_output: str
    repl_exception: BaseException | None = None


def run_frame(connection: socket.socket) -> None:
    """Serve one invocation until its host closes the connection. Never returns."""
    calls_ready = threading.Event()
    calls: FrameCalls | None = None

    def serve(message: Any) -> None:
        calls_ready.wait()
        assert calls is not None
        calls.serve(message)

    link = Link(connection, serve)
    setup = link.next_command()
    assert isinstance(setup, Setup)
    calls = FrameCalls(setup)
    calls.link = link
    calls_ready.set()
    refs.install(calls)
    entry.install(calls)
    frame = Frame(link, calls, setup)
    if not frame.prepare():
        os._exit(0)
    gc.enable()
    while True:
        command = link.next_command()
        if isinstance(command, Rebind):
            link.send(frame.rebind(command))
        else:
            assert isinstance(command, Execute)
            link.send(frame.execute(command))


class Frame:
    """The namespace of one invocation and what happens in it. Main thread only."""

    def __init__(self, link: Link, calls: FrameCalls, setup: Setup) -> None:
        self._link = link
        self._calls = calls
        self._setup = setup
        self._output = Output()
        self._pid = os.getpid()
        self._history: list[HistoryEntry] = [HistoryEntry(i.llm_response, i.repl_output) for i in setup.history]
        self._last_error: BaseException | None = None
        self._namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._given: set[str] = set()
        self._runner = Runner(self._namespace)

    def prepare(self) -> bool:
        """Load and show the inputs; tells the host Ready or SetupFailed."""
        setup = self._setup
        sizes = [buffer.nbytes for buffer in setup.shared]
        mapped = dict(zip(setup.shared, self._link.take_descriptors(sizes), strict=True))
        self._output.begin()
        try:
            scope = self._load(setup.scope, mapped)
            inputs = self._load(setup.inputs, mapped)
            shown_scope = self._show(setup.scope, scope, setup.limits)
            shown_inputs = self._show(setup.inputs, inputs, setup.limits)
        except InputRefused as error:
            self._link.send(SetupFailed(error.name, error.reason))
            return False
        if setup.recursion:
            self._namespace |= {"invoke": self._calls.invoke, "ainvoke": self._calls.ainvoke}
        self._namespace |= scope | inputs
        self._namespace |= {"__history__": self._history, "__inputs__": dict(inputs), "__scope__": dict(scope)}
        self._given = {*self._namespace, "_"}
        self._output.end(spare=frozenset({threading.get_ident()}))
        self._link.send(Ready(shown_inputs, shown_scope))
        return True

    def _load(self, packed: tuple[PackedInput, ...], mapped: dict[SharedBuffer, memoryview]) -> dict[str, Any]:
        def view(buffer: SharedBuffer) -> memoryview:
            return mapped[buffer] if buffer in mapped else map_shared(buffer)

        values: dict[str, Any] = {}
        for item in packed:
            if item.payload.type_name not in _PLAIN:
                self._link.send(Loading(item.name))
            try:
                value = unpack(item.payload, mapped=view)
                substitute = getattr(value, "__jaz_get__", None)
                values[item.name] = substitute() if callable(substitute) and not isinstance(value, type) else value
            except Exception as error:
                raise InputRefused(item.name, f"it cannot be loaded in the frame: {error}") from error
        return values

    def _show(self, packed: tuple[PackedInput, ...], values: dict[str, Any], limits: Limits) -> tuple[InputInfo, ...]:
        shown = []
        for item in packed:
            value = values[item.name]
            text = None
            if not item.hidden:
                text = value_text_or_error(value) if item.description is None else item.description
                recover = f"print(str({item.name})[{{start}}:{{end}}]) shows them"
                text = sendable(abbreviate(text, limits.max_characters, limits.head_ratio, recover))
            shown.append(InputInfo(item.name, type_name(value), text))
        return tuple(shown)

    def execute(self, command: Execute) -> Finished:
        self._remember(command.past)
        if command.new_output:
            self._link.take_output()
        self._output.begin()
        ended = self._runner.run(command.code, command.filename)
        if os.getpid() != self._pid:
            os._exit(0)  # a process that the code forked has come to the end of the turn: the frame goes on alone
        self._last_error = ended.error
        own = (threading.main_thread().ident, self._link.receiver_ident, self._calls.hooks.thread_ident)
        spare = frozenset(ident for ident in own if ident is not None)
        finished = self._finished(command.number, ended)
        stderr_bytes = self._output.end(spare=spare)
        names = tuple(name for name in self._namespace if name not in self._given)[:_NAMES_REPORTED]
        return msgspec.structs.replace(finished, stderr_bytes=stderr_bytes, has_children=_has_children(), names=names)

    def rebind(self, command: Rebind) -> Rebound:
        for name in command.required:
            if name not in self._namespace:
                return Rebound(missing=name)
        left = self._namespace.keys() - set(command.drop)
        for item in command.add:
            if item.name in left:
                return Rebound(taken=item.name, reason="bound already")
        try:
            values = self._load(command.add, {})
        except InputRefused as error:
            return Rebound(taken=error.name, reason=f"refused: {error.reason}")
        for name in command.drop:
            self._namespace.pop(name, None)
        self._namespace |= values
        return Rebound()

    def _remember(self, past: tuple[HistoryItem, ...]) -> None:
        for item in past:
            self._history.append(HistoryEntry(item.llm_response, item.repl_output, self._last_error))
            self._last_error = None

    def _finished(self, number: int, ended: Ended) -> Finished:
        if ended.timed_out:
            return Finished(number, error=sendable(ended.error_text), timed_out=True)
        if ended.raised is not None:
            return Finished(number, raised=error_record(ended.raised, traceback_text=ended.error_text))
        if isinstance(ended.error, FatalError):
            return Finished(number, fatal=error_record(ended.error, traceback_text=ended.error_text))
        if not ended.returned:
            return Finished(number, error=sendable(ended.error_text))
        rejections = [_rejection(i, check, ended.value) for i, check in enumerate(self._setup.checks)]
        try:
            value = pack(ended.value)
        except Exception as error:
            return Finished(number, error=f"The result cannot leave the frame: {error}\n")
        return Finished(number, value=value, rejections=tuple(r for r in rejections if r is not None))


class _TooSlow(BaseException):
    """Raised in a value's own code when it takes too long; no `Exception`, so that it is not caught there."""


def value_text_or_error(value: object) -> str:
    if type(value).__name__ in _PLAIN:
        return str(value)
    name = type(value).__name__
    try:
        with _at_most(SHOW_SECONDS):
            return value_text(value)
    except _TooSlow:
        return f"<{name}: its text took over {SHOW_SECONDS:g} s>"
    except Exception as error:
        return f"<{name}: its text raised {type(error).__name__}: {error}>"


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _rejection(number: int, check: Check, value: object) -> Rejection | None:
    from jaz_actors.hooks.returns import check_return

    try:
        what = unpack(check.payload)
    except Exception as error:
        return Rejection(number, f"the check cannot be loaded in the frame: {error}.")
    if check.is_type:
        reason = check_return(what, value)
        return None if reason is None else Rejection(number, reason)
    try:
        what(value)  # type: ignore[operator]
    except Exception as error:
        return Rejection(number, f"{type(error).__name__}: {error}", error_record(error))
    return None


def _has_children() -> bool:
    """Whether processes started here are still there; they hold the output that they were given."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False
