"""The frame's own process: build the namespace, run turns, answer the host. Started by the zygote after a fork."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import threading
from dataclasses import dataclass
from typing import Any

import msgspec

from jaz_actors import refs
from jaz_actors.errors import InputRefused
from jaz_actors.events import InputInfo
from jaz_actors.frames import entry
from jaz_actors.frames.calls import FrameCalls
from jaz_actors.frames.link import Link
from jaz_actors.frames.output import Output
from jaz_actors.frames.runner import Ended, Runner
from jaz_actors.frames.wire import Execute, Finished, HistoryItem, Limits, Ready, Setup, SetupFailed
from jaz_actors.payload import PackedInput, SharedBuffer
from jaz_actors.render import abbreviate, type_name, value_text
from jaz_actors.shared import map_shared
from jaz_actors.transfer import error_record, pack, sendable, unpack

_NAMES_REPORTED = 50


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
    calls = FrameCalls(setup.home, depth=setup.depth, recursion=setup.recursion, children=setup.children)
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
        main = threading.main_thread().ident
        spare = frozenset(i for i in (main, self._link.receiver_ident) if i is not None)
        finished = self._finished(command.number, ended)
        stderr_bytes = self._output.end(spare=spare)
        names = tuple(name for name in self._namespace if name not in self._given)[:_NAMES_REPORTED]
        return msgspec.structs.replace(finished, stderr_bytes=stderr_bytes, has_children=_has_children(), names=names)

    def _remember(self, past: tuple[HistoryItem, ...]) -> None:
        for item in past:
            self._history.append(HistoryEntry(item.llm_response, item.repl_output, self._last_error))
            self._last_error = None

    def _finished(self, number: int, ended: Ended) -> Finished:
        if ended.timed_out:
            return Finished(number, error=sendable(ended.error_text), timed_out=True)
        if ended.raised is not None:
            return Finished(number, raised=error_record(ended.raised, traceback_text=ended.error_text))
        if not ended.returned:
            return Finished(number, error=sendable(ended.error_text))
        rejection = None
        if self._setup.return_hint is not None:
            rejection = _rejection(self._setup.return_hint, ended.value)
        try:
            value = pack(ended.value)
        except Exception as error:
            return Finished(number, error=f"The result cannot leave the frame: {error}\n")
        return Finished(number, value=value, rejection=rejection)


def value_text_or_error(value: object) -> str:
    try:
        return value_text(value)
    except Exception as error:
        return f"<{type(value).__name__}: its text raised {type(error).__name__}: {error}>"


def _rejection(hint: bytes, value: object) -> str | None:
    from jaz_actors.hooks.returns import check_return

    try:
        return check_return(pickle.loads(hint), value)
    except Exception as error:
        return f"the check itself failed: {type(error).__name__}: {error}."


def _has_children() -> bool:
    """Whether processes started here are still there; they hold the output that they were given."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False
