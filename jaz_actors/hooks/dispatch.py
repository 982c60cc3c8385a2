"""One invocation's events to its hooks, and their effects back. Knows the stages; not what the effects do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from jaz_actors.effects import Effect
from jaz_actors.errors import HookError, HookFailed, InfrastructureError
from jaz_actors.events import Event
from jaz_actors.hooks.base import Hook, answer, handled_events
from jaz_actors.hooks.stages import check_effects

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteHook:
    """A hook at home. `handles` are tags of the events that go there."""

    name: str
    home: str
    number: int
    handles: frozenset[str]
    ignores_errors: bool
    observer: bool


Call = Callable[[RemoteHook, Event], Awaitable[list[Effect]]]
Observe = Callable[[Sequence[RemoteHook], Event], None]


class Dispatcher:
    """Hooks are asked one after the other in their order, so an event's effects have one order as well."""

    def __init__(self, hooks: Sequence[Hook | RemoteHook], *, call: Call, observe: Observe) -> None:
        self._call = call
        self._observe = observe
        self._asked: dict[type[Event], list[Hook | RemoteHook]] = {}
        self._observers: dict[str, list[RemoteHook]] = {}
        self._remote: list[RemoteHook] = []
        for hook in hooks:
            if isinstance(hook, Hook):
                for kind in handled_events(type(hook)):
                    self._asked.setdefault(kind, []).append(hook)
            elif hook.observer:
                for tag in hook.handles:
                    self._observers.setdefault(tag, []).append(hook)
            else:
                self._remote.append(hook)
        self._order = {id(hook): index for index, hook in enumerate(hooks)}
        self._silent = not hooks

    def wants(self, kind: type[Event]) -> bool:
        """Whether anyone handles this event; if not, it need not even be made."""
        if self._silent:
            return False
        tag = str(kind.__struct_config__.tag)
        return kind in self._asked or tag in self._observers or any(tag in hook.handles for hook in self._remote)

    async def emit(self, event: Event) -> list[Effect]:
        """All effects, checked against the stage. Raises HookFailed, InvalidEffect."""
        tag = str(event.__struct_config__.tag)
        observers = self._observers.get(tag)
        if observers:
            self._observe(observers, event)
        asked = [*self._asked.get(type(event), ()), *(hook for hook in self._remote if tag in hook.handles)]
        asked.sort(key=lambda hook: self._order[id(hook)])
        effects: list[Effect] = []
        for hook in asked:
            effects += await self._ask(hook, event)
        return effects

    async def _ask(self, hook: Hook | RemoteHook, event: Event) -> list[Effect]:
        name = hook.name if isinstance(hook, RemoteHook) else type(hook).__name__
        try:
            effects = await (self._call(hook, event) if isinstance(hook, RemoteHook) else answer(hook, event))
            check_effects(name, event, effects)
            return effects
        except (HookError, InfrastructureError):
            raise
        except Exception as error:
            ignores = hook.ignores_errors if isinstance(hook, RemoteHook) else hook.on_error == "ignore"
            if not ignores:
                raise HookFailed(name, type(event).__name__, f"{type(error).__name__}: {error}") from error
            logger.warning("hook %s raised on %s and is ignored", name, type(event).__name__, exc_info=error)
            return []
