"""What the policy sampled is what the trainer gets: through edits, retries, recursion, failures and resuming."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from jaz_actors import ConfigOverride, Hook, Recorder, RolloutRecorder, Scripted, ainvoke, amap, errors, start
from jaz_actors.effects import AddMessages, DropMessages, ModifyLLMResponse, NewMessage, SupplyLLMResponse
from jaz_actors.messages import Completion
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.rollout_reader import recorded_rollouts
from jaz_actors.recorders.rollouts import Rollout
from jaz_actors.recorders.samples import to_flat, to_pieces, to_turn_samples
from jaz_actors.recorders.token_tree import to_tree
from tests import odd_tokens
from tests.odd_tokens import BREAK, HEADS, Sampling, read_log, sampled

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(odd_tokens)

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]

_keys = itertools.count()


def fresh_key() -> str:
    return f"rollout{next(_keys)}"


def three_turns(request: CompletionRequest) -> str:
    return ["x = 1", "print(x)", "return x"][request.iteration]


def tree(request: CompletionRequest) -> str:
    if request.invoke_id.depth == 1:
        return [
            "print('so')",
            "import asyncio",
            "got = await asyncio.gather(ainvoke(n=1), ainvoke(n=2))",
            "return got",
        ][request.iteration]
    return ["print(n)", "return n"][request.iteration]


def check(rollouts: list[Rollout], log: Path) -> None:
    """The rollouts are what the backend's own log says, in every form."""
    answered = read_log(log)
    wanted = Counter((a.invoke_id, a.iteration, tuple(a.prompt_ids), tuple(a.output_ids)) for a in answered)
    turns = Counter(
        (sample.rollout.invoke_id, sample.turn.iteration, tuple(sample.prompt_ids), tuple(sample.output_ids))
        for rollout in rollouts
        for sample in to_turn_samples(rollout)
    )
    assert turns == wanted
    ids = Counter(i for a in answered for i in a.output_ids)
    masked = Counter(
        i
        for rollout in rollouts
        for piece in to_pieces(rollout)
        for i, one in zip(piece.ids, piece.loss_mask, strict=True)
        if one
    )
    assert masked == ids
    parts = to_tree(rollouts).parts
    assert Counter(i for part in parts if part.sampled_by is not None for i in part.ids) == ids


