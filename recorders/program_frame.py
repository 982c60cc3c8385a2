"""What stands in for the runtime where a recorded workflow runs by itself. Needs the standard library only.

`jaz_actors.recorders.program` copies this file into every package that it writes, as `_frame.py`.
"""

from __future__ import annotations

import asyncio
import builtins
import copy
import ctypes
import inspect
import pickle
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

DATA = Path(__file__).with_name("data")


class TurnStopped(BaseException):
    """A turn that was stopped by its deadline when it was recorded is stopped here as well."""


class NotRecorded(LookupError):
    """A child was called that the recording does not have."""


class InputUnavailable(RuntimeError):
    """An input that could not be recorded by value is used."""


class InvocationEnded(Exception):
    """An invocation that was aborted, that failed, or that the recording sees no end of."""


RECOVERABLE = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError, TurnStopped)
"""What ends a turn without ending its invocation, when it was recorded so."""


@dataclass(frozen=True)
class Pickled:
    """A value in `data/`. Loading it runs code of whoever made the pickle."""

    file: str

    def load(self) -> Any:
        data, buffers = pickle.loads((DATA / self.file).read_bytes())
        value = pickle.loads(data, buffers=buffers)
        substitute = getattr(value, "__jaz_get__", None)
        return substitute() if callable(substitute) and not isinstance(value, type) else value


@dataclass(frozen=True)
class Missing:
    """A value that was not recorded, and why."""

    reason: str


class Unavailable:
    """In place of an input that cannot be had: every use of it raises InputUnavailable, which names it."""

    def __init__(self, name: str, reason: str) -> None:
        self.__dict__.update(_name=name, _reason=reason)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise InputUnavailable(f"the input {self._name!r} is not part of this workflow: {self._reason}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self()

    __getitem__ = __iter__ = __len__ = __call__

    def __repr__(self) -> str:
        return f"<unavailable input {self._name!r}>"


@dataclass(frozen=True)
class Recorded:
    """One invocation of the recording.

    function:  its turns.
    inputs:    those that its caller's code does not give.
    scope:     inputs of it and of all below it.
    dropped:   inputs that hooks took away.
    result:    what it came to, where its own code does not say so.
    """

    function: Callable[[Frame], Any]
    inputs: Mapping[str, Any]
    scope: Mapping[str, Any]
    dropped: tuple[str, ...]
    result: Any


class Workflow:
    """All invocations by path. A child is called by its path: its ordinal in the parent's calls, or its key."""

    def __init__(self, recorded: Mapping[str, Recorded]) -> None:
        self._recorded = recorded

    def run(self, path: str) -> Any:
        """Run an invocation whose inputs are all recorded: the root."""
        return self._call(path, {}, {})

    def child(self, path: str, given: Mapping[str, Any], scope: Mapping[str, Any]) -> Any:
        """Run one on a thread of its own: it may block, and have an event loop, as it had its own process."""
        return _on_thread(lambda: self._call(path, given, scope), f"invocation {path}")

    def _call(self, path: str, given: Mapping[str, Any], scope: Mapping[str, Any]) -> Any:
        recorded = self._recorded.get(path)
        if recorded is None:
            raise NotRecorded(f"the recording has no invocation {path}")
        kept = {name: value for name, value in given.items() if name not in recorded.dropped}
        inputs = {**kept, **_loaded(recorded.inputs)}
        frame = Frame(self, path, inputs, {**scope, **_loaded(recorded.scope)}, recorded)
        try:
            return recorded.function(frame)
        finally:
            frame.close()


def _loaded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: load(name, value) for name, value in values.items()}


def load(name: str, value: Any) -> Any:
    if isinstance(value, Missing):
        return Unavailable(name, value.reason)
    if isinstance(value, Pickled):
        try:
            return value.load()
        except Exception as error:
            return Unavailable(name, f"loading its pickle raised {type(error).__name__}: {error}")
    return copy.deepcopy(value)


@dataclass(frozen=True)
class Past:
    """One entry of `__history__`."""

    llm_response: str
    repl_output: str
    repl_exception: BaseException | None = None


