"""Built-in hooks as plain records: any process can ask for one, a frame too, and none unpickles anything for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from jaz_actors.hooks.base import Hook, Placement
from jaz_actors.payload import Payload

PackValue = Callable[[str, object], Payload]


class Builtin(Hook):
    """A hook whose record, `to_spec()`, says all about it.

    A subclass of one adds what the record cannot tell, so it has none and travels pickled, as a user's local hook does.
    """

    placement: Placement = "local"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if Builtin not in cls.__bases__:
            cls.to_spec = None  # type: ignore[assignment, method-assign]

    def to_spec(self, pack: PackValue) -> BuiltinSpec:
        """`pack` packs what the record holds of the user's values, where it lives."""
        raise NotImplementedError


class IterationLimitSpec(msgspec.Struct, frozen=True, tag="iteration_limit"):
    max_iterations: int
    warning_text: str | None
    warn_remaining: int | None


class RecursionLimitSpec(msgspec.Struct, frozen=True, tag="recursion_limit"):
    max_depth: int


class TimeLimitSpec(msgspec.Struct, frozen=True, tag="time_limit"):
    seconds: float


class ReturnTypeSpec(msgspec.Struct, frozen=True, tag="return_type"):
    """`hint` is pickled and loaded in the frame alone; `text` is how it reads."""

    hint: Payload
    text: str
    max_failures: int | None


class ValidateReturnSpec(msgspec.Struct, frozen=True, tag="validate_return"):
    """`check` is pickled, or a reference; it is loaded in the frame alone."""

    check: Payload
    name: str
    max_failures: int | None


class BudgetForcingSpec(msgspec.Struct, frozen=True, tag="budget_forcing"):
    refusals: int
    refusal_text: str


class ContextWindowWarningSpec(msgspec.Struct, frozen=True, tag="context_window_warning"):
    warn_fraction: float
    warning_text: str
    context_length: int | None


class SlidingWindowSpec(msgspec.Struct, frozen=True, tag="sliding_window"):
    fraction: float
    context_length: int | None


class CompactionSpec(msgspec.Struct, frozen=True, tag="compaction"):
    fraction: float
    keep_recent: int
    min_compact: int
    summary_prompt: str
    context_length: int | None


class MetaDataSpec(msgspec.Struct, frozen=True, tag="meta_data"):
    values: dict[str, Any]


BuiltinSpec = (
    IterationLimitSpec
    | RecursionLimitSpec
    | TimeLimitSpec
    | ReturnTypeSpec
    | ValidateReturnSpec
    | BudgetForcingSpec
    | ContextWindowWarningSpec
    | SlidingWindowSpec
    | CompactionSpec
    | MetaDataSpec
)
_decoder: msgspec.msgpack.Decoder[BuiltinSpec] = msgspec.msgpack.Decoder(BuiltinSpec)


def hook_from_spec(data: bytes) -> Hook:
    """Raises msgspec.ValidationError for what is no built-in's record, ConfigurationError for impossible values."""
    from jaz_actors.hooks import limits, metadata, returns, window

    match _decoder.decode(data):
        case IterationLimitSpec() as spec:
            return limits.IterationLimit(
                spec.max_iterations, warning_text=spec.warning_text, warn_remaining=spec.warn_remaining
            )
        case RecursionLimitSpec() as spec:
            return limits.RecursionLimit(spec.max_depth)
        case TimeLimitSpec() as spec:
            return limits.TimeLimit(spec.seconds)
        case ReturnTypeSpec() as spec:
            return returns.ReturnType.from_spec(spec)
        case ValidateReturnSpec() as spec:
            return returns.ValidateReturn.from_spec(spec)
        case BudgetForcingSpec() as spec:
            return limits.BudgetForcing(spec.refusals, spec.refusal_text)
        case ContextWindowWarningSpec() as spec:
            return window.ContextWindowWarning(
                spec.warn_fraction, spec.warning_text, context_length=spec.context_length
            )
        case SlidingWindowSpec() as spec:
            return window.SlidingWindow(spec.fraction, context_length=spec.context_length)
        case CompactionSpec() as spec:
            return window.Compaction(
                fraction=spec.fraction,
                keep_recent=spec.keep_recent,
                min_compact=spec.min_compact,
                summary_prompt=spec.summary_prompt,
                context_length=spec.context_length,
            )
        case MetaDataSpec() as spec:
            return metadata.MetaData(**spec.values)
