"""A recorded run drives its program again, whatever the scheduling; where the record breaks off, it goes on live."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jaz_actors import (
    ConfigOverride,
    Hook,
    Recorder,
    RolloutRecorder,
    Scripted,
    TrajectoryRecorder,
    TrajectoryReplay,
    ainvoke,
    by_reference,
    errors,
    start,
)
from jaz_actors.effects import AddMessages, DropMessages, ModifyLLMResponse, NewMessage
from jaz_actors.messages import Completion, SampledTokens, Usage
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.runs import RecordedRun
from tests import odd_tokens

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(odd_tokens)

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]

SEQUENTIAL = "got = [await ainvoke(task='child', n=n) for n in range(4)]"
GATHERED = "import asyncio\ngot = await asyncio.gather(*(ainvoke(task='child', n=n) for n in range(4)))"
THREADS = (
    "import threading\ngot = [None] * 4\n"
    "def one(n):\n    got[n] = invoke(task='child', n=n, key=f'c{n}')\n"
    "threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]\n"
    "for t in threads: t.start()\nfor t in threads: t.join()"
)
AWAITS = "import asyncio\nawait asyncio.sleep(0.01)\n"
CASES = {
    "A sequential": (SEQUENTIAL, "", False),
    "B gathered": (GATHERED, "", False),
    "C gathered, awaiting": (GATHERED, AWAITS, False),
    "D threads": (THREADS, "", False),
    "E gathered, with a grandchild": (GATHERED, AWAITS, True),
    "F sequential, with a grandchild": (SEQUENTIAL, AWAITS, True),
}


def model(spawn: str, pause: str, grandchild: bool) -> Callable[[CompletionRequest], Completion]:
    def answer(request: CompletionRequest) -> Completion:
        turn, depth, path = request.iteration, request.invoke_id.depth, request.invoke_id.path
        if depth == 1:
            code = f"{spawn}\nreturn got" if turn == 0 else "return 'again'"
        elif depth == 2 and turn == 1 and grandchild and path.endswith(".0"):
            code = "below = invoke(task='grandchild', n=n)\nprint(below)"
        else:
            code = [f"{pause}x = n", f"{pause}print(x * {random.random()})", f"return x, {path.partition('.')[2]!r}"][
                turn
            ]
        ids = [random.randrange(50) for _ in range(3)]
        return Completion(code, usage=Usage(3, 3), tokens=SampledTokens([1, 2, 3], ids, [-0.5] * 3, "1", "1"))

    return answer


class Tokens(Hook):
    def __init__(self) -> None:
        self.sampled: dict[tuple[str, int], list[int]] = {}

    def on_llm_query_exit(self, event: Any) -> None:
        if event.completion is not None and event.completion.tokens is not None:
            path = event.invoke_id.partition(":")[2].partition(".")[2]
            self.sampled[path, event.iteration] = event.completion.tokens.output_ids


def delay(request: CompletionRequest) -> float:
    return random.random() * 0.02


def none(request: CompletionRequest) -> str:
    raise AssertionError("the model was asked")


def moved(run: RecordedRun, path: str) -> RecordedRun:
    """The recorded root's tree under another ordinal, as a program that does something else first would have it."""
    for version in run.versions:
        _, dot, below = version.path.partition(".")
        version.invoke_id = f"{run.run_id}:{path}{dot}{below}"
    return run


async def next_root() -> str:
    """The path that the next root of this session will have."""
    with ConfigOverride(backend=Scripted(["return 0"])):
        invocation = await start()
        await invocation.result()
    return str(int(invocation.id.path) + 1)


@pytest.mark.parametrize("case", CASES)
async def test_a_recorded_tree_is_replayed_exactly_without_the_model(case: str, tmp_path: Path) -> None:
    spawn, pause, grandchild = CASES[case]
    then, now = Tokens(), Tokens()
    with ConfigOverride(backend=Scripted(model(spawn, pause, grandchild), delay=delay)), Recorder(tmp_path), then:
        expected = await ainvoke(task="root")
    turns = sum(len(i.turns()) for i in RecordedRun(tmp_path).invocations().values())
    assert turns == (16 if grandchild else 13)
    for _ in range(2):
        replay = TrajectoryReplay(moved(RecordedRun(tmp_path), await next_root()))
        with ConfigOverride(backend=Scripted(none)), replay, now:
            assert await ainvoke(task="root") == expected
        assert (replay.report.replayed, replay.report.live, replay.report.divergences) == (turns, 0, [])
        assert now.sampled == then.sampled


