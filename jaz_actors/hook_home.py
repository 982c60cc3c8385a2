"""The hooks that live in this process, a driver's or a frame's, for the hosts of the invocations that they see.

Handlers run on one thread of their own: one at a time, async ones taking turns where they await.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import msgspec

from jaz_actors.descriptions import description_of
from jaz_actors.effects import Effect
from jaz_actors.errors import ConfigurationError, HookActivationError, HookFailed
from jaz_actors.events import AnyEvent, Event
from jaz_actors.frames.entry import Caller, acting_for
from jaz_actors.hooks.base import Hook, answer, facts_of
from jaz_actors.ids import InvokeId
from jaz_actors.inputs import InputPacker
from jaz_actors.payload import PackedInput
from jaz_actors.spec import BuiltinHook, HomeHook, HookEntry, LocalHook, RecorderHook, SharedHook
from jaz_actors.threads import LoopThread
from jaz_actors.transfer import dumps

logger = logging.getLogger(__name__)

event_decoder: msgspec.msgpack.Decoder[AnyEvent] = msgspec.msgpack.Decoder(AnyEvent)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Registered:
    hook: Hook
    users: int


class HookHome:
    """The lock protects the table, which any thread may register in.

    name:     this process, as hosts reach it.
    owner:    for whom values that hooks give to an invocation are lent: its root's path in a driver, where they are
              released with the root.
    trusted:  whether hosts open what this process pickles; frames are not.
    """

    def __init__(self, name: str, packer: InputPacker, *, owner: Callable[[InvokeId], str], trusted: bool) -> None:
        self.name = name
        self._packer = packer
        self._owner = owner
        self._trusted = trusted
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._hooks: dict[int, _Registered] = {}
        self._thread: LoopThread | None = None

    def enter_all(self, ambient: Sequence[Hook], positional: Sequence[Hook], owner: str) -> tuple[HookEntry, ...]:
        """The form in which hooks go with an invocation; pair with `leave`. Raises what makes that impossible."""
        entries: list[HookEntry] = []
        try:
            entries += [self.enter(hook, propagates=True, owner=owner) for hook in ambient]
            entries += [self.enter(hook, propagates=False, owner=owner) for hook in positional]
        except BaseException:
            self.leave(entries)
            raise
        return tuple(entries)

    def enter(self, hook: Hook, *, propagates: bool, owner: str) -> HookEntry:
        to_spec = getattr(hook, "to_spec", None)
        if to_spec is not None:
            return BuiltinHook(_encode(to_spec(lambda name, value: self._packer.pack(name, value, owner))), propagates)
        if hook.placement == "recorder":
            return RecorderHook(getattr(hook, "recorders", ()), propagates)
        facts = facts_of(hook)
        if hook.placement in ("local", "shared"):
            if not self._trusted:
                raise HookActivationError(facts.name, "hooks of agent code stay in its own process: placement 'home'")
            pickled = self._pickled(hook)
            if hook.placement == "local":
                return LocalHook(pickled, propagates)
            return SharedHook(pickled, next(self._numbers), facts, propagates)
        with self._lock:
            number = next((n for n, entry in self._hooks.items() if entry.hook is hook), None)
            if number is None:
                number = next(self._numbers)
                self._hooks[number] = _Registered(hook, 0)
            self._hooks[number].users += 1
        return HomeHook(self.name, number, facts, propagates, hook.placement == "observer")

    @staticmethod
    def _pickled(hook: Hook) -> bytes:
        try:
            return dumps(hook)
        except Exception as error:
            raise ConfigurationError(
                type(hook).__name__, f"a {hook.placement} hook is pickled, and it cannot be: {error}"
            ) from error

    def leave(self, entries: Sequence[HookEntry]) -> None:
        with self._lock:
            for entry in entries:
                if isinstance(entry, HomeHook):
                    registered = self._hooks[entry.number]
                    registered.users -= 1
                    if not registered.users:
                        del self._hooks[entry.number]

    def answer(self, number: int, data: bytes, caller: Caller | None) -> Future[bytes]:
        """The encoded effects of one hook for one encoded event. `caller` is what `invoke` means in its handlers."""
        return self._submit(self._answer(number, event_decoder.decode(data), caller))

    async def _answer(self, number: int, event: Event, caller: Caller | None) -> bytes:
        registered = self._hooks.get(number)
        if registered is None:
            raise HookFailed("a hook", type(event).__name__, "it is no longer active where it was")
        try:
            return _encode(await self._effects(registered.hook, event, caller))
        except Exception:
            # Only its text travels to the host; where it was raised is known here alone.
            logger.warning("hook %s raised on %s", type(registered.hook).__name__, type(event).__name__, exc_info=True)
            raise

    async def _effects(self, hook: Hook, event: Event, caller: Caller | None) -> list[Effect]:
        owner = self._owner(InvokeId.parse(event.invoke_id))

        def pack(name: str, value: object) -> PackedInput:
            return self._packer.pack_input(name, value, owner, description_of)

        if caller is None:
            return await answer(hook, event, pack)
        with acting_for(caller):
            return await answer(hook, event, pack)

    def observe(self, number: int, data: bytes) -> None:
        """Show an encoded event to an observer; nobody waits for it."""
        registered = self._hooks.get(number)
        if registered is not None:
            self._submit(self._observe(registered.hook, event_decoder.decode(data)))

    async def _observe(self, hook: Hook, event: Event) -> None:
        try:
            await answer(hook, event)
        except Exception:
            logger.warning("observer %s raised on %s", type(hook).__name__, type(event).__name__, exc_info=True)

    async def observed(self) -> None:
        """Wait until observers have seen every event that has arrived."""
        if self._thread is not None:
            await asyncio.wrap_future(self._submit(asyncio.sleep(0)))

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread("jaz-hooks")
        return self._thread.submit(work)

    @property
    def thread_ident(self) -> int | None:
        return None if self._thread is None else self._thread.ident

    def owns_current_thread(self) -> bool:
        return self._thread is not None and self._thread.owns_current_thread()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.stop()