class Frame:
    """The namespace of one invocation, and its turns. Owned by the thread that runs the invocation."""

    def __init__(
        self, workflow: Workflow, path: str, inputs: dict[str, Any], scope: dict[str, Any], recorded: Recorded
    ) -> None:
        self._workflow = workflow
        self._path = path
        self._inputs = inputs
        self._scope = scope
        self._recorded = recorded
        self._history: list[Past] = []
        self._namespace: dict[str, Any] = {}
        self._runner: asyncio.Runner | None = None
        self._lock = threading.Lock()  # orders the calls of children, which may come from any thread
        self._children = 0
        self.fresh(0)

    def fresh(self, children: int) -> None:
        """Begin with the inputs alone, as after the loss of a process; `children` were called until then."""
        self._children = children
        self._namespace.clear()
        self._namespace |= {"__name__": "__main__", "__builtins__": builtins}
        self._namespace.update(invoke=self.invoke, ainvoke=self.ainvoke, __show__=self._show)
        self._namespace |= {**self._scope, **self._inputs}
        self._namespace |= {
            "__history__": self._history,
            "__inputs__": dict(self._inputs),
            "__scope__": dict(self._scope),
        }

    def run(self, turn: Callable[[], Any], *, limit: float | None = None) -> Any:
        """Run a turn in the namespace, and give what it returns. `limit` in seconds stops it where it is then."""
        function = FunctionType(turn.__code__, self._namespace)
        if not turn.__code__.co_flags & inspect.CO_COROUTINE:
            return function() if limit is None else _on_thread(function, turn.__name__, limit)
        if self._runner is None:
            self._runner = asyncio.Runner()
        if limit is None:
            return self._runner.run(function())
        waiting, runner = asyncio.wait_for(function(), limit), self._runner
        return _on_thread(lambda: runner.run(waiting), turn.__name__, limit + 1)

    def invoke(self, /, *hooks: Any, key: str | None = None, **inputs: Any) -> Any:
        return self._workflow.child(self._take(key), _copied(inputs), self._scope)

    def ainvoke(self, /, *hooks: Any, key: str | None = None, **inputs: Any) -> Coroutine[Any, Any, Any]:
        return asyncio.to_thread(self._workflow.child, self._take(key), _copied(inputs), self._scope)

    def _take(self, key: str | None) -> str:
        """The path of the next child: taken at the moment of the call."""
        if key is not None:
            return f"{self._path}.{key}"
        with self._lock:
            self._children += 1
            return f"{self._path}.{self._children - 1}"

    def _show(self, value: Any) -> None:
        """What an interpreter does with the value of a line."""
        if value is not None:
            print(repr(value))
            self._namespace["_"] = value

    def bind(self, name: str) -> None:
        """A hook bound a variable here, and its value is in no event."""
        self._namespace[name] = Unavailable(name, "a hook bound it, and its value was not recorded")

    def unbind(self, name: str) -> None:
        self._namespace.pop(name, None)

    def remember(self, reply: str, output: str) -> None:
        self._history.append(Past(reply, output))

    def result(self) -> Any:
        """What the invocation came to when it was recorded, whatever its code says."""
        value = load("result", self._recorded.result)
        return value() if isinstance(value, Unavailable) else value

    def ended(self, how: str, type_name: str, message: str) -> Exception:
        """The error that ended the invocation: of its own type when that is a built-in one."""
        kind = getattr(builtins, type_name, None)
        error: Exception
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                error = kind(message)
            except TypeError:  # UnicodeDecodeError and the like want more
                error = InvocationEnded(f"{type_name}: {message}")
        else:
            error = InvocationEnded(f"{type_name}: {message}" if type_name else message)
        error.add_note(f"Recorded: invocation {self._path} {how}.")
        return error

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


def _on_thread(function: Callable[[], Any], name: str, limit: float | None = None) -> Any:
    """What the function returns or raises. After `limit` seconds it is stopped where it is next awake."""
    done: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(TurnStopped))
        thread.join(1.0)
        raise TurnStopped
    if failed:
        raise failed[0]
    return done[0]


def _copied(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Children get copies, as they did; what cannot be copied is shared."""
    return {name: _copy(value) for name, value in inputs.items()}


def _copy(value: Any) -> Any:
    # Marks of jaz_actors that say how a value is passed or shown stand for that value.
    if type(value).__module__.startswith("jaz_actors.") and type(value).__name__ in ("ByReference", "Display"):
        return value.value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value
