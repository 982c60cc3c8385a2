"""Invocations through the public API, on every runtime: results, inputs, recursion, isolation, cancellation, limits."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

from jaz_actors import (
    REPL,
    Aborted,
    CodeProtocol,
    Completed,
    ConfigOverride,
    Failed,
    Hook,
    IterationLimit,
    Raised,
    RecursionLimit,
    ReturnType,
    Scripted,
    ainvoke,
    amap,
    by_reference,
    describe,
    errors,
    invoke,
    scope,
    start,
    statistics,
)
from jaz_actors.effects import AddMessages, NewMessage
from jaz_actors.events import Event, InvokeExit, LLMQueryEnter, LLMQuerySend, REPLExecExit
from jaz_actors.hooks.base import Answer
from jaz_actors.outcomes import Continue
from jaz_actors.protocols import CompletionRequest

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]

# Frames and hosts have no way to import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def script(*replies: str, **options: Any) -> ConfigOverride:
    return ConfigOverride(backend=Scripted(list(replies), **options))


def answers(function: Callable[[CompletionRequest], str], **options: Any) -> ConfigOverride:
    return ConfigOverride(backend=Scripted(function, **options))


async def within(override: ConfigOverride, *hooks: Hook, **inputs: Any) -> Any:
    """An invocation whose children have the same components."""
    with override:
        return await ainvoke(*hooks, **inputs)


async def test_a_value_comes_back() -> None:
    assert await ainvoke(script("x = n + 1", "return x * 2"), n=20) == 42


async def test_invoke_blocks_and_works_on_a_thread_without_a_loop() -> None:
    assert await asyncio.to_thread(lambda: invoke(script("return n"), n={"a": (1, 2)})) == {"a": (1, 2)}


async def test_invoke_works_inside_a_running_loop() -> None:
    assert invoke(script("return n"), n=3) == 3


async def test_what_the_agent_raises_is_raised_as_itself_with_its_traceback() -> None:
    with pytest.raises(ValueError, match="cannot be done") as caught:
        await ainvoke(script("raise ValueError('cannot be done')"))
    assert any("<repl_0>" in note for note in caught.value.__notes__)


async def test_the_model_sees_inputs_observations_and_its_own_replies() -> None:
    seen: list[tuple[str, ...]] = []

    def answer(request: CompletionRequest) -> str:
        text = "\n".join(f"{m.role}: {m.content}" for m in request.messages)
        if request.iteration == 0:
            return "print('observed')"
        return f"return {text!r}"

    text = await within(answers(answer), task="do it", numbers=[1, 2])
    assert '<task type="str">\ndo it\n</task>' in text
    assert '<numbers type="list">\n[1, 2]\n</numbers>' in text
    assert "task, numbers" in text
    assert "assistant: print('observed')\nuser: observed" in text
    assert seen == []


async def test_children_get_paths_by_the_order_of_calls_and_a_frame_of_their_own() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return (
                "import asyncio\nsecret = 1\n"
                "three = [ainvoke(task='t', i=i) for i in range(3)]\n"
                "return await asyncio.gather(*three, ainvoke(task='t', i=9, key='k'))"
            )
        path = request.invoke_id.path.partition(".")[2]
        return f"return {path!r}, i, 'secret' in globals()"

    got = await within(answers(answer))
    assert got == [("0", 0, False), ("1", 1, False), ("2", 2, False), ("k", 9, False)]


async def test_a_childs_exception_is_raised_in_its_parent() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "try:\n    invoke(task='t')\nexcept KeyError as e:\n    return 'caught ' + e.args[0]"
        return "raise KeyError('k')"

    assert await within(answers(answer)) == "caught k"


@pytest.mark.parametrize("depth", [8])
async def test_a_deep_chain_finishes(depth: int) -> None:
    def answer(request: CompletionRequest) -> str:
        return "return 0 if left == 0 else 1 + invoke(left=left - 1)"

    assert await within(answers(answer), left=depth - 1) == depth - 1


async def test_a_wide_tree_finishes() -> None:
    code = (
        "import asyncio\n"
        "if left == 0:\n    return 1\n"
        "return 1 + sum(await asyncio.gather(*(ainvoke(left=left - 1) for _ in range(4))))"
    )
    assert await within(answers(lambda request: code), left=3) == 1 + 4 + 16 + 64


async def test_siblings_on_reused_hosts_never_see_each_other() -> None:
    code = (
        "import os\n"
        "os.makedirs('d', exist_ok=True); os.chdir('d')\n"
        "open('x.txt', 'a').write(str(i))\n"
        "os.environ['WHO'] = str(i)\n"
        "for _ in range(100): print(i)"
    )
    check = (
        "ok = __history__[-1].repl_output.split() == [str(i)] * 100\n"
        "return i, ok, open('x.txt').read(), os.environ['WHO'], os.listdir('.')"
    )
    for _ in range(2):
        with script(code, check):
            got = await asyncio.gather(*(ainvoke(i=i) for i in range(100)))
        assert got == [(i, True, str(i), str(i), ["x.txt"]) for i in range(100)]


async def test_a_blocked_agent_delays_no_sibling_and_answers_for_its_status() -> None:
    with script("import time\ntime.sleep(5)\nreturn 0"):
        blocked = await start()
    with script("return 1"):
        started = time.monotonic()
        assert await asyncio.gather(*(ainvoke() for _ in range(10))) == [1] * 10
        assert time.monotonic() - started < 4
    while (status := await blocked.status()) is None or status.state != "executing":
        await asyncio.sleep(0.01)
    asked = time.monotonic()
    status = await blocked.status()
    assert time.monotonic() - asked < 0.2
    assert status is not None
    assert status.state == "executing"
    blocked.cancel()
    assert isinstance(await blocked.outcome(), Aborted)


async def test_twenty_outcomes_of_which_some_raise_and_some_lose_their_frame() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.iteration:
            return "return 'after a loss'"
        return "import os\nif i < 3:\n    raise ValueError(i)\nif i < 5:\n    os._exit(1)\nreturn i"

    with answers(answer):
        outcomes = [outcome async for outcome in amap([{"i": i} for i in range(20)])]
    assert sorted(outcome.index for outcome in outcomes if outcome.index is not None) == list(range(20))
    by_index = {outcome.index: outcome for outcome in outcomes}
    for i in range(3):
        failed = by_index[i]
        assert isinstance(failed, Raised)
        assert repr(failed.error) == f"ValueError({i})"
    assert [by_index[i].result() for i in (3, 4)] == ["after a loss"] * 2
    assert [by_index[i].result() for i in range(5, 20)] == list(range(5, 20))


async def test_amap_is_bounded_and_gives_every_item_one_outcome() -> None:
    peak = running = 0
    lock = threading.Lock()

    def enter() -> None:
        nonlocal peak, running
        with lock:
            running += 1
            peak = max(peak, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    code = "enter()\nimport time\ntime.sleep(0.05)\nleave()\nreturn i"
    with script(code):
        items = [{"i": i} for i in range(12)]
        got = [o async for o in amap(items, limit=3, enter=by_reference(enter), leave=by_reference(leave))]
    assert sorted(o.result() for o in got) == list(range(12))
    assert 1 <= peak <= 3


async def test_amap_takes_keys_and_a_refused_item_is_an_outcome_like_any_other() -> None:
    with script("return x"):
        items = [{"x": 1}, {"x": (i for i in range(3))}, {"x": 3}]
        got = {o.index: o async for o in amap(items, keys=lambda i: f"doc-{i}-{time.monotonic_ns()}")}
    assert isinstance(got[1], Failed)
    assert isinstance(got[1].error, errors.InputRefused)
    assert got[0].id.path.startswith("doc-0-")
    assert (got[0].result(), got[2].result()) == (1, 3)


async def test_a_key_or_input_given_twice_touches_no_sibling() -> None:
    with script("return x + y"):
        key = f"twice-{time.monotonic_ns()}"
        got = {o.index: o async for o in amap([{"x": 1}, {"x": 2}], keys=lambda i: key, y=10)}
        assert got[0].result() == 11
        assert isinstance(got[1], Failed)
        assert isinstance(got[1].error, errors.KeyRefused)
        got = {o.index: o async for o in amap([{"x": 1}, {"x": 2, "y": 3}], y=10)}
        assert got[0].result() == 11
        assert isinstance(got[1], Failed)
        assert isinstance(got[1].error, errors.InputRefused)


async def test_closing_amap_cancels_what_still_runs() -> None:
    with script("return 1", delay=lambda request: 0.0 if request.invoke_id.path.startswith("fast") else 100.0):
        stream = amap([{}, {}], keys=lambda i: f"{'slow' if i else 'fast'}-{time.monotonic_ns()}")
        first = await anext(aiter(stream))
        assert first.index == 0
        await stream.aclose()  # type: ignore[attr-defined]


async def test_cancelling_ends_the_whole_tree() -> None:
    ended: Counter[str] = Counter()

    class Watch(Hook):
        placement = "observer"

        def on_invoke_exit(self, event: InvokeExit) -> None:
            ended[event.outcome.__class__.__name__] += 1

    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth < 3:
            return "import asyncio\nawait asyncio.gather(ainvoke(), ainvoke())"
        return "while True: pass"

    with answers(answer), Watch():
        task = asyncio.ensure_future(ainvoke())
        await _until(lambda: _live("executing", 4))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        started = time.monotonic()
        await _until(lambda: _live(None, 0))
        assert time.monotonic() - started < 3

        async def all_told() -> bool:
            return ended == {"AbortedRecord": 7}

        await _until(all_told)


async def _live(state: str | None, count: int) -> bool:
    hosts = await statistics()
    live = sum(host.live if state is None else host.states.get(state, 0) for host in hosts)
    return live == count and (state is not None or sum(host.frames for host in hosts) == 0)


async def _until(condition: Callable[[], Any], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_a_time_limit_around_an_invocation_cancels_it() -> None:
    with script("return 1", delay=100.0), pytest.raises(TimeoutError):
        await asyncio.wait_for(ainvoke(), 0.2)
    await _until(lambda: _live(None, 0))


async def test_a_started_invocation_shows_its_events_and_its_result() -> None:
    with script("x = 1", "return x"):
        invocation = await start(task="t")
        seen: list[Event] = [event async for event in invocation]
    assert [event.sequence for event in seen] == list(range(len(seen)))
    assert [type(event).__name__ for event in seen] == [
        "InvokeEnter",
        "InvokeSend",
        *[f"{span}{stage}" for span in ("LLMQuery", "REPLExec") for stage in ("Enter", "Send", "Complete", "Exit")] * 2,
        "InvokeComplete",
        "InvokeExit",
    ]
    assert await invocation == 1
    outcome = await invocation.outcome()
    assert isinstance(outcome, Completed)
    assert outcome.id == invocation.id
    assert await invocation.status() is None


async def test_a_failure_of_the_model_is_failed_never_a_value() -> None:
    def answer(request: CompletionRequest) -> str:
        raise errors.ServerUnavailable("test", "down", 503)

    with answers(answer):
        outcome = await (await start()).outcome()
        assert isinstance(outcome, Failed)
        with pytest.raises(errors.ServerUnavailable, match="down"):
            await ainvoke()


async def test_a_foreign_exception_in_a_backend_is_failed_too() -> None:
    def answer(request: CompletionRequest) -> str:
        raise LookupError("a bug")

    with answers(answer), pytest.raises(LookupError, match="a bug"):
        await ainvoke()


# -- inputs


async def test_what_cannot_be_copied_goes_by_reference_by_itself() -> None:
    class Store:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.items: list[int] = []

        def add(self, item: int) -> int:
            """Add an item."""
            self.items.append(item)
            return len(self.items)

        async def slow(self, item: int) -> int:
            await asyncio.sleep(0.01)
            return item * 2

        def __len__(self) -> int:
            return len(self.items)

        def fail(self) -> None:
            raise KeyError("at home")

    store = Store()
    code = (
        "with store.lock: pass\n"
        "n = store.add(5), store.add(6), len(store), await store.slow(4), list(store.items)\n"
        "try:\n    store.fail()\nexcept KeyError as e:\n    return n, e.args[0]"
    )
    assert await ainvoke(script(code), store=store) == ((1, 2, 2, 8, [5, 6]), "at home")
    assert store.items == [5, 6]


async def test_unpicklable_members_of_a_container_go_by_reference_and_the_rest_is_copied() -> None:
    lock = threading.Lock()
    code = "things['n'].append(2)\nwith things['lock']:\n    return things['n'], things['lock'].locked()"
    things = {"lock": lock, "n": [1]}
    assert await ainvoke(script(code), things=things) == ([1, 2], True)
    assert things["n"] == [1]
    assert not lock.locked()


async def test_a_tool_by_reference_runs_at_home_and_a_copied_one_in_the_frame() -> None:
    calls: list[int] = []

    def tool(x: int) -> int:
        """Note x."""
        calls.append(x)
        return x + 1

    assert await ainvoke(script("return tool(1)"), tool=by_reference(tool)) == 2
    assert await ainvoke(script("return tool(2)"), tool=tool) == 3
    assert calls == [1]


async def test_references_work_in_grandchildren_and_iterate() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth < 3:
            return "return invoke(log=log)"
        return "log.add(1)\nreturn [x for x in log]"

    class Log:
        def __init__(self) -> None:
            self.items = list(range(200))

        def add(self, x: int) -> None:
            self.items.append(x)

        def __iter__(self) -> Any:
            return iter(self.items)

    log = Log()
    assert await within(answers(answer), log=by_reference(log)) == [*range(200), 1]


async def test_an_object_lent_by_a_parents_frame_is_used_by_its_child() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return (
                "import threading\n"
                "class Counter:\n"
                "    def __init__(self): self.lock = threading.Lock(); self.n = 0\n"
                "    def up(self):\n        self.n += 1\n        return self.n\n"
                "c = Counter()\n"
                "r = await ainvoke(c=c)\n"
                "return r, c.n"
            )
        return "return c.up() + c.up()"

    assert await within(answers(answer)) == (3, 2)


async def test_a_tool_at_home_that_never_returns_holds_up_neither_cancellation_nor_shutdown() -> None:
    with script("forever()"):
        invocation = await start(forever=by_reference(threading.Event().wait))
        await _until(lambda: _live("waiting for a child", 1))
        invocation.cancel()
        assert isinstance(await invocation.outcome(), Aborted)
        await _until(lambda: _live(None, 0))


async def test_an_override_given_many_times_opens_one_backend() -> None:
    class Counting(Scripted):
        async def complete(self, request: CompletionRequest) -> Any:
            self.served = getattr(self, "served", 0) + 1
            return await super().complete(request)

        def __repr__(self) -> str:
            return "counting"

    def answer(request: CompletionRequest) -> str:
        return "return 1"

    override = ConfigOverride(backend=Counting(answer))
    before = await _opened()
    assert [await ainvoke(override) for _ in range(5)] == [1] * 5
    assert await _opened() - before <= len(await statistics())


async def _opened() -> int:
    from jaz_actors.runtime import current_run

    return sum(config.backend is not None for config, _ in current_run()._keys.values())


async def test_an_invocation_that_is_over_leaves_nothing_in_its_host_or_at_home(runtime: str) -> None:
    from jaz_actors.runtime import InlinePool, current_run

    run = current_run()
    with script("return invoke(lock=lock, a=a) if depth else 1", "return 2"), CountQueries():
        await asyncio.gather(
            *(ainvoke(lock=threading.Lock(), a=np.ones(1 << 18), depth=0) for _ in range(5)), return_exceptions=True
        )
    async with asyncio.timeout(5):
        while run.home.buffers._held or len(run.home.table) or run.home.hooks._hooks or run._where or run._live:
            await asyncio.sleep(0.01)
    if isinstance(run.pool, InlinePool):
        host = run.pool._host
        assert host is not None
        assert (host._by_frame, host._live, host._buffers._held) == ({}, {}, {})


async def test_private_names_are_out_of_reach_by_reference() -> None:
    class Thing:
        _secret = 1
        lock = threading.Lock()

    code = "try:\n    return thing._secret\nexcept AttributeError as e:\n    return 'no'"
    assert await ainvoke(script(code), thing=by_reference(Thing())) == "no"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("gen", lambda: (i for i in range(3)), "list"),
        ("not-a-name", lambda: 1, "identifier"),
        ("class", lambda: 1, "identifier"),
        ("invoke", lambda: 1, "frame itself"),
        ("__history__", lambda: 1, "frame itself"),
    ],
)
async def test_an_input_that_can_go_neither_way_is_refused_by_name_before_anything_starts(
    name: str, value: Callable[[], object], why: str
) -> None:
    before = sum(sum(host.outcomes.values()) for host in await statistics())
    with pytest.raises(errors.InputRefused, match=why) as caught:
        await ainvoke(script("return 1"), **{name: value()})
    assert caught.value.name == name
    assert sum(sum(host.outcomes.values()) for host in await statistics()) == before


async def test_a_coroutine_is_refused_with_advice() -> None:
    async def some() -> None: ...

    coroutine = some()
    with pytest.raises(errors.InputRefused, match="await it"):
        await ainvoke(script("return 1"), x=coroutine)
    coroutine.close()


async def test_big_arrays_are_shared_read_only_and_held_once() -> None:
    array = np.arange(1 << 20)
    code = (
        "import os\n"
        "stat = os.popen(f'grep -c jaz-actors /proc/{os.getppid()}/maps').read()\n"
        "return int(a.sum()), a.flags.writeable"
    )
    with script(code):
        got = await asyncio.gather(*(ainvoke(a=array) for _ in range(8)))
    assert got == [(int(array.sum()), False)] * 8
    with script("return int(a[0])"):
        array[0] = 99
        assert await ainvoke(a=array) == 99


async def test_a_childs_big_input_from_a_frame_arrives() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "import numpy as np\na = np.ones(1 << 20)\nreturn invoke(a=a), invoke(a=a[:10])"
        return "return float(a.sum())"

    assert await within(answers(answer)) == (float(1 << 20), 10.0)


async def test_a_big_result_comes_back() -> None:
    got = await ainvoke(script("import numpy as np\nreturn np.arange(1 << 20)"))
    assert got.sum() == np.arange(1 << 20).sum()


async def test_scope_reaches_every_descendant_and_inputs_may_not_shadow_it() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth < 3:
            return "return invoke(depth=1)"
        return "return shared, sorted(__scope__)"

    with scope(shared="all"):
        assert await within(answers(answer), depth=0) == ("all", ["shared"])
        with scope(shared="inner"):
            assert await within(answers(answer), depth=0) == ("inner", ["shared"])
        with pytest.raises(errors.InputRefused, match="scope"):
            await within(answers(answer), shared=1)


async def test_a_description_is_shown_instead_of_the_value() -> None:
    def answer(request: CompletionRequest) -> str:
        return f"return {request.messages[1].content!r}"

    table = describe({"rows": list(range(10_000))}, "a table of 10,000 rows")
    text = await within(answers(answer), table=table)
    assert "a table of 10,000 rows" in text
    assert "9999" not in text


async def test_long_inputs_and_outputs_are_shown_in_part_and_can_be_paged() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.iteration == 0:
            return "print('y' * 500)"
        return f"return {request.messages[1].content!r}, {request.messages[-1].content!r}, __history__[0].repl_output"

    protocol = CodeProtocol(max_input_characters=100, max_output_characters=40)
    override = ConfigOverride(backend=Scripted(answer), protocol=protocol)
    user, observation, output = await ainvoke(override, text="x" * 1000)
    assert "900 of 1,000 characters left out" in user
    assert "print(str(text)[50:950])" in user
    assert "print(__history__[0].repl_output[20:480])" in observation
    assert output == "y" * 500 + "\n"


async def test_templates_can_be_replaced() -> None:
    def answer(request: CompletionRequest) -> str:
        return f"return {[m.content for m in request.messages]!r}"

    protocol = CodeProtocol(system_template="rules {{ recursion }}", user_template="{{ inputs[0].name }}!")
    override = ConfigOverride(backend=Scripted(answer), protocol=protocol)
    assert await ainvoke(override, x=1) == ["rules True", "x!"]


async def test_a_fenced_reply_is_taken_as_its_content() -> None:
    assert await ainvoke(script("```python\nreturn 7\n```")) == 7


async def test_a_timeout_pragma_overrides_and_a_bad_one_runs_nothing() -> None:
    def answer(request: CompletionRequest) -> str:
        code = {0: "# timeout: soon\nx = 1", 1: "# timeout: 0.3\nwhile True: pass"}
        last = request.messages[-1].content
        return code.get(request.iteration) or f"return {last!r}, 'x' in globals()"

    text, ran = await within(answers(answer))
    assert "stopped after 0.3 s" in text
    assert ran is False


# -- hooks and limits


async def test_a_return_type_is_told_checked_and_counted() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.iteration == 0:
            return "return 'five'"
        return f"return {sum('<return_type>int</return_type>' in m.content for m in request.messages)}"

    assert await within(answers(answer), ReturnType(int)) == 1
    with pytest.raises(errors.ReturnTypeError, match="int"):
        await ainvoke(ReturnType(int, max_failures=1), script(*["return 'x'"] * 5))


async def test_an_agent_gives_its_child_a_return_type_and_a_limit() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return (
                "from jaz_actors import ReturnType, IterationLimit\n"
                "from jaz_actors.errors import IterationLimitExceeded\n"
                "a = invoke(ReturnType(list[int]), task='t')\n"
                "try:\n    invoke(IterationLimit(2), ReturnType(dict), task='t')\n"
                "except IterationLimitExceeded:\n    return a"
            )
        return "return 'no'" if request.iteration == 0 else "return [1, 2]"

    assert await within(answers(answer)) == [1, 2]


async def test_an_iteration_limit_aborts_and_warns() -> None:
    warned: list[int] = []

    def answer(request: CompletionRequest) -> str:
        return f"print({request.messages[-1].content == 'hurry'})"

    with answers(answer):
        outcome = await (await start(IterationLimit(3, warning_text="hurry", warn_remaining=1))).outcome()
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, errors.IterationLimitExceeded)
    assert warned == []


async def test_a_recursion_limit_takes_the_tool_away_and_cannot_be_escaped_by_threads() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth < 2:
            return "return invoke(task='t')"
        return (
            "import threading\nimport jaz_actors\ngot = []\n"
            "def escape():\n"
            "    try:\n        jaz_actors.invoke(task='t')\n"
            "    except Exception as e:\n        got.append(type(e).__name__)\n"
            "t = threading.Thread(target=escape); t.start(); t.join()\n"
            "return got, 'invoke' in globals()"
        )

    with RecursionLimit(2):
        assert await within(answers(answer)) == (["RecursionLimitExceeded"], False)


class CountQueries(Hook):
    """A user's own hook, with live state at home."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()

    def on_llm_query_enter(self, event: LLMQueryEnter) -> Answer:
        with self.lock:
            self.count += 1
        return AddMessages((NewMessage("user", f"query {self.count}"),)) if event.depth == 1 else None


