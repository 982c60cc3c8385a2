"""Limits on one invocation: turns, depth, time; and the opposite, that it may not finish at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jaz_actors import events
from jaz_actors.effects import AddMessages, BlackboardWrite, DisableRecursion, Effect, ModifyExecResult, NewMessage
from jaz_actors.errors import ConfigurationError, IterationLimitExceeded, RecursionLimitExceeded
from jaz_actors.hooks.base import Answer
from jaz_actors.hooks.specs import (
    BudgetForcingSpec,
    Builtin,
    IterationLimitSpec,
    PackValue,
    RecursionLimitSpec,
    TimeLimitSpec,
)
from jaz_actors.hooks.values import abort
from jaz_actors.outcomes import Continue

# Key of the blackboard: True while the turn is the last that some limit allows.
LAST_TURN = "jaz.last_turn"


class IterationLimit(Builtin):
    """At most `max_iterations` turns; the next query aborts with IterationLimitExceeded.

    `warning_text` is shown, for that query only, as soon as no more than `warn_remaining` turns are left.
    """

    def __init__(
        self, max_iterations: int, *, warning_text: str | None = None, warn_remaining: int | None = None
    ) -> None:
        check_count("max_iterations", max_iterations)
        if (warning_text is None) != (warn_remaining is None):
            raise ConfigurationError("warning_text", "goes with warn_remaining; give both or neither")
        if warn_remaining is not None:
            check_count("warn_remaining", warn_remaining)
        if not isinstance(warning_text, str | None):
            raise ConfigurationError("warning_text", f"must be a text, got {warning_text!r}")
        self.max_iterations = max_iterations
        self.warning_text = warning_text
        self.warn_remaining = warn_remaining

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        remaining = self.max_iterations - event.iteration
        if remaining <= 0:
            return abort(IterationLimitExceeded(self.max_iterations))
        answer: list[Effect] = [BlackboardWrite(LAST_TURN, True)] if remaining == 1 else []
        if self.warning_text is not None and self.warn_remaining is not None and remaining <= self.warn_remaining:
            answer.append(AddMessages((NewMessage("user", self.warning_text),)))
        return answer

    def to_spec(self, pack: PackValue) -> IterationLimitSpec:
        return IterationLimitSpec(self.max_iterations, self.warning_text, self.warn_remaining)


class RecursionLimit(Builtin):
    """Invocations at depth `max_depth` (a root has depth 1) cannot call others; deeper ones are aborted.

    Holds for a whole tree, so it is activated with `with`. Of nested limits the tightest counts.
    """

    propagating_only = True

    def __init__(self, max_depth: int) -> None:
        check_count("max_depth", max_depth)
        self.max_depth = max_depth

    def on_invoke_enter(self, event: events.InvokeEnter) -> Answer:
        if event.depth > self.max_depth:
            return abort(RecursionLimitExceeded(event.depth, self.max_depth))
        return DisableRecursion() if event.depth == self.max_depth else None

    def to_spec(self, pack: PackValue) -> RecursionLimitSpec:
        return RecursionLimitSpec(self.max_depth)


class TimeLimit(Builtin):
    """The invocation, its children included, may take `seconds` from when it begins to run; then it is aborted.

    What runs at that moment is ended: queries, code, children. Under `with`, each invocation has its own.
    """

    def __init__(self, seconds: float) -> None:
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds < float("inf"):
            raise ConfigurationError("seconds", f"must be a positive number, got {seconds!r}")
        self.seconds = float(seconds)

    def time_limit(self) -> float:
        return self.seconds

    def to_spec(self, pack: PackValue) -> TimeLimitSpec:
        return TimeLimitSpec(self.seconds)


class BudgetForcing(Builtin):
    """The first `refusals` finishes of an invocation are refused with `refusal_text`, so that it goes on thinking.

    The last turn that a limit allows may always finish.
    """

    blackboard_consumes: ClassVar[Mapping[str, str]] = {LAST_TURN: "whether a limit allows no further turn"}

    def __init__(self, refusals: int, refusal_text: str) -> None:
        check_count("refusals", refusals)
        if not isinstance(refusal_text, str) or not refusal_text:
            raise ConfigurationError("refusal_text", f"must be a text, got {refusal_text!r}")
        self.refusals = refusals
        self.refusal_text = refusal_text
        self._refused = 0

    def on_repl_exec_complete(self, event: events.REPLExecComplete) -> Answer:
        finishes = not isinstance(event.result, Continue)
        if not finishes or self._refused >= self.refusals or event.blackboard.get(LAST_TURN):
            return None
        self._refused += 1
        return ModifyExecResult(Continue("", f"{self.refusal_text}\n"))

    def to_spec(self, pack: PackValue) -> BudgetForcingSpec:
        return BudgetForcingSpec(self.refusals, self.refusal_text)


def check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(name, f"must be a whole number of at least 1, got {value!r}")
