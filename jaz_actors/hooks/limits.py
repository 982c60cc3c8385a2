"""Limits on one invocation: turns and depth."""

from __future__ import annotations

from jaz_actors import events
from jaz_actors.effects import AddMessages, DisableRecursion, NewMessage
from jaz_actors.errors import ConfigurationError, IterationLimitExceeded, RecursionLimitExceeded
from jaz_actors.hooks.base import Answer, Hook, abort
from jaz_actors.hooks.specs import IterationLimitSpec, RecursionLimitSpec


class IterationLimit(Hook):
    """At most `max_iterations` turns; the next query aborts with IterationLimitExceeded.

    `warning_text` is shown, for that query only, as soon as no more than `warn_remaining` turns are left.
    """

    placement = "local"

    def __init__(
        self, max_iterations: int, *, warning_text: str | None = None, warn_remaining: int | None = None
    ) -> None:
        if not isinstance(max_iterations, int) or max_iterations < 1:
            raise ConfigurationError("max_iterations", f"must be a whole number of at least 1, got {max_iterations!r}")
        if (warning_text is None) != (warn_remaining is None):
            raise ConfigurationError("warning_text", "goes with warn_remaining; give both or neither")
        if warn_remaining is not None and warn_remaining < 1:
            raise ConfigurationError("warn_remaining", "must be at least 1")
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


class RecursionLimit(Hook):
    """Invocations at depth `max_depth` (a root has depth 1) cannot call others; deeper ones are aborted.

    Holds for a whole tree, so it is activated with `with`. Of nested limits the tightest counts.
    """

    placement = "local"
    propagating_only = True

    def __init__(self, max_depth: int) -> None:
        if not isinstance(max_depth, int) or max_depth < 1:
            raise ConfigurationError("max_depth", f"must be a whole number of at least 1, got {max_depth!r}")
        self.max_depth = max_depth

    def on_invoke_enter(self, event: events.InvokeEnter) -> Answer:
        if event.depth > self.max_depth:
            return abort(RecursionLimitExceeded(event.depth, self.max_depth))
        return DisableRecursion() if event.depth == self.max_depth else None

    def to_spec(self) -> RecursionLimitSpec:
        return RecursionLimitSpec(self.max_depth)
