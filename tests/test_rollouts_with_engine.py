"""Agents on a real server whose weights change under them: rollouts are what its own log says it sampled."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import httpx
import msgspec
import pytest

from jaz_actors import ConfigOverride, Hook, IterationLimit, RecursionLimit, RolloutRecorder, SGLang, ainvoke, amap
from jaz_actors.backends.embedded.launch import TINY_POLICY, EmbeddedEngine
from jaz_actors.backends.embedded.tasks import generate
from jaz_actors.backends.sglang import Sampling
from jaz_actors.effects import AddMessages, NewMessage
from jaz_actors.recorders.rollout_dataset import RolloutDataset
from jaz_actors.recorders.rollouts import Rollout
from jaz_actors.recorders.samples import to_pieces, to_turn_samples
from jaz_actors.recorders.token_batch import pack
from jaz_actors.recorders.token_tree import to_tree
from tests.contracts.sglang.teacher import Teacher

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]

TEMPERATURE = 0.6
KINDS = ("split_sum", "split_largest", "split_evens", "evens", "parity", "longest")
TASKS = 18
CONTEXT = 1024


@dataclass(slots=True)
class Logged:
    """One turn, as the server saw it: of several requests, where it was broken off and went on."""

    prompt_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    requests: int = 0


@dataclass(slots=True)
class Engine:
    url: str
    log: Path

    def turns(self) -> dict[tuple[str, int], Logged]:
        """By invoke id and turn, all that the server has sampled so far."""
        found: dict[tuple[str, int], Logged] = {}
        lines = [msgspec.json.decode(line) for line in self.log.read_bytes().splitlines()]
        for line in sorted(lines, key=lambda line: line["time"]):
            name, _, _ = line["rid"].rpartition("_r")
            invoke_id, _, turn = name.rpartition("_t")
            logged = found.setdefault((invoke_id, int(turn)), Logged(line["prompt_ids"]))
            assert line["prompt_ids"] == logged.prompt_ids + logged.output_ids
            logged.output_ids += line["output_ids"]
            logged.logprobs += line["logprobs"]
            logged.versions += [s["version"] for s in line["versions"] for _ in range(s["start"], s["end"])]
            logged.requests += 1
        return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("engine") / "tokens.jsonl"
    with EmbeddedEngine(slots=8, token_log=log, weight_version="1", context_length=CONTEXT) as running:
        yield Engine(running.url, log)


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(TINY_POLICY)


class Notes(Hook):
    """In every third invocation, for the policy does not know them: one that goes again, and one that stays."""

    def on_llm_query_enter(self, event: Any) -> Any:
        if event.iteration == 0 or int(event.invoke_id[-1]) % 3:
            return None
        return AddMessages((NewMessage("user", "Go on."),), persistent=event.iteration > 1)


@contextlib.asynccontextmanager
async def updated(engine: Engine, mode: str, folders: list[Path], labels: Iterator[int]) -> AsyncIterator[None]:
    """New weights again and again, while requests run."""
    done = asyncio.Event()

    async def update() -> None:
        number = 0
        async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:

            async def ok(path: str, **body: Any) -> None:
                answer = await http.post(path, json=body)
                assert answer.status_code == 200, answer.text

            while not done.is_set():
                number += 1
                await ok("/pause_generation", mode=mode)
                await ok(
                    "/update_weights_from_disk",
                    model_path=str(folders[number % len(folders)]),
                    weight_version=str(next(labels)),
                    flush_cache=False,
                    abort_all_requests=False,
                )
                await ok("/continue_generation")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), 0.25)

    updating = asyncio.create_task(update())
    try:
        yield
    finally:
        done.set()
        await updating


LABELS = iter(range(2, 1 << 30))


def policy(engine: Engine) -> ConfigOverride:
    return ConfigOverride(backend=SGLang(engine.url, sampling=Sampling(temperature=TEMPERATURE, max_new_tokens=192)))


async def trees(engine: Engine, seed: int) -> None:
    tasks = [task.inputs for task in generate(seed, TASKS, KINDS)]
    with policy(engine), RecursionLimit(4), Notes():
        outcomes = [outcome async for outcome in amap(tasks, IterationLimit(4), progress=False)]
    # What a sampled program prints may be too much for the model's 1,024 tokens.
    lost = [outcome for outcome in outcomes if outcome.status == "failed" and "ContextOverflow" not in repr(outcome)]
    assert not lost, lost


def taken(recorder: RolloutRecorder, engine: Engine) -> tuple[list[Rollout], dict[tuple[str, int], Logged]]:
    rollouts = [rollout for rollout in recorder if rollout.refused is None]
    assert len(rollouts) >= TASKS - 2
    names = {rollout.invoke_id for rollout in rollouts}
    return rollouts, {key: logged for key, logged in engine.turns().items() if key[0] in names}


def check_ids(rollouts: list[Rollout], logged: dict[tuple[str, int], Logged]) -> None:
    """Each turn is what the log says, and so are all exports."""
    seen: dict[tuple[str, int], Logged] = {}
    for sample in (sample for rollout in rollouts for sample in to_turn_samples(rollout)):
        turn, key = sample.turn, (sample.rollout.invoke_id, sample.turn.iteration)
        assert key not in seen
        versions: list[str] = []
        for span in turn.versions:
            assert span.oldest == span.newest is not None
            versions += [span.newest] * (span.end - span.start)
        seen[key] = Logged(sample.prompt_ids, turn.output_ids, turn.logprobs, versions, logged[key].requests)
        assert turn.sampling["temperature"] == TEMPERATURE
    assert seen == logged
    everything = Counter(i for turn in logged.values() for i in turn.output_ids)
    pieces = [piece for rollout in rollouts for piece in to_pieces(rollout)]
    in_pieces = Counter(i for p in pieces for i, one in zip(p.ids, p.loss_mask, strict=True) if one)
    in_tree = Counter(i for part in to_tree(rollouts).parts if part.sampled_by is not None for i in part.ids)
    assert in_pieces == in_tree == everything
    per_rollout = {rollout.invoke_id: rollout.sampled for rollout in rollouts}
    per_invocation = Counter[str]()
    for (invoke_id, _), answered in logged.items():
        per_invocation[invoke_id] += len(answered.output_ids)
    assert per_rollout == per_invocation


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_every_form_is_what_the_engine_sampled(
    mode: str, runtime: str, engine: Engine, teacher: Teacher, tmp_path: Path
) -> None:
    """Updates bring the same weights under a new name, so that one model tells what each id's logprob must be."""
    with RolloutRecorder(tmp_path / "run") as recorder:
        async with updated(engine, mode, [TINY_POLICY], LABELS):
            await trees(engine, seed=5)
    rollouts, logged = taken(recorder, engine)
    check_ids(rollouts, logged)
    assert max(rollout.depth for rollout in rollouts) > 1
    assert any(len(set(turn.versions)) > 1 for turn in logged.values()), "an answer of several versions"
    assert any(turn.requests > 1 for turn in logged.values()) == (mode == "abort")
    assert any(len(to_pieces(rollout)) > 1 for rollout in rollouts), "notes that went again break sequences"
    check_logprobs(rollouts, teacher)


