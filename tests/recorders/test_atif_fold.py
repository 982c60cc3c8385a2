"""The ATIF fold over made-up streams: whatever is cut off, out of order or at odds, the document agrees with itself."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from atif import Trajectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaz_actors.events import (
    Event,
    InvokeExit,
    LLMQueryComplete,
    LLMQueryEnter,
    LLMQueryExit,
    LLMQuerySend,
    MessageAdd,
    MessageDrop,
    REPLExecEnter,
    REPLExecSend,
)
from jaz_actors.messages import Completion, Message, SampledTokens, Usage
from jaz_actors.outcomes import Continue, FailedRecord
from jaz_actors.payload import ErrorRecord
from jaz_actors.recorders.atif import Trajectories
from jaz_actors.recorders.atif_check import validate
from jaz_actors.recorders.atif_files import join, split, write_documents
from jaz_actors.recorders.atif_replay import documented
from jaz_actors.transfer import sendable
from tests.recorders.atif_streams import ERROR, Plan, forest, plans
from tests.recorders.runs import Tape
from tests.recorders.synthetic import interleaved, invocation


def documents_of(*streams: Iterable[Event], full_prompt_ids: bool = False) -> list[dict[str, Any]]:
    trajectories = Trajectories(full_prompt_ids=full_prompt_ids)
    for stream in streams:
        for event in stream:
            trajectories.add(event)  # type: ignore[arg-type]
    return trajectories.documents()


def checked(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for document in documents:
        assert validate(document) == []
        Trajectory.model_validate_json(json.dumps(document, allow_nan=False))
        files = split(document)
        assert join(files) == document
        for part in files.values():
            Trajectory.model_validate(part)
            assert [problem for problem in validate(part) if "subtree_" not in problem] == []
    return documents


def counted(path: str, turns: int) -> list[Event]:
    """A made-up invocation with tokens, whose counts are those of its ids."""
    events: list[Event] = []
    for event in invocation(path, turns=turns, tokens=True):
        completion = event.completion if isinstance(event, (LLMQueryComplete, LLMQueryExit)) else None
        if completion is not None and completion.tokens is not None:
            usage = Usage(len(completion.tokens.prompt_ids), len(completion.tokens.output_ids), 0, 0.5)
            completion = msgspec.structs.replace(completion, usage=usage)
            event = msgspec.structs.replace(event, completion=completion)
        events.append(event)
    return events


def tree(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield document
    for child in document.get("subagent_trajectories", ()):
        yield from tree(child)


def flat(documents: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = [node for document in documents for node in tree(document)]
    assert len({node["trajectory_id"] for node in found}) == len(found)
    return {node["trajectory_id"]: node for node in found}


def agent_steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for step in document["steps"] if step["source"] == "agent"]


# -- any stream


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(plans, min_size=1, max_size=6), st.integers(0, 99), st.booleans())
def test_whatever_happens_and_wherever_it_stops_the_documents_hold(drawn: list[Plan], seed: int, full: bool) -> None:
    streams = [stream.events for stream in forest(drawn)]
    documents = checked(documents_of(interleaved(streams, seed), full_prompt_ids=full))
    assert documents == documents_of(*reversed(streams), full_prompt_ids=full)
    nodes = flat(documents)
    assert set(nodes) == {stream[0].invoke_id for stream in streams}
    replayed = documented(documents)
    for stream in streams:
        node = nodes[stream[0].invoke_id]
        holds_every_completion(node, stream)
        holds_what_was_shown(replayed[node["extra"]["path"]].turns(), stream)
        ended = any(isinstance(event, InvokeExit) for event in stream)
        assert (node["extra"]["outcome"] == {"status": "unfinished"}) == (not ended)


def holds_every_completion(node: dict[str, Any], stream: Sequence[Event]) -> None:
    completions = [event.completion for event in stream if isinstance(event, LLMQueryComplete)]
    steps = [step for step in agent_steps(node) if step["llm_call_count"] == 1]
    assert [step["message"] for step in steps] == [sendable(completion.content) for completion in completions]
    final = node["final_metrics"]
    assert final.get("total_completion_tokens", 0) == sum(c.usage.completion_tokens or 0 for c in completions)
    numbers = {
        message.iteration: message.number
        for event in stream
        if isinstance(event, LLMQueryEnter)
        for message in event.messages
        if message.kind == "assistant"
    }
    for step in steps:
        iteration = step["extra"]["iteration"]
        assert step["extra"].get("message") == numbers.get(iteration, step["extra"].get("message"))


def holds_what_was_shown(turns: Sequence[Any], stream: Sequence[Event]) -> None:
    """From the document alone: each query's messages, its completion as given and as left by hooks, and its tokens."""
    sent = {event.iteration: event.messages for event in stream if isinstance(event, LLMQuerySend)}
    given_ = {event.iteration: event.completion for event in stream if isinstance(event, LLMQueryComplete)}
    final = {event.iteration: event.completion for event in stream if isinstance(event, LLMQueryExit)}
    done = [iteration for iteration, completion in final.items() if completion is not None]
    assert [turn.iteration for turn in turns] == done
    for turn in turns:
        shown = [(message.role, sendable(message.content)) for message in sent[turn.iteration]]
        assert [(message.role, message.content) for message in turn.shown] == shown
        left = final[turn.iteration]
        assert left is not None
        assert turn.final.content == left.content
        tokens = given_[turn.iteration].tokens
        if turn.completion.tokens is not None:
            assert turn.completion.tokens == tokens


