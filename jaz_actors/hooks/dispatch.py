"""One invocation's events to its hooks, and their effects back. Knows the stages; not what the effects do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaz_actors.effects import BlackboardWrite, Effect
from jaz_actors.errors import HookError, HookFailed, InfrastructureError
from jaz_actors.events import EVENT_TYPES, Event
from jaz_actors.hooks.base import Hook, answer, check_together, facts_of, handled_events
from jaz_actors.hooks.stages import check_effects
from jaz_actors.spec import HookFacts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteHook:
    """A hook that lives elsewhere: at home, or shared in another host."""

    home: str
    number: int
    facts: HookFacts
    observer: bool


# Keys of the blackboard that this package's own hooks write, whether or not one of them reads.
OWN_KEYS = "jaz."
_warned: set[str] = set()

Call = Callable[[RemoteHook, Event], Awaitable[list[Effect]]]
Write = Callable[[Any], Awaitable[None]]
Observe = Callable[[Sequence[RemoteHook], Event], None]


class Dispatcher:
    """Hooks are asked one after the other in their order, so an event's effects have one order as well.

    call:     a round trip to a hook at home. Raises HookError for a failed hook, InfrastructureError for a lost way.
    observe:  sends an event to observers at home and waits for nothing.
    record:   writes every event, before any hook is asked. Raises InfrastructureError when it cannot.

    `blackboard` is what the hooks seed it with. Raises HookActivationError for hooks that do not go together.
    """

    def __init__(
        self, hooks: Sequence[Hook | RemoteHook], *, call: Call, observe: Observe, record: Sequence[Write] = ()
    ) -> None:
        self._record = record
        self._call = call
        self._observe = observe
        facts = [hook.facts if isinstance(hook, RemoteHook) else facts_of(hook) for hook in hooks]
        self.blackboard = check_together(facts)
        self._consumed = frozenset(key for hook in facts for key in hook.consumes)
        self._asked: dict[type[Event], list[Hook | RemoteHook]] = {}
        self._observers: dict[type[Event], list[RemoteHook]] = {}
        for kind in EVENT_TYPES:
            for hook in hooks:
                if not _handles(hook, kind):
                    continue
                if isinstance(hook, RemoteHook) and hook.observer:
                    self._observers.setdefault(kind, []).append(hook)
                else:
                    self._asked.setdefault(kind, []).append(hook)

    def wants(self, kind: type[Event]) -> bool:
        """Whether anyone handles this event; if not, it need not even be made."""
        return bool(self._record) or kind in self._asked or kind in self._observers

    async def emit(self, event: Event) -> list[Effect]:
        """All effects, checked against the stage. Raises HookFailed, InvalidEffect."""
        kind = type(event)
        for write in self._record:
            await write(event)
        observers = self._observers.get(kind)
        if observers:
            self._observe(observers, event)
        effects: list[Effect] = []
        for hook in self._asked.get(kind, ()):
            effects += await self._ask(hook, event)
        for effect in effects:
            if isinstance(effect, BlackboardWrite):
                self._warn_unread(effect.key, kind)
        return effects

    def _warn_unread(self, key: str, kind: type[Event]) -> None:
        if key in self._consumed or key.startswith(OWN_KEYS) or key in _warned:
            return
        _warned.add(key)
        logger.warning("%r is written to the blackboard on %s, and no active hook consumes it", key, kind.__name__)

    async def _ask(self, hook: Hook | RemoteHook, event: Event) -> list[Effect]:
        try:
            return await (answer(hook, event) if isinstance(hook, Hook) else self._ask_home(hook, event))
        except HookFailed as failed:
            if not (hook.on_error == "ignore" if isinstance(hook, Hook) else hook.facts.ignores_errors):
                raise
            logger.warning("%s; it is ignored", failed, exc_info=failed)
            return []

    async def _ask_home(self, hook: RemoteHook, event: Event) -> list[Effect]:
        try:
            effects = await self._call(hook, event)
        except (HookError, InfrastructureError):
            raise
        except Exception as error:  # an answer that cannot be sent or read
            raise HookFailed(hook.facts.name, type(event).__name__, f"{type(error).__name__}: {error}") from error
        check_effects(hook.facts.name, event, effects)
        return effects


def _handles(hook: Hook | RemoteHook, kind: type[Event]) -> bool:
    if isinstance(hook, Hook):
        return kind in handled_events(type(hook))
    return kind.__struct_config__.tag in hook.facts.handles
