"""The contract of a hook, and how hooks are activated. Knows neither the loop nor where a hook runs."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from jaz_actors import events
from jaz_actors.effects import Abort, AnyEffect, Effect
from jaz_actors.errors import FatalError, HookActivationError, HookFailed
from jaz_actors.events import EVENT_TYPES, Event
from jaz_actors.frames.wire import Check
from jaz_actors.hooks.stages import check_effects
from jaz_actors.hooks.values import NewBindings, encode_foreign, pack_copy
from jaz_actors.payload import PackedInput
from jaz_actors.spec import HookFacts
from jaz_actors.transfer import error_record

Placement = Literal["home", "local", "shared", "observer", "recorder"]
Answer = Effect | NewBindings | Iterable[Effect | NewBindings] | None
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
        overrides costs a round trip. `local`: in the invocation's host, a copy an invocation, for nothing. `shared`:
        one copy a tree, in the host of its root; a round trip from other hosts. `observer`: at home, but no one waits
        for it and its answers count for nothing. (`recorder` is for the package's own `Recorder`.)
    on_error: what a handler that raises does to the invocation: `fail` it, or `ignore` (logged).

    Handlers of one instance never run in parallel; async ones take turns where they await.

    Claims say before anything starts that two hooks do not get along: of the hooks of one invocation, one may supply
    LLM responses, and one each may add an input, add a variable or write a key of the blackboard that it names here.
    demands_tokens: nothing starts under it with a backend that does not tell the tokens it sampled.
    blackboard_consumes: keys that the hook reads, each with a word on what it means; a key that is written and that no
        hook reads is warned of once.
    """

    placement: Placement = "home"
    on_error: Literal["fail", "ignore"] = "fail"
    propagating_only: ClassVar[bool] = False
    says_return_type: ClassVar[bool] = False
    supplies_llm_response: ClassVar[bool] = False
    demands_tokens: bool = False
    adds_inputs: ClassVar[frozenset[str]] = frozenset()
    adds_variables: ClassVar[frozenset[str]] = frozenset()
    writes_blackboard: ClassVar[frozenset[str]] = frozenset()
    blackboard_consumes: ClassVar[Mapping[str, str]] = {}

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

    def blackboard_seed(self) -> Mapping[str, Any]:
        """What stands on the blackboard of an invocation before its first event; plain data."""
        return {}

    def return_check(self) -> Check | None:
        """What the frame checks returned values with; None for most hooks."""
        return None

    def numbered(self, check: int) -> None:
        """Told which of the invocation's checks its own `return_check` is."""

    def time_limit(self) -> float | None:
        """Seconds that the invocation may take in all; None for most hooks."""
        return None

    def __enter__(self) -> Self:
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


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_foreign)
_decoder: msgspec.msgpack.Decoder[AnyEffect] = msgspec.msgpack.Decoder(AnyEffect)
Pack = Callable[[str, object], PackedInput]


async def answer(hook: Hook, event: Event, pack: Pack = pack_copy) -> list[Effect]:
    """Run a hook's handlers for one event, where the hook is.

    pack:  how values that the hook gives to the agent are packed there.

    A FatalError is an abort with it. Raises HookFailed from whatever else a handler raised and for effects that hold
    what they cannot, InvalidEffect for what the event's stage does not take.
    """
    name = type(hook).__name__
    effects: list[Effect] = []
    try:
        for handler in (getattr(hook, handler_name(type(event))), hook.on_any):
            answered = handler(event)
            if isinstance(answered, Awaitable):
                answered = await answered
            if answered is not None:
                given = [answered] if isinstance(answered, (Effect, NewBindings)) else answered
                effects += [_normal(effect, pack) for effect in given]
    except FatalError as error:
        effects = [Abort(error_record(error))]
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # Those two would end the event loop that the handler runs on, and every other invocation with it.
        raise HookFailed(name, type(event).__name__, f"{type(error).__name__}: {error}") from error
    check_effects(name, event, effects)
    return effects


def _normal(effect: object, pack: Pack) -> Effect:
    """The effect as every process would read it: lists for tuples, dicts for messages and the like are set right."""
    if isinstance(effect, NewBindings):
        effect = effect.packed(pack)
    if not isinstance(effect, Effect):
        raise TypeError(f"a handler gives effects, not {effect!r}")
    try:
        normal: Effect = _decoder.decode(_encoder.encode(effect))
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{type(effect).__name__} cannot hold that: {error}") from error
    return normal


def active_hooks() -> tuple[Hook, ...]:
    """The hooks of the enclosing `with` blocks, outermost first."""
    return _active.get()


def facts_of(hook: Hook) -> HookFacts:
    """What others must know of a hook that they do not have. Raises HookActivationError for a seed of no plain data."""
    name = type(hook).__name__
    claims = ["the LLM response"] if hook.supplies_llm_response else []
    claims += [f"the input {key!r}" for key in hook.adds_inputs]
    claims += [f"the variable {key!r}" for key in hook.adds_variables]
    claims += [f"the blackboard's {key!r}" for key in hook.writes_blackboard]
    try:
        seed = msgspec.msgpack.decode(msgspec.msgpack.encode(dict(hook.blackboard_seed())), type=dict[str, Any])
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise HookActivationError(name, f"its blackboard seed is no plain data: {error}") from error
    return HookFacts(
        name,
        frozenset(str(kind.__struct_config__.tag) for kind in handled_events(type(hook))),
        hook.on_error == "ignore",
        seed,
        tuple(sorted(claims)),
        tuple(sorted(hook.blackboard_consumes)),
    )


def check_together(facts: Sequence[HookFacts]) -> dict[str, Any]:
    """The blackboard that the hooks of one invocation seed together.

    Raises HookActivationError when two claim the same, or seed different values under one key.
    """
    claimed: dict[str, str] = {}
    board: dict[str, Any] = {}
    for hook in facts:
        for claim in hook.claims:
            if claim in claimed:
                raise HookActivationError(hook.name, f"{claimed[claim]} has {claim} already")
            claimed[claim] = hook.name
        for key, value in hook.seed.items():
            if key in board and board[key] != value:
                raise HookActivationError(hook.name, f"another hook seeds {key!r} of the blackboard differently")
            board[key] = value
    return board


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
    check_return_types((*positional, *ambient))
    check_together([facts_of(hook) for hook in (*positional, *ambient)])


def check_return_types(hooks: Sequence[Hook]) -> None:
    """Raises HookActivationError when more than one says what type is returned."""
    typed = [hook for hook in hooks if hook.says_return_type]
    if len(typed) > 1:
        raise HookActivationError(type(typed[0]).__name__, "an invocation has one return type")
