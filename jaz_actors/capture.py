"""What surrounds a call of `invoke`, taken at the moment of the call: hooks, scope, inputs. The same in every process.

Nothing of it is looked up later, and nothing of it stays behind in a host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from jaz_actors.errors import InputRefused
from jaz_actors.hooks.base import Hook, active_hooks, check_activation
from jaz_actors.inputs import check_name
from jaz_actors.templates import lowered

_scope: ContextVar[Mapping[str, object]] = ContextVar("jaz_scope", default=MappingProxyType({}))


@contextmanager
def scope(**values: object) -> Iterator[None]:
    """Inputs for every invocation started inside the block, and for all their children.

    An inner block shadows an outer one. Raises InputRefused for a name that cannot be an input.
    """
    for name in values:
        check_name(name)
    token = _scope.set({**_scope.get(), **values})
    try:
        yield
    finally:
        _scope.reset(token)


@dataclass(frozen=True, slots=True)
class Captured:
    """positional: hooks for this invocation. ambient: those of enclosing `with` blocks. others: what is no hook."""

    positional: tuple[Hook, ...]
    ambient: tuple[Hook, ...]
    others: tuple[object, ...]
    inputs: Mapping[str, object]
    scope: Mapping[str, object]


def capture(local: Sequence[object], inputs: Mapping[str, object]) -> Captured:
    """Raises HookActivationError for hooks that do not go together, InputRefused for inputs that clash."""
    positional = tuple(item for item in local if isinstance(item, Hook))
    others = tuple(item for item in local if not isinstance(item, Hook))
    ambient = active_hooks()
    check_activation(positional, ambient)
    surrounding = _scope.get()
    clash = surrounding.keys() & inputs.keys()
    if clash:
        raise InputRefused(min(clash), "the scope around the call has an input of that name")
    return Captured(positional, ambient, others, lowered(inputs), surrounding)
