"""What may be returned, and what may be run. Values are checked in the frame, where they are; the host counts."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin

from jaz_actors import events
from jaz_actors.effects import AddMessages, ModifyExecResult, NewMessage, SupplyExecResult
from jaz_actors.errors import ConfigurationError, ReturnTypeError
from jaz_actors.frames.wire import Check
from jaz_actors.hooks.base import Answer, Hook
from jaz_actors.hooks.specs import Builtin, PackValue, ReturnTypeSpec, ValidateReturnSpec
from jaz_actors.hooks.values import abort
from jaz_actors.outcomes import Continue, Raise, Rejection, Return
from jaz_actors.payload import ErrorRecord
from jaz_actors.refs import ByReference
from jaz_actors.transfer import error_record, pack, preview


class _Checked(Builtin):
    """Counts what a check in the frame has refused, and gives up after `max_failures` (None: never)."""

    def _begin(self, max_failures: int | None) -> None:
        if max_failures is not None and (
            not isinstance(max_failures, int) or isinstance(max_failures, bool) or max_failures < 0
        ):
            raise ConfigurationError("max_failures", f"must be a whole number of at least 0, or None: {max_failures!r}")
        self._max_failures = max_failures
        self._failures = 0
        self._number: int | None = None

    def numbered(self, check: int) -> None:
        self._number = check

    def on_repl_exec_complete(self, event: events.REPLExecComplete) -> Answer:
        result = event.result
        if not isinstance(result, Return):
            return None
        rejection = next((r for r in result.rejections if r.check == self._number), None)
        if rejection is None:
            return None
        self._failures += 1
        if self._max_failures is not None and self._failures > self._max_failures:
            return ModifyExecResult(Raise(self._error(rejection)))
        return ModifyExecResult(Continue("", f"{self._refusal(rejection)} Nothing was finished.\n"))

    def _error(self, rejection: Rejection) -> ErrorRecord:
        raise NotImplementedError

    def _refusal(self, rejection: Rejection) -> str:
        raise NotImplementedError


class ReturnType(_Checked, Builtin):
    """The result must satisfy a type hint, anything that beartype understands; None means that None is returned.

    A value that does not is refused and the agent told why; after more than `max_failures` refusals the invocation
    ends by raising ReturnTypeError (None: no end). Large containers are checked by sample. A result that another
    hook supplies is not checked.
    """

    says_return_type = True

    def __init__(self, hint: Any, *, max_failures: int | None = None) -> None:
        _check_hint(hint)
        try:
            pickled = pack(hint)
        except Exception as error:
            raise ConfigurationError("ReturnType", f"{hint!r} cannot be sent to a frame: {error}") from error
        self._begin(max_failures)
        self._spec = ReturnTypeSpec(pickled, hint_text(hint), max_failures)

    @classmethod
    def from_spec(cls, spec: ReturnTypeSpec) -> ReturnType:
        """The hook again, for a process that does not load the hint."""
        hook = cls.__new__(cls)
        hook._begin(spec.max_failures)
        hook._spec = spec
        return hook

    def to_spec(self, pack: PackValue) -> ReturnTypeSpec:
        return self._spec

    def return_check(self) -> Check:
        return Check(True, self._spec.hint)

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        if event.iteration != 0:
            return None
        text = f"The result must be of this type:\n<return_type>{self._spec.text}</return_type>"
        return AddMessages((NewMessage("user", text),), persistent=True, pinned=True)

    def _error(self, rejection: Rejection) -> ErrorRecord:
        return error_record(ReturnTypeError(self._spec.text, rejection.reason), traceback_text="")

    def _refusal(self, rejection: Rejection) -> str:
        return f"ReturnTypeError: {ReturnTypeError(self._spec.text, rejection.reason)}"


class ValidateReturn(_Checked, Builtin):
    """The result must pass `check(value)`, which raises to refuse it; what it raises is told to the agent.

    The check runs in the agent's own process, on a copy of the function; `by_reference(function)` runs it here. After
    more than `max_failures` refusals the invocation ends by raising what the check raised (None: no end). A result that
    another hook supplies is not checked.
    """

    def __init__(self, check: Callable[[Any], object], *, max_failures: int | None = None) -> None:
        if not callable(check) and not isinstance(check, ByReference):
            raise ConfigurationError("ValidateReturn", f"the check is a function of the value, not {check!r}")
        self._begin(max_failures)
        self._check = check

    @classmethod
    def from_spec(cls, spec: ValidateReturnSpec) -> ValidateReturn:
        hook = cls.__new__(cls)
        hook._begin(spec.max_failures)
        hook._spec = spec
        return hook

    _spec: ValidateReturnSpec

    def to_spec(self, pack: PackValue) -> ValidateReturnSpec:
        name = getattr(self._check, "__name__", type(self._check).__name__)
        return ValidateReturnSpec(pack("check", self._check), name, self._max_failures)

    def return_check(self) -> Check:
        return Check(False, self._spec.check)

    def _error(self, rejection: Rejection) -> ErrorRecord:
        return rejection.error or ErrorRecord("ValueError", rejection.reason)

    def _refusal(self, rejection: Rejection) -> str:
        return f"The result was refused: {rejection.reason}."


class ValidateREPLCode(Hook):
    """Every turn's code, as it would run, must pass `check(code)`, which raises to refuse it; then nothing is run.

    The check runs where the hook was activated. After more than `max_failures` refusals in one invocation it is aborted
    with what the check raised (None: no end).
    """

    def __init__(self, check: Callable[[str], object], *, max_failures: int | None = None) -> None:
        if not callable(check):
            raise ConfigurationError("ValidateREPLCode", f"the check is a function of the code, not {check!r}")
        self._check = check
        self._max_failures = max_failures
        self._failures: Counter[str] = Counter()

    async def on_repl_exec_send(self, event: events.REPLExecSend) -> Answer:
        try:
            verdict = self._check(event.code)
            if isinstance(verdict, Awaitable):
                await verdict
        except Exception as error:
            self._failures[event.invoke_id] += 1
            if self._max_failures is not None and self._failures[event.invoke_id] > self._max_failures:
                return abort(error)
            text = f"The code was refused, and nothing was run: {type(error).__name__}: {error}\n"
            return SupplyExecResult(Continue("", text))
        return None

    def on_invoke_exit(self, event: events.InvokeExit) -> None:
        self._failures.pop(event.invoke_id, None)


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
