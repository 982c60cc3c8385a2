"""Limits on one invocation: turns and depth."""

from __future__ import annotations

from jaz_actors import events
from jaz_actors.effects import AddMessages, DisableRecursion, NewMessage
from jaz_actors.errors import ConfigurationError, IterationLimitExceeded, RecursionLimitExceeded
from jaz_actors.hooks.base import Answer, abort
from jaz_actors.hooks.specs import Builtin, IterationLimitSpec, RecursionLimitSpec


class IterationLimit(Builtin):
    """At most `max_iterations` turns; the next query aborts with IterationLimitExceeded.

    `warning_text` is shown, for that query only, as soon as no more than `warn_remaining` turns are left.
    """

    def __init__(
        self, max_iterations: int, *, warning_text: str | None = None, warn_remaining: int | None = None
    ) -> None:
        _check_count("max_iterations", max_iterations)
        if (warning_text is None) != (warn_remaining is None):
            raise ConfigurationError("warning_text", "goes with warn_remaining; give both or neither")
        if warn_remaining is not None:
            _check_count("warn_remaining", warn_remaining)
        if not isinstance(warning_text, str | None):
            raise ConfigurationError("warning_text", f"must be a text, got {warning_text!r}")
        self.max_iterations = max_iterations
        self.warning_text = warning_text
        self.warn_remaining = warn_remaining

    def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        remaining = self.max_iterations - event.iteration
        if remaining <= 0:
            return abort(IterationLimitExceeded(self.max_iterations))
        if self.warning_text is not None and self.warn_remaining is not None and remaining <= self.warn_remaining:
            return AddMessages((NewMessage("user", self.warning_text),))
        return None

    def to_spec(self) -> IterationLimitSpec:
        return IterationLimitSpec(self.max_iterations, self.warning_text, self.warn_remaining)


class RecursionLimit(Builtin):
    """Invocations at depth `max_depth` (a root has depth 1) cannot call others; deeper ones are aborted.

    Holds for a whole tree, so it is activated with `with`. Of nested limits the tightest counts.
    """

    propagating_only = True

    def __init__(self, max_depth: int) -> None:
        _check_count("max_depth", max_depth)
        self.max_depth = max_depth

    def on_invoke_enter(self, event: events.InvokeEnter) -> Answer:
        if event.depth > self.max_depth:
            return abort(RecursionLimitExceeded(event.depth, self.max_depth))
        return DisableRecursion() if event.depth == self.max_depth else None

    def to_spec(self) -> RecursionLimitSpec:
        return RecursionLimitSpec(self.max_depth)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(name, f"must be a whole number of at least 1, got {value!r}")
