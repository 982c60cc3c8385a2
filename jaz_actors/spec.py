"""The immutable description of one invocation, as its caller fixes it at the moment of the call. Records only."""

from __future__ import annotations

from typing import Any

import msgspec

from jaz_actors.ids import InvokeId
from jaz_actors.outcomes import Status
from jaz_actors.payload import PackedInput


class HookFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a process must know of a hook that lives in another.

    handles:  tags of the events that it overrides; no other goes to it.
    seed:     what it puts on the blackboard of each invocation.
    claims:   what no other hook of the invocation may claim.
    """

    name: str
    handles: frozenset[str]
    ignores_errors: bool
    seed: dict[str, Any] = {}
    claims: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()


class BuiltinHook(msgspec.Struct, frozen=True, array_like=True, tag="builtin"):
    """A built-in hook by its own record: any process can rebuild it without unpickling."""

    spec: bytes
    propagates: bool


class LocalHook(msgspec.Struct, frozen=True, array_like=True, tag="local"):
    """A user's hook that runs in the host: pickled by the driver, one copy an invocation."""

    pickled: bytes
    propagates: bool


class SharedHook(msgspec.Struct, frozen=True, array_like=True, tag="shared"):
    """A user's hook of which the root's host keeps one copy for the tree: pickled by the driver, opened there only."""

    pickled: bytes
    number: int
    facts: HookFacts
    propagates: bool


class HomeHook(msgspec.Struct, frozen=True, array_like=True, tag="home"):
    """A hook that stays where it is: in the driver, in a frame (`HOST/FRAME`), or shared in a host."""

    home: str
    number: int
    facts: HookFacts
    propagates: bool
    observer: bool = False


class RecorderHook(msgspec.Struct, frozen=True, array_like=True, tag="recorder"):
    """Every event is recorded: by one of these recorders, the same for a whole tree."""

    recorders: tuple[str, ...]
    propagates: bool


# What a frame may give to a child: nothing that a host would unpickle.
FrameHook = BuiltinHook | HomeHook
HookEntry = BuiltinHook | LocalHook | SharedHook | HomeHook | RecorderHook


class InvocationSpec(msgspec.Struct, frozen=True, array_like=True):
    """One invocation.

    caller:           the process that waits for the outcome and holds the shared buffers among the inputs.
    config:           the pickled components of this invocation, made by the driver.
    tree_config:      those of its descendants, None when they are the same.
    config_by_depth:  those of descendants at certain depths.
    """

    run: str
    path: str
    caller: str
    parent_iteration: int | None
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    config: bytes
    hooks: tuple[HookEntry, ...] = ()
    tree_config: bytes | None = None
    config_by_depth: dict[int, bytes] = {}

    @property
    def invoke_id(self) -> InvokeId:
        return InvokeId(self.run, self.path)

    def child_config(self) -> bytes:
        """The configuration of a child of this invocation."""
        own = self.config if self.tree_config is None else self.tree_config
        return self.config_by_depth.get(self.invoke_id.depth + 1, own)


class ChildRequest(msgspec.Struct, frozen=True, array_like=True):
    """A child that a hook or a tool asks for on behalf of the live invocation `parent` (a path).

    prefix:  what its path component begins with; with `key`, or the host's next ordinal, it is unique.
    """

    parent: str
    prefix: str
    key: str | None
    inputs: tuple[PackedInput, ...]
    scope: tuple[PackedInput, ...]
    hooks: tuple[HookEntry, ...]


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
