"""One REPL and its frames: turns, output, deadlines, losses. Real processes, no model."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from jaz_actors.errors import ConfigurationError, FrameStartFailed, InputRefused
from jaz_actors.frames.process import FrameOptions, Zygote
from jaz_actors.frames.repl import FINISH_REFUSED, REPL, ReplSession
from jaz_actors.frames.wire import ChildCall, HistoryItem, Limits, ReferenceCall
from jaz_actors.inputs import InputPacker
from jaz_actors.outcomes import Continue, ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord, Payload
from jaz_actors.refs import ReferenceTable
from jaz_actors.shared import SharedBuffers
from jaz_actors.transfer import pack, unpack

pytestmark = pytest.mark.asyncio


async def _no_calls(body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
    raise AssertionError("this test calls no one")


class Repl:
    """A session with shorthands."""

    def __init__(self, session: ReplSession) -> None:
        self.session = session
        self.turn = 0

    async def run(self, code: str, *, timeout: float | None = None) -> ExecResult:
        result = await self.session.execute(code, f"<repl_{self.turn}>", self.turn, timeout=timeout)
        self.session.remember(HistoryItem(code, result.text if isinstance(result, Continue) else ""))
        self.turn += 1
        return result

    async def text(self, code: str, *, timeout: float | None = None) -> str:
        result = await self.run(code, timeout=timeout)
        assert isinstance(result, Continue), result
        return result.text

    async def value(self, code: str) -> object:
        result = await self.run(code)
        assert isinstance(result, Return), result
        return unpack(result.value)


@asynccontextmanager
async def a_repl(
    options: REPL | None = None,
    on_call: Callable[[ChildCall | ReferenceCall], Awaitable[Payload | ErrorRecord]] = _no_calls,
    **inputs: object,
) -> AsyncIterator[Repl]:
    options = options or REPL(timeout=10)
    zygote = Zygote(options.frames)
    packer = InputPacker(ReferenceTable("test"), SharedBuffers())
    session = ReplSession(zygote, options, home=lambda: "test/0", on_call=on_call)
    try:
        packed = packer.pack_all(inputs, "0", lambda value: None)
        await session.open(packed, (), Limits(1000, 0.5), recursion=True, shared={})
        yield Repl(session)
    finally:
        await session.aclose()
        await zygote.aclose()


async def test_a_turn_keeps_variables_and_shows_output_and_the_trailing_value() -> None:
    async with a_repl(n=3) as repl:
        assert await repl.text("x = n + 1") == ""
        assert await repl.text("print('hello')\nx") == "hello\n4\n"
        assert await repl.value("return _ * 2") == 8


async def test_stdout_and_stderr_of_code_threads_and_subprocesses_are_one_output() -> None:
    async with a_repl() as repl:
        text = await repl.text(
            "import os, subprocess, sys, threading\n"
            "print('a')\n"
            "print('b', file=sys.stderr)\n"
            "os.write(1, b'c\\n')\n"
            "subprocess.run(['sh', '-c', 'echo d; echo e >&2; echo f > /dev/stderr'])\n"
            "t = threading.Thread(target=lambda: print('g')); t.start(); t.join()\n"
        )
        assert text.split() == list("abcdefg")


async def test_what_a_turn_left_running_writes_into_no_later_turn() -> None:
    async with a_repl() as repl:
        await repl.text(
            "import subprocess, threading, time\n"
            "p = subprocess.Popen(['sh', '-c', 'while true; do echo late; sleep 0.01; done'])\n"
            "stop = threading.Event()\n"
            "def chatter():\n"
            "    while not stop.wait(0.01):\n"
            "        print('late')\n"
            "threading.Thread(target=chatter, daemon=True).start()\n"
        )
        for _ in range(3):
            assert await repl.text("time.sleep(0.1)\nprint('mine')") == "mine\n"


@pytest.mark.parametrize("how", ["return 1", "raise ValueError('x')"])
async def test_printing_and_finishing_in_one_turn_is_refused_and_the_output_kept(how: str) -> None:
    async with a_repl() as repl:
        assert await repl.text(f"print('look')\n{how}") == f"look\n{FINISH_REFUSED}"
        assert not isinstance(await repl.run(how), Continue)


async def test_a_warning_on_stderr_does_not_keep_a_turn_from_finishing() -> None:
    async with a_repl() as repl:
        assert await repl.value("import warnings\nwarnings.warn('careful')\nreturn 5") == 5


async def test_finishing_with_output_is_allowed_by_choice() -> None:
    async with a_repl(REPL(reject_finish_on_output=False)) as repl:
        assert await repl.value("print('x')\nreturn 1") == 1


async def test_a_top_level_raise_can_be_forbidden() -> None:
    async with a_repl(REPL(allow_raise=False)) as repl:
        assert "ValueError: no" in await repl.text("raise ValueError('no')")


async def test_a_raise_travels_as_itself() -> None:
    async with a_repl() as repl:
        result = await repl.run("class Mine(Exception): pass\nraise Mine('why')")
        assert isinstance(result, Raise)
        assert (result.error.type_name, result.error.message) == ("__main__.Mine", "why")


async def test_a_traceback_shows_the_agents_lines_and_no_machinery() -> None:
    async with a_repl() as repl:
        text = await repl.text("def f():\n    return 1 / 0\nf()")
        assert "return 1 / 0" in text
        assert "ZeroDivisionError" in text
        assert "jaz_actors" not in text


@pytest.mark.parametrize(
    "code", ["exit()", "raise SystemExit(3)", "raise KeyboardInterrupt", "import sys; sys.exit(2)"]
)
async def test_exits_are_observations_and_leave_the_frame_alive(code: str) -> None:
    async with a_repl() as repl:
        await repl.text("x = 1")
        await repl.text(code)
        assert await repl.value("return x") == 1


async def test_a_result_that_cannot_leave_the_frame_is_an_observation() -> None:
    async with a_repl() as repl:
        assert "cannot leave the frame" in await repl.text("import threading\nreturn threading.Lock()")


async def test_history_is_there_in_full_with_the_exception() -> None:
    async with a_repl() as repl:
        await repl.text("print('x' * 5000)")
        await repl.text("1 / 0")
        code = (
            "h = __history__\n"
            "return len(h), len(h[0].repl_output), type(h[1].repl_exception).__name__, h[0].llm_response"
        )
        assert await repl.value(code) == (2, 5001, "ZeroDivisionError", "print('x' * 5000)")


async def test_inputs_are_copies_and_bound_by_name() -> None:
    data = {"a": [1]}
    async with a_repl(data=data, text="t") as repl:
        assert await repl.value("data['a'].append(2)\nreturn data, __inputs__['text'], sorted(__inputs__)") == (
            {"a": [1, 2]},
            "t",
            ["data", "text"],
        )
    assert data == {"a": [1]}


_ENDLESS = [
    pytest.param("while True: pass", id="loop"),
    pytest.param("import time\ntime.sleep(1e9)", id="sleep"),
    pytest.param("import asyncio\nawait asyncio.sleep(1e9)", id="async sleep"),
    pytest.param("import threading\nthreading.Lock().acquire() and threading.Event().wait()", id="lock"),
    pytest.param("import subprocess\nsubprocess.run(['sleep', '1000'])", id="subprocess"),
    pytest.param("import asyncio\nasync def f():\n    while True: pass\nawait asyncio.gather(f())", id="task"),
    pytest.param("import socket\na, b = socket.socketpair()\na.recv(1)", id="recv"),
]


@pytest.mark.parametrize("code", _ENDLESS)
async def test_code_that_does_not_end_is_interrupted_and_its_variables_stay(code: str) -> None:
    async with a_repl() as repl:
        await repl.text("x = 41")
        started = time.monotonic()
        text = await repl.text(code, timeout=0.5)
        assert time.monotonic() - started < 2.5
        assert "stopped after 0.5 s" in text
        assert await repl.value("return x + 1") == 42


async def test_code_that_ignores_the_interrupt_is_killed_and_told_what_was_lost() -> None:
    async with a_repl(n=7) as repl:
        await repl.text("treasure = 1")
        code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        started = time.monotonic()
        text = await repl.text(code, timeout=0.5)
        assert time.monotonic() - started < 2.5
        assert "stopped after 0.5 s" in text
        assert "Lost: treasure" in text
        assert await repl.value("return n, len(__history__), 'treasure' in globals()") == (7, 2, False)


_CRASHES = [
    pytest.param("import os\nos._exit(1)", "exited with status 1", id="exit"),
    pytest.param("import ctypes\nctypes.string_at(0)", "SIGSEGV", id="segfault"),
    pytest.param("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", id="kill"),
    pytest.param("import os\nos.abort()", "SIGABRT", id="abort"),
    pytest.param("import os\nwhile True: os.fork()", "SIGKILL", id="fork bomb"),
]


@pytest.mark.parametrize(("code", "how"), _CRASHES)
async def test_a_crash_is_an_observation_and_the_next_turn_works(code: str, how: str) -> None:
    async with a_repl(n=1) as repl:
        started = time.monotonic()
        assert how in await repl.text(code, timeout=5)
        assert time.monotonic() - started < 7
        assert await repl.text("print(n)") == "1\n"


async def test_a_fork_that_runs_on_to_the_end_of_the_turn_does_not_speak_for_the_frame() -> None:
    async with a_repl() as repl:
        assert "x" in await repl.text("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('x')")
        assert await repl.text("print('y')") == "y\n"
        assert await repl.value("return 3") == 3


async def test_a_forked_process_cannot_call_out_for_the_frame() -> None:
    async with a_repl() as repl:
        code = (
            "import os\n"
            "r, w = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    try:\n        invoke(task='t')\n"
            "    except Exception as e:\n        os.write(w, type(e).__name__.encode())\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "return os.read(r, 100)"
        )
        assert await repl.value(code) == b"FrameLost"


@pytest.mark.parametrize("code", ["import os\nos.closerange(0, 256)", "import os\nos.close(1)\nos.close(2)\nprint(1)"])
async def test_code_that_closes_its_descriptors_hurts_itself_alone(code: str) -> None:
    async with a_repl(n=2) as repl:
        await repl.text(code)
        assert await repl.value("return n") == 2


async def test_lone_surrogates_travel_in_every_direction() -> None:
    bad = "\ud800"
    async with a_repl(text=bad) as repl:
        assert await repl.text("print(text)") == "\\ud800\n"
        assert await repl.value("return text") == bad
        result = await repl.run("raise ValueError(text)")
        assert isinstance(result, Raise)
        assert result.error.message == "\\ud800"
        assert "ud800" in await repl.text("def f():\n    raise KeyError(text)\nf()")


async def test_endless_recursion_is_an_observation() -> None:
    async with a_repl() as repl:
        assert "RecursionError" in await repl.text("def f():\n    f()\nf()")
        assert await repl.value("return 1") == 1


async def test_an_input_may_be_called_self() -> None:
    async def child(body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
        assert isinstance(body, ChildCall)
        return pack([item.name for item in body.inputs])

    async with a_repl(on_call=child) as repl:
        assert await repl.value("return invoke(self=1, hooks=2, local=3)") == ["self", "hooks", "local"]


async def test_memory_beyond_the_limit_is_an_observation() -> None:
    async with a_repl(REPL(frames=FrameOptions(memory_limit=2**30))) as repl:
        assert "MemoryError" in await repl.text("block = bytearray(10 << 30)")
        assert await repl.value("return 1") == 1


async def test_output_without_end_is_bounded() -> None:
    async with a_repl() as repl:
        text = await repl.text("while True: print('x' * 1000)", timeout=1)
        assert len(text) < 20 * 2**20
        assert await repl.text("print(1)") == "1\n"


async def test_nothing_is_left_of_a_frame_that_started_processes() -> None:
    async with a_repl() as repl:
        code = (
            "import subprocess, os\n"
            "subprocess.Popen(['sleep', '1000'])\n"
            "subprocess.Popen(['setsid', 'sh', '-c', 'sleep 1000 & sleep 1000'])\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        import time\n"
            "        time.sleep(1000)\n"
            "    os._exit(0)\n"
        )
        await repl.text(code)
        zygote = psutil.Process(repl.session._zygote.pid)
        started = zygote.children(recursive=True)
        assert len(started) >= 4
    _, alive = psutil.wait_procs(started, timeout=3)
    assert alive == []


async def test_frames_do_not_see_each_others_folder_environment_or_modules() -> None:
    zygote = Zygote(FrameOptions())
    try:
        sessions = []
        for _ in range(8):
            session = ReplSession(zygote, REPL(), home=lambda: "test", on_call=_no_calls)
            await session.open((), (), Limits(100, 0.5), recursion=False, shared={})
            sessions.append(Repl(session))

        async def one(index: int, repl: Repl) -> object:
            await repl.text(
                f"import os, json\nos.mkdir('d'); os.chdir('d'); open('x.txt', 'w').write('{index}')\n"
                f"os.environ['MINE'] = '{index}'; json.mine = {index}"
            )
            return await repl.value(
                "import os, json\nreturn open('x.txt').read(), os.environ['MINE'], json.mine, os.listdir('.')"
            )

        got = await asyncio.gather(*(one(i, repl) for i, repl in enumerate(sessions)))
        assert got == [(str(i), str(i), i, ["x.txt"]) for i in range(8)]
        for repl in sessions:
            await repl.session.aclose()
    finally:
        await zygote.aclose()


async def test_secrets_of_the_environment_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("SOME_TOKEN", "canary")
    options = REPL(frames=FrameOptions(environment={"GIVEN": "yes"}))
    async with a_repl(options) as repl:
        environment = await repl.value("import os\nreturn dict(os.environ)")
        assert isinstance(environment, dict)
        assert "canary" not in str(environment)
        assert environment["GIVEN"] == "yes"
        assert environment["OMP_NUM_THREADS"] == "1"


async def test_preloaded_modules_are_there_from_the_start() -> None:
    async with a_repl(REPL(frames=FrameOptions(preload=("colorsys",)))) as repl:
        assert await repl.value("import sys\nreturn 'colorsys' in sys.modules") is True


async def test_a_zygote_that_cannot_preload_says_why() -> None:
    with pytest.raises(FrameStartFailed, match="no_such_module"):
        async with a_repl(REPL(frames=FrameOptions(preload=("no_such_module",)))):
            pass


async def test_waiting_for_a_child_is_not_the_frames_own_time() -> None:
    async def slow(body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
        await asyncio.sleep(1.0)
        return pack("child")

    for code in ("return invoke(task='x')", "return await ainvoke(task='x')"):
        async with a_repl(on_call=slow) as repl:
            result = await repl.session.execute(code, "<repl_0>", 0, timeout=0.5)
            assert isinstance(result, Return)


async def test_own_time_counts_while_a_child_runs_beside_it() -> None:
    ended = asyncio.Event()

    async def endless(body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()
        return pack(0)

    code = "import threading\nthreading.Thread(target=lambda: invoke(task='x'), daemon=True).start()\nwhile True: pass"
    async with a_repl(on_call=endless) as repl:
        started = time.monotonic()
        assert "stopped after" in await repl.text(code, timeout=0.5)
        assert time.monotonic() - started < 5
    assert ended.is_set()


async def test_ordinals_follow_the_order_of_calls_not_of_awaits() -> None:
    seen: list[tuple[str, object]] = []

    async def note(body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
        assert isinstance(body, ChildCall)
        seen.append((body.component, unpack(body.inputs[0].payload)))
        return pack(body.component)

    async with a_repl(on_call=note) as repl:
        code = (
            "import asyncio\n"
            "a = ainvoke(x='first'); b = ainvoke(x='second', key='named'); c = ainvoke(x='third')\n"
            "got = await asyncio.gather(c, b, a)\n"
            "return got, invoke(x='fourth')"
        )
        assert await repl.value(code) == (["1", "named", "0"], "2")
    assert dict(seen) == {"0": "first", "named": "second", "1": "third", "2": "fourth"}


async def test_calls_from_threads_work_and_what_a_child_raised_is_raised() -> None:
    async def fail(body: ChildCall | ReferenceCall) -> Payload | ErrorRecord:
        assert isinstance(body, ChildCall)
        return ErrorRecord("KeyError", "'k'", "", __import__("pickle").dumps(KeyError("k")))

    async with a_repl(on_call=fail) as repl:
        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def ask(i):\n"
            "    try:\n"
            "        return invoke(task=i)\n"
            "    except KeyError as e:\n"
            "        return e.args[0] + str(i)\n"
            "with ThreadPoolExecutor(4) as pool:\n"
            "    return list(pool.map(ask, range(4)))"
        )
        assert await repl.value(code) == ["k0", "k1", "k2", "k3"]


async def test_an_input_whose_module_is_missing_in_the_frame_is_refused_by_name() -> None:
    class Missing:
        def __reduce__(self) -> tuple[object, tuple[str, ...]]:
            return __import__("importlib").import_module, ("no_such_module_anywhere",)

    with pytest.raises(InputRefused, match="'thing'"):
        async with a_repl(thing=Missing()):
            pass


async def test_showing_an_input_that_hangs_is_refused_in_time() -> None:
    class Slow:
        def __str__(self) -> str:
            while True:
                pass

    started = time.monotonic()
    with pytest.raises(InputRefused, match=r"over 0\.5 s"):
        async with a_repl(REPL(timeout=0.5), thing=Slow()):
            pass
    assert time.monotonic() - started < 5


async def test_the_zygotes_death_is_an_observation_too() -> None:
    async with a_repl() as repl:
        turn = asyncio.ensure_future(repl.text("while True: pass"))
        zygote = repl.session._zygote
        frame = repl.session._frame
        assert frame is not None
        while not frame.pid:
            await asyncio.sleep(0.01)
        os.kill(zygote.pid, 9)
        assert "REPL process ended" in await turn
        assert await repl.value("return 1") == 1


async def test_folders_are_removed() -> None:
    async with a_repl() as repl:
        folder = Path(str(await repl.value("import os\nopen('f', 'w').write('x')\nreturn os.getcwd()")))
        assert folder.is_dir()
    assert not folder.exists()
    assert not folder.parent.exists()


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"timeout": float("inf")}, {"grace": -1}])
async def test_impossible_options_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        REPL(**bad)  # type: ignore[arg-type]