async def test_when_one_childs_input_differs_only_its_subtree_goes_live(tmp_path: Path) -> None:
    spawn, pause, grandchild = CASES["E gathered, with a grandchild"]
    backend = Scripted(model(spawn, pause, grandchild), delay=delay)
    with ConfigOverride(backend=backend), Recorder(tmp_path):
        await ainvoke(task="root")

    class Changes(Hook):
        def on_llm_query_enter(self, event: Any) -> Any:
            if event.invoke_id.endswith(".0") and event.depth == 2:
                return AddMessages((NewMessage("user", "by the way"),))
            return None

    replay = TrajectoryReplay(moved(RecordedRun(tmp_path), await next_root()), "live")
    with ConfigOverride(backend=backend), Changes(), replay:
        await ainvoke(task="root")
    assert {d.path.partition(".")[2] for d in replay.report.divergences} == {"0"}
    assert (replay.report.replayed, replay.report.live) == (10, 6)
    (divergence,) = replay.report.divergences
    assert divergence.got == "user: by the way"
    assert divergence.expected == "no message"


async def test_a_divergence_is_an_error_by_default_and_says_where(tmp_path: Path) -> None:
    script = Scripted(["print(x)", "return x"])
    with ConfigOverride(backend=script), Recorder(tmp_path):
        await ainvoke(task="root", x=1)
    run = RecordedRun(tmp_path)
    with TrajectoryReplay(moved(run, await next_root())), pytest.raises(errors.ReplayDiverged) as diverged:
        await ainvoke(ConfigOverride(backend=Scripted(none)), task="root", x=2)
    assert (diverged.value.iteration, diverged.value.index) == (0, 1)
    assert "1" in diverged.value.expected
    assert "2" in diverged.value.got
    with TrajectoryReplay(moved(RecordedRun(tmp_path), await next_root()), "ignore") as replay:
        assert await ainvoke(ConfigOverride(backend=Scripted(none)), task="root", x=2) == 2
    assert len(replay.report.divergences) == 2


async def test_a_response_that_a_hook_changed_is_not_changed_twice(tmp_path: Path) -> None:
    class Louder(Hook):
        def on_llm_query_complete(self, event: Any) -> Any:
            return ModifyLLMResponse(Completion(event.completion.content.replace("quiet", "quiet quiet")))

    with ConfigOverride(backend=Scripted(["return 'quiet'"])), Recorder(tmp_path), Louder():
        assert await ainvoke() == "quiet quiet"
    for hooks in ([], [Louder()]):
        with TrajectoryReplay(moved(RecordedRun(tmp_path), await next_root())):
            assert await ainvoke(*hooks, ConfigOverride(backend=Scripted(none))) == "quiet quiet"


async def test_tools_at_home_are_answered_from_the_record(tmp_path: Path) -> None:
    calls: list[int] = []

    def buy(n: int) -> int:
        calls.append(n)
        return len(calls)

    script = Scripted(["a = buy(1)\nb = buy(2)\nprint(a, b)", "return a, b"])
    with ConfigOverride(backend=script), Recorder(tmp_path):
        assert await ainvoke(buy=by_reference(buy)) == (1, 2)
    replay = TrajectoryReplay(moved(RecordedRun(tmp_path), await next_root()))
    with replay:
        assert await ainvoke(ConfigOverride(backend=Scripted(none)), buy=by_reference(buy)) == (1, 2)
    assert calls == [1, 2]
    assert replay.report.tools == 2


async def test_an_invocation_whose_record_breaks_off_goes_on_live(tmp_path: Path) -> None:
    script = Scripted(["x = 1", "print(x)", "return x"])
    with ConfigOverride(backend=script), Recorder(tmp_path):
        await ainvoke()
    run = moved(RecordedRun(tmp_path), await next_root())
    run.versions[0].events = run.versions[0].events[:14]  # within the second turn
    replay = TrajectoryReplay(run)
    with ConfigOverride(backend=script), replay:
        assert await ainvoke() == 1
    assert (replay.report.replayed, replay.report.live) == (2, 1)


