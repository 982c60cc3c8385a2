"""ReturnType: what it takes, what the frame checks, what the host counts."""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest

from jaz_actors.effects import AddMessages, Effect, ModifyExecResult
from jaz_actors.errors import ConfigurationError, ReturnTypeError
from jaz_actors.events import LLMQueryEnter, REPLExecComplete
from jaz_actors.hooks.base import answer, handled_events
from jaz_actors.hooks.returns import ReturnType, check_return, hint_text
from jaz_actors.outcomes import Continue, ExecResult, Raise, Rejection, Return
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.transfer import load_error, pack, unpack

REFUSED = Return(Payload(b"1"), (Rejection(0, "got 'x' of type str."),))


def _pack(name: str, value: object) -> Payload:
    return pack(value)


class Point:
    pass


def _refuse(value: object) -> bool:
    raise ArithmeticError("cannot tell")


def _validator(check: Callable[[Any], bool]) -> Any:
    from beartype.vale import Is

    return Annotated[object, Is[check]]


# -- hints


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "int"),
        (None, "None"),
        (Point, "Point"),
        (list[int], "list[int]"),
        (dict[str, int | None], "dict[str, int | None]"),
        (Literal["int", "str"], "typing.Literal['int', 'str']"),
        (typing.List[int], "typing.List[int]"),  # noqa: UP006
    ],
)
def test_a_hint_is_named_and_carried_as_bytes(hint: Any, text: str) -> None:
    spec = ReturnType(hint).to_spec(_pack)
    assert spec.text == hint_text(hint) == text
    assert unpack(spec.hint) == hint


@pytest.mark.parametrize("hint", [3, lambda: 1, [int], {"a": int}, "int", list["Point"], int | list["Point"]])
def test_what_is_no_hint_is_refused_where_it_is_written(hint: Any) -> None:
    with pytest.raises(ConfigurationError, match="ReturnType"):
        ReturnType(hint)


def test_a_hint_that_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        ReturnType(_validator(lambda value: lock is value))


def test_a_validator_that_refuses_none_is_a_good_hint() -> None:
    ReturnType(_validator(_refuse))


def test_a_negative_number_of_failures_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_failures"):
        ReturnType(int, max_failures=-1)


# -- the check in the frame


@pytest.mark.parametrize(
    ("hint", "value"),
    [(int, 3), (None, None), (list[int], []), (int | str, "x"), (Point, Point()), (Any, object()), (Literal["a"], "a")],
)
def test_a_value_of_the_type_passes(hint: Any, value: object) -> None:
    assert check_return(hint, value) is None


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (int, "3", "got '3' of type str."),
        (int, None, "got None of type NoneType."),
        (None, 0, "got 0 of type int."),
        (list[int], ["a"], "got ['a'] of type list."),
        (typing.List[int], ["a"], "got ['a'] of type list."),  # noqa: UP006
    ],
)
def test_another_value_is_refused_with_what_it_is(hint: Any, value: object, reason: str) -> None:
    assert check_return(hint, value) == reason


def test_a_large_value_is_shown_in_short() -> None:
    reason = check_return(int, "x" * 10_000)
    assert reason is not None
    assert len(reason) < 300


def test_a_check_that_raises_refuses() -> None:
    assert check_return(_validator(_refuse), 3) == "checking 3 raised ArithmeticError: cannot tell."


# -- the host's side


@pytest.mark.asyncio
async def test_the_type_is_told_once_and_for_good(make: Callable[..., Any]) -> None:
    hook = ReturnType(list[int])
    (effect,) = await answer(hook, make(LLMQueryEnter, iteration=0))
    assert isinstance(effect, AddMessages)
    assert effect.persistent
    assert effect.index is None
    (message,) = effect.messages
    assert message.role == "user"
    assert "<return_type>list[int]</return_type>" in message.content
    assert await answer(hook, make(LLMQueryEnter, iteration=1)) == []


async def _result(hook: ReturnType, result: ExecResult, make: Callable[..., Any]) -> ExecResult | None:
    effects: list[Effect] = await answer(hook, make(REPLExecComplete, result=result))
    if not effects:
        return None
    (effect,) = effects
    assert isinstance(effect, ModifyExecResult)
    return effect.result


@pytest.mark.asyncio
@pytest.mark.parametrize("result", [Continue("x"), Return(Payload(b"1")), Raise(ErrorRecord("E", "m"))])
async def test_what_was_not_refused_is_left_alone(result: ExecResult, make: Callable[..., Any]) -> None:
    assert await _result(ReturnType(int, max_failures=0), result, make) is None


@pytest.mark.asyncio
async def test_a_refused_value_goes_back_to_the_agent_without_end(make: Callable[..., Any]) -> None:
    hook = ReturnType(int)
    hook.numbered(0)
    for _ in range(20):
        result = await _result(hook, REFUSED, make)
        assert isinstance(result, Continue)
        assert "not of type int: got 'x' of type str." in result.error


@pytest.mark.asyncio
@pytest.mark.parametrize("max_failures", [0, 1, 2])
async def test_one_refusal_more_than_allowed_raises(max_failures: int, make: Callable[..., Any]) -> None:
    hook = ReturnType.from_spec(ReturnType(int, max_failures=max_failures).to_spec(_pack))
    hook.numbered(0)
    for _ in range(max_failures):
        assert isinstance(await _result(hook, REFUSED, make), Continue)
        assert await _result(hook, Continue("in between"), make) is None
    result = await _result(hook, REFUSED, make)
    assert isinstance(result, Raise)
    error = load_error(result.error)
    assert isinstance(error, ReturnTypeError)
    assert error.args == ("int", "got 'x' of type str.")


def test_it_costs_two_events() -> None:
    assert handled_events(ReturnType) == {LLMQueryEnter, REPLExecComplete}
