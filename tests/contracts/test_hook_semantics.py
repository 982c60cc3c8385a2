"""What hooks may rely on, wherever they and the invocation run: order, effects, ends. By way of real invocations."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import cloudpickle
import pytest

from jaz_actors import (
    Aborted,
    Completed,
    ConfigOverride,
    Failed,
    Hook,
    IterationLimit,
    Outcome,
    Raised,
    Scripted,
    TimeLimit,
    ainvoke,
    by_reference,
    errors,
    start,
)
from jaz_actors.effects import (
    AddMessages,
    BlackboardWrite,
    DeleteCode,
    DisableRecursion,
    DropInputs,
    DropMessages,
    DropVariables,
    Effect,
    InsertCode,
    ModifyExecResult,
    ModifyInvokeResult,
    ModifyLLMResponse,
    NewMessage,
    SupplyExecResult,
    SupplyInvokeResult,
    SupplyLLMResponse,
)
from jaz_actors.events import Event, InvokeExit, LLMQueryEnter, LLMQueryExit, LLMQuerySend, REPLExecExit
from jaz_actors.hooks import abort, add_inputs, add_variables, load, raised, returned
from jaz_actors.messages import Completion
from jaz_actors.outcomes import Continue, Return
from jaz_actors.protocols import CompletionRequest

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]

TURN = [
    "llm_query_enter",
    "llm_query_send",
    "llm_query_complete",
    "llm_query_exit",
    "repl_exec_enter",
    "repl_exec_send",
    "repl_exec_complete",
    "repl_exec_exit",
]


def tag(event: Event) -> str:
    return str(event.__struct_config__.tag)


class Does(Hook):
    """Sees everything; answers the events named with what it was given: effects, or a function of the event."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.seen: list[Event] = []

    def on_any(self, event: Event) -> Any:
        self.seen.append(event)
        answer = self.answers.get(tag(event))
        return answer(event) if callable(answer) else answer

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.seen if type(event) is kind]

    @property
    def tags(self) -> list[str]:
        return [tag(event) for event in self.seen]


class DoesLocally(Does):
    placement = "local"


class DoesShared(Does):
    placement = "shared"


def script(*replies: str) -> ConfigOverride:
    return ConfigOverride(backend=Scripted(list(replies)))


async def ends(*local: Any, **inputs: object) -> Outcome:
    return await (await start(*local, **inputs)).outcome()


def once(effect: Any) -> Callable[[Any], Any]:
    """The effect in turn 0 alone."""
    return lambda event: effect if event.iteration == 0 else None


# -- order and ends


async def test_a_run_of_three_turns_has_28_events_in_one_order() -> None:
    hook = Does()
    assert await ainvoke(hook, script("1 / 0", "print(2)", "return 42")) == 42
    assert hook.tags == ["invoke_enter", "invoke_send", *(TURN * 3), "invoke_complete", "invoke_exit"]
    assert len(hook.tags) == 28
    assert [event.sequence for event in hook.seen] == list(range(28))
    assert {event.depth for event in hook.seen} == {1}


@pytest.mark.parametrize(
    "stage",
    [
        "invoke_enter", "invoke_send", "llm_query_enter", "llm_query_send", "llm_query_complete", "llm_query_exit",
        "repl_exec_enter", "repl_exec_send", "repl_exec_complete", "repl_exec_exit", "invoke_complete",
    ],
)  # fmt: skip
async def test_an_abort_at_any_stage_ends_the_invocation_and_every_open_span(stage: str) -> None:
    hook = Does(**{stage: abort(LookupError("enough"))})
    outcome = await ends(hook, script("return 1"))
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, LookupError)
    assert outcome.error.args == ("enough",)
    whole = ["invoke_enter", "invoke_send", *TURN, "invoke_complete", "invoke_exit"]
    until = whole[: whole.index(stage) + 1]
    span, _, at = stage.rpartition("_")
    closing = [] if span == "invoke" or at == "exit" else [f"{span}_exit"]
    assert hook.tags == [*until, *closing, "invoke_exit"]
    if closing:
        end = hook.seen[-2]
        assert isinstance(end, (LLMQueryExit, REPLExecExit))
        assert end.status == "aborted"
        assert end.error is not None
        assert end.error.message == "enough"


async def test_a_failed_query_fails_its_span_then_the_invocation_with_the_same_error() -> None:
    hook = Does()
    outcome = await ends(hook, script())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.BackendError)
    assert hook.tags[-2:] == ["llm_query_exit", "invoke_exit"]
    (end,) = hook.of(LLMQueryExit)
    assert end.status == "failed"
    assert end.error.message == str(outcome.error)


async def test_an_abort_while_a_span_fails_does_not_hide_the_failure() -> None:
    outcome = await ends(Does(llm_query_exit=abort(LookupError("no"))), script())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.BackendError)


