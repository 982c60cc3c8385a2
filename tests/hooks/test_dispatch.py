"""Who is asked, in which order, and what a failing hook does."""

from __future__ import annotations

import asyncio
import logging
import timeit
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from jaz_actors.effects import Abort, DisableRecursion, Effect, SupplyLLMResponse
from jaz_actors.errors import ChannelClosed, HookFailed, InvalidEffect, RemoteError
from jaz_actors.events import EVENT_TYPES, Event, InvokeEnter, InvokeExit, LLMQueryEnter
from jaz_actors.hooks.base import Hook
from jaz_actors.hooks.dispatch import Dispatcher, RemoteHook
from jaz_actors.messages import Completion
from jaz_actors.payload import ErrorRecord
from jaz_actors.spec import HookFacts

Ask = Callable[[RemoteHook, Event], list[Effect]]


def _stop(text: str) -> Abort:
    return Abort(ErrorRecord("Stop", text))


class Saying(Hook):
    """Aborts with its own text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def on_invoke_enter(self, event: InvokeEnter) -> Effect:
        return _stop(self.text)


class SayingLater(Saying):
    async def on_invoke_enter(self, event: InvokeEnter) -> Effect:  # type: ignore[override]
        await asyncio.sleep(0)
        return _stop(self.text)


def _remote(name: str, *tags: str, ignores_errors: bool = False, observer: bool = False) -> RemoteHook:
    return RemoteHook("driver", 0, HookFacts(name, frozenset(tags), ignores_errors), observer)


class Home:
    """Stands for the way home: remembers who was asked and told what."""

    def __init__(self, ask: Ask = lambda hook, event: [_stop(hook.facts.name)]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.told: list[tuple[list[str], str]] = []
        self._ask = ask

    async def call(self, hook: RemoteHook, event: Event) -> list[Effect]:
        self.asked.append((hook.facts.name, type(event).__name__))
        await asyncio.sleep(0)
        return self._ask(hook, event)

    def observe(self, hooks: Sequence[RemoteHook], event: Event) -> None:
        self.told.append(([hook.facts.name for hook in hooks], type(event).__name__))

    def dispatcher(self, *hooks: Hook | RemoteHook) -> Dispatcher:
        return Dispatcher(hooks, call=self.call, observe=self.observe)


def _raising(error: BaseException) -> Ask:
    def ask(hook: RemoteHook, event: Event) -> list[Effect]:
        raise error

    return ask


def _failing(error: BaseException, on_error: str = "fail") -> Hook:
    def fail(self: Hook, event: Event) -> None:
        raise error

    hook: Hook = type("Failing", (Hook,), {"on_error": on_error, "on_invoke_enter": fail})()
    return hook


def _texts(effects: list[Effect]) -> list[str]:
    return [effect.error.message for effect in effects if isinstance(effect, Abort)]


@pytest.mark.asyncio
async def test_hooks_answer_in_their_order_wherever_they_are(make: Callable[..., Any]) -> None:
    home = Home()
    dispatcher = home.dispatcher(
        _remote("home-1", "invoke_enter"), Saying("local-1"), SayingLater("local-2"), _remote("home-2", "invoke_enter"),
        Saying("local-3"),
    )  # fmt: skip
    assert _texts(await dispatcher.emit(make(InvokeEnter))) == ["home-1", "local-1", "local-2", "home-2", "local-3"]


@pytest.mark.asyncio
async def test_only_events_that_a_hook_overrides_go_home(make: Callable[..., Any]) -> None:
    home = Home(lambda hook, event: [])
    dispatcher = home.dispatcher(_remote("one", "invoke_enter", "invoke_exit"), _remote("two", "invoke_exit"))
    for kind in EVENT_TYPES:
        await dispatcher.emit(make(kind))
    assert home.asked == [("one", "InvokeEnter"), ("one", "InvokeExit"), ("two", "InvokeExit")]


@pytest.mark.asyncio
async def test_observers_are_told_before_hooks_are_asked_and_only_of_what_they_handle(make: Callable[..., Any]) -> None:
    home = Home(lambda hook, event: [DisableRecursion()] if home.told else [])
    dispatcher = home.dispatcher(
        _remote("asked", "invoke_enter"),
        _remote("log", "invoke_enter", "invoke_exit", observer=True),
        _remote("trace", "invoke_enter", observer=True),
    )
    assert await dispatcher.emit(make(InvokeEnter)) == [DisableRecursion()]
    for kind in (InvokeExit, LLMQueryEnter):
        assert await dispatcher.emit(make(kind)) == []
    assert home.told == [(["log", "trace"], "InvokeEnter"), (["log"], "InvokeExit")]
    assert home.asked == [("asked", "InvokeEnter")]


def test_only_events_that_someone_handles_are_wanted() -> None:
    assert not any(Home().dispatcher().wants(kind) for kind in EVENT_TYPES)
    dispatcher = Home().dispatcher(
        Saying("x"), _remote("one", "llm_query_enter"), _remote("two", "invoke_exit", observer=True)
    )
    assert {kind for kind in EVENT_TYPES if dispatcher.wants(kind)} == {InvokeEnter, LLMQueryEnter, InvokeExit}


def test_an_event_that_nobody_handles_costs_about_as_much_as_an_empty_coroutine(make: Callable[..., Any]) -> None:
    """A quarter of a microsecond where this was written; as a ratio, so that a busy machine passes too."""
    dispatcher = Home().dispatcher(*(Saying(str(number)) for number in range(50)), _remote("one", "invoke_exit"))

    async def empty(event: Event) -> list[Effect]:
        return []

    def cost(emit: Callable[[Event], Coroutine[Any, Any, list[Effect]]]) -> float:
        event = make(LLMQueryEnter)

        def emitted() -> None:
            try:
                emit(event).send(None)
            except StopIteration:
                return
            raise AssertionError("it waited")

        return min(timeit.repeat(emitted, number=1000, repeat=50))

    assert cost(dispatcher.emit) < 3 * cost(empty)


# -- failures


@pytest.mark.asyncio
async def test_a_hook_that_raises_fails_the_invocation(make: Callable[..., Any]) -> None:
    with pytest.raises(HookFailed) as failed:
        await Home().dispatcher(_failing(KeyError("gone"))).emit(make(InvokeEnter))
    assert failed.value.args == ("Failing", "InvokeEnter", "KeyError: 'gone'")
    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error", [KeyError("gone"), ChannelClosed("a child's host", "gone"), InvalidEffect("H", "E", "V")]
)
async def test_a_hook_may_be_ignored_when_it_raises_anything(
    error: Exception, make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = Home().dispatcher(Saying("before"), _failing(error, "ignore"), Saying("after"))
    with caplog.at_level(logging.WARNING, "jaz_actors.hooks"):
        assert _texts(await dispatcher.emit(make(InvokeEnter))) == ["before", "after"]
    (record,) = caplog.records
    assert "Failing raised on InvokeEnter" in record.message
    assert record.exc_info is not None


@pytest.mark.asyncio
async def test_a_hook_that_failed_at_home_obeys_its_policy(make: Callable[..., Any]) -> None:
    home = Home(_raising(HookFailed("one", "InvokeEnter", "KeyError: 'gone'")))
    with pytest.raises(HookFailed, match="hook one raised on InvokeEnter: KeyError: 'gone'"):
        await home.dispatcher(_remote("one", "invoke_enter")).emit(make(InvokeEnter))
    ignored = home.dispatcher(_remote("one", "invoke_enter", ignores_errors=True), Saying("after"))
    assert _texts(await ignored.emit(make(InvokeEnter))) == ["after"]


@pytest.mark.asyncio
async def test_an_answer_that_cannot_be_read_is_the_hooks_failure(make: Callable[..., Any]) -> None:
    home = Home(_raising(RemoteError("TypeError", "cannot encode")))
    with pytest.raises(HookFailed, match="cannot encode") as failed:
        await home.dispatcher(_remote("one", "invoke_enter")).emit(make(InvokeEnter))
    assert isinstance(failed.value.__cause__, RemoteError)


@pytest.mark.asyncio
@pytest.mark.parametrize("ignores_errors", [False, True])
async def test_a_lost_way_home_is_no_failure_of_the_hook(ignores_errors: bool, make: Callable[..., Any]) -> None:
    home = Home(_raising(ChannelClosed("driver", "gone")))
    with pytest.raises(ChannelClosed):
        await home.dispatcher(_remote("one", "invoke_enter", ignores_errors=ignores_errors)).emit(make(InvokeEnter))


@pytest.mark.asyncio
async def test_cancellation_is_never_ignored(make: Callable[..., Any]) -> None:
    for dispatcher in (
        Home().dispatcher(_failing(asyncio.CancelledError(), "ignore")),
        Home(_raising(asyncio.CancelledError())).dispatcher(_remote("one", "invoke_enter", ignores_errors=True)),
    ):
        with pytest.raises(asyncio.CancelledError):
            await dispatcher.emit(make(InvokeEnter))


@pytest.mark.asyncio
async def test_an_effect_at_the_wrong_stage_is_refused_with_the_hooks_name(make: Callable[..., Any]) -> None:
    wrong = SupplyLLMResponse(Completion("x"))

    class Mine(Hook):
        on_error = "ignore"

        def on_invoke_enter(self, event: InvokeEnter) -> Effect:
            return wrong

    for hook, name in ((Mine(), "Mine"), (_remote("one", "invoke_enter", ignores_errors=True), "one")):
        with pytest.raises(InvalidEffect) as refused:
            await Home(lambda hook, event: [wrong]).dispatcher(hook).emit(make(InvokeEnter))
        assert refused.value.args == (name, "SupplyLLMResponse", "InvokeEnter")
