"""Whether this process is a frame, and then which calls its code makes. Lets the public `invoke` work in agent code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaz_actors.frames.calls import FrameCalls

_calls: FrameCalls | None = None


def install(calls: FrameCalls | None) -> None:
    global _calls
    _calls = calls


def frame_calls() -> FrameCalls | None:
    """The calls of the frame that this process is; None in drivers and hosts."""
    return _calls