# -- what is kept


def test_a_completion_is_kept_when_its_query_is_cut_off_or_aborted_after_it() -> None:
    tape = Tape()
    asked = {"iteration": 0, "messages": (Message("system", "s", "seed", 0),), "model": "m"}
    tape.emit(LLMQueryEnter, **asked, can_recurse=True)
    tape.emit(LLMQuerySend, **asked)
    tape.emit(LLMQueryComplete, iteration=0, completion=Completion("return 1", usage=Usage(3, 2)))
    (document,) = checked(documents_of(tape.events))
    (step,) = agent_steps(document)
    assert step["extra"]["status"] == "unfinished"
    assert document["final_metrics"]["total_prompt_tokens"] == 3
    tape.emit(LLMQueryExit, iteration=0, status="aborted", error=ErrorRecord("Stop", "a hook says so"))
    (document,) = checked(documents_of(tape.events))
    (step,) = agent_steps(document)
    assert (step["extra"]["status"], step["extra"]["error_type"]) == ("aborted", "Stop")
    assert document["extra"]["query_failures"][0]["status"] == "aborted"


def test_edits_of_a_query_that_failed_are_with_its_failure() -> None:
    tape = Tape()
    note = MessageAdd(1, (Message("user", "a hint", "added", 1, 0),), True)
    asked = {"iteration": 0, "messages": (Message("system", "s", "seed", 0),), "model": "m"}
    tape.emit(LLMQueryEnter, **asked, can_recurse=True)
    tape.emit(LLMQuerySend, **asked, adds=(note,))
    tape.emit(LLMQueryExit, iteration=0, status="failed", error=ERROR)
    (document,) = checked(documents_of(tape.events))
    (failure,) = document["extra"]["query_failures"]
    assert failure["edits"]["added"][0]["messages"][0]["content"] == "a hint"
    assert len(document["steps"]) == 1


def test_a_message_added_for_good_is_a_step_once_and_one_for_a_query_is_not() -> None:
    tape = Tape()
    stays = MessageAdd(1, (Message("user", "stays", "added", 1, 0),), True)
    goes = MessageAdd(1, (Message("user", "goes", "added", 2, 0),), False)
    tape.query("x = 1", adds=(stays, goes))
    (document,) = checked(documents_of(tape.events))
    assert [step["message"] for step in document["steps"]] == ["be good", "stays", "x = 1"]
    assert document["steps"][1]["extra"] == {"message": 1, "kind": "added", "iteration": 0}
    assert document["steps"][2]["extra"]["edits"]["added"] == [
        {"position": 1, "persistent": True, "messages": [{"role": "user", "message": 1}]},
        {"position": 1, "persistent": False, "messages": [{"role": "user", "message": 2, "content": "goes"}]},
    ]


