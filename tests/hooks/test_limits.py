"""IterationLimit and RecursionLimit at their edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaz_actors.effects import Abort, AddMessages, BlackboardWrite, DisableRecursion, Effect, NewMessage
from jaz_actors.errors import ConfigurationError, IterationLimitExceeded, RecursionLimitExceeded
from jaz_actors.events import InvokeEnter, LLMQueryEnter
from jaz_actors.hooks.base import answer, handled_events
from jaz_actors.hooks.dispatch import Dispatcher
from jaz_actors.hooks.limits import LAST_TURN, IterationLimit, RecursionLimit
from jaz_actors.transfer import load_error

LAST = BlackboardWrite(LAST_TURN, True)
WARNING = AddMessages((NewMessage("user", "hurry"),))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("iteration", "expected"), [(0, []), (1, []), (2, [WARNING]), (3, [LAST, WARNING]), (4, None), (5, None)]
)
async def test_turns_are_warned_of_and_then_ended(
    iteration: int, expected: list[Effect] | None, make: Callable[..., Any]
) -> None:
    limit = IterationLimit(4, warning_text="hurry", warn_remaining=2)
    effects = await answer(limit, make(LLMQueryEnter, iteration=iteration))
    if expected is not None:
        assert effects == expected
        return
    (effect,) = effects
    assert isinstance(effect, Abort)
    error = load_error(effect.error)
    assert isinstance(error, IterationLimitExceeded)
    assert error.max_iterations == 4


@pytest.mark.asyncio
async def test_without_a_warning_only_the_end_is_told(make: Callable[..., Any]) -> None:
    assert await answer(IterationLimit(1), make(LLMQueryEnter)) == [LAST]
    (effect,) = await answer(IterationLimit(1), make(LLMQueryEnter, iteration=1))
    assert isinstance(effect, Abort)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_iterations": 0},
        {"max_iterations": -1},
        {"max_iterations": 2.5},
        {"max_iterations": True},
        {"max_iterations": 3, "warning_text": "hurry"},
        {"max_iterations": 3, "warn_remaining": 1},
        {"max_iterations": 3, "warning_text": "hurry", "warn_remaining": 0},
        {"max_iterations": 3, "warning_text": "hurry", "warn_remaining": "1"},
        {"max_iterations": 3, "warning_text": 1, "warn_remaining": 1},
    ],
)
def test_an_iteration_limit_that_cannot_work_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        IterationLimit(**arguments)


@pytest.mark.asyncio
async def test_depth_is_allowed_then_a_leaf_then_aborted(make: Callable[..., Any]) -> None:
    limit = RecursionLimit(2)
    assert await answer(limit, make(InvokeEnter, depth=1)) == []
    assert await answer(limit, make(InvokeEnter, depth=2)) == [DisableRecursion()]
    (effect,) = await answer(limit, make(InvokeEnter, depth=3))
    assert isinstance(effect, Abort)
    error = load_error(effect.error)
    assert isinstance(error, RecursionLimitExceeded)
    assert (error.depth, error.max_depth) == (3, 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
async def test_of_nested_recursion_limits_the_tightest_counts(order: tuple[int, int], make: Callable[..., Any]) -> None:
    async def call(hook: object, event: object) -> list[Any]:
        raise AssertionError("limits are local")

    dispatcher = Dispatcher([RecursionLimit(n) for n in order], call=call, observe=lambda hooks, event: None)
    assert await dispatcher.emit(make(InvokeEnter, depth=2)) == [DisableRecursion()]


@pytest.mark.parametrize("max_depth", [0, -1, 1.5, "2", True])
def test_a_recursion_limit_that_cannot_work_is_refused(max_depth: Any) -> None:
    with pytest.raises(ConfigurationError):
        RecursionLimit(max_depth)


def test_limits_cost_one_event_each() -> None:
    assert handled_events(IterationLimit) == {LLMQueryEnter}
    assert handled_events(RecursionLimit) == {InvokeEnter}
