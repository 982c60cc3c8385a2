"""Built-in hooks as plain records: any process, a frame too, can ask for one, and none unpickles anything for it."""

from __future__ import annotations

import msgspec

from jaz_actors.hooks.base import Hook


class Builtin(Hook):
    """A hook whose record, `to_spec()`, says all about it.

    A subclass of one adds what the record cannot tell, so it has none and travels pickled, as a user's local hook does.
    """

    placement = "local"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Builtin not in cls.__bases__:
            cls.to_spec = None  # type: ignore[assignment, method-assign]

    def to_spec(self) -> BuiltinSpec:
        raise NotImplementedError


class IterationLimitSpec(msgspec.Struct, frozen=True, tag="iteration_limit"):
    max_iterations: int
    warning_text: str | None
    warn_remaining: int | None


class RecursionLimitSpec(msgspec.Struct, frozen=True, tag="recursion_limit"):
    max_depth: int


class ReturnTypeSpec(msgspec.Struct, frozen=True, tag="return_type"):
    """`hint` is pickled and loaded in the frame alone; `text` is how it reads."""

    hint: bytes
    text: str
    max_failures: int | None


BuiltinSpec = IterationLimitSpec | RecursionLimitSpec | ReturnTypeSpec
_decoder: msgspec.msgpack.Decoder[BuiltinSpec] = msgspec.msgpack.Decoder(BuiltinSpec)


def hook_from_spec(data: bytes) -> Hook:
    """Raises msgspec.ValidationError for what is no built-in's record, ConfigurationError for impossible values."""
    from jaz_actors.hooks.limits import IterationLimit, RecursionLimit
    from jaz_actors.hooks.returns import ReturnType

    match _decoder.decode(data):
        case IterationLimitSpec() as spec:
            return IterationLimit(
                spec.max_iterations, warning_text=spec.warning_text, warn_remaining=spec.warn_remaining
            )
        case RecursionLimitSpec() as spec:
            return RecursionLimit(spec.max_depth)
        case ReturnTypeSpec() as spec:
            return ReturnType.from_spec(spec)
