"""ATIF documents of real runs: what stands in them, that public models take them, and that they survive every form."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from atif import Trajectory

from jaz_actors import ConfigOverride, Hook, IterationLimit, Scripted, TrajectoryRecorder, ainvoke, start
from jaz_actors.effects import AddMessages, DropMessages, NewMessage
from jaz_actors.events import LLMQuerySend
from jaz_actors.hooks import Compaction
from jaz_actors.messages import Completion, SampledTokens, Usage
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.atif_check import validate
from jaz_actors.recorders.atif_files import join, split

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]


def tree(request: CompletionRequest) -> Completion:
    turn, depth = request.iteration, request.invoke_id.depth
    if depth == 1:
        code = ["print('so')", "import asyncio\ngot = await asyncio.gather(*(ainvoke(n=n) for n in range(3)))", "1 / 0",
                "return got"][turn]  # fmt: skip
    elif request.invoke_id.path.endswith(".1") and depth == 2:
        code = "return invoke(n=n, deep='\\ud800')" if turn == 0 else "return n"
    else:
        code = ["x = n", "print(x)", "return x"][turn]
    prompt = list(range(10 + 5 * turn))
    ids = [turn, 5]
    return Completion(
        code, usage=Usage(len(prompt), 2, 0, 0.5), tokens=SampledTokens(prompt, ids, [-0.1, 0.0], "1", "2")
    )


def checked(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for document in documents:
        assert validate(document) == []
        Trajectory.model_validate_json(json.dumps(document, allow_nan=False))
        assert join(split(document)) == document
        for part in split(document).values():
            Trajectory.model_validate(part)
    return documents


async def test_a_tree_is_one_document_with_its_children_where_they_were_started(tmp_path: Path) -> None:
    with ConfigOverride(backend=Scripted(tree)), TrajectoryRecorder(tmp_path / "out.json") as recorder:
        assert await ainvoke(task="t") == [0, 1, 2]
    (document,) = checked(recorder.get_trajectories())
    assert json.loads((tmp_path / "out.json").read_text()) == document
    assert document["schema_version"] == "ATIF-v1.7"
    sources = [step["source"] for step in document["steps"]]
    assert sources == ["system", "user", "agent", "agent", "agent", "agent"]
    spawning = document["steps"][3]
    refs = spawning["observation"]["results"][0]["subagent_trajectory_ref"]
    assert [ref["trajectory_id"].partition(".")[2] for ref in refs] == ["0", "1", "2"]
    assert document["steps"][2]["observation"]["results"][0]["content"] == "so"
    assert "ZeroDivisionError" in document["steps"][4]["observation"]["results"][0]["content"]
    second = document["subagent_trajectories"][1]
    assert second["subagent_trajectories"][0]["extra"]["depth"] == 3
    assert document["final_metrics"]["total_completion_tokens"] == 8
    assert document["final_metrics"]["extra"]["subtree_completion_tokens"] == 2 * (4 + 3 + 1 + 3 + 3)
    assert document["extra"]["outcome"]["status"] == "completed"


async def test_token_ids_are_there_by_what_is_new_or_in_full() -> None:
    with ConfigOverride(backend=Scripted(tree)), TrajectoryRecorder() as recorder:
        await ainvoke(task="t")
        running = recorder.get_trajectories()
    (document,) = checked(recorder.get_trajectories())
    assert running == [document]
    metrics = [step["metrics"] for step in document["steps"] if step["source"] == "agent"]
    assert [m["completion_token_ids"] for m in metrics] == [[0, 5], [1, 5], [2, 5], [3, 5]]
    prompt: list[int] = []
    for turn, m in enumerate(metrics):
        delta = m["extra"]["prompt_token_ids_delta"]
        prompt = [*prompt[: delta["shared_prefix"]], *delta["ids"]]
        assert prompt == list(range(10 + 5 * turn))
        prompt = [*prompt, *m["completion_token_ids"]]
    with ConfigOverride(backend=Scripted(tree)), TrajectoryRecorder(full_prompt_ids=True) as recorder:
        await ainvoke(task="t")
    (document,) = checked(recorder.get_trajectories())
    assert document["steps"][3]["metrics"]["prompt_token_ids"] == list(range(15))


async def test_ids_that_do_not_match_are_left_out_and_said_so() -> None:
    tokens = SampledTokens([1], [2, 3], [-0.5, float("nan")])
    answer = Completion("return 1", usage=Usage(1, 2), tokens=tokens)
    with ConfigOverride(backend=Scripted(lambda request: answer)), TrajectoryRecorder() as recorder:
        await ainvoke()
    (document,) = checked(recorder.get_trajectories())
    metrics = document["steps"][-1]["metrics"]
    assert "completion_token_ids" not in metrics
    assert metrics["extra"] == {"trainable": False, "reason": "a logprob is not finite"}


async def test_every_end_is_kept_and_labelled(tmp_path: Path) -> None:
    scripts = {
        "completed": ["return 1"],
        "raised": ["raise ValueError('no')"],
        "aborted": ["x = 1"] * 9,
        "failed": ["x = 1"],
    }
    with TrajectoryRecorder(tmp_path / "all.json") as recorder:
        for script in scripts.values():
            with ConfigOverride(backend=Scripted(script)):
                await (await start(IterationLimit(3))).outcome()
    documents = checked(recorder.get_trajectories())
    assert [document["extra"]["outcome"]["status"] for document in documents] == list(scripts)
    assert documents[3]["extra"]["query_failures"][0]["status"] == "failed"
    assert len(list(tmp_path.glob("all.*.json"))) == 4


async def test_a_running_invocation_has_a_document_that_says_so() -> None:
    slow = Scripted(["print(1)", "return 1"], delay=lambda request: 60.0 * request.iteration)
    with ConfigOverride(backend=slow), TrajectoryRecorder() as recorder:
        invocation = await start(task="t")
        async for event in invocation:
            if isinstance(event, LLMQuerySend) and event.iteration == 1:
                break
        async with asyncio.timeout(10):
            while not (documents := recorder.get_trajectories()) or len(documents[0]["steps"]) < 3:
                await asyncio.sleep(0.05)
        assert checked(documents)[0]["extra"]["outcome"] == {"status": "unfinished"}
        invocation.cancel()
        await invocation.outcome()


async def test_edits_and_agents_that_hooks_start_are_there() -> None:
    class Edits(Hook):
        def on_llm_query_enter(self, event: Any) -> Any:
            if event.iteration == 1 and event.depth == 1:
                return [AddMessages((NewMessage("user", "hint"),)), DropMessages((3,), persistent=True)]
            return None

    def answer(request: CompletionRequest) -> Completion:
        if request.invoke_id.depth == 2:
            code = "return 'in short'"
        else:
            code = "return 1" if request.iteration == 4 else f"print('{request.iteration}' * 900)"
        return Completion(code, usage=Usage(sum(len(m.content) for m in request.messages) // 4, 1))

    compaction = Compaction(fraction=0.5, keep_recent=2, context_length=1300)
    with ConfigOverride(backend=Scripted(answer)), Edits(), compaction, TrajectoryRecorder() as recorder:
        await ainvoke(task="t")
    (document,) = checked(recorder.get_trajectories())
    edited = next(step for step in document["steps"] if "edits" in step.get("extra", {}))
    assert edited["extra"]["edits"]["added"][0]["messages"][0]["content"] == "hint"
    assert edited["extra"]["edits"]["dropped"] == [{"position": 3, "message": 3, "persistent": True}]
    cuts = [step for step in document["steps"] if step.get("extra", {}).get("kind") == "context"]
    kinds = {step["extra"]["context_management"]["type"] for step in cuts}
    assert kinds <= {"compaction", "pruning"}
    summed_up = [step for step in cuts if step["extra"]["context_management"]["type"] == "compaction"]
    assert len(summed_up) == len(document["subagent_trajectories"]) >= 1
    for step in summed_up:
        (result,) = step["observation"]["results"]
        assert len(result["subagent_trajectory_ref"]) == 1
        assert "in short" in result["content"]
        assert step["extra"]["context_management"]["boundary"] == "replace"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: d["steps"][2]["metrics"]["logprobs"].pop(), "do not match"),
        (lambda d: d["steps"].pop(2), "step_id"),
        (lambda d: d["subagent_trajectories"].pop(), "referred to"),
        (lambda d: d["final_metrics"].update(total_prompt_tokens=1), "and the steps have"),
        (lambda d: d["extra"].update(x=None), "null"),
        (lambda d: d["extra"].update(x=float("nan")), "nan"),
        (lambda d: d["extra"].update(x="\ud800"), "surrogate"),
        (lambda d: d["subagent_trajectories"][0].update(trajectory_id=d["trajectory_id"]), "twice"),
    ],
)
async def test_damage_is_found(damage: Any, problem: str) -> None:
    with ConfigOverride(backend=Scripted(tree)), TrajectoryRecorder() as recorder:
        await ainvoke(task="t")
    (document,) = recorder.get_trajectories()
    damage(document)
    assert any(problem in line for line in validate(document))
