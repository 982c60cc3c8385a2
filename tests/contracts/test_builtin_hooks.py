"""The hooks that come with the package, in real invocations on both runtimes."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from jaz_actors import (
    Aborted,
    Completed,
    ConfigOverride,
    FileLogger,
    Hook,
    IterationLimit,
    Outcome,
    ReturnType,
    Scripted,
    TimeLimit,
    ainvoke,
    amap,
    by_reference,
    errors,
    start,
)
from jaz_actors.backends.retry import Retrying
from jaz_actors.effects import AddMessages, NewMessage
from jaz_actors.events import InvokeExit, LLMQueryEnter, LLMQuerySend
from jaz_actors.hooks import (
    BudgetForcing,
    BudgetPool,
    Compaction,
    ContextWindowWarning,
    MetaData,
    SlidingWindow,
    ValidateREPLCode,
    ValidateReturn,
)
from jaz_actors.messages import Completion, Usage
from jaz_actors.protocols import CompletionRequest

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]


def script(*replies: str, **options: Any) -> ConfigOverride:
    return ConfigOverride(backend=Scripted(list(replies), **options))


async def ends(*local: Any, **inputs: object) -> Outcome:
    return await (await start(*local, **inputs)).outcome()


class Calls(Hook):
    """Which queries were made, by path, and what the agents were shown."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()
        self.shown: list[list[str]] = []
        self.depths: list[int] = []

    def on_llm_query_send(self, event: LLMQuerySend) -> None:
        self.queries[event.invoke_id.partition(":")[2]] += 1
        self.shown.append([message.content for message in event.messages[2:]])

    def on_invoke_exit(self, event: InvokeExit) -> None:
        self.depths.append(event.depth)


# -- budgets


@pytest.mark.parametrize("turns", [1, 4])
async def test_ten_calls_are_exactly_ten_for_fifty_agents_at_once(turns: int) -> None:
    replies = [*["print(1)"] * (turns - 1), "return 1"]
    pool, calls = BudgetPool(calls_budget=10), Calls()
    with script(*replies, delay=lambda request: random.random() * 0.02), pool, calls:
        outcomes = [outcome async for outcome in amap(({} for _ in range(50)), limit=50)]
    assert calls.queries.total() == 10
    assert pool.spent("calls") == 10
    exceeded = [o.error for o in outcomes if isinstance(o, Aborted)]
    assert len(exceeded) + sum(isinstance(o, Completed) for o in outcomes) == 50
    for error in exceeded:
        assert isinstance(error, errors.BudgetExceeded)
        assert (error.unit, error.budget, error.spent) == ("calls", 10, 10)
        assert sum(amount for _, amount in error.holders) <= 10
        assert all(calls.queries[path] == amount for path, amount in error.holders)


async def test_a_budget_holds_for_children_on_every_host() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return (
                "import asyncio\nchildren = [ainvoke(i=i) for i in range(90)]\n"
                "got = await asyncio.gather(*children, return_exceptions=True)\n"
                "return sum(g == 1 for g in got), {type(g).__name__ for g in got if g != 1}"
            )
        return "return 1"

    pool = BudgetPool(calls_budget=31)
    with ConfigOverride(backend=Scripted(answer, delay=0.01)), pool:
        assert await ainvoke() == (30, {"BudgetExceeded"})
    assert pool.spent("calls") == 31


async def test_a_call_that_failed_is_given_back_to_one_that_waits() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.path.endswith("bad"):
            raise errors.RequestRefused("test", "no", 400)
        return "return 1"

    def delay(request: CompletionRequest) -> float:
        return 0.3 if request.invoke_id.path.endswith("bad") else 0.0

    pool = BudgetPool(calls_budget=1)
    with ConfigOverride(backend=Scripted(answer, delay=delay)), pool:
        bad = await start(key="bad")
        async for event in bad:
            if isinstance(event, LLMQuerySend):
                break
        assert await ainvoke(key="good") == 1  # waits until it is known that the other call was none
        assert not isinstance(await bad.outcome(), Completed)
    assert pool.spent("calls") == 1


async def test_an_invocation_that_is_cancelled_gives_back_what_it_had_set_aside() -> None:
    def delay(request: CompletionRequest) -> float:
        return 60.0 if request.invoke_id.path.endswith("slow") else 0.0

    with ConfigOverride(backend=Scripted(["return 1"], delay=delay)), BudgetPool(calls_budget=1):
        slow = await start(key="slow")
        async for event in slow:
            if isinstance(event, LLMQuerySend):
                break
        waiting = asyncio.ensure_future(ainvoke(key="next"))
        slow.cancel()
        assert await waiting == 1