def test_the_whole_text_stays_beside_the_abbreviated_one() -> None:
    tape = Tape().turn("print('a' * 99)", Continue("a" * 99 + "\n"))
    before = checked(documents_of(tape.events))[0]["steps"][-1]["observation"]["results"][0]
    assert before["content"] == "a" * 99 + "\n"
    assert "message" not in before["extra"]
    tape._messages = (*tape._messages[:-1], Message("user", "a…a", "observation", 2, 0))
    tape.query("return")
    (result,) = checked(documents_of(tape.events))[0]["steps"][1]["observation"]["results"]
    assert result["content"] == "a…a"
    assert (result["extra"]["full_text"], result["extra"]["message"]) == ("a" * 99 + "\n", 2)


@pytest.mark.parametrize(("size", "written_out"), [(1000, True), (5, False)])
def test_a_compaction_is_a_boundary_with_the_new_context(size: int, written_out: bool) -> None:
    tape = Tape().turn("print()", Continue("o" * size)).turn("print(2)", Continue("recent"))
    drop = MessageDrop(2, tape._messages[2], True)
    add = MessageAdd(2, (Message("user", "in short" + "." * 50, "added", 9, 2),), True)
    tape.query("return 1", drops=(drop,), adds=(add,))
    (document,) = checked(documents_of(tape.events))
    cuts = [step for step in document["steps"] if step["extra"].get("kind") == "context"]
    assert bool(cuts) is written_out
    for cut in cuts:
        assert cut["extra"]["context_management"] == {"type": "compaction", "boundary": "replace"}
        content = cut["observation"]["results"][0]["content"]
        assert "in short" in content
        assert "recent" in content
        assert "ooo" not in content


def test_documents_are_copies() -> None:
    trajectories = Trajectories()
    events = counted("0", turns=3)
    for event in events[:12]:
        trajectories.add(event)  # type: ignore[arg-type]
    early = trajectories.documents()
    kept = copy.deepcopy(early)
    for event in events[12:]:
        trajectories.add(event)  # type: ignore[arg-type]
    late = trajectories.documents()
    assert early == kept
    late[0]["steps"][2]["metrics"]["logprobs"].clear()
    late[0]["extra"].clear()
    checked(trajectories.documents())


def test_faulty_counts_and_tokens_are_left_out_with_the_reason() -> None:
    def metrics(usage: Usage, tokens: SampledTokens) -> Any:
        tape = Tape()
        asked = {"iteration": 0, "messages": (), "model": "m"}
        tape.emit(LLMQueryEnter, **asked, can_recurse=True)
        tape.emit(LLMQueryComplete, iteration=0, completion=Completion("x", usage=usage, tokens=tokens))
        return agent_steps(checked(documents_of(tape.events))[0])[0].get("metrics")

    fine = SampledTokens([1, 2], [3], [-0.5])
    assert metrics(Usage(2, 1, None, float("nan")), fine)["logprobs"] == [-0.5]
    assert "cost_usd" not in metrics(Usage(2, 1, None, float("nan")), fine)
    assert metrics(Usage(5, 1), fine)["extra"] == {"trainable": False, "reason": "prompt ids and prompt_tokens differ"}
    assert metrics(Usage(2, 5), fine)["extra"]["reason"] == "ids and the count of tokens differ"
    assert (
        metrics(Usage(2, 1), SampledTokens([1, 2], [3], []))["extra"]["reason"] == "ids and logprobs differ in length"
    )
    assert metrics(Usage(), fine)["completion_token_ids"] == [3]


# -- trees


def lost(path: str) -> InvokeExit:
    failed = FailedRecord(ERROR)
    return InvokeExit(invoke_id=f"run:{path}", depth=2, sequence=-1, timestamp=500.0, outcome=failed)


