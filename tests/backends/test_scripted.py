"""The fake: what it answers, counts and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from jaz_actors.backends.scripted import Scripted, ScriptEnded
from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Completion
from jaz_actors.protocols import CompletionRequest
from tests.backends.asked import a_request

pytestmark = pytest.mark.asyncio


async def test_turns_get_the_replies_in_order_and_then_it_ends() -> None:
    backend = Scripted(["one", "two"])
    assert [(await backend.complete(a_request(iteration=i))).content for i in (0, 1, 0)] == ["one", "two", "one"]
    with pytest.raises(ScriptEnded, match="2 turns"):
        await backend.complete(a_request(iteration=2))


async def test_a_path_has_its_own_replies() -> None:
    backend = Scripted({"0": ["root"], "0.1": [], "*": ["other"]})
    assert (await backend.complete(a_request(path="0"))).content == "root"
    assert (await backend.complete(a_request(path="0.7"))).content == "other"
    with pytest.raises(ScriptEnded):
        await backend.complete(a_request(path="0.1"))


async def test_an_unknown_path_without_a_default_ends() -> None:
    with pytest.raises(ScriptEnded, match=r"0\.3"):
        await Scripted({"0": ["root"]}).complete(a_request(path="0.3"))


async def test_functions_may_be_async_and_give_completions() -> None:
    async def later(request: CompletionRequest) -> str:
        return request.messages[0].content.upper()

    whole = Completion("x", "length", "own")
    assert (await Scripted(later).complete(a_request("hi"))).content == "HI"
    assert await Scripted(lambda _: whole).complete(a_request()) is whole


async def test_words_are_counted_in_place_of_tokens() -> None:
    usage = (await Scripted(["a b c"], model="m").complete(a_request("one two"))).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cost_usd) == (2, 3, 0.0)


async def test_a_delay_may_depend_on_the_request() -> None:
    asked: list[str] = []

    def delay(request: CompletionRequest) -> float:
        asked.append(request.invoke_id.path)
        return 0.0

    await Scripted(["ok"], delay=delay).complete(a_request(path="4"))
    assert asked == ["4"]


@pytest.mark.parametrize("wrong", ["text", 3, [1], {"0": "text"}, {"0": [None]}, None])
async def test_a_script_that_cannot_be_played_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        Scripted(wrong)


async def test_a_function_that_gives_something_else_is_told() -> None:
    with pytest.raises(ConfigurationError, match="int"):
        await Scripted(lambda _: 3).complete(a_request())  # type: ignore[arg-type,return-value]