def priced(replies: dict[int, tuple[str, float]]) -> ConfigOverride:
    def answer(request: CompletionRequest) -> Completion:
        code, cost = replies[request.iteration]
        return Completion(code, usage=Usage(90, 10, 0, cost))

    return ConfigOverride(backend=Scripted(answer))


async def test_cost_and_tokens_are_counted_and_learnt() -> None:
    replies = dict.fromkeys(range(9), ("print(1)", 0.3))
    pool = BudgetPool(cost_budget=1.0, tokens_budget=1000)
    with priced(replies), pool:
        outcome = await ends()
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, errors.BudgetExceeded)
    assert outcome.error.unit == "US dollars"
    assert pool.spent("US dollars") == pytest.approx(1.2)  # the last call began with 0.1 left
    assert pool.spent("tokens") == 400


async def test_concurrent_calls_pass_a_cost_budget_by_one_call_at_most() -> None:
    pool = BudgetPool(cost_budget=1.0)
    with priced({0: ("return 1", 0.3)}), pool:
        outcomes = await asyncio.gather(*(ends() for _ in range(20)))
    assert sum(isinstance(o, Completed) for o in outcomes) == 4
    assert pool.spent("US dollars") == pytest.approx(1.2)


async def test_a_cost_budget_and_a_model_without_a_price_do_not_go_together() -> None:
    class Unpriced(Scripted):
        reports_cost = False

    with BudgetPool(cost_budget=1.0):
        outcome = await ends(ConfigOverride(backend=Unpriced(["return 1"])))
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, errors.UsageUnknown)


async def test_a_warning_is_shown_when_little_is_left() -> None:
    calls = Calls()
    with script("print(1)", "print(2)", "return 1"), calls:
        await ainvoke(BudgetPool(calls_budget=3, warn_calls_remaining=2, warning_text="hurry"))
    assert [shown.count("hurry") for shown in calls.shown] == [0, 1, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"calls_budget": 0}, {"calls_budget": -1}, {"cost_budget": float("nan")}, {"tokens_budget": True},
        {"calls_budget": 1, "warn_calls_remaining": 1}, {"calls_budget": 1, "warning_text": "x"},
        {"calls_budget": 1, "cost_per_call": 0.1}, {"calls_budget": 1, "warn_cost_remaining": 1, "warning_text": "x"},
    ],
)  # fmt: skip
async def test_an_impossible_budget_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigurationError):
        BudgetPool(**arguments)


# -- time


LOOPS = {
    "a query": ("return 1", 60.0),
    "code": ("while True: pass", 0.0),
    "a child": ("return invoke(task='t', below=1)", 0.0),
    "a tool": ("tool()", 0.0),
}


@pytest.mark.parametrize("what", LOOPS)
async def test_a_time_limit_ends_whatever_takes_too_long(what: str) -> None:
    code, delay = LOOPS[what]

    def answer(request: CompletionRequest) -> str:
        return code if request.invoke_id.depth == 1 else "import time\ntime.sleep(60)"

    calls = Calls()
    with ConfigOverride(backend=Scripted(answer, delay=delay)), calls:
        async with asyncio.timeout(20):
            outcome = await ends(TimeLimit(0.5), tool=by_reference(threading.Event().wait))
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, errors.TimeLimitExceeded)
    assert outcome.error.seconds == 0.5
    assert calls.depths == ([2, 1] if what == "a child" else [1])


async def test_an_agent_catches_its_childs_time_limit() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return (
                "from jaz_actors import TimeLimit, errors\n"
                "try:\n    invoke(TimeLimit(0.3), task='t')\nexcept errors.TimeLimitExceeded:\n    return 'late'"
            )
        return "while True: pass"

    with ConfigOverride(backend=Scripted(answer)):
        assert await ainvoke() == "late"


# -- validators


def _even(value: int) -> None:
    if value % 2:
        raise ValueError(f"{value} is odd")


async def test_a_validator_refuses_in_the_frame_and_then_gives_up() -> None:
    calls = Calls()
    with script("return 1", "return 2"), calls:
        assert await ainvoke(ValidateReturn(_even)) == 2
    assert calls.shown[1][-1] == "The result was refused: ValueError: 1 is odd. Nothing was finished."
    with pytest.raises(ValueError, match="3 is odd"):
        await ainvoke(ValidateReturn(_even, max_failures=1), script("return 1", "return 3", "return 2"))


async def test_a_validator_by_reference_runs_at_home_and_a_closure_that_cannot_be_copied_too() -> None:
    seen: list[int] = []
    lock = threading.Lock()

    def keep(value: int) -> None:
        with lock:
            seen.append(value)

    assert await ainvoke(ValidateReturn(keep), script("return 5")) == 5
    assert await ainvoke(ValidateReturn(by_reference(seen.append)), script("return 6")) == 6
    assert seen == [5, 6]


