"""The contract of a hook, and how hooks are activated. Knows neither the loop nor where a hook runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import ContextVar
from typing import ClassVar, Literal, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

from jaz_actors import events
from jaz_actors.effects import Abort, Effect
from jaz_actors.errors import HookActivationError, HookFailed
from jaz_actors.events import EVENT_TYPES, Event
from jaz_actors.frames.entry import frame_calls
from jaz_actors.hooks.stages import check_effects
from jaz_actors.transfer import error_record

Placement = Literal["home", "local", "observer"]
Answer = Effect | Iterable[Effect] | None
Answered = Answer | Awaitable[Answer]

_active: ContextVar[tuple[Hook, ...]] = ContextVar("jaz_active_hooks", default=())

# Every instance that is active in some context of this process, by its id, so that subclasses may be unhashable.
# The lock makes looking for an instance and entering it one step: threads may activate the same one.
_activated: WeakValueDictionary[int, Hook] = WeakValueDictionary()
_lock = threading.Lock()


class Hook:
    """Sees the events of invocations and answers with effects. Override the `on_...` methods that you need.

    A handler may be sync or async and gives one effect, several, or None. `with hook:` activates it for everything
    started inside, children included; given to `invoke` it holds for that one invocation. One instance has one
    activation at a time.

    placement: `home` (default): handlers run where the hook was activated, with its live state; each event that it
        overrides costs a round trip. `local`: in the invocation's host, a copy an invocation, for nothing. `observer`:
        at home, but no one waits for it and its answers count for nothing.
    on_error: what a handler that raises does to the invocation: `fail` it, or `ignore` (logged).
    """

    placement: ClassVar[Placement] = "home"
    on_error: ClassVar[Literal["fail", "ignore"]] = "fail"
    propagating_only: ClassVar[bool] = False

    def setup(self) -> None:
        """Called when activated."""

    def teardown(self, error: BaseException | None) -> None:
        """Called when deactivated, with what ended the block."""

    def on_any(self, event: Event) -> Answered:
        """Every event, after its own handler."""

    def on_invoke_enter(self, event: events.InvokeEnter) -> Answered: ...

    def on_invoke_send(self, event: events.InvokeSend) -> Answered: ...

    def on_invoke_complete(self, event: events.InvokeComplete) -> Answered: ...

    def on_invoke_exit(self, event: events.InvokeExit) -> Answered: ...

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answered: ...

    def on_llm_query_send(self, event: events.LLMQuerySend) -> Answered: ...

    def on_llm_query_retry(self, event: events.LLMQueryRetry) -> Answered: ...

    def on_llm_query_complete(self, event: events.LLMQueryComplete) -> Answered: ...

    def on_llm_query_exit(self, event: events.LLMQueryExit) -> Answered: ...

    def on_repl_exec_enter(self, event: events.REPLExecEnter) -> Answered: ...

    def on_repl_exec_send(self, event: events.REPLExecSend) -> Answered: ...

    def on_repl_exec_complete(self, event: events.REPLExecComplete) -> Answered: ...

    def on_repl_exec_exit(self, event: events.REPLExecExit) -> Answered: ...

    def return_hint(self) -> bytes | None:
        """A pickled type hint that the frame checks returned values against; None for most hooks."""
        return None

    def __enter__(self) -> Self:
        if frame_calls() is not None:
            raise HookActivationError(type(self).__name__, "agent code gives hooks to a call: invoke(hook, task=...)")
        with _lock:
            if id(self) in _activated:
                raise HookActivationError(type(self).__name__, "this instance is active already; make another")
            _activated[id(self)] = self
        try:
            self.setup()
        except BaseException:
            del _activated[id(self)]
            raise
        _active.set((*_active.get(), self))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if id(self) not in _activated:
            raise HookActivationError(type(self).__name__, "it is not active")
        # By identity and not by the token of __enter__: blocks may end out of order, or in another context.
        _active.set(tuple(hook for hook in _active.get() if hook is not self))
        try:
            self.teardown(error)
        finally:
            del _activated[id(self)]


def handler_name(event_type: type[Event]) -> str:
    return f"on_{event_type.__struct_config__.tag}"


_handled: WeakKeyDictionary[type[Hook], frozenset[type[Event]]] = WeakKeyDictionary()


def handled_events(hook: type[Hook]) -> frozenset[type[Event]]:
    """The events whose handler the class overrides; the others cost nothing. Found once a class."""
    handled = _handled.get(hook)
    if handled is None:
        handled = _handled[hook] = frozenset(kind for kind in EVENT_TYPES if _overrides(hook, kind))
    return handled


def _overrides(hook: type[Hook], kind: type[Event]) -> bool:
    return any(getattr(hook, name) is not getattr(Hook, name) for name in ("on_any", handler_name(kind)))


async def answer(hook: Hook, event: Event) -> list[Effect]:
    """Run a hook's handlers for one event, where the hook is.

    Raises HookFailed from whatever a handler raised, InvalidEffect for what the event's stage does not take.
    """
    name = type(hook).__name__
    effects: list[Effect] = []
    try:
        for handler in (getattr(hook, handler_name(type(event))), hook.on_any):
            answered = handler(event)
            if isinstance(answered, Awaitable):
                answered = await answered
            if isinstance(answered, Effect):
                effects.append(answered)
            elif answered is not None:
                effects += answered
    except Exception as error:
        raise HookFailed(name, type(event).__name__, f"{type(error).__name__}: {error}") from error
    check_effects(name, event, effects)
    return effects


def active_hooks() -> tuple[Hook, ...]:
    """The hooks of the enclosing `with` blocks, outermost first."""
    return _active.get()


def check_activation(positional: Sequence[Hook], ambient: Sequence[Hook]) -> None:
    """Raises HookActivationError for hooks that cannot be given to one invocation together."""
    for index, hook in enumerate(positional):
        name = type(hook).__name__
        if hook.propagating_only:
            raise HookActivationError(name, "it holds for a whole tree; activate it with `with`")
        if any(hook is other for other in ambient):
            raise HookActivationError(name, "the same instance is active in an enclosing `with`")
        if any(hook is other for other in positional[:index]):
            raise HookActivationError(name, "the same instance is given twice")
    with_hint = [hook for hook in (*positional, *ambient) if hook.return_hint() is not None]
    if len(with_hint) > 1:
        raise HookActivationError(type(with_hint[0]).__name__, "an invocation has one return type")


def abort(error: Exception) -> Abort:
    """The effect that ends the invocation with `error`."""
    return Abort(error_record(error, traceback_text=""))