async def test_several_aborts_are_one_that_names_all() -> None:
    hooks = [Does(invoke_send=abort(ValueError(text))) for text in ("b", "a")]
    outcome = await ends(*hooks, script("return 1"))
    assert isinstance(outcome, Aborted)
    assert hooks[0].of(InvokeExit)[0].outcome.error.message == "a (also ValueError: b)"


async def test_cancelling_closes_every_span_before_the_invocation() -> None:
    hook = Does()
    invocation = await start(hook, ConfigOverride(backend=Scripted(["return 1"], delay=60.0)))
    async for event in invocation:
        if isinstance(event, LLMQuerySend):
            break
    invocation.cancel()
    outcome = await invocation.outcome()
    assert isinstance(outcome, Aborted)
    async with asyncio.timeout(10):
        while "invoke_exit" not in hook.tags:
            await asyncio.sleep(0.01)
    assert hook.tags[-2:] == ["llm_query_exit", "invoke_exit"]
    assert hook.of(LLMQueryExit)[0].status == "aborted"


async def test_a_childs_abort_is_an_error_that_its_parent_may_catch() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "try:\n    invoke(task='t')\nexcept LookupError as e:\n    return f'caught {e!r}'"
        return "return 1"

    hook = Does(invoke_enter=lambda event: abort(LookupError("not you")) if event.depth == 2 else None)
    with ConfigOverride(backend=Scripted(answer)), hook:
        assert await ainvoke() == "caught LookupError('not you')"
    assert [type(event.outcome).__name__ for event in hook.of(InvokeExit)] == ["AbortedRecord", "CompletedRecord"]


# -- fatal errors


class Stop(errors.FatalError):
    pass


NESTED = "try:\n    print(invoke(task='t', tool=tool))\nexcept Exception:\n    return 'caught'"


@pytest.mark.parametrize("lent", [False, True])
async def test_a_fatal_error_of_a_tool_ends_every_enclosing_invocation(lent: bool) -> None:
    def tool() -> None:
        raise Stop("the building is on fire")

    def answer(request: CompletionRequest) -> str:
        return NESTED if request.invoke_id.depth < 3 else "try:\n    tool()\nexcept Exception:\n    return 'caught'"

    hook = Does()
    with ConfigOverride(backend=Scripted(answer)), hook:
        outcome = await ends(tool=by_reference(tool) if lent else tool)
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, Stop)
    assert [event.depth for event in hook.of(InvokeExit)] == [3, 2, 1]


async def test_a_fatal_abort_of_a_hook_ends_every_enclosing_invocation() -> None:
    hook = Does(invoke_enter=lambda event: abort(Stop("no")) if event.depth == 2 else None)
    with script("try:\n    invoke(task='t')\nexcept Exception:\n    return 'caught'"), hook, pytest.raises(Stop):
        await ainvoke()


async def test_a_tool_that_exits_ends_the_tree_and_not_the_driver() -> None:
    def leave() -> None:
        sys.exit(3)

    outcome = await ends(script("leave()"), leave=by_reference(leave))
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, errors.FatalError)
    assert await ainvoke(script("return 1")) == 1


# -- supplies and modifications


async def test_a_supplied_invocation_result_asks_no_model_and_starts_no_frame() -> None:
    hook = Does(invoke_send=SupplyInvokeResult(returned([1, 2])))
    assert await ainvoke(hook, script()) == [1, 2]
    assert hook.tags == ["invoke_enter", "invoke_send", "invoke_complete", "invoke_exit"]
    outcome = await ends(Does(invoke_send=SupplyInvokeResult(raised(KeyError("k")))), script())
    assert isinstance(outcome, Raised)
    assert isinstance(outcome.error, KeyError)


async def test_a_modified_invocation_result_is_what_comes_back() -> None:
    def double(event: Any) -> Effect:
        return ModifyInvokeResult(returned(2 * load(event.result.value)))

    assert await ainvoke(Does(invoke_complete=double), script("return 21")) == 42


async def test_a_supplied_response_is_run_and_seen_like_any_other() -> None:
    hook = Does(llm_query_send=once(SupplyLLMResponse(Completion("x = 1"))))
    assert await ainvoke(hook, script("never", "return x")) == 1
    assert [message.content for message in hook.of(LLMQueryEnter)[1].messages][2] == "x = 1"


async def test_a_modified_response_is_what_is_run_shown_and_remembered() -> None:
    def shout(event: Any) -> Effect | None:
        return ModifyLLMResponse(Completion("x = 'MODEL'")) if event.iteration == 0 else None

    hook = Does(llm_query_complete=shout)
    assert await ainvoke(hook, script("x = 'model'", "return x, __history__[0].llm_response")) == (
        "MODEL",
        "x = 'MODEL'",
    )
    assert hook.of(LLMQueryEnter)[1].messages[2].content == "x = 'MODEL'"