def check_logprobs(rollouts: list[Rollout], teacher: Teacher) -> None:
    import torch

    dataset = RolloutDataset(rollouts, {rollout.invoke_id: 1.0 for rollout in rollouts})
    assert sum(int(dataset[n].loss_mask.sum()) for n in range(len(dataset))) == sum(r.sampled for r in rollouts)
    for at in range(0, len(dataset), 4):
        batch = pack([dataset[n] for n in range(at, min(at + 4, len(dataset)))])
        with torch.inference_mode():
            logits = teacher.model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
            told = batch.token_logprobs(logits)
        assert torch.allclose(told, batch.logprobs, atol=1e-4, rtol=0), (told - batch.logprobs).abs().max()


async def test_each_segment_was_sampled_by_the_weights_that_it_names(
    engine: Engine, teacher: Teacher, tmp_path: Path
) -> None:
    """Two different sets of weights in turn: even labels are the one, odd ones the other."""
    other = teacher.write(tmp_path / "other", teacher.changed(0.97))
    by_version = {0: Teacher(other), 1: teacher}
    labels = LABELS
    while next(labels) % 2 == 0:
        pass
    with RolloutRecorder(tmp_path / "run") as recorder:
        async with updated(engine, "abort", [TINY_POLICY, other], labels):
            await trees(engine, seed=6)
    rollouts, logged = taken(recorder, engine)
    check_ids(rollouts, logged)
    compared = Counter[int]()
    for sample in (sample for rollout in rollouts for sample in to_turn_samples(rollout)):
        turn = sample.turn
        for segment in turn.segments:
            spans = [s for s in turn.versions if segment.start <= s.start < segment.end]
            # Under its own name alone, so that its prompt was not cached by the weights before.
            if {segment.version_at_submit} != {span.newest for span in spans}:
                continue
            which = int(segment.version_at_submit or "1") % 2
            told = by_version[which].of(
                [*sample.prompt_ids, *turn.output_ids[: segment.start]],
                turn.output_ids[segment.start : segment.end],
                TEMPERATURE,
            )
            assert told == pytest.approx(turn.logprobs[segment.start : segment.end], abs=1e-4)
            compared[which] += segment.end - segment.start
    assert min(compared[0], compared[1]) > 20, compared


async def test_what_is_cancelled_has_what_it_was_given_and_no_more(engine: Engine, tmp_path: Path) -> None:
    tasks = generate(7, 8)
    with RolloutRecorder(tmp_path / "run") as recorder, policy(engine), RecursionLimit(4):
        running = [asyncio.ensure_future(ainvoke(**task.inputs)) for task in tasks]
        await asyncio.sleep(0.4)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    names = {rollout.invoke_id for rollout in recorder}
    logged = {key: turn for key, turn in engine.turns().items() if key[0] in names}
    for sample in (sample for rollout in recorder if rollout.refused is None for sample in to_turn_samples(rollout)):
        turn = logged[sample.rollout.invoke_id, sample.turn.iteration]
        assert (sample.prompt_ids, sample.output_ids) == (turn.prompt_ids, turn.output_ids)


async def test_no_longer_answer_is_asked_for_than_the_window_has_room_for(engine: Engine, tmp_path: Path) -> None:
    backend = SGLang(engine.url, sampling=Sampling(temperature=0.0, max_new_tokens=100_000))
    with ConfigOverride(backend=backend), RolloutRecorder(tmp_path / "run") as recorder:
        assert await ainvoke(task="Find the largest number.", numbers=[3, 14, 9]) == 14
    (rollout,) = recorder.rollouts
    for turn in rollout.turns:
        assert turn.sampling["max_new_tokens"] == CONTEXT - 1 - turn.prompt_length
