"""The hooks of a host's invocations: opened from their entries, and reached wherever they live. Knows no loop.

A shared hook is opened by the host of the invocation that it was given to, and stays there; the descendants get it as
a hook whose home is that host.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from jaz_actors.effects import AnyEffect, Effect
from jaz_actors.errors import HookFailed
from jaz_actors.events import Event, InvokeExit
from jaz_actors.frames.entry import Caller, acting_for
from jaz_actors.hook_home import event_decoder
from jaz_actors.hooks.base import Hook, answer
from jaz_actors.hooks.dispatch import Dispatcher, RemoteHook
from jaz_actors.hooks.specs import hook_from_spec
from jaz_actors.outcomes import FailedRecord
from jaz_actors.ports import Ports
from jaz_actors.recording import Feed, shard_of
from jaz_actors.spec import BuiltinHook, HomeHook, HookEntry, InvocationSpec, LocalHook, RecorderHook, SharedHook

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
effects_decoder: msgspec.msgpack.Decoder[list[AnyEffect]] = msgspec.msgpack.Decoder(list[AnyEffect])

# Asks a hook that lives in a frame of this host: the frame's name, the hook's number, the encoded event.
AskFrame = Callable[[str, int, bytes], Awaitable[bytes]]
TellFrame = Callable[[str, int, bytes], None]


def lost_exit(spec: InvocationSpec, outcome: FailedRecord) -> InvokeExit:
    """The last event of an invocation, made by another than its host; its sequence is -1."""
    invoke_id = spec.invoke_id
    return InvokeExit(
        invoke_id=str(invoke_id), depth=invoke_id.depth, sequence=-1, timestamp=time.time(), outcome=outcome
    )


def recorders_of(spec: InvocationSpec) -> list[str]:
    """The recorders of an invocation: of each set the one that its whole tree goes to."""
    sets = [entry.recorders for entry in spec.hooks if isinstance(entry, RecorderHook) and entry.recorders]
    return [recorders[shard_of(spec.invoke_id, len(recorders))] for recorders in sets]


@dataclass(frozen=True, slots=True)
class OpenedHooks:
    """here: the hooks that run in this host. propagating: the entries that children inherit."""

    names: tuple[str, ...]
    here: tuple[Hook, ...]
    propagating: tuple[HookEntry, ...]
    dispatcher: Dispatcher
    feeds: tuple[Feed, ...]


class HostedHooks:
    """Belongs to its host's event loop.

    feed:    the way to a recorder.
    caller:  what `invoke` means in handlers of shared hooks, by the host and the id of the invocation they answer.
    """

    def __init__(
        self,
        ports: Ports,
        ask_frame: AskFrame,
        tell_frame: TellFrame,
        caller: Callable[[str, str], Caller],
        feed: Callable[[str], Feed],
    ) -> None:
        self._feed = feed
        self._ports = ports
        self._caller = caller
        self._ask_frame = ask_frame
        self._tell_frame = tell_frame
        self._shared: dict[int, Hook] = {}
        ports.handle("hook", self._on_hook)
        ports.on("event", self._on_event)

    def open(self, spec: InvocationSpec) -> OpenedHooks:
        """The hooks of an invocation; pair with `close`. Raises HookActivationError, ConfigurationError."""
        entries = [self._placed(entry) for entry in spec.hooks]
        hooks = [self._hook(entry) for entry in entries if not isinstance(entry, RecorderHook)]
        feeds = [self._feed(name) for name in recorders_of(spec)]
        return OpenedHooks(
            tuple(hook.facts.name if isinstance(hook, RemoteHook) else type(hook).__name__ for hook in hooks),
            tuple(hook for hook in hooks if isinstance(hook, Hook)),
            tuple(entry for entry in entries if entry.propagates),
            Dispatcher(hooks, call=self.call, observe=self.observe, record=[feed.event for feed in feeds]),
            tuple(feeds),
        )

    def close(self, spec: InvocationSpec) -> None:
        for entry in spec.hooks:
            if isinstance(entry, SharedHook):
                self._shared.pop(entry.number, None)

    def _placed(self, entry: HookEntry) -> HookEntry:
        if not isinstance(entry, SharedHook):
            return entry
        hook = pickle.loads(entry.pickled)
        assert isinstance(hook, Hook)
        self._shared[entry.number] = hook
        return HomeHook(self._ports.name, entry.number, entry.facts, entry.propagates)

    def _hook(self, entry: HookEntry) -> Hook | RemoteHook:
        match entry:
            case BuiltinHook():
                return hook_from_spec(entry.spec)
            case LocalHook():
                hook = pickle.loads(entry.pickled)
                assert isinstance(hook, Hook)
                return hook
            case HomeHook():
                return RemoteHook(entry.home, entry.number, entry.facts, entry.observer)
            case SharedHook() | RecorderHook():
                raise AssertionError("dealt with before")

    async def call(self, hook: RemoteHook, event: Event) -> list[Effect]:
        if hook.home == self._ports.name:
            return await answer(self._shared_hook(hook.number, event), event)
        host, _, frame = hook.home.partition("/")
        data = _encode(event)
        if frame and host == self._ports.name:
            return list(effects_decoder.decode(await self._ask_frame(hook.home, hook.number, data)))
        reply = await self._ports.request(host, "hook", hook.home.encode(), str(hook.number).encode(), data)
        return list(effects_decoder.decode(reply[0]))

    def observe(self, hooks: Sequence[RemoteHook], event: Event) -> None:
        data = _encode(event)
        for hook in hooks:
            host, _, frame = hook.home.partition("/")
            if frame and host == self._ports.name:
                self._tell_frame(hook.home, hook.number, data)
            else:
                self._ports.notify(host, "event", hook.home.encode(), str(hook.number).encode(), data)

    async def lost(self, spec: InvocationSpec, outcome: FailedRecord) -> None:
        """Tell the hooks that live elsewhere of the end of an invocation whose own host cannot any more."""
        event = lost_exit(spec, outcome)
        for name in recorders_of(spec):
            await self._feed(name).event(event)
        for entry in spec.hooks:
            if isinstance(entry, HomeHook) and str(event.__struct_config__.tag) in entry.facts.handles:
                hook = RemoteHook(entry.home, entry.number, entry.facts, entry.observer)
                try:
                    if hook.observer:
                        self.observe([hook], event)
                    else:
                        await self.call(hook, event)
                except Exception:
                    logger.warning("hook %s could not be told of a lost invocation", hook.facts.name, exc_info=True)

    async def _on_hook(self, caller: str, parts: list[bytes]) -> Sequence[bytes]:
        home, number, data = parts[0].decode(), int(parts[1]), parts[2]
        if home != self._ports.name:
            return [await self._ask_frame(home, number, data)]
        event = event_decoder.decode(data)
        with acting_for(self._caller(caller, event.invoke_id)):
            return [_encode(await answer(self._shared_hook(number, event), event))]

    def _on_event(self, caller: str, parts: list[bytes]) -> None:
        self._tell_frame(parts[0].decode(), int(parts[1]), parts[2])

    def _shared_hook(self, number: int, event: Event) -> Hook:
        hook = self._shared.get(number)
        if hook is None:
            raise HookFailed("a shared hook", type(event).__name__, "the invocation it was given to is over")
        return hook