async def test_a_supplied_execution_runs_nothing_and_a_modified_one_is_what_history_says() -> None:
    hook = Does(
        repl_exec_send=once(SupplyExecResult(Continue("pretended\n"))),
        repl_exec_complete=lambda event: ModifyExecResult(Continue("edited\n")) if event.iteration == 1 else None,
    )
    code = "return 'x' in globals(), [h.repl_output for h in __history__]"
    got = await ainvoke(hook, script("x = 1", "print('real')", code))
    assert got == (False, ["pretended\n", "real\nedited\n"])


async def test_a_finish_can_be_taken_back() -> None:
    hook = Does(repl_exec_complete=once(ModifyExecResult(Continue("", "not yet"))))
    assert await ainvoke(hook, script("return 1", "return 2")) == 2


async def test_an_empty_reply_is_a_turn_without_effect() -> None:
    hook = Does()
    assert await ainvoke(hook, script("", "return len(__history__)")) == 1
    assert hook.of(LLMQueryEnter)[1].messages[-1].content == "(no output)"


# -- conflicts


@pytest.mark.parametrize(
    ("stage", "one", "other"),
    [
        ("llm_query_send", SupplyLLMResponse(Completion("return 1")), SupplyLLMResponse(Completion("return 2"))),
        ("llm_query_complete", ModifyLLMResponse(Completion("a")), ModifyLLMResponse(Completion("b"))),
        ("repl_exec_send", SupplyExecResult(returned(1)), SupplyExecResult(returned(2))),
        ("invoke_send", SupplyInvokeResult(returned(1)), SupplyInvokeResult(returned(2))),
        ("invoke_complete", BlackboardWrite("k", 1), BlackboardWrite("k", 2)),
        ("invoke_enter", add_inputs(a=1), add_inputs(a=2)),
        ("invoke_enter", add_inputs(task=1), None),
        ("repl_exec_enter", add_variables(a=1), add_variables(a=2)),
        ("repl_exec_enter", add_variables(task=1), None),
    ],
)
async def test_hooks_that_want_different_things_fail_the_invocation_by_the_events_name(
    stage: str, one: Any, other: Any
) -> None:
    outcome = await ends(Does(**{stage: one}), Does(**{stage: other}), script("return 0"), task="t")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.EffectConflict)
    assert outcome.error.event.lower() == stage.replace("_", "")


async def test_hooks_that_want_the_same_agree() -> None:
    same: dict[str, Any] = {
        "invoke_enter": [DisableRecursion(), add_inputs(a=1)],
        "llm_query_send": SupplyLLMResponse(Completion("return a, 'invoke' in globals(), b")),
        "repl_exec_enter": add_variables(b=2),
        "invoke_complete": BlackboardWrite("k", {"x": [1]}),
    }
    assert await ainvoke(Does(**same), Does(**same), script()) == (1, False, 2)


# -- inputs and variables


async def test_inputs_are_added_shown_dropped_and_replaced() -> None:
    hook = Does(invoke_enter=[DropInputs(("a", "b")), add_inputs(a="new", c=[3])])
    code = "return task, a, c, 'b' in globals(), sorted(__inputs__)"
    assert await ainvoke(hook, script(code), task="t", a="old", b=2) == ("t", "new", [3], False, ["a", "c", "task"])
    send = hook.seen[1]
    assert send.added == ("a", "c")  # type: ignore[attr-defined]
    assert send.dropped == ("a", "b")  # type: ignore[attr-defined]
    assert {item.name: load(item.payload) for item in send.inputs} == {  # type: ignore[attr-defined]
        "task": "t",
        "a": "new",
        "c": [3],
    }
    shown = hook.of(LLMQueryEnter)[0].messages[1].content
    assert "new" in shown
    assert "old" not in shown


async def test_a_hook_reads_the_inputs_as_values() -> None:
    def guard(event: Any) -> Effect | None:
        inputs = {item.name: load(item.payload) for item in event.inputs}
        return abort(PermissionError("no")) if "rm -rf" in inputs["task"] else None

    assert await ainvoke(Does(invoke_enter=guard), script("return 1"), task="tidy up") == 1
    with pytest.raises(PermissionError):
        await ainvoke(Does(invoke_enter=guard), script("return 1"), task="rm -rf /")


async def test_what_a_hook_adds_and_cannot_be_copied_is_lent() -> None:
    lock = threading.Lock()
    hook = Does(invoke_enter=add_inputs(lock=lock))
    assert await ainvoke(hook, script("return lock.acquire(False)")) is True
    assert lock.locked()