async def test_several_checks_each_have_their_say() -> None:
    calls = Calls()

    def small(value: int) -> None:
        if value > 10:
            raise ValueError("too large")

    with script("return 'x'", "return 13", "return 4"), calls:
        assert await ainvoke(ReturnType(int), ValidateReturn(_even), ValidateReturn(small)) == 4
    assert "not of type int" in calls.shown[1][-1]
    assert "13 is odd" in calls.shown[2][-1]
    assert "too large" in calls.shown[2][-1]


async def test_an_agent_gives_its_child_a_validator_of_its_own() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return (
                "from jaz_actors.hooks import ValidateReturn\nseen = []\n"
                "def check(value):\n    seen.append(value)\n    assert value > 1\n"
                "from jaz_actors import by_reference\n"
                "return invoke(ValidateReturn(by_reference(check)), task='t'), seen"
            )
        return f"return {request.iteration + 1}"

    with ConfigOverride(backend=Scripted(answer)):
        assert await ainvoke() == (2, [1, 2])


async def test_code_is_refused_before_it_runs_and_then_the_invocation_is_aborted() -> None:
    refused: list[str] = []

    def no_os(code: str) -> None:
        if "import os" in code:
            refused.append(code)
            raise PermissionError("no os")

    calls = Calls()
    with script("import os\nx = 1", "return 'x' in globals()"), calls, ValidateREPLCode(no_os):
        assert await ainvoke() is False
    assert refused == ["import os\nx = 1"]
    assert "PermissionError: no os" in calls.shown[1][-1]
    outcome = await ends(ValidateREPLCode(no_os, max_failures=1), script(*["import os"] * 3))
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, PermissionError)


# -- going on


async def test_finishing_is_refused_a_number_of_times_but_not_on_the_last_turn() -> None:
    replies = [f"return {n}" for n in range(9)]
    calls = Calls()
    with script(*replies), calls:
        assert await ainvoke(BudgetForcing(2, "think again")) == 2
        assert calls.shown[1][-1] == "think again"
        assert await ainvoke(BudgetForcing(5, "think again"), IterationLimit(2)) == 1
        assert await ainvoke(BudgetForcing(5, "think again"), BudgetPool(calls_budget=4)) == 3


# -- the context window


async def test_a_warning_comes_when_the_window_fills_and_only_if_its_length_is_known() -> None:
    def answer(request: CompletionRequest) -> Completion:
        code = "return 1" if request.iteration == 2 else f"print('{'x' * 40}')"
        return Completion(code, usage=Usage(100 * (request.iteration + 1), 5, 0, 0.0))

    calls = Calls()
    with ConfigOverride(backend=Scripted(answer)), calls:
        await ainvoke(ContextWindowWarning(0.5, "it fills up", context_length=400))
        await ainvoke(ContextWindowWarning(0.5, "it fills up"))
        assert [shown.count("it fills up") for shown in calls.shown] == [1, 0, 1, 0, 0, 0]
    with ConfigOverride(backend=Scripted(answer, context_length=400)), calls:
        await ainvoke(ContextWindowWarning(0.5, "it fills up"))
        assert [shown.count("it fills up") for shown in calls.shown[6:]] == [1, 0, 1]


async def test_a_window_slides_over_all_but_what_must_stay() -> None:
    calls = Calls()
    replies = [f"print('{n}' * 200)" for n in range(4)]
    with script(*replies, "return len(__history__)"), calls:
        hooks = [SlidingWindow(1.0, context_length=2000), ReturnType(int)]
        assert await ainvoke(*hooks, task="t") == 4
    seed_tokens = 2000
    for turn, shown in enumerate(calls.shown):
        assert shown[0].startswith("The result must be of this type")
        if turn:
            assert shown[-1] == str(turn - 1) * 200
        assert sum(map(len, shown)) / 4 < seed_tokens