async def test_a_users_hook_keeps_its_state_at_home_for_children_too() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return f"return invoke(task='t'), {request.messages[-1].content!r}"
        return "return 1"

    hook = CountQueries()
    with hook:
        assert await within(answers(answer)) == (1, "query 1")
    assert hook.count == 2
    assert await within(answers(answer), hook) == (1, "query 3")
    assert hook.count == 3


async def test_a_hook_that_raises_fails_the_invocation_by_name_or_is_ignored_by_choice() -> None:
    class Broken(Hook):
        def on_llm_query_send(self, event: LLMQuerySend) -> None:
            raise LookupError("oops")

    class Ignored(Broken):
        on_error = "ignore"

    with script("return 1"):
        outcome = await (await start(Broken())).outcome()
        assert isinstance(outcome, Failed)
        with pytest.raises(errors.HookFailed, match="Broken raised on LLMQuerySend"):
            raise outcome.error
        assert await ainvoke(Ignored()) == 1


async def test_observers_have_seen_everything_when_the_result_is_there() -> None:
    class Outputs(Hook):
        placement = "observer"

        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_repl_exec_exit(self, event: REPLExecExit) -> None:
            if isinstance(event.result, Continue):
                self.seen.append(event.result.output)

    hook = Outputs()
    await ainvoke(hook, script("print('a')", "print('b')", "return 1"))
    assert hook.seen == ["a\n", "b\n"]