async def test_variables_are_bound_before_the_code_runs_and_unbound() -> None:
    def edits(event: Any) -> Any:
        return [DropVariables(("x",)), add_variables(x=2, y=3)] if event.iteration == 1 else None

    hook = Does(repl_exec_enter=edits)
    assert await ainvoke(hook, script("x = 1", "return x, y")) == (2, 3)
    send = [event for event in hook.seen if tag(event) == "repl_exec_send"][1]
    assert (send.added_variables, send.dropped_variables) == (("x", "y"), ("x",))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("stage", "drop"), [("invoke_enter", DropInputs), ("repl_exec_enter", DropVariables)]
)  # fmt: skip
async def test_dropping_what_is_not_there_is_an_error_unless_allowed(stage: str, drop: Any) -> None:
    outcome = await ends(Does(**{stage: drop(("gone",))}), script("return 1"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.DropTargetMissing)
    assert outcome.error.name == "gone"
    assert await ainvoke(Does(**{stage: drop(("gone",), allow_missing=True)}), script("return 1")) == 1


# -- code


async def test_the_edited_code_runs_and_the_message_keeps_the_original() -> None:
    code = "x = 1\nprint(x)"
    edits = [
        InsertCode("\nx += 1", 5, 2.0),
        InsertCode("\nx *= 10", 5, 1.0),
        DeleteCode(4, 5),
        InsertCode("7", 4),
        DeleteCode(-8),
        DeleteCode(6, 8),
    ]
    hook = Does(repl_exec_enter=once(edits))
    assert await ainvoke(hook, script(code, "return x")) == 71
    assert hook.of(LLMQueryEnter)[1].messages[2].content == code
    send = next(event for event in hook.seen if tag(event) == "repl_exec_send")
    assert send.code == "x = 7\nx *= 10\nx += 1\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("edit", [InsertCode("x", 99), DeleteCode(0, 99), DeleteCode(4, 2), InsertCode("x", -99)])
async def test_an_offset_outside_the_code_fails_the_invocation(edit: Effect) -> None:
    outcome = await ends(Does(repl_exec_enter=edit), script("return 1"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.CodeOffsetError)


# -- message edits


def user(text: str, **how: Any) -> AddMessages:
    return AddMessages((NewMessage("user", text),), **how)


async def shown(edits: Callable[[Any], Any], turns: int = 3) -> list[list[str]]:
    """The texts that the model saw each turn, without the two seed messages."""
    hook = Does(llm_query_enter=edits)
    replies = [f"print({n})" for n in range(turns - 1)]
    await ainvoke(hook, script(*replies, "return 1"))
    return [[message.content for message in event.messages[2:]] for event in hook.of(LLMQuerySend)]


async def test_a_transient_add_is_seen_once_and_a_persistent_one_stays() -> None:
    first, second, third = await shown(once([user("now"), user("always", persistent=True)]))
    assert first == ["always", "now"]
    assert second == ["always", "print(0)", "0"]
    assert third == ["always", "print(0)", "0", "print(1)", "1"]


async def test_indices_are_of_the_snapshot_and_negative_ones_count_from_its_end() -> None:
    def edits(event: Any) -> Any:
        if event.iteration != 1:
            return None
        return [DropMessages((-1,)), user("at the dropped one", index=-1), user("first of all", index=2)]

    _, second, third = await shown(edits)
    assert second == ["first of all", "print(0)", "at the dropped one"]
    assert third == ["print(0)", "0", "print(1)", "1"]


async def test_a_position_dropped_both_ways_is_dropped_for_good() -> None:
    def edits(event: Any) -> Any:
        return [DropMessages((2,)), DropMessages((2,), persistent=True)] if event.iteration == 1 else None

    _, second, third = await shown(edits)
    assert second == ["0"]
    assert third == ["0", "print(1)", "1"]


async def test_added_messages_say_where_they_come_from() -> None:
    hook = Does(llm_query_enter=once(user("hint", persistent=True)))
    await ainvoke(hook, script("print(1)", "return 1"))
    kinds = [(message.kind, message.iteration) for message in hook.of(LLMQueryEnter)[1].messages]
    assert kinds == [("seed", None), ("seed", None), ("added", 0), ("assistant", 0), ("observation", 0)]


@pytest.mark.parametrize("edit", [DropMessages((2,)), DropMessages((-3,)), user("x", index=3), user("x", index=-3)])
async def test_an_index_outside_the_snapshot_fails_the_invocation(edit: Effect) -> None:
    outcome = await ends(Does(llm_query_enter=edit), script("return 1"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.MessageIndexError)


async def test_edits_are_published_with_positions_and_messages() -> None:
    hook = Does(llm_query_enter=once([DropMessages((0,), persistent=True), user("x", index=1, sort_key=2.0)]))
    await ainvoke(hook, script("return 1"))
    (send,) = hook.of(LLMQuerySend)
    assert [(d.position, d.message.role, d.persistent) for d in send.drops] == [(0, "system", True)]
    assert [(a.position, a.messages[0].content, a.persistent) for a in send.adds] == [(1, "x", False)]


async def test_dicts_and_lists_do_for_messages() -> None:
    add = AddMessages([{"role": "user", "content": "as in other libraries"}])  # type: ignore[arg-type, list-item]
    first, *_ = await shown(once(add), turns=1)
    assert first == ["as in other libraries"]


# -- blackboard and claims


class Seeding(Does):
    blackboard_consumes: ClassVar = {"count": "how many turns"}

    def blackboard_seed(self) -> dict[str, Any]:
        return {"count": 0}


async def test_a_write_is_seen_by_every_hook_from_the_next_event_on_and_by_no_child() -> None:
    def count(event: Any) -> Effect:
        return BlackboardWrite("count", event.blackboard["count"] + 1)

    writer, reader = Seeding(llm_query_enter=count), Does()

    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 2:
            return "return 1"
        return "print(1)" if request.iteration == 0 else "return invoke(task='t')"

    with ConfigOverride(backend=Scripted(answer)), writer, reader:
        assert await ainvoke() == 1
    boards: dict[str, list[int]] = defaultdict(list)
    for event in reader.of(LLMQueryEnter) + reader.of(LLMQuerySend):
        boards[tag(event)].append(event.blackboard["count"])
    assert boards["llm_query_enter"][:3] == [0, 1, 0]
    assert boards["llm_query_send"][:3] == [1, 2, 1]


class Supplies(Does):
    supplies_llm_response = True


class AddsX(Does):
    adds_inputs = frozenset({"x"})


@pytest.mark.parametrize("kind", [Supplies, AddsX])
async def test_two_hooks_that_claim_the_same_are_refused_before_anything_starts(kind: type[Does]) -> None:
    one, other = kind(), kind()
    with pytest.raises(errors.HookActivationError, match="already"):
        await ainvoke(one, other, script("return 1"))
    with one, pytest.raises(errors.HookActivationError, match="already"):
        await ainvoke(other, script("return 1"))
    assert one.seen == other.seen == []


async def test_seeds_that_differ_are_refused() -> None:
    class Other(Does):
        def blackboard_seed(self) -> dict[str, Any]:
            return {"count": 1}

    with pytest.raises(errors.HookActivationError, match="count"):
        await ainvoke(Seeding(), Other(), script("return 1"))


# -- mistakes in hooks


@pytest.mark.parametrize(
    ("stage", "answer", "message"),
    [
        ("llm_query_enter", "text", "gives effects"),
        ("llm_query_enter", AddMessages("text"), "AddMessages"),  # type: ignore[arg-type]
        ("invoke_send", SupplyInvokeResult(42), "SupplyInvokeResult"),  # type: ignore[arg-type]
        ("invoke_send", BlackboardWrite("k", object()), "plain data"),
        ("invoke_enter", lambda event: 1 / 0, "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("kind", [Does, DoesLocally, DoesShared])
async def test_a_wrong_answer_fails_the_invocation_by_the_hooks_name(
    kind: type[Does], stage: str, answer: Any, message: str
) -> None:
    hook = kind(**{stage: (lambda event: answer) if not callable(answer) else answer})
    outcome = await ends(hook, script("return 1"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.HookFailed)
    assert outcome.error.hook == kind.__name__
    assert message in outcome.error.message


@pytest.mark.parametrize("kind", [Does, DoesLocally, DoesShared])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_handler_that_wants_to_end_the_process_fails_its_invocation_alone(
    kind: type[Does], error: BaseException
) -> None:
    def leave(event: Any) -> None:
        raise error

    outcome = await ends(kind(invoke_enter=leave), script("return 1"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, errors.HookFailed)
    assert await ainvoke(Does(), script("return 1")) == 1


@pytest.mark.parametrize("kind", [Does, DoesLocally])
async def test_a_fatal_error_in_a_handler_is_an_abort_with_it(kind: type[Does]) -> None:
    def stop(event: Any) -> None:
        raise Stop("enough")

    outcome = await ends(kind(llm_query_enter=stop), script("return 1"))
    assert isinstance(outcome, Aborted)
    assert isinstance(outcome.error, Stop)


async def test_a_handler_that_never_answers_is_ended_by_cancelling_and_by_a_time_limit() -> None:
    class Forever(Hook):
        async def on_llm_query_enter(self, event: LLMQueryEnter) -> None:
            await asyncio.sleep(1000)

    async with asyncio.timeout(20):
        outcome = await ends(Forever(), TimeLimit(0.3), script("return 1"))
        assert isinstance(outcome, Aborted)
        assert isinstance(outcome.error, errors.TimeLimitExceeded)
        invocation = await start(Forever(), script("return 1"))
        invocation.cancel()
        assert isinstance(await invocation.outcome(), Aborted)


FORGED = """
from jaz_actors import spec
from jaz_actors.frames import entry
from jaz_actors.frames.wire import ChildCall
caller, got = entry.caller(), []
facts = spec.HookFacts("Evil", frozenset({"invoke_enter"}), False)
calls = [ChildCall(name, ()) for name in ("0.5.7", "../x", "", "a" * 5000, "7", "7", "hook-0", "tool0-0")]
calls += [ChildCall(f"h{n}", (), (), (spec.HomeHook(home, 0, facts, True),))
          for n, home in enumerate(("driver", "host-0", "host-0/999", "nowhere"))]
calls += [ChildCall("junk", (), (), (spec.BuiltinHook(b"junk", True),))]
for call in calls:
    number, future = caller.link.call(call)
    reply = future.result(10)
    got.append(reply.error.type_name.rpartition(".")[2] if reply.error else "a child")
return got
"""


async def test_what_a_frame_forges_is_refused_and_hurts_no_one() -> None:
    def answer(request: CompletionRequest) -> str:
        return FORGED if request.invoke_id.depth == 1 else "return 1"

    with ConfigOverride(backend=Scripted(answer)):
        got = await ainvoke()
        assert got == [
            *["KeyRefused"] * 4, "a child", *["KeyRefused"] * 3, *["HookActivationError"] * 4, "ValidationError",
        ]  # fmt: skip
    assert await ainvoke(script("return 1")) == 1


async def test_an_exception_does_for_an_abort() -> None:
    from jaz_actors.effects import Abort

    with pytest.raises(LookupError, match="as in other libraries"):
        await ainvoke(Does(invoke_enter=Abort(LookupError("as in other libraries"))), script())  # type: ignore[arg-type]


# -- placements


class Counts(Hook):
    """Tells the agent what it has counted: of this invocation (local), of the tree (shared), of all (home)."""

    def __init__(self) -> None:
        self.count = 0

    async def on_llm_query_enter(self, event: LLMQueryEnter) -> Any:
        self.count = count = self.count + 1
        await asyncio.sleep(0)
        return AddMessages((NewMessage("user", f"count {count}"),))


class CountsLocally(Counts):
    placement = "local"


class CountsShared(Counts):
    placement = "shared"


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [(CountsLocally, [1, 1, 1], [1, 1, 1]), (CountsShared, [1, 2, 3], [1, 2, 3]), (Counts, [1, 2, 3], [4, 5, 6])],
)
async def test_state_is_of_an_invocation_a_tree_or_the_activation(
    kind: type[Counts], first: list[int], second: list[int]
) -> None:
    def answer(request: CompletionRequest) -> str:
        count = int(request.messages[-1].content.removeprefix("count "))
        return f"return [{count}, *invoke(task='t')]" if request.invoke_id.depth < 3 else f"return [{count}]"

    hook = kind()
    with ConfigOverride(backend=Scripted(answer)), hook:
        assert await ainvoke() == first
        assert await ainvoke() == second
    assert hook.count == (6 if kind is Counts else 0)


@pytest.mark.parametrize("kind", [Counts, CountsShared])
async def test_state_is_one_for_children_on_every_host(kind: type[Counts]) -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "import asyncio\nreturn await asyncio.gather(*(ainvoke(i=i) for i in range(100)))"
        return f"return {request.messages[-1].content!r}"

    with ConfigOverride(backend=Scripted(answer)), kind():
        got = await ainvoke()
    assert sorted(int(text.removeprefix("count ")) for text in got) == list(range(2, 102))


async def test_handlers_of_one_hook_never_run_in_parallel() -> None:
    class Careless(Hook):
        inside = 0
        most = 0

        def on_llm_query_enter(self, event: LLMQueryEnter) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            threading.Event().wait(0.001)
            self.inside -= 1

    hook = Careless()
    with script("return 1"), hook:
        await asyncio.gather(*(ainvoke() for _ in range(30)))
    assert hook.most == 1


async def test_a_positional_hook_sees_no_child_and_one_in_a_block_sees_all() -> None:
    def answer(request: CompletionRequest) -> str:
        return "return invoke(task='t')" if request.invoke_id.depth < 3 else "return 1"

    positional, block = Does(), Does()
    with ConfigOverride(backend=Scripted(answer)), block:
        await ainvoke(positional)
    assert {event.depth for event in positional.seen} == {1}
    assert {event.depth for event in block.seen} == {1, 2, 3}


# -- hooks in agent code

AGENTS_HOOK = """
from jaz_actors import Hook, effects
from jaz_actors.hooks import abort, returned
lines = []
class Mine(Hook):
    count = 0
    def on_invoke_enter(self, event):
        self.count += 1
        lines.append(event.invoke_id.partition(":")[2])
    async def on_invoke_complete(self, event):
        return effects.ModifyInvokeResult(returned("edited by its parent"))
"""


async def test_a_hook_of_agent_code_lives_in_its_frame_and_sees_its_child() -> None:
    code = f"{AGENTS_HOOK}\nhook = Mine()\nreturn invoke(hook, task='t'), hook.count, lines"

    def answer(request: CompletionRequest) -> str:
        return code if request.invoke_id.depth == 1 else "return 1"

    with ConfigOverride(backend=Scripted(answer)):
        result, count, lines = await ainvoke()
    assert (result, count) == ("edited by its parent", 1)
    assert [line.partition(".")[2] for line in lines] == ["0"]


async def test_a_block_in_agent_code_holds_for_children_and_their_children_until_it_ends() -> None:
    code = (
        f"{AGENTS_HOOK}\nimport asyncio\nhook = Mine()\n"
        "with hook:\n    both = await asyncio.gather(ainvoke(task='t'), ainvoke(task='t'))\n"
        "after = invoke(task='t')\nreturn both, after, hook.count"
    )

    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return code
        return "return invoke(task='t')" if request.invoke_id.depth == 2 else "return 1"

    with ConfigOverride(backend=Scripted(answer)):
        assert await ainvoke() == (["edited by its parent"] * 2, 1, 4)


async def test_a_hook_of_agent_code_that_raises_is_told_to_the_agent() -> None:
    code = (
        "from jaz_actors import Hook, errors\n"
        "class Bad(Hook):\n    def on_invoke_enter(self, event):\n        raise ValueError('oops')\n"
        "try:\n    invoke(Bad(), task='t')\nexcept errors.HookFailed as e:\n    return e.hook, e.event, e.message"
    )
    with script(code):
        hook, event, message = await ainvoke()
    assert (hook, event) == ("Bad", "InvokeEnter")
    assert "ValueError: oops" in message


async def test_agent_code_gives_no_hook_that_a_host_would_open() -> None:
    code = (
        "from jaz_actors import Hook, errors\n"
        "class Mine(Hook):\n    placement = 'local'\n"
        "try:\n    invoke(Mine(), task='t')\nexcept errors.HookActivationError as e:\n    return str(e)"
    )
    with script(code):
        assert "own process" in await ainvoke()


async def test_scope_in_agent_code_reaches_children_of_the_block() -> None:
    code = (
        "from jaz_actors import scope\n"
        "with scope(tool=len):\n    inside = invoke(task='t')\n"
        "return inside, invoke(task='t')"
    )

    def answer(request: CompletionRequest) -> str:
        return code if request.invoke_id.depth == 1 else "return 'tool' in globals(), shared"

    from jaz_actors import scope

    with ConfigOverride(backend=Scripted(answer)), scope(shared=5):
        assert await ainvoke() == ((True, 5), (False, 5))


# -- what tools and hooks start


async def test_what_a_tool_at_home_starts_is_the_agents_child() -> None:
    async def ask(question: str) -> str:
        return await ainvoke(task=question)  # type: ignore[no-any-return]

    def ask_now(question: str) -> str:
        from jaz_actors import invoke

        return invoke(task=question)  # type: ignore[no-any-return]

    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "return [await ask('a'), ask_now('b')], await __import__('asyncio').gather(ask('c'), ask('d'))"
        return f"return {request.invoke_id.path.partition('.')[2]!r}"

    hook = Does()
    with ConfigOverride(backend=Scripted(answer)), hook:
        got = await ainvoke(ask=by_reference(ask), ask_now=by_reference(ask_now))
    assert got == (["tool0-0", "tool1-0"], ["tool2-0", "tool3-0"])
    assert sorted(event.depth for event in hook.of(InvokeExit)) == [1, 2, 2, 2, 2]
    assert len({event.invoke_id for event in hook.of(InvokeExit)}) == 5


async def test_what_a_tool_starts_ends_with_the_agent() -> None:
    async def ask() -> None:
        await ainvoke(task="for ever")

    def answer(request: CompletionRequest) -> str:
        return "await ask()" if request.invoke_id.depth == 1 else "return 1"

    def delay(request: CompletionRequest) -> float:
        return 0.0 if request.invoke_id.depth == 1 else 60.0

    hook = Does()
    with ConfigOverride(backend=Scripted(answer, delay=delay)), hook:
        invocation = await start(ask=by_reference(ask))
        async for event in invocation:
            if isinstance(event, LLMQuerySend) and event.depth == 2:
                break
        invocation.cancel()
        assert isinstance(await invocation.outcome(), Aborted)
    async with asyncio.timeout(10):
        while len(hook.of(InvokeExit)) < 2:
            await asyncio.sleep(0.01)
    assert [event.depth for event in hook.of(InvokeExit)] == [2, 1]


class AsksAnother(Hook):
    """Has every root's result checked by another agent, below the one it checks."""

    async def on_invoke_complete(self, event: Any) -> Any:
        if event.depth > 1:
            return None
        verdict = await ainvoke(IterationLimit(2), task="check", result=load(event.result.value))
        return ModifyInvokeResult(returned(verdict))


@pytest.mark.parametrize("max_running", [None])
async def test_what_a_hook_starts_is_a_child_too(max_running: int | None) -> None:
    def answer(request: CompletionRequest) -> str:
        return "return 20" if request.invoke_id.depth == 1 else "return result + 1, 'ok'"

    hook = Does()
    with ConfigOverride(backend=Scripted(answer)), AsksAnother(), hook:
        assert await ainvoke() == (21, "ok")
    assert [event.depth for event in hook.of(InvokeExit)] == [2, 1]


async def test_a_hook_that_blocks_on_an_agent_is_refused_instead_of_hanging() -> None:
    class Blocks(Hook):
        def on_invoke_enter(self, event: Any) -> None:
            from jaz_actors import invoke

            invoke(task="t")

    outcome = await ends(Blocks(), script("return 1"))
    assert isinstance(outcome, Failed)
    assert "await ainvoke" in str(outcome.error)


# -- concurrency


async def test_two_hundred_trees_under_random_delays_have_the_sequences_of_one_alone() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return "print(1)" if request.iteration == 0 else "return [invoke(n=1), invoke(n=2)]"
        return "print(n)" if request.iteration == 0 else "return n"

    def sequences(seen: Sequence[Event]) -> dict[str, list[tuple[int, str]]]:
        by_path: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for event in seen:
            by_path[event.invoke_id.partition(":")[2]].append((event.sequence, tag(event)))
        return by_path

    def delay(request: CompletionRequest) -> float:
        import random

        return random.random() * 0.05

    alone = Does()
    with ConfigOverride(backend=Scripted(answer)), alone:
        await ainvoke(key="alone")
    expected = {path.partition(".")[2]: events for path, events in sequences(alone.seen).items()}
    hook = Does()
    with ConfigOverride(backend=Scripted(answer, delay=delay)), hook:
        results = await asyncio.gather(*(ainvoke() for _ in range(200)))
    assert results == [[1, 2]] * 200
    together = sequences(hook.seen)
    assert len(together) == 600
    for path, events in together.items():
        assert events == expected[path.partition(".")[2]]


async def test_a_completed_run_says_so() -> None:
    hook = Does()
    outcome = await ends(hook, script("return 1"))
    assert isinstance(outcome, Completed)
    (end,) = [event for event in hook.seen if tag(event) == "repl_exec_exit"]
    assert isinstance(end.result, Return)  # type: ignore[attr-defined]


async def test_when_the_frame_where_a_hook_lives_is_lost_the_children_that_need_it_end() -> None:
    code = (
        f"{AGENTS_HOOK}\nimport threading, os, time\n"
        "def child():\n    invoke(Mine(), task='for ever')\n"
        "threading.Thread(target=child, daemon=True).start()\n"
        "while not lines:\n    time.sleep(0.01)\n"
        "time.sleep(0.2)\nos._exit(1)"
    )

    def answer(request: CompletionRequest) -> str:
        if request.invoke_id.depth == 1:
            return code if request.iteration == 0 else "return 'went on'"
        return "import time\ntime.sleep(60)"

    hook = Does()
    with ConfigOverride(backend=Scripted(answer)), hook:
        async with asyncio.timeout(20):
            assert await ainvoke() == "went on"
    ends_by_depth = {event.depth: event.outcome for event in hook.of(InvokeExit)}
    assert type(ends_by_depth[2]).__name__ == "AbortedRecord"


INTERRUPTED = """
import sys, threading, os, signal, time
from jaz_actors import Hook, Scripted, configure, invoke

class Ends(Hook):
    def on_repl_exec_send(self, event):
        if event.depth == 2:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    def on_repl_exec_exit(self, event):
        print("exec", event.depth, event.status, flush=True)
    def on_invoke_exit(self, event):
        print("invoke", event.depth, type(event.outcome).__name__, flush=True)

configure(backend=Scripted({"0": ["return invoke(task='t')"], "*": ["while True: pass"]}), runtime="inline")
try:
    with Ends():
        invoke(task="t")
except KeyboardInterrupt:
    print("interrupted")
"""


async def test_an_interrupt_unwinds_every_invocation_with_its_ends(tmp_path: Any) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INTERRUPTED, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    async with asyncio.timeout(60):
        out, _ = await program.communicate()
    assert out.decode().split("\n") == [
        "exec 2 aborted", "invoke 2 AbortedRecord", "exec 1 aborted", "invoke 1 AbortedRecord", "interrupted", "",
    ]  # fmt: skip
