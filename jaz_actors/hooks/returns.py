"""The type of a result. The check runs in the frame, where the value is; the host only counts refusals."""

from __future__ import annotations

from typing import Any

from jaz_actors import events
from jaz_actors.effects import AddMessages, ModifyExecResult, NewMessage
from jaz_actors.errors import ConfigurationError, ReturnTypeError
from jaz_actors.hooks.base import Answer, Hook
from jaz_actors.hooks.specs import ReturnTypeSpec
from jaz_actors.outcomes import Continue, Raise, Return
from jaz_actors.transfer import dumps, error_record, preview


class ReturnType(Hook):
    """The result must satisfy a type hint, anything that beartype understands; None means that None is returned.

    A value that does not is refused and the agent told why; after more than `max_failures` refusals the invocation
    ends by raising ReturnTypeError (None: no end). Large containers are checked by sample. A result that another
    hook supplies is not checked.
    """

    placement = "local"

    def __init__(self, hint: Any, *, max_failures: int | None = None) -> None:
        if max_failures is not None and max_failures < 0:
            raise ConfigurationError("max_failures", "must be at least 0, or None")
        _check_hint(hint)
        try:
            self._spec = ReturnTypeSpec(dumps(hint), hint_text(hint), max_failures)
        except Exception as error:
            raise ConfigurationError("ReturnType", f"{hint!r} cannot be sent to a frame: {error}") from error
        self._failures = 0

    @classmethod
    def from_spec(cls, spec: ReturnTypeSpec) -> ReturnType:
        hook = cls.__new__(cls)
        hook._spec = spec
        hook._failures = 0
        return hook

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
    """Why `value` does not satisfy `hint`; None when it does."""
    from beartype.door import is_bearable

    if is_bearable(value, hint):
        return None
    return f"got {preview(value)} of type {type(value).__name__}."


def _check_hint(hint: Any) -> None:
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    try:
        is_bearable(None, hint)
    except BeartypeException as error:
        raise ConfigurationError("ReturnType", f"{hint!r} is no type hint: {error}") from error
