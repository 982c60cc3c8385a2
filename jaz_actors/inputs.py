"""From Python values to what may enter a frame: by copy, by reference, or refused by name before anything starts.

Knows nothing of hosts or prompts.
"""

from __future__ import annotations

import asyncio
import inspect
import keyword
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cloudpickle

from jaz_actors.descriptions import Display
from jaz_actors.errors import InputRefused
from jaz_actors.library import Library
from jaz_actors.payload import PackedInput, Payload, ReferenceRecord, SharedBuffer
from jaz_actors.refs import ByReference, ReferenceTable, rebuild
from jaz_actors.shared import SharedBuffers
from jaz_actors.transfer import in_place, payload_of, pickled

RESERVED = frozenset({"invoke", "ainvoke", "__history__", "__inputs__", "__scope__", "__builtins__", "key"})

# Objects of Ray references whose packed form is kept for the next invocation that gets them.
RESOLVED_KEPT = 16

_CANNOT_COPY = (TypeError, pickle.PicklingError, AttributeError, RecursionError, ValueError)
_CONTAINERS = (list, tuple, set, dict)

_BOUND_TO_A_STACK: tuple[tuple[Callable[[object], bool], str], ...] = (
    (inspect.iscoroutine, "a coroutine runs where it was made; await it and pass its result"),
    (inspect.isgenerator, "a generator runs where it was made; pass list(...) of it"),
    (inspect.isasyncgen, "an async generator runs where it was made; collect it into a list"),
    (lambda value: isinstance(value, asyncio.Future), "a future belongs to its event loop; pass its result"),
    (inspect.isframe, "a stack frame cannot leave its thread"),
    (inspect.istraceback, "a traceback cannot leave its thread; pass the exception"),
)


class InputPacker:
    """Packs the inputs of invocations that this process starts.

    table:    where objects that stay here are lent from.
    buffers:  where big buffers are shared from.
    """

    def __init__(self, table: ReferenceTable, buffers: SharedBuffers) -> None:
        self._table = table
        self._buffers = buffers
        self._resolved: OrderedDict[str, Payload] = OrderedDict()

    def pack_all(
        self, inputs: Mapping[str, object], owner: str, descriptions: Callable[[object], str | None]
    ) -> tuple[PackedInput, ...]:
        """All of them, or InputRefused naming the first that can be passed neither by copy nor by reference."""
        for name in inputs:
            check_name(name)
        return tuple(self.pack_input(name, value, owner, descriptions) for name, value in inputs.items())

    def pack_input(
        self, name: str, value: object, owner: str, descriptions: Callable[[object], str | None]
    ) -> PackedInput:
        if isinstance(value, Display):
            return PackedInput(name, self.pack(name, value.value, owner), value.text, hidden=value.text is None)
        return PackedInput(name, self.pack(name, value, owner), descriptions(value))

    def pack(self, name: str, value: object, owner: str, *, share: bool = True) -> Payload:
        """One value. With `share`, big buffers go to shared memory of this machine, else they stay in place."""
        for is_bound, advice in _BOUND_TO_A_STACK:
            if is_bound(value):
                raise InputRefused(name, advice)
        if _is_object_ref(value):
            return self._pack_object_ref(name, value, owner)
        try:
            parts = pickled(value, self._pickler(owner))
        except _CANNOT_COPY as error:
            value = self._lent(name, value, owner, error)
            parts = pickled(value, self._pickler(owner))
        except Exception as error:
            raise InputRefused(name, f"pickling it raised {type(error).__name__}: {error}") from error
        return payload_of(value, parts, share=partial(self._buffers.share, owner=owner) if share else in_place)

    def _pack_object_ref(self, name: str, ref: Any, owner: str) -> Payload:
        """The object that a Ray reference stands for, packed once for all invocations that get it."""
        import ray

        key = ref.hex()
        payload = self._resolved.get(key)
        if payload is None:
            try:
                value = ray.get(ref)
            except Exception as error:
                raise InputRefused(name, f"Ray cannot resolve it: {error}") from error
            payload = self._resolved[key] = self.pack(name, value, f"ref-{key}")
            if len(self._resolved) > RESOLVED_KEPT:
                oldest, _ = self._resolved.popitem(last=False)
                self._buffers.release(f"ref-{oldest}")
        self._resolved.move_to_end(key)
        for buffer in payload.buffers:
            if isinstance(buffer, SharedBuffer):
                self._buffers.keep(buffer, owner)
        return payload

    def _lent(self, name: str, value: object, owner: str, error: Exception) -> object:
        if isinstance(error, RecursionError):
            raise InputRefused(name, "it is nested too deeply to be copied") from error
        if type(value) in _CONTAINERS or isinstance(value, Library):
            # A plain container is copied, and only those of its members that cannot be are passed by reference.
            return self._members_lent(name, value, owner)
        return ByReference(value)

    def _members_lent(self, name: str, container: Any, owner: str) -> Any:
        def member(path: str, value: object) -> object:
            for is_bound, advice in _BOUND_TO_A_STACK:
                if is_bound(value):
                    raise InputRefused(path, advice)
            try:
                pickled(value, self._pickler(owner))
            except _CANNOT_COPY as error:
                return self._lent(path, value, owner, error)
            return value

        if isinstance(container, Library):
            return container.replaced(
                {key: member(f"{name}.{key}", value) for key, value in container.members().items()}
            )
        if isinstance(container, dict):
            return {key: member(f"{name}[{key!r}]", value) for key, value in container.items()}
        return type(container)(member(f"{name}[{i}]", value) for i, value in enumerate(container))

    def _pickler(self, owner: str) -> type[cloudpickle.Pickler]:
        table = self._table

        class LendingPickler(cloudpickle.Pickler):
            def reducer_override(self, obj: Any) -> Any:
                if type(obj) is ByReference:
                    reference = table.lend(obj.value, owner)
                    record: ReferenceRecord = reference._record
                    return rebuild, (record,)
                return super().reducer_override(obj)

        return LendingPickler


def _is_object_ref(value: object) -> bool:
    ray = sys.modules.get("ray")  # who has a reference has Ray
    return ray is not None and isinstance(value, getattr(ray, "ObjectRef", ()))


def check_name(name: str) -> None:
    """Raises InputRefused for a name that cannot be a variable or is taken by the frame."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InputRefused(name, "its name is not a Python identifier")
    if name in RESERVED:
        raise InputRefused(name, "the name is used by the frame itself; choose another")
