"""The immutable description of one invocation, as its caller fixes it at the moment of the call. Records only."""

from __future__ import annotations

import msgspec

from jaz_actors.ids import InvokeId
from jaz_actors.outcomes import Status
from jaz_actors.payload import PackedInput


class BuiltinHook(msgspec.Struct, frozen=True, array_like=True, tag="builtin"):
    """A built-in hook by its own record: any process can rebuild it without unpickling."""

    spec: bytes
    propagates: bool


class LocalHook(msgspec.Struct, frozen=True, array_like=True, tag="local"):
    """A user's hook that runs in the host: pickled by the driver, one copy an invocation."""

    pickled: bytes
    propagates: bool


class HomeHook(msgspec.Struct, frozen=True, array_like=True, tag="home"):
    """A hook that stays where it was activated; only the events named in `handles` go there."""

    home: str
    number: int
    name: str
    handles: frozenset[str]
    ignores_errors: bool
    propagates: bool
    observer: bool = False


HookEntry = BuiltinHook | LocalHook | HomeHook


class InvocationSpec(msgspec.Struct, frozen=True, array_like=True):
    """One invocation.

    caller:    the process that waits for the outcome and holds the shared buffers among the inputs.
    config:    the pickled components, made by the driver; the same bytes for the whole tree unless overridden.
    """

    run: str
    path: str
    caller: str
    parent_iteration: int | None
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    config: bytes
    hooks: tuple[HookEntry, ...] = ()

    @property
    def invoke_id(self) -> InvokeId:
        return InvokeId(self.run, self.path)


class InvocationStatus(msgspec.Struct, frozen=True):
    """What an invocation is doing. `seconds` is how long it has been doing that; token counts are of its own
    queries, not of its children's."""

    invoke_id: str
    host: str
    state: str
    seconds: float
    iteration: int
    prompt_tokens: int = 0
    completion_tokens: int = 0


class HostStatistics(msgspec.Struct, frozen=True):
    """A host's heartbeat. Counts are since its start but for those of what is live now.

    states:    live invocations by state.
    outcomes:  ended invocations by how they ended; cancelled ones count as aborted.
    """

    host: str
    pid: int
    live: int
    running: int
    queued: int
    frames: int
    states: dict[str, int]
    outcomes: dict[Status, int]
    turns: int
    prompt_tokens: int
    completion_tokens: int