async def test_bad_activations_are_refused_before_anything_starts() -> None:
    hook = CountQueries()
    with script("return 1"):
        with hook, pytest.raises(errors.HookActivationError, match="enclosing"):
            await ainvoke(hook)
        with pytest.raises(errors.HookActivationError, match="twice"):
            await ainvoke(hook, hook)
        with pytest.raises(errors.HookActivationError, match="whole tree"):
            await ainvoke(RecursionLimit(2))
        with pytest.raises(errors.HookActivationError, match="one return type"):
            await ainvoke(ReturnType(int), ReturnType(str))
        with pytest.raises(errors.ConfigurationError):
            await ainvoke(object())  # type: ignore[arg-type]


async def test_keys_name_roots_and_may_not_repeat() -> None:
    key = f"doc-{time.monotonic_ns()}"
    with script("return 1"):
        invocation = await start(key=key)
        assert invocation.id.path == key
        await invocation
        with pytest.raises(errors.KeyRefused):
            await ainvoke(key=key)


async def test_the_same_callable_in_parallel_gives_distinct_results() -> None:
    async def ask(x: int) -> Any:
        return await ainvoke(x=x)

    with script("import os\nreturn x, os.getpid()"):
        got = await asyncio.gather(*(ask(x) for x in range(10)))
    assert [x for x, _ in got] == list(range(10))
    assert len({pid for _, pid in got}) == 10


async def test_eight_children_run_side_by_side() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "import asyncio\nreturn await asyncio.gather(*(ainvoke(i=i) for i in range(8)))"
        return "return i"

    started = time.monotonic()
    override = answers(answer, delay=lambda request: 1.0 if request.invoke_id.depth == 2 else 0.0)
    assert await within(override) == list(range(8))
    assert time.monotonic() - started < 4


async def test_a_turn_timeout_of_the_configuration_holds() -> None:
    backend = Scripted(["while True: pass", "return __history__[0].repl_output"])
    assert "stopped after 0.3 s" in await ainvoke(ConfigOverride(backend=backend, repl=REPL(timeout=0.3)))