async def test_old_turns_are_summed_up_by_a_child_and_the_rest_stays() -> None:
    def answer(request: CompletionRequest) -> Completion:
        if request.invoke_id.depth == 2:
            code = "return f'{len(messages)} messages, the first says ' + messages[0][1]"
        else:
            code = "return 'done'" if request.iteration == 5 else f"print('{request.iteration}' * 400)"
        return Completion(code, usage=Usage(sum(len(m.content) for m in request.messages) // 4, 10, 0, 0.0))

    calls = Calls()
    compaction = Compaction(fraction=0.5, keep_recent=2, context_length=1200)
    with ConfigOverride(backend=Scripted(answer)), compaction, calls:
        assert await ainvoke(ReturnType(str), task="t") == "done"
    assert calls.depths.count(2) >= 1
    last = calls.shown[-1]
    assert last[0].startswith("The result must be of this type")
    assert last[1].startswith("Summary of the turns before")
    assert "messages, the first says" in last[1]
    assert last[-1] == "4" * 400
    assert all(path.partition(".")[2].startswith("hook-") for path in calls.queries if "." in path)


async def test_a_summary_that_fails_leaves_the_turn_as_it_is() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 2:
            return "raise ValueError('cannot')"
        return "return 'done'" if request.iteration == 3 else f"print('{request.iteration}' * 4000)"

    with ConfigOverride(backend=Scripted(answer)), Compaction(fraction=0.1, keep_recent=1, context_length=1000):
        assert await ainvoke() == "done"


async def test_a_summary_may_come_from_a_function_at_home() -> None:
    asked: list[int] = []

    async def summarise(messages: list[tuple[str, str]]) -> str:
        asked.append(len(messages))
        return "in short"

    calls = Calls()
    replies = [f"print('{n}' * 4000)" for n in range(4)]
    compaction = Compaction(fraction=0.1, keep_recent=1, context_length=1000, summarizer=summarise)
    with script(*replies, "return 1"), calls, compaction:
        assert await asyncio.gather(*(ainvoke() for _ in range(3))) == [1, 1, 1]
    assert asked
    assert all(shown[0].endswith("in short") for shown in calls.shown if len(shown) > 3)


# -- loggers and facts


async def test_every_line_of_a_file_carries_the_invoke_id(tmp_path: Path) -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "print('two\\nlines')" if request.iteration == 0 else "return [invoke(n=1), invoke(n=2)]"
        return "return n"

    text, lines = tmp_path / "new" / "log.txt", tmp_path / "log.jsonl"
    note = AddMessages((NewMessage("user", "a note"),))

    class Note(Hook):
        def on_llm_query_enter(self, event: LLMQueryEnter) -> Any:
            return note if event.depth == 1 and event.iteration == 0 else None

    with ConfigOverride(backend=Scripted(answer)), Note(), FileLogger(text), FileLogger(lines, style="json"):
        run = (await start(task="t")).id.run
        await asyncio.gather(*(ainvoke(task="t") for _ in range(5)))
        async with asyncio.timeout(20):
            while text.read_text().count("completed: [1, 2]") < 6:
                await asyncio.sleep(0.05)
    written = text.read_text().splitlines()
    assert all(line.split()[1].startswith(f"{run}:") for line in written)
    assert any("hooks add a user message at 2: a note" in line for line in written)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    by_id = Counter(record["invoke_id"] for record in records)
    assert len(by_id) == 18
    assert {record["event"] for record in records} >= {"invoke_enter", "llm_query_send", "invoke_exit"}
    ends = [record for record in records if record["event"] == "invoke_exit"]
    assert all(record["outcome"]["type"] == "completed" for record in ends)


async def test_facts_stand_on_the_blackboard_of_every_invocation() -> None:
    class Reads(Hook):
        boards: list[dict[str, Any]] = []  # noqa: RUF012

        def on_invoke_exit(self, event: InvokeExit) -> None:
            self.boards.append(event.blackboard)

    hook = Reads()
    with script("return invoke(task='t') if False else 1"), MetaData(task_name="sum", n=[1]), hook:
        await ainvoke()
    assert hook.boards == [{"task_name": "sum", "n": [1]}]
    with pytest.raises(errors.ConfigurationError):
        MetaData(x=object())


# -- what dies


@pytest.mark.ray
async def test_when_a_host_dies_the_hooks_are_told_and_the_budget_is_free_again(runtime: str) -> None:
    if runtime != "ray":
        pytest.skip("hosts of their own")

    def delay(request: CompletionRequest) -> float:
        return 60.0 if "slow" in request.invoke_id.path else 0.0

    calls = Calls()
    with ConfigOverride(backend=Scripted(["return 1"], delay=delay)), BudgetPool(calls_budget=1), calls:
        slow = await start(ConfigOverride(dedicated=True), key="slow-host")
        async for event in slow:
            if isinstance(event, LLMQuerySend):
                break
        status = await slow.status()
        assert status is not None
        from jaz_actors import statistics

        pid = next(host.pid for host in await statistics() if host.host == status.host)
        psutil.Process(pid).kill()
        outcome = await slow.outcome()
        assert isinstance(outcome.error, errors.HostDied)  # type: ignore[union-attr]
        assert calls.depths == [1]
        assert await ainvoke(key="after") == 1


async def test_retries_do_not_count_twice() -> None:
    failed: set[str] = set()

    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.path not in failed:
            failed.add(request.invoke_id.path)
            raise errors.ServerUnavailable("test", "busy", 503, 0.01)
        return "return 1"

    pool = BudgetPool(calls_budget=1)
    with ConfigOverride(backend=Retrying(Scripted(answer))), pool:
        assert await ainvoke() == 1
    assert pool.spent("calls") == 1
