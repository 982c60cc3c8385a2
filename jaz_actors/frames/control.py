"""What a host and its zygote say to each other: one msgpack record a packet of a SEQPACKET socket."""

from __future__ import annotations

import msgspec


class ZygoteConfig(msgspec.Struct, frozen=True):
    """How frames are made.

    root:           folder of the frames' working directories; removed when the zygote ends.
    sys_path:       import path of the frames.
    preload:        modules that every frame has imported from the start.
    memory_limit:   bytes of private memory a process of a frame may have; 0 is no limit.
    max_processes:  processes that one frame may have alive at once before it is ended.
    """

    root: str
    sys_path: list[str]
    preload: list[str]
    memory_limit: int
    max_processes: int


class Fork(msgspec.Struct, frozen=True, array_like=True, tag="fork"):
    """Make a frame. The packet brings two descriptors: its socket and its output pipe."""

    number: int
    work_dir: str


class Kill(msgspec.Struct, frozen=True, array_like=True, tag="kill"):
    """End a frame and everything that it started."""

    number: int


class Forked(msgspec.Struct, frozen=True, array_like=True, tag="forked"):
    """Number -1 is the zygote itself, ready."""

    number: int
    pid: int


class Died(msgspec.Struct, frozen=True, array_like=True, tag="died"):
    """A frame's process is gone. `status` is the wait status."""

    number: int
    status: int
    reason: str


ToZygote = Fork | Kill
FromZygote = Forked | Died