def test_one_of_which_only_the_loss_is_known_hangs_below_its_parent() -> None:
    (document,) = checked(documents_of([lost("0.3")], Tape().turn("x", Continue("")).events))
    (child,) = document["subagent_trajectories"]
    assert child["extra"]["outcome"]["status"] == "failed"
    assert child["steps"][0]["message"] == "It ended before its first message."


def test_a_loss_reported_late_does_not_undo_the_end() -> None:
    (document,) = checked(documents_of(Tape().returns("return 1", 1), [lost("0")]))
    assert document["extra"]["outcome"]["status"] == "completed"


def test_a_resumed_invocation_begins_anew() -> None:
    (document,) = checked(documents_of(Tape().turn("x", Continue("")).events, Tape().returns("return 1", 1)))
    assert [step["message"] for step in document["steps"]] == ["be good", "return 1"]


def test_a_child_hangs_on_the_call_that_still_runs_and_knows_its_place() -> None:
    tape = Tape().query("invoke()")
    tape.emit(REPLExecEnter, iteration=0, code="invoke()")
    tape.emit(REPLExecSend, iteration=0, code="invoke()  # edited")
    second, tenth = (Tape(f"0.{number}", parent_iteration=0).events for number in (2, 10))
    (document,) = checked(documents_of(tape.events, tenth, second))
    step = document["steps"][1]
    (result,) = step["observation"]["results"]
    assert result["source_call_id"] == step["tool_calls"][0]["tool_call_id"]
    assert [ref["trajectory_id"] for ref in result["subagent_trajectory_ref"]] == ["run:0.2", "run:0.10"]
    assert step["tool_calls"][0]["extra"] == {"written": "invoke()"}
    extra = document["subagent_trajectories"][0]["extra"]
    assert (extra["parent_step_id"], extra["parent_tool_call_id"]) == (2, "run:0/turn-0")


def test_deep_and_wide_trees_are_no_trouble() -> None:
    deep = [Tape(".".join("0" * (depth + 1)), parent_iteration=0).turn("x", Continue("")) for depth in range(150)]
    wide = [Tape(f"1.{number}", parent_iteration=0).events for number in range(2000)]
    documents = documents_of(*(tape.events for tape in deep), Tape("1").turn("x", Continue("")).events, *wide)
    for document in documents:  # pydantic's JSON parser stops at a depth of about a hundred
        assert validate(document) == []
        assert join(split(document)) == document
    assert len(list(tree(documents[0]))) == 150
    assert len(documents[1]["subagent_trajectories"]) == 2000


def test_what_is_added_a_turn_does_not_grow_with_the_turns() -> None:
    """Sizes of documents, without whole prompts, are linear in what was said."""
    sizes = [len(json.dumps(documents_of(counted("0", turns=turns)))) for turns in (50, 100, 200)]
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])


# -- files and the check


def test_one_root_is_a_file_and_when_there_are_two_each_has_its_own(tmp_path: Path) -> None:
    path, first = tmp_path / "out.json", Tape().returns("return 1", 1)
    write_documents(path, documents_of(first))
    assert path.stat().st_mode & 0o044
    documents = documents_of(first, Tape("1").returns("return 2", 2))
    written = write_documents(path, documents)
    assert [file.name for file in written] == ["out.0.json", "out.1.json"]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    assert [json.loads(file.read_text()) for file in written] == documents


def test_another_file_at_the_path_of_one_root_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("mine")
    write_documents(path, documents_of(Tape().events, Tape("1").events))
    assert path.read_text() == "mine"


def with_child(child_id: str) -> dict[str, Any]:
    (document,) = documents_of(Tape().turn("x", Continue("")).events, Tape("0.0", parent_iteration=0).events)
    text = json.dumps(document).replace("run:0.0", child_id)
    return dict(json.loads(text))


def test_no_id_leads_a_file_out_of_its_folder() -> None:
    document = with_child("x:../../evil")
    assert list(split(document)) == ["trajectory.json", "trajectory..._.._evil.json"]
    assert join(split(document)) == document


