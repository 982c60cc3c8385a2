"""The type of a result. The check runs in the frame, where the value is; the host only counts refusals."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin

from jaz_actors import events
from jaz_actors.effects import AddMessages, ModifyExecResult, NewMessage
from jaz_actors.errors import ConfigurationError, ReturnTypeError
from jaz_actors.hooks.base import Answer
from jaz_actors.hooks.specs import Builtin, ReturnTypeSpec
from jaz_actors.outcomes import Continue, Raise, Return
from jaz_actors.transfer import dumps, error_record, preview


class ReturnType(Builtin):
    """The result must satisfy a type hint, anything that beartype understands; None means that None is returned.

    A value that does not is refused and the agent told why; after more than `max_failures` refusals the invocation
    ends by raising ReturnTypeError (None: no end). Large containers are checked by sample. A result that another
    hook supplies is not checked.
    """

    def __init__(self, hint: Any, *, max_failures: int | None = None) -> None:
        _check_hint(hint)
        try:
            pickled = dumps(hint)
        except Exception as error:
            raise ConfigurationError("ReturnType", f"{hint!r} cannot be sent to a frame: {error}") from error
        self._take(ReturnTypeSpec(pickled, hint_text(hint), max_failures))

    @classmethod
    def from_spec(cls, spec: ReturnTypeSpec) -> ReturnType:
        """The hook again, for a process that does not load the hint."""
        hook = cls.__new__(cls)
        hook._take(spec)
        return hook

    def _take(self, spec: ReturnTypeSpec) -> None:
        if spec.max_failures is not None and spec.max_failures < 0:
            raise ConfigurationError("max_failures", "must be at least 0, or None")
        self._spec = spec
        self._failures = 0

    def to_spec(self) -> ReturnTypeSpec:
        return self._spec

    def return_hint(self) -> bytes:
        return self._spec.hint

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        if event.iteration != 0:
            return None
        text = f"The result must be of this type:\n<return_type>{self._spec.text}</return_type>"
        return AddMessages((NewMessage("user", text),), persistent=True)

    def on_repl_exec_complete(self, event: events.REPLExecComplete) -> Answer:
        result = event.result
        if not isinstance(result, Return) or result.rejection is None:
            return None
        self._failures += 1
        error = ReturnTypeError(self._spec.text, result.rejection)
        if self._spec.max_failures is not None and self._failures > self._spec.max_failures:
            return ModifyExecResult(Raise(error_record(error, traceback_text="")))
        return ModifyExecResult(Continue("", f"ReturnTypeError: {error} Nothing was finished.\n"))


def hint_text(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)


def check_return(hint: Any, value: object) -> str | None:
    """Why `value` does not satisfy `hint`; None when it does. A check that raises, as validators may, refuses."""
    try:
        satisfied = _satisfies(value, hint)
    except Exception as error:
        return f"checking {preview(value)} raised {type(error).__name__}: {error}."
    return None if satisfied else f"got {preview(value)} of type {type(value).__name__}."


def _satisfies(value: object, hint: Any) -> bool:
    from beartype.door import is_bearable
    from beartype.roar import BeartypeDecorHintPep585DeprecationWarning

    with warnings.catch_warnings():
        # `typing.List[int]` is as good as `list[int]` here, and in a frame the warning would be shown to the model.
        warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
        return is_bearable(value, hint)


def _check_hint(hint: Any) -> None:
    name = _name_in(hint)
    if name is not None:
        raise ConfigurationError("ReturnType", f"{hint!r} names {name!r} as text, which the frame cannot look up")
    try:
        _satisfies(None, hint)
    except Exception as error:
        # Only the hint is at fault: its validators may refuse the None that they were tried on.
        from beartype.roar import BeartypeException

        if isinstance(error, BeartypeException):
            raise ConfigurationError("ReturnType", f"{hint!r} is no type hint: {error}") from error


def _name_in(hint: Any) -> str | None:
    """A forward reference within the hint. beartype resolves these late, when a value of that shape is checked."""
    if isinstance(hint, (str, ForwardRef)):
        return hint if isinstance(hint, str) else hint.__forward_arg__
    if get_origin(hint) is Literal:
        return None
    parts = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    return next((name for part in parts if (name := _name_in(part)) is not None), None)
