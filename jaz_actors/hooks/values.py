"""From Python values to what effects hold, and back: what hooks write and read. Knows no event and no process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaz_actors.descriptions import description_of
from jaz_actors.effects import Abort, AddInputs, AddVariables, Effect
from jaz_actors.inputs import check_name
from jaz_actors.outcomes import Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload
from jaz_actors.shared import map_shared
from jaz_actors.transfer import error_record, load_error, pack, unpack


@dataclass(frozen=True, slots=True)
class NewBindings:
    """Values for the agent that are packed once a handler has given them, in the process where it ran."""

    values: Mapping[str, object]
    effect: Callable[[tuple[PackedInput, ...]], Effect]

    def packed(self, pack_input: Callable[[str, object], PackedInput]) -> Effect:
        return self.effect(tuple(pack_input(name, value) for name, value in self.values.items()))


def add_inputs(**values: object) -> NewBindings:
    """Effect of InvokeEnter: more inputs for the agent. What cannot be copied is passed by reference."""
    return _bindings(values, AddInputs)


def add_variables(**values: object) -> NewBindings:
    """Effect of REPLExecEnter: variables bound before the code runs. What cannot be copied is passed by reference."""
    return _bindings(values, AddVariables)


def _bindings(values: Mapping[str, object], effect: Callable[[tuple[PackedInput, ...]], Effect]) -> NewBindings:
    for name in values:
        check_name(name)
    return NewBindings(values, effect)


def pack_copy(name: str, value: object) -> PackedInput:
    return PackedInput(name, pack(value), description_of(value))


def abort(error: BaseException) -> Abort:
    """The effect that ends the invocation with `error`; a FatalError ends all that enclose it as well."""
    return Abort(error_record(error, traceback_text=""))


def returned(value: object) -> Return:
    """The result `return value`, for SupplyExecResult, ModifyExecResult, SupplyInvokeResult, ModifyInvokeResult."""
    return Return(pack(value))


def raised(error: Exception) -> Raise:
    """The result `raise error`."""
    return Raise(error_record(error, traceback_text=""))


def load(record: Payload | ErrorRecord) -> Any:
    """The value or exception that an event carries. Loading runs its pickle: do it where you trust who made it.

    Raises DecodeError for what cannot be loaded here.
    """
    if isinstance(record, ErrorRecord):
        return load_error(record)
    return unpack(record, mapped=map_shared)


def encode_foreign(value: object) -> object:
    """An exception where an effect holds one's record."""
    if isinstance(value, BaseException):
        return error_record(value, traceback_text="")
    raise TypeError(f"it holds {value!r}, which is no plain data; pack values with the functions of `jaz_actors.hooks`")
