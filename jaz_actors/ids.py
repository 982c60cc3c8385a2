"""Names of runs and invocations. Knows nothing of how they are executed."""

from __future__ import annotations

import re
import secrets
import time

import msgspec

from jaz_actors.errors import KeyRefused

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,99}")
# Components of children that hooks and tools start for an invocation; see `served_calls`.
_RESERVED = re.compile(r"(hook|tool\d+)-")


def new_run_id() -> str:
    """A random run id that sorts by creation time: 12 hex digits of milliseconds, then 8 random ones."""
    return f"{int(time.time() * 1000):012x}{secrets.token_hex(4)}"


class InvokeId(msgspec.Struct, frozen=True, order=True):
    """`RUN:PATH`: the identity of one invocation.

    `path` is the root's ordinal in the run followed by one component an ancestor, joined by dots (`0.2.1`). A
    component is the child's ordinal in its parent at the moment of the call, or the caller's own key. The same
    program therefore gives the same paths whatever order siblings finish in.
    """

    run: str
    path: str

    @classmethod
    def parse(cls, text: str) -> InvokeId:
        run, _, path = text.partition(":")
        if not run or not path:
            raise ValueError(f"{text!r} is not an invoke id: expected RUN:PATH")
        return cls(run, path)

    def child(self, component: str) -> InvokeId:
        return InvokeId(self.run, f"{self.path}.{component}")

    @property
    def depth(self) -> int:
        """1 for a root."""
        return self.path.count(".") + 1

    @property
    def root(self) -> InvokeId:
        return InvokeId(self.run, self.path.partition(".")[0])

    @property
    def parent(self) -> InvokeId | None:
        head, dot, _ = self.path.rpartition(".")
        return InvokeId(self.run, head) if dot else None

    def __str__(self) -> str:
        return f"{self.run}:{self.path}"


class PathCounter:
    """Hands out the path components of one parent's children, in program order.

    Owned by the caller's process (the driver for roots, a frame for its children). Not thread-safe: the owner
    calls it under the lock that orders its calls.
    """

    def __init__(self, start: int = 0) -> None:
        self._next = start
        self._keys: set[str] = set()

    def take(self, key: str | None = None) -> str:
        """The next ordinal, or `key` itself.

        Raises KeyRefused for a key that is no path component, looks like an ordinal, or was used before.
        """
        if key is None:
            self._next += 1
            return str(self._next - 1)
        check_key(key)
        if key in self._keys:
            raise KeyRefused(key, "another child of the same parent, or another root of this run, has had it")
        self._keys.add(key)
        return key


def check_key(key: str) -> None:
    """Raises KeyRefused unless `key` can stand as one component of a path."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise KeyRefused(key, "use 1 to 100 letters, digits, '_' or '-'")
    if key.isdigit():
        raise KeyRefused(key, "digits alone would be taken for an ordinal; add a letter")
    if _RESERVED.match(key):
        raise KeyRefused(key, "names of this form are those of children that hooks and tools start")


def check_component(component: str) -> None:
    """Raises KeyRefused for what neither an ordinal nor a key is."""
    if not (component.isascii() and component.isdigit() and len(component) <= 18):
        check_key(component)
