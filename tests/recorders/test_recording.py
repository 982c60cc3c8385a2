"""What happens is what the journal says: every event, once, in its order, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import psutil
import pytest

from jaz_actors import ConfigOverride, Hook, Recorder, Scripted, ainvoke, amap, errors, start
from jaz_actors.effects import AddMessages, DropMessages, InsertCode, NewMessage
from jaz_actors.events import Event, REPLExecSend
from jaz_actors.messages import Completion, SampledTokens, Usage
from jaz_actors.outcomes import AbortedRecord
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.deltas import Restorer, Shortener
from jaz_actors.recorders.journal import JournalReader, JournalWriter
from jaz_actors.recorders.runs import RecordedRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]


class Edits(Hook):
    """Edits whatever can be edited, at random, and sees everything."""

    def __init__(self, seed: int) -> None:
        self.seen: list[Event] = []
        self._random = random.Random(seed)

    def on_any(self, event: Event) -> None:
        self.seen.append(event)

    def on_llm_query_enter(self, event: Any) -> Any:
        draw = self._random
        edits: list[Any] = []
        if draw.random() < 0.5:
            edits.append(AddMessages((NewMessage("user", f"note {draw.random()}"),), persistent=draw.random() < 0.5))
        if draw.random() < 0.5 and len(event.messages) > 3:
            place = draw.randrange(2, len(event.messages))
            edits.append(DropMessages((place,), persistent=draw.random() < 0.5))
        return edits

    def on_repl_exec_enter(self, event: Any) -> Any:
        return InsertCode("# edited\n") if self._random.random() < 0.3 else None


def tree(request: CompletionRequest) -> Completion:
    turn, depth = request.iteration, request.invoke_id.depth
    if depth == 1:
        code = ["print('so')", "got = [invoke(n=n) for n in range(2)]\nprint(got)", "1 / 0", "return got"][turn]
    elif request.invoke_id.path.endswith("1") and turn == 1:
        code = "raise ValueError(n)" if request.iteration == 9 else "return n"
    else:
        code = ["x = n", "print(x)", "return x"][turn]
    prompt = [len(message.content) % 97 for message in request.messages]
    return Completion(code, usage=Usage(len(prompt), 2), tokens=SampledTokens(prompt, [turn, 5], [-0.1, -0.2]))


def by_invocation(events: Any) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found[event.invoke_id].append(event)
    return found


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
async def test_the_journal_gives_back_every_event_as_it_was(fsync: Any, tmp_path: Path) -> None:
    hook = Edits(3)
    with ConfigOverride(backend=Scripted(tree)), Recorder(tmp_path, fsync=fsync, shards=2), hook:
        await asyncio.gather(*(ainvoke(task="t", i=i) for i in range(6)))
    assert by_invocation(RecordedRun(tmp_path).events()) == by_invocation(hook.seen)
    assert len(list(tmp_path.glob("journal-*"))) == 2


@pytest.mark.parametrize("seed", range(5))
async def test_shortening_and_restoring_is_nothing_and_saves_what_is_repeated(seed: int) -> None:
    hook = Edits(seed)
    with ConfigOverride(backend=Scripted(tree)), hook:
        await asyncio.gather(*(ainvoke(task="t" * 500) for _ in range(2)))
    shortener, restorer = Shortener(), Restorer()
    deltas = [shortener.shorten(event) for event in hook.seen]  # type: ignore[arg-type]
    encoded = [msgspec.msgpack.encode(delta) for delta in deltas]
    decoded = [msgspec.msgpack.decode(data, type=type(deltas[0])) for data in encoded]
    assert [restorer.restore(delta) for delta in decoded] == hook.seen
    assert sum(map(len, encoded)) < 0.7 * sum(len(msgspec.msgpack.encode(event)) for event in hook.seen)


async def test_a_record_grows_with_the_turns_and_not_with_their_square(tmp_path: Path) -> None:
    sizes = []
    for turns in (20, 80):
        folder = tmp_path / str(turns)
        script = [*[f"print('{n:0100}')" for n in range(turns - 1)], "return 1"]
        with ConfigOverride(backend=Scripted(script)), Recorder(folder):
            await ainvoke()
        sizes.append(sum(len(payload) for _, payload in JournalReader(folder / "journal-0").read()))
    assert sizes[1] / sizes[0] < 5


async def test_a_result_is_there_only_once_its_record_is(tmp_path: Path) -> None:
    with ConfigOverride(backend=Scripted(["return n"])), Recorder(tmp_path):
        async for outcome in amap([{"n": n} for n in range(20)]):
            assert RecordedRun(tmp_path).invocations()[outcome.id.path].finished


async def test_a_folder_is_of_one_run_and_one_writer(tmp_path: Path) -> None:
    with ConfigOverride(backend=Scripted(["return 1"])), Recorder(tmp_path):
        await ainvoke()
        with Recorder(tmp_path) as same:
            assert same.recorders == ()
        with pytest.raises(errors.JournalError):
            JournalWriter(tmp_path / "journal-0", run_id="x")
    with ConfigOverride(backend=Scripted(["return 1"])), Recorder(tmp_path):
        await ainvoke()
    assert len(RecordedRun(tmp_path).invocations()) == 2


async def test_a_cancelled_tree_is_in_the_record_to_its_end(tmp_path: Path) -> None:
    def answer(request: CompletionRequest) -> str:
        return "return invoke(n=1)" if request.invoke_id.depth == 1 else "while True: pass"

    with ConfigOverride(backend=Scripted(answer)), Recorder(tmp_path):
        invocation = await start()
        async for event in invocation:
            if isinstance(event, REPLExecSend) and event.depth == 2:
                break
        invocation.cancel()
        await invocation.outcome()
    recorded = RecordedRun(tmp_path).invocations()
    assert [type(recorded[path].outcome) for path in sorted(recorded)] == [AbortedRecord, AbortedRecord]


@pytest.mark.ray
async def test_a_recorder_that_is_killed_is_started_again_and_nothing_is_lost(runtime: str, tmp_path: Path) -> None:
    if runtime != "ray":
        pytest.skip("recorders of their own")
    hook = Edits(1)
    with ConfigOverride(backend=Scripted(tree, delay=0.02)), Recorder(tmp_path), hook:
        work = asyncio.gather(*(ainvoke(task="t") for _ in range(40)))
        kills = 0
        for _ in range(3):
            await asyncio.sleep(0.4)
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "RecorderActor" in " ".join(process.cmdline()):
                        process.kill()
                        kills += 1
        assert len(await work) == 40
    assert kills
    assert by_invocation(RecordedRun(tmp_path).events()) == by_invocation(hook.seen)


PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from jaz_actors import Recorder, Scripted, ainvoke, by_reference, configure, resume
folder, asked, bought = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def note(path, text):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{text}\\n".encode())
    os.close(fd)

def answer(request):
    path, turn = request.invoke_id.path, request.iteration
    note(asked, f"{path} {turn}")
    if request.invoke_id.depth == 1:
        return ["print(buy(7))", "import asyncio\\ngot = await asyncio.gather(*(ainvoke(n=n) for n in range(3)))",
                "return got"][turn]
    return ["x = n * 10", "print(x)", "return x"][turn]

def buy(n):
    note(bought, f"bought {n}")
    return n

async def main():
    return await asyncio.gather(*(ainvoke(task=f"root {i}", buy=by_reference(buy)) for i in range(4)))

configure(backend=Scripted(answer, delay=0.03), runtime=sys.argv[4], max_actors=2)
block = resume(folder) if list(folder.glob("journal-*")) else Recorder(folder)
with block:
    print(asyncio.run(main()), flush=True)
"""