def test_what_could_not_be_joined_again_is_not_split_and_files_in_a_circle_are_not_joined() -> None:
    document = with_child("run:0.0")
    files = split(document)
    ref = files["trajectory.json"]["steps"][1]["observation"]["results"][0]["subagent_trajectory_ref"][0]
    ref["trajectory_path"] = "trajectory.json"
    with pytest.raises(ValueError, match="referred to twice"):
        join(files)
    del document["steps"][1]["observation"]
    with pytest.raises(ValueError, match="children"):
        split(document)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=3), below, max_size=2),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(json_values, st.data())
def test_the_check_takes_any_json_and_says_where(value: Any, data: st.DataObject) -> None:
    assert validate(value) != []
    (document,) = documents_of(counted("0", turns=1), counted("0.0", turns=1))
    owner: Any = document
    for _ in range(data.draw(st.integers(0, 6))):
        below = [
            item for item in (owner.values() if isinstance(owner, dict) else owner) if isinstance(item, dict | list)
        ]
        owner = data.draw(st.sampled_from(below)) if below else owner
    if owner:
        owner[data.draw(st.sampled_from(sorted(owner) if isinstance(owner, dict) else range(len(owner))))] = value
    assert all(problem.startswith("$") for problem in validate(document))


def metrics_of(document: Any, step: int) -> Any:
    return document["steps"][step]["metrics"]


def delta_of(document: Any) -> Any:
    return metrics_of(document, 3)["extra"]["prompt_token_ids_delta"]


def result_of(document: Any) -> Any:
    return document["steps"][2]["observation"]["results"][0]


def call_of(document: Any) -> Any:
    return document["steps"][2]["tool_calls"][0]


def child_of(document: Any) -> Any:
    return document["subagent_trajectories"][0]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: d["steps"][2].update(metrics=None), "$.steps[2].metrics: null"),
        (lambda d: metrics_of(d, 2).update(prompt_tokens=1), "$.steps[2].metrics: ids and prompt_tokens"),
        (lambda d: metrics_of(d, 2).update(completion_tokens=1), "$.steps[2].metrics: ids and completion_tokens"),
        (lambda d: metrics_of(d, 2).update(cached_tokens=-1), "$.steps[2].metrics.cached_tokens: -1 is no count"),
        (lambda d: delta_of(d).update(shared_prefix=999), "delta.shared_prefix: is 999"),
        (lambda d: d["steps"][2].update(timestamp="2020-01-01T00:00:00"), "$.steps[2].timestamp: has no time zone"),
        (lambda d: d["steps"][3].update(timestamp="2020-01-01T00:00:00Z"), "$.steps[3].timestamp: is before that"),
        (lambda d: d["final_metrics"].pop("total_prompt_tokens"), "$.final_metrics.total_prompt_tokens: None"),
        (lambda d: d["final_metrics"]["extra"].update(subtree_prompt_tokens=1), "$.final_metrics.extra.subtree"),
        (lambda d: d["final_metrics"].update(total_steps=9), "$.final_metrics.total_steps: 9"),
        (lambda d: result_of(d).pop("subagent_trajectory_ref"), "by no step"),
        (lambda d: result_of(d).update(source_call_id="x"), "$.steps[2].observation.results[0].source_call_id"),
        (lambda d: d["subagent_trajectories"].clear(), "not there"),
        (lambda d: child_of(d)["steps"][0].update(step_id=4), "$.subagent_trajectories[0].steps[0].step_id: is 4"),
        (lambda d: call_of(child_of(d)).update(tool_call_id=call_of(d)["tool_call_id"]), "is there twice"),
        (lambda d: d.pop("session_id"), "$.session_id"),
        (lambda d: d.update(schema_version="atif/1"), "$.schema_version"),
        (lambda d: d["steps"][0].update(metrics={"prompt_tokens": 1}), "belongs to steps of agents"),
    ],
)
def test_damage_is_found_where_it_is(damage: Any, problem: str) -> None:
    streams = counted("0", turns=2), counted("0.0", turns=1)
    (document,) = checked(documents_of(*streams))
    damage(document)
    assert any(problem in line for line in validate(document)), validate(document)