async def test_a_live_turn_after_replayed_ones_goes_on_from_their_very_ids(tmp_path: Path) -> None:
    """The odd model's ids are never what its text encodes to, so that encoding the text again would show."""
    backend = odd_tokens.Sampling(
        lambda request: ["x = 1", "print(x)", "return x"][request.iteration], tmp_path / "log"
    )
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run") as recorder:
        await ainvoke()
    whole = odd_tokens.read_log(tmp_path / "log")
    (recorded,) = recorder.rollouts
    run = moved(RecordedRun(tmp_path / "run"), await next_root())
    run.versions[0].events = run.versions[0].events[:14]  # within the second turn
    with ConfigOverride(backend=backend), TrajectoryReplay(run), RolloutRecorder(tmp_path / "again") as recorder:
        assert await ainvoke() == 1
    live = odd_tokens.read_log(tmp_path / "log")[len(whole) :]
    assert [(a.iteration, a.prompt_ids) for a in live] == [(2, whole[2].prompt_ids)]
    (again,) = recorder.rollouts
    assert again.refused is None
    assert [(t.shared, t.new_ids, t.output_ids) for t in again.turns] == [
        (t.shared, t.new_ids, t.output_ids) for t in recorded.turns
    ]


async def test_two_replays_at_once_are_refused(tmp_path: Path) -> None:
    with ConfigOverride(backend=Scripted(["return 1"])), Recorder(tmp_path):
        await ainvoke()
    one, other = TrajectoryReplay(tmp_path), TrajectoryReplay(tmp_path)
    with one, other, pytest.raises(errors.HookActivationError, match="LLM response"):
        await ainvoke(ConfigOverride(backend=Scripted(["return 1"])))


async def test_what_is_no_recorded_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.JournalError, match="no journal"):
        TrajectoryReplay(tmp_path)


async def test_gathered_trees_replay_together(tmp_path: Path) -> None:
    spawn, pause, grandchild = CASES["E gathered, with a grandchild"]
    first = int(await next_root())
    with ConfigOverride(backend=Scripted(model(spawn, pause, grandchild), delay=delay)), Recorder(tmp_path, shards=2):
        expected = await asyncio.gather(*(ainvoke(task="root") for _ in range(5)))
    run = RecordedRun(tmp_path)
    shift = int(await next_root()) - first
    for version in run.versions:
        own, dot, below = version.path.partition(".")
        version.invoke_id = f"{run.run_id}:{int(own) + shift}{dot}{below}"
    replay = TrajectoryReplay(run)
    with ConfigOverride(backend=Scripted(none)), replay:
        assert await asyncio.gather(*(ainvoke(task="root") for _ in range(5))) == expected
    assert (replay.report.replayed, replay.report.live) == (80, 0)


@pytest.mark.parametrize("form", ["file", "documents"])
async def test_an_atif_document_replays_as_its_journal_does(form: str, tmp_path: Path) -> None:
    class Edits(Hook):
        def on_llm_query_enter(self, event: Any) -> Any:
            note = AddMessages((NewMessage("user", "note"),), persistent=True)
            return [note, DropMessages((2,))] if event.iteration == 1 else None

    spawn, pause, grandchild = CASES["E gathered, with a grandchild"]
    then, now = Tokens(), Tokens()
    path = tmp_path / "out.json"
    backend = Scripted(model(spawn, pause, grandchild), delay=delay)
    with ConfigOverride(backend=backend), TrajectoryRecorder(path) as recorder, Edits(), then:
        expected = await ainvoke(task="root")
    (document,) = recorder.get_trajectories()
    root = document["trajectory_id"]
    text = path.read_text().replace(root, f"{root.partition(':')[0]}:{await next_root()}")
    path.write_text(text)
    replay = TrajectoryReplay(path if form == "file" else [json.loads(text)])
    with ConfigOverride(backend=Scripted(none)), replay, Edits(), now:
        assert await ainvoke(task="root") == expected
    assert (replay.report.replayed, replay.report.live, replay.report.divergences) == (16, 0, [])
    assert now.sampled == then.sampled


async def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(errors.ConfigurationError, match="no ATIF document"):
        TrajectoryReplay(tmp_path / "x.json")