@pytest.mark.parametrize("again", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, 11))])
async def test_a_run_whose_driver_is_killed_again_and_again_ends_as_if_nothing_had_been(
    runtime: str, again: int, tmp_path: Path
) -> None:
    folder, asked, bought = tmp_path / "run", tmp_path / "asked", tmp_path / "bought"
    command = [sys.executable, "-c", PROGRAM, str(folder), str(asked), str(bought), "inline"]
    kills = 0
    chance = random.Random(f"{runtime} {again}")
    while True:
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = await asyncio.to_thread(program.communicate, timeout=60 if kills > 4 else 1.2 + chance.random())
            break
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGKILL)
            program.communicate()
            kills += 1
    assert program.returncode == 0, err
    assert out.strip() == str([[0, 10, 20]] * 4)
    times = Counter(asked.read_text().splitlines())
    assert len(times) == 4 * (3 + 3 * 3)
    # A turn that was under way when the driver died is asked for again; what had ended is not.
    assert times.total() - len(times) <= kills * 4 * 4
    assert len(bought.read_text().splitlines()) <= 4 * (1 + kills)
    run = RecordedRun(folder)
    assert len(run.invocations()) == 16
    assert all(invocation.finished for invocation in run.invocations().values())
    # Once more, for nothing.
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout == out
    assert Counter(asked.read_text().splitlines()) == times