async def test_without_edits_a_rollout_is_one_sequence_of_the_very_ids(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ConfigOverride(backend=Sampling(three_turns, log)), RolloutRecorder(tmp_path / "run") as recorder:
        await ainvoke(task="t")
    (rollout,) = recorder.rollouts
    check([rollout], log)
    flat = to_flat(rollout)
    said = sampled("x = 1")
    at = flat.prompt_length
    assert flat.ids[at - 1 : at + len(said) + 2] == [HEADS["assistant"], *said, BREAK, HEADS["user"]]
    assert flat.loss_mask[at - 1 : at + len(said) + 1] == [0, *[1] * len(said), 0]
    assert sum(flat.loss_mask) == sum(len(sampled(text)) for text in ("x = 1", "print(x)", "return x"))
    assert flat.iterations == (0, 1, 2)
    assert {span.newest for span in flat.versions} <= {"1", "2"}


async def test_each_invocation_of_a_tree_has_a_rollout_of_its_own(tmp_path: Path) -> None:
    log, key = tmp_path / "log", fresh_key()
    with ConfigOverride(backend=Sampling(tree, log)), RolloutRecorder(tmp_path / "run") as recorder:
        assert await ainvoke(key=key, task="t") == [1, 2]
        recorder.set_reward(key, 1)
        assert {rollout.path: rollout.reward for rollout in recorder}[key] == 1.0
    rollouts = {rollout.path: rollout for rollout in recorder}
    root = rollouts[key]
    assert {path: rollout.reward for path, rollout in rollouts.items()} == {
        key: 1.0,
        f"{key}.0": None,
        f"{key}.1": None,
    }
    for child in (rollouts[f"{key}.0"], rollouts[f"{key}.1"]):
        assert (child.parent_id, child.depth, child.parent_iteration, child.status) == (
            root.invoke_id,
            2,
            2,
            "completed",
        )
        assert child.root_id == root.invoke_id
        assert root.started_at <= child.started_at <= child.ended_at <= root.ended_at  # type: ignore[operator]
    assert root.parent_id is None
    check(list(rollouts.values()), log)


class Nudges(Hook):
    """At turn 1: a transient note at the end; at turn 2: one in the middle."""

    def on_llm_query_enter(self, event: Any) -> Any:
        note = (NewMessage("user", "note"),)
        if event.iteration == 1:
            return AddMessages(note, persistent=False)
        return AddMessages(note, index=2, persistent=False) if event.iteration == 2 else None


def five_turns(request: CompletionRequest) -> str:
    return [f"x = {n}" for n in range(4)][request.iteration] if request.iteration < 4 else "return x"


async def test_a_note_that_goes_again_breaks_the_sequence_where_it_is_gone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ConfigOverride(backend=Sampling(five_turns, log)), RolloutRecorder(tmp_path / "run") as recorder, Nudges():
        await ainvoke(task="t")
    (rollout,) = recorder.rollouts
    assert [piece.iterations for piece in to_pieces(rollout)] == [(0, 1), (2,), (3, 4)]
    with pytest.raises(errors.NonMonotoneRollout, match="turn 2"):
        to_flat(rollout)
    check([rollout], log)


class Rewrites(Hook):
    def on_llm_query_complete(self, event: Any) -> Any:
        return ModifyLLMResponse(Completion("x = 2")) if event.iteration == 0 else None


async def test_an_answer_that_a_hook_changes_is_kept_as_sampled_and_shown_as_changed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ConfigOverride(backend=Sampling(three_turns, log)), RolloutRecorder(tmp_path / "run") as recorder, Rewrites():
        assert await ainvoke(task="t") == 2
    (rollout,) = recorder.rollouts
    assert [turn.edited for turn in rollout.turns] == [True, False, False]
    assert rollout.turns[0].output_ids == sampled("x = 1")
    first, second = to_pieces(rollout)
    assert (first.iterations, second.iterations) == ((0,), (1, 2))
    assert bytes([*b"x = 2"]) in bytes(i for i in second.ids[: second.prompt_length] if i < 256)
    check([rollout], log)


def thinks(request: CompletionRequest) -> str:
    return ["x = 1", "x = 2", "print(x)", "x = 4", "return x"][request.iteration]


@pytest.mark.parametrize("keep", [True, False])
async def test_reasoning_is_hidden_and_is_kept_or_stripped(keep: bool, tmp_path: Path) -> None:
    seen: list[str] = []

    class Looks(Hook):
        def on_llm_query_exit(self, event: Any) -> Any:
            seen.append(event.completion.content)

    log, key = tmp_path / "log", f"thinks-{keep}"
    backend = Sampling(thinks, log, seed=3, keep=keep)
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run") as recorder, Looks():
        await ainvoke(task="t", key=key)
    (rollout,) = recorder.rollouts
    assert seen == ["x = 1", "x = 2", "print(x)", "x = 4", "return x"]
    thought = [turn.iteration for turn in rollout.turns if turn.reasoning is not None]
    assert thought, "the seed gives at least one"
    if keep:
        assert to_flat(rollout).iterations == (0, 1, 2, 3, 4)
    else:
        breaks = [piece.iterations[0] for piece in to_pieces(rollout)][1:]
        assert breaks == [iteration + 1 for iteration in thought if iteration < 4]
    check([rollout], log)


async def test_a_text_backend_is_refused_before_anything_starts(tmp_path: Path) -> None:
    asked: list[object] = []

    def answer(request: CompletionRequest) -> str:
        asked.append(request)
        return "return 1"

    with RolloutRecorder(tmp_path / "run"):
        with (
            ConfigOverride(backend=Scripted(answer)),
            pytest.raises(errors.ConfigurationError, match="demands the tokens"),
        ):
            await ainvoke(task="t")
        own = ConfigOverride(backend=Sampling(three_turns, tmp_path / "log"))
        with (
            ConfigOverride(backend=Scripted(answer), depth=2),
            pytest.raises(errors.ConfigurationError, match="tokens"),
        ):
            await ainvoke(own, task="t")
    assert not asked


async def test_rollouts_of_text_are_there_and_refused_where_none_were_demanded(tmp_path: Path) -> None:
    text = ConfigOverride(backend=Scripted(["return 1"]))
    with text, RolloutRecorder(tmp_path / "run", demand_tokens=False) as recorder:
        await ainvoke(task="t")
    (rollout,) = recorder.rollouts
    assert rollout.refused == "the model gave the answer of turn 0 without its tokens"
    with pytest.raises(errors.RolloutRefused):
        to_pieces(rollout)


class Supplies(Hook):
    supplies_llm_response = True

    def on_llm_query_send(self, event: Any) -> Any:
        return SupplyLLMResponse(Completion("x = 1")) if event.iteration == 0 else None


async def test_an_answer_that_a_hook_supplies_without_tokens_stands_the_rollout_down(tmp_path: Path) -> None:
    backend = Sampling(three_turns, tmp_path / "log")
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run") as recorder, Supplies():
        assert await ainvoke(task="t") == 1
    (rollout,) = recorder.rollouts
    assert rollout.refused == "a hook gave the answer of turn 0 without its tokens"
    assert [turn.iteration for turn in rollout.turns] == [1, 2]


class Breaks(Hook):
    def on_llm_query_enter(self, event: Any) -> Any:
        if event.iteration == 1:
            raise RuntimeError("no more")


async def test_what_infrastructure_ended_has_its_tokens_and_takes_no_reward(tmp_path: Path) -> None:
    key = fresh_key()
    backend = Sampling(three_turns, tmp_path / "log")
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run") as recorder, Breaks():
        with pytest.raises(errors.HookFailed):
            await ainvoke(task="t", key=key)
        assert not recorder.set_reward(key, 0.0)
    (rollout,) = recorder.rollouts
    assert (rollout.status, len(rollout.turns), rollout.reward) == ("failed", 1, None)
    assert rollout.refused is not None
    assert "infrastructure failed" in rollout.refused


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1"])
async def test_a_reward_that_is_no_number_is_refused(wrong: Any, tmp_path: Path) -> None:
    key = fresh_key()
    with ConfigOverride(backend=Sampling(three_turns, tmp_path / "log")), RolloutRecorder() as recorder:
        await ainvoke(task="t", key=key)
        with pytest.raises(errors.ConfigurationError, match="reward"):
            recorder.set_reward(key, wrong)
        with pytest.raises(errors.ConfigurationError, match="no invocation"):
            recorder.set_reward("no-such-key", 1.0)
        assert recorder.set_reward(key, 2.0)
        assert recorder.set_reward(key, None)
    assert [rollout.reward for rollout in recorder] == [None]


async def test_rollouts_can_be_followed_while_they_end_and_rewards_are_in_the_journal(tmp_path: Path) -> None:
    followed: list[str] = []
    log, base = tmp_path / "log", fresh_key()

    async def follow(recorder: RolloutRecorder) -> None:
        followed.extend([rollout.path async for rollout in recorder.follow()])

    with ConfigOverride(backend=Sampling(tree, log)), RolloutRecorder(tmp_path / "run", shards=2) as recorder:
        following = asyncio.create_task(follow(recorder))
        outcomes = [o async for o in amap([{"i": i} for i in range(6)], keys=lambda i: f"{base}-{i}", task="t")]
        for outcome in outcomes:
            recorder.set_reward(outcome.id, outcome.index or 0)
    await following
    assert sorted(followed) == sorted(f"{base}-{i}{end}" for i in range(6) for end in ("", ".0", ".1"))
    afterwards = list(recorded_rollouts(tmp_path / "run"))
    assert afterwards == recorder.rollouts
    assert {r.path: r.reward for r in afterwards if r.depth == 1} == {f"{base}-{i}": float(i) for i in range(6)}
    assert all(r.reward is None for r in afterwards if r.depth == 2)
    check(afterwards, log)


async def test_a_temporary_recorder_keeps_its_rollouts_and_gives_all_to_who_follows(tmp_path: Path) -> None:
    with ConfigOverride(backend=Sampling(three_turns, tmp_path / "log")), RolloutRecorder() as recorder:
        following = recorder.follow()
        await ainvoke(task="t")
        first = await anext(following)
        await ainvoke(task="u")
    rest = [rollout async for rollout in following]
    assert [first, *rest] == recorder.rollouts
    assert len(recorder.rollouts) == 2
    recorder.set_reward(first.invoke_id, 1.0)
    assert [rollout.reward for rollout in recorder] == [1.0, None]
    with pytest.raises(errors.ConfigurationError, match="no invocation"):
        recorder.set_reward("nobody", 1.0)


async def test_it_is_a_view_of_a_recorder_of_the_same_folder(tmp_path: Path) -> None:
    key = fresh_key()
    with ConfigOverride(backend=Sampling(three_turns, tmp_path / "log")), Recorder(tmp_path / "run"):
        with RolloutRecorder(tmp_path / "run") as recorder:
            await ainvoke(task="t", key=key)
            recorder.set_reward(key, 3.0)
        assert len(list((tmp_path / "run").glob("journal-*"))) == 1
        await ainvoke(task="t")
    assert [rollout.reward for rollout in recorded_rollouts(tmp_path / "run")] == [3.0, None]


async def test_a_cancelled_invocation_has_the_tokens_that_it_was_given(tmp_path: Path) -> None:
    def waits(request: CompletionRequest) -> str:
        return ["x = 1", "import time; time.sleep(60)"][request.iteration]

    log = tmp_path / "log"
    with ConfigOverride(backend=Sampling(waits, log)), RolloutRecorder(tmp_path / "run") as recorder:
        invocation = await start(task="t")
        async for event in invocation:
            if type(event).__name__ == "REPLExecSend" and event.iteration == 1:  # type: ignore[attr-defined]
                invocation.cancel()
        await invocation.outcome()
    (rollout,) = recorder.rollouts
    assert (rollout.status, rollout.refused, len(rollout.turns)) == ("aborted", None, 2)
    check([rollout], log)


async def test_tokens_that_contradict_themselves_are_not_to_be_trained_on(tmp_path: Path) -> None:
    class Liar(Sampling):
        async def complete(self, request: CompletionRequest) -> Completion:
            completion = await super().complete(request)
            assert completion.tokens is not None
            short = msgspec.structs.replace(completion.tokens, logprobs=completion.tokens.logprobs[1:])
            return msgspec.structs.replace(completion, tokens=short)

    with ConfigOverride(backend=Liar(three_turns, tmp_path / "log")), RolloutRecorder(tmp_path / "run") as recorder:
        await ainvoke(task="t")
    (rollout,) = recorder.rollouts
    assert rollout.refused is not None
    assert "logprobs" in rollout.refused
    with pytest.raises(errors.RolloutRefused, match="logprobs"):
        to_flat(rollout)


async def test_following_ends_also_where_the_record_was_lost(tmp_path: Path) -> None:
    class Lost(RolloutRecorder):
        async def _end_notes(self) -> None:
            raise errors.RecorderLost("journal", "gone")

    followed: list[str] = []

    async def follow(recorder: RolloutRecorder) -> None:
        followed.extend([rollout.path async for rollout in recorder.follow()])

    with ConfigOverride(backend=Sampling(three_turns, tmp_path / "log")):
        with pytest.raises(errors.RecorderLost), Lost(tmp_path / "run") as recorder:  # noqa: PT012  what its end raises
            following = asyncio.create_task(follow(recorder))
            key = fresh_key()
            await ainvoke(task="t", key=key)
            recorder.set_reward(key, 1.0)
        async with asyncio.timeout(20):
            await following
    assert len(followed) == 1


async def test_rollouts_of_several_journals_come_as_they_ended(tmp_path: Path) -> None:
    backend = Sampling(three_turns, tmp_path / "log")
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run", shards=2) as recorder:
        for i in range(6):
            await ainvoke(task="t", i=i)
    ended = [rollout.ended_at or 0.0 for rollout in recorder.rollouts]
    assert len(list((tmp_path / "run").glob("journal-*"))) == 2
    assert ended == sorted(ended)


class Edits(Hook):
    """Notes and drops at places that depend on nothing but the turn."""

    def on_llm_query_enter(self, event: Any) -> Any:
        number, edits = (event.iteration * 7 + len(event.invoke_id)) % 5, []
        if number < 2:
            edits.append(AddMessages((NewMessage("user", f"note {number}"),), persistent=number == 0))
        if number > 2 and len(event.messages) > 4:
            edits.append(DropMessages((3,), persistent=number == 4))
        return edits


@pytest.mark.parametrize("seed", range(6))
async def test_random_trees_with_edits_retries_reasoning_and_updates(seed: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    backend = Sampling(tree, log, seed=seed, keep=seed % 2 == 0)
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run") as recorder, Edits():
        await asyncio.gather(*(ainvoke(task="t", i=i) for i in range(4)))
    assert len(recorder.rollouts) == 12
    check(recorder.rollouts, log)


async def test_many_turns_cost_what_was_said(tmp_path: Path) -> None:
    def long(request: CompletionRequest) -> str:
        return f"print({request.iteration:050})" if request.iteration < 127 else "return 0"

    log = tmp_path / "log"
    with ConfigOverride(backend=Sampling(long, log)), RolloutRecorder(tmp_path / "run") as recorder:
        await ainvoke(task="t")
    (rollout,) = recorder.rollouts
    last = read_log(log)[-1]
    assert rollout.said == len(last.prompt_ids) + len(last.output_ids)
    assert to_tree([rollout]).tokens == len(to_flat(rollout).ids) == rollout.said
