"""What a hook overrides, how it answers, and how it is activated."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import cloudpickle
import pytest

from jaz_actors import events
from jaz_actors.effects import Abort, DisableRecursion, Effect
from jaz_actors.errors import HookActivationError, HookFailed, InvalidEffect, IterationLimitExceeded
from jaz_actors.events import EVENT_TYPES, Event, InvokeEnter, InvokeExit, LLMQueryEnter, REPLExecExit
from jaz_actors.hooks.base import Hook, active_hooks, answer, check_activation, handled_events, handler_name
from jaz_actors.hooks.limits import IterationLimit, RecursionLimit
from jaz_actors.hooks.returns import ReturnType
from jaz_actors.hooks.values import abort
from jaz_actors.transfer import load_error

STOP = abort(ValueError("stop"))


class Recording(Hook):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def setup(self) -> None:
        self.calls.append("setup")

    def teardown(self, error: BaseException | None) -> None:
        self.calls.append(f"teardown {error!r}")


class Counting(Hook):
    """At module level, so that plain pickle finds it."""

    def __init__(self) -> None:
        self.count = 0

    def on_invoke_enter(self, event: InvokeEnter) -> None:
        self.count += 1


# -- what is overridden


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_every_event_has_a_handler_that_can_be_overridden_alone(kind: type[Event]) -> None:
    hook = type("Mine", (Hook,), {handler_name(kind): lambda self, event: None})
    assert handled_events(hook) == {kind}


def test_a_hook_handles_what_it_and_its_bases_override() -> None:
    class Parent(Hook):
        def on_invoke_enter(self, event: InvokeEnter) -> None: ...

    class Child(Parent):
        def on_repl_exec_exit(self, event: REPLExecExit) -> None: ...

    assert handled_events(Hook) == set()
    assert handled_events(Child) == {InvokeEnter, REPLExecExit}


def test_on_any_handles_everything() -> None:
    class All(Hook):
        def on_any(self, event: Event) -> None: ...

    assert handled_events(All) == set(EVENT_TYPES)


def test_a_class_is_looked_at_once_and_not_kept_alive() -> None:
    hook = type("Mine", (Hook,), {"on_invoke_enter": lambda self, event: None})
    assert handled_events(hook) is handled_events(hook)
    gone = weakref.ref(hook)
    del hook
    gc.collect()
    assert gone() is None


# -- answers


def _gives(answered: Any) -> type[Hook]:
    return type("Mine", (Hook,), {"on_invoke_enter": lambda self, event: answered})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answered", "effects"),
    [
        (None, []),
        (STOP, [STOP]),
        ([STOP, DisableRecursion()], [STOP, DisableRecursion()]),
        ((STOP,), [STOP]),
        ([], []),
    ],
)
async def test_a_handler_gives_one_effect_or_several_or_none(
    answered: Any, effects: list[Effect], make: Callable[..., Any]
) -> None:
    assert await answer(_gives(answered)(), make(InvokeEnter)) == effects


@pytest.mark.asyncio
async def test_a_handler_may_be_async_or_a_generator_and_on_any_comes_last(make: Callable[..., Any]) -> None:
    class Mine(Hook):
        async def on_invoke_enter(self, event: InvokeEnter) -> Effect:
            await asyncio.sleep(0)
            return STOP

        def on_any(self, event: Event) -> Iterator[Effect]:
            yield DisableRecursion()

    assert await answer(Mine(), make(InvokeEnter)) == [STOP, DisableRecursion()]


@pytest.mark.asyncio
async def test_a_handler_that_raises_is_named_and_its_error_chained(make: Callable[..., Any]) -> None:
    class Mine(Hook):
        def on_invoke_enter(self, event: InvokeEnter) -> Iterator[Effect]:
            yield STOP
            raise KeyError("gone")

    with pytest.raises(HookFailed) as failed:
        await answer(Mine(), make(InvokeEnter))
    assert failed.value.args == ("Mine", "InvokeEnter", "KeyError: 'gone'")
    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.asyncio
async def test_what_no_loop_can_read_is_refused(make: Callable[..., Any]) -> None:
    async def stream(self: Hook, event: Event) -> AsyncIterator[Effect]:
        yield STOP

    with pytest.raises(HookFailed, match="async_generator"):
        await answer(type("Mine", (Hook,), {"on_invoke_enter": stream})(), make(InvokeEnter))
    with pytest.raises(HookFailed, match="gives effects, not 's'"):
        await answer(_gives("stop")(), make(InvokeEnter))
    with pytest.raises(InvalidEffect, match="DisableRecursion"):
        await answer(type("Mine", (Hook,), {"on_any": lambda self, event: DisableRecursion()})(), make(InvokeExit))


@pytest.mark.asyncio
async def test_cancellation_passes_through_a_handler(make: Callable[..., Any]) -> None:
    async def wait(self: Hook, event: Event) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await answer(type("Mine", (Hook,), {"on_any": wait})(), make(InvokeEnter))


def test_abort_carries_the_error_itself() -> None:
    effect = abort(IterationLimitExceeded(3))
    assert isinstance(effect, Abort)
    assert load_error(effect.error).args == (3,)
    assert effect.error.traceback == ""


# -- `with`


def test_a_block_activates_outermost_first_and_tells_the_hook() -> None:
    outer, inner = Recording(), Recording()
    with outer:
        with inner:
            assert active_hooks() == (outer, inner)
        assert active_hooks() == (outer,)
    assert active_hooks() == ()
    assert outer.calls == inner.calls == ["setup", "teardown None"]


def test_teardown_is_told_what_ended_the_block() -> None:
    hook = Recording()
    with pytest.raises(ValueError, match="why"), hook:
        raise ValueError("why")
    assert hook.calls[-1] == "teardown ValueError('why')"


def test_one_instance_has_one_activation_at_a_time() -> None:
    hook = Recording()
    with hook:
        with pytest.raises(HookActivationError, match="active already"), hook:
            pass
        assert active_hooks() == (hook,)
    with hook:
        pass
    assert hook.calls == ["setup", "teardown None"] * 2


def test_an_instance_active_in_one_thread_cannot_be_activated_in_another() -> None:
    hook, errors = Recording(), []

    def enter() -> None:
        assert active_hooks() == ()
        try:
            hook.__enter__()
        except HookActivationError as error:
            errors.append(error)

    with hook:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_a_hook_that_is_not_active_cannot_be_left() -> None:
    with pytest.raises(HookActivationError, match="not active"):
        Recording().__exit__(None, None, None)


def test_blocks_that_end_out_of_order_leave_nothing_active() -> None:
    first, second = Recording(), Recording()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert active_hooks() == (second,)
    second.__exit__(None, None, None)
    assert active_hooks() == ()


def test_a_setup_or_teardown_that_fails_leaves_the_hook_usable() -> None:
    class Once(Recording):
        fail = "setup"

        def setup(self) -> None:
            if self.fail == "setup":
                raise OSError("no disk")

        def teardown(self, error: BaseException | None) -> None:
            if self.fail == "teardown":
                raise OSError("no disk")

    hook = Once()
    for stage in ("setup", "teardown"):
        hook.fail = stage
        with pytest.raises(OSError, match="no disk"), hook:
            pass
        assert active_hooks() == ()
    hook.fail = ""
    with hook:
        assert active_hooks() == (hook,)


def test_a_hook_may_be_unhashable_and_equal_to_others() -> None:
    class Equal(Hook):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

    first, second = Equal(), Equal()
    with first:
        with second:
            assert [id(hook) for hook in active_hooks()] == [id(first), id(second)]
        (left,) = active_hooks()
        assert left is first
        check_activation([Equal()], active_hooks())


@pytest.mark.asyncio
async def test_a_task_started_inside_the_block_sees_the_hook_and_its_siblings_do_not() -> None:
    hook = Recording()
    entered, checked = asyncio.Event(), asyncio.Event()

    async def beside() -> tuple[Hook, ...]:
        await entered.wait()
        seen = active_hooks()
        checked.set()
        return seen

    async def inside() -> tuple[Hook, ...]:
        return active_hooks()

    async with asyncio.TaskGroup() as group:
        outside = group.create_task(beside())
        await asyncio.sleep(0)
        with hook:
            within = group.create_task(inside())
            entered.set()
            await checked.wait()
    assert within.result() == (hook,)
    assert outside.result() == ()


# -- positional


def test_hooks_that_cannot_hold_together_are_refused() -> None:
    hook, limit = Recording(), IterationLimit(3)
    cases: list[tuple[list[Hook], list[Hook], str]] = [
        ([hook], [hook], "enclosing"),
        ([hook, limit, hook], [], "twice"),
        ([RecursionLimit(2)], [], "with `with`"),
        ([ReturnType(int), ReturnType(int)], [], "one return type"),
        ([ReturnType(int)], [ReturnType(str)], "one return type"),
        ([], [ReturnType(int), ReturnType(str)], "one return type"),
    ]
    for positional, ambient, reason in cases:
        with pytest.raises(HookActivationError, match=reason):
            check_activation(positional, ambient)


def test_hooks_that_can_are_taken() -> None:
    check_activation([], [])
    check_activation(
        [Recording(), IterationLimit(3), IterationLimit(3), ReturnType(int)], [RecursionLimit(2), Recording()]
    )


# -- pickling


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_copy_has_the_state_but_not_the_activation(dumps: Callable[[object], bytes]) -> None:
    hook = Counting()
    with hook:
        hook.count = 2
        copy = pickle.loads(dumps(hook))
        with copy:
            assert active_hooks() == (hook, copy)
    assert isinstance(copy, Counting)
    assert copy.count == 2


def test_a_class_made_in_a_function_crosses_by_value() -> None:
    class Mine(Hook):
        placement = "local"

        def on_llm_query_enter(self, event: events.LLMQueryEnter) -> None: ...

    copy = pickle.loads(cloudpickle.dumps(Mine()))
    assert handled_events(type(copy)) == {LLMQueryEnter}
