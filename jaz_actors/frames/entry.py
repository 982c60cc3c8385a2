"""For whom the code that runs here and now calls `invoke`: an agent, or nobody but itself.

In a frame it is the frame's agent, whatever the thread. Tools and hooks run elsewhere on behalf of an invocation, so
there it belongs to the one call that is being answered. What is started for an invocation is its child.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Caller(Protocol):
    """Starts children of one invocation. `subject` says for whom, in messages to users."""

    subject: str

    def invoke(self, /, *local: object, key: str | None = None, **inputs: object) -> Any: ...

    def ainvoke(self, /, *local: object, key: str | None = None, **inputs: object) -> Coroutine[Any, Any, Any]: ...


_process: Caller | None = None
_call: ContextVar[Caller | None] = ContextVar("jaz_caller", default=None)


def install(caller: Caller | None) -> None:
    """Make this process a frame."""
    global _process
    _process = caller


def caller() -> Caller | None:
    """None in code that runs for itself: a driver's own."""
    return _call.get() or _process


def in_frame() -> bool:
    return _process is not None


@contextmanager
def acting_for(caller: Caller) -> Iterator[None]:
    """Within the block, and in tasks started there, `invoke` starts children of the caller's invocation."""
    token = _call.set(caller)
    try:
        yield
    finally:
        _call.reset(token)
