"""The standalone workflow: what it prints is what was recorded, without a model and without jaz_actors."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaz_actors import REPL, Completed, ConfigOverride, Hook, Raised, by_reference, scope
from jaz_actors.effects import DropInputs, InsertCode, ModifyExecResult, ModifyInvokeResult
from jaz_actors.events import Event, REPLExecEnter, REPLExecSend
from jaz_actors.hooks import abort, add_inputs, add_variables, returned
from jaz_actors.outcomes import AbortedRecord, Continue, FailedRecord
from jaz_actors.payload import ErrorRecord
from jaz_actors.recorders.program import Workflow, write_workflow
from jaz_actors.recorders.program_source import turn_source
from tests.recorders.runs import INLINE, Tape, run, shuffled

Script = Sequence[str] | Mapping[str, Sequence[str]]


def replay(folder: Path, events: Sequence[Event], *, site: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the workflow of the events with the standard library alone, or with what is installed."""
    write_workflow(folder / "flow", events)
    command = [sys.executable, *([] if site else ["-S"]), "-W", "error", "-m", "flow"]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, timeout=60)


def printed(folder: Path, events: Sequence[Event], **options: Any) -> str:
    done = replay(folder, events, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def source(events: Sequence[Event]) -> str:
    workflow = Workflow()
    for event in events:
        workflow.add(event)
    return workflow.files()["workflow.py"].decode()


async def reproduced(folder: Path, script: Script, *hooks: Hook, site: bool = False, **inputs: Any) -> list[Event]:
    """Run the agents and then their workflow, which must come to the same value."""
    events, outcome = await run(script, *hooks, **inputs)
    assert isinstance(outcome, Completed), outcome
    assert printed(folder, events, site=site) == str(outcome.value)
    return events


FEATURES: dict[str, Script] = {
    "names live on": ["x = 1", "def f():\n    global y\n    y = x + n\nf()", "return [x, y, f.__module__]"],
    "the last value is an underscore": ["n + 1", "_, 2", "return _"],
    "return inside blocks": ["for i in range(9):\n    try:\n        if i == 3: return i\n    finally:\n        n = 0"],
    "errors pass on": ["x = 1\n1 / 0\nx = 2", "import sys\nsys.exit(3)", "x += 1\nundefined", "return x"],
    "what did not compile": ["x = (", "nonlocal x", "yield 1", "class A:\n    return 1", "x\0y", "return n"],
    "annotations": ["x: int = 1\ny: str\nz: list[int] = [x]", "return [z, '__annotations__' in globals()]"],
    "star imports": ["from math import *\nfrom os.path import join as j", "return [floor(pi), j('a', 'b')]"],
    "future imports": [
        "from __future__ import annotations\ndef f(a: Unknown) -> Missing: pass",
        "return f.__annotations__['a']",
    ],
    "global statements": ["global x\nx = 1\ndef f():\n    global x\n    x += 1\nf()", "return x"],
    "texts of several lines": [
        "if n:\n    text = '''a\n  b\n\n\tc'''\n    also = f'''{n}\n d'''\n# end",
        "return [text, also, r'\\n', b'\\x00', 'é\\u2028']",
    ],
    "names of the program itself": ["frame = turn_0 = 2", "RECOVERABLE = [frame, turn_0]", "return RECOVERABLE"],
    "comprehensions and classes": [
        "class A:\n    x = n\n    def get(self):\n        return [self.x + i for i in range(k)]\nk = 3",
        "return [A().get(), (lambda: k)(), [k for k in 'ab'], k]",
    ],
    "match and walrus": ["match [1, 2]:\n    case [a, *rest]: pass\nif (m := a): pass", "del a", "return [m, rest]"],
    "await": [
        "import asyncio\nasync def f(): return n\ntask = asyncio.ensure_future(f())\nawait asyncio.sleep(0)",
        "return await task",
    ],
    "asyncio.run beside await": [
        "import asyncio\nasync def f(): return n\nx = asyncio.run(f())",
        "y = await f()",
        "return [x, y, asyncio.run(f())]",
    ],
    "history": ["print('out')", "1 / 0", "return [h.llm_response for h in __history__] + [__history__[0].repl_output]"],
    "inputs by their own names": ["n = 5", "return [n, __inputs__['n'], __scope__]"],
    "printing and finishing": ["print(1)\nreturn 1", "print(2)\nraise ValueError", "return n"],
    "a bad pragma": ["# timeout: soon\nn = 100", "return n"],
    "nothing at all": ["", "# only a comment", "'docstring'", "return [n, _]"],
    "a trailing tuple and generator": ["1, 2", "a = _\n(i for i in a)", "return [*_, a]"],
    "a line after another": ["x = 1; x + 1", "y = _;  return [x, y]"],
    "what is no ascii": ["é = 'ü'; é", "return [é, _]"],
    "windows line ends": ["x = 1\r\ny = '''a\r\nb'''\r\n", "return [x, y]"],
    "os._exit": ["x = 1", "import os\nos._exit(3)", "return 'x' in globals()"],
}  # fmt: skip


class TestOfRuns:
    pytestmark = INLINE

    @pytest.mark.parametrize("feature", FEATURES)
    async def test_turns_keep_their_meaning(self, tmp_path: Path, feature: str) -> None:
        await reproduced(tmp_path, FEATURES[feature], n=4)

    async def test_children_are_called_by_path(self, tmp_path: Path) -> None:
        script = {
            "0": [
                "import asyncio\nparts = await asyncio.gather(*[ainvoke(i=i, sleep=0.2 - i / 20) for i in range(4)])",
                "mine = invoke(key='the-last', parts=parts)\nparts.append('new')",
                (
                    "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool(1) as pool:\n"
                    "    more = list(pool.map(lambda i: invoke(i=i, sleep=0), [7, 8]))"
                ),
                "return [parts, mine, more]",
            ],
            "0.the-last": ["parts.append(invoke(i=9, sleep=0))", "return parts"],
            "*": ["import asyncio\nawait asyncio.sleep(sleep)", "return f'child {i}'"],
        }
        events = await reproduced(tmp_path, script)
        text = source(events)
        root = events[0].invoke_id.partition(":")[2]
        assert f"\ndef invocation_{root}_the_last(frame):\n" in text
        assert f"\ndef invocation_{root}_the_last_0(frame):\n" in text

    async def test_the_order_of_events_makes_no_difference(self) -> None:
        script = {"0": ["x = [invoke(i=i) for i in range(12)]", "return x"], "*": ["return i"]}
        events, _ = await run(script)
        assert source(shuffled(events, 1)) == source(shuffled(events, 2)) == source(events)

    async def test_the_program_of_what_was_killed_at_any_event_is_a_program(self) -> None:
        script = {"0": ["x = invoke(i=1)", "1 / 0", "return x"], "*": ["i += 1", "return i"]}
        events, _ = await run(script)
        for length in range(1, len(events)):
            text = source(events[:length])
            compile(text, "workflow.py", "exec")
            assert ("raise frame.ended('has no end', " in text) == (length < len(events))

    async def test_a_childs_error_reaches_its_parent(self, tmp_path: Path) -> None:
        script = {
            "0": ["try:\n    invoke()\nexcept KeyError as error:\n    said = error.args", "invoke()", "return said"],
            "*": ["raise KeyError('a', 'b')"],
        }
        await reproduced(tmp_path, script)

    async def test_an_error_of_the_root_is_raised(self, tmp_path: Path) -> None:
        events, outcome = await run(["class Mine(Exception): pass", "raise Mine('no luck')"])
        assert isinstance(outcome, Raised)
        done = replay(tmp_path, events)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.rstrip().endswith("Mine: no luck")

    async def test_an_aborted_child_is_marked_and_raises(self, tmp_path: Path) -> None:
        class Ends(Hook):
            def on_llm_query_enter(self, event: Any) -> Any:
                return abort(LookupError("enough")) if event.depth == 2 and event.iteration == 2 else None

        script = {
            "0": ["try:\n    x = invoke()\nexcept LookupError as error:\n    x = [str(error)]", "return x"],
            "*": ["y = 1", "y = 2", "return y"],
        }
        with Ends():
            events = await reproduced(tmp_path, script)
        assert ".0 aborted: LookupError: enough\n" in source(events)

    async def test_agents_prints_are_not_on_stdout(self, tmp_path: Path) -> None:
        events, _ = await run(["print('hello')", "return 'value'"])
        done = replay(tmp_path, events)
        assert (done.stdout, done.stderr) == ("value\n", "hello\n")

    async def test_committed_code_is_what_runs(self, tmp_path: Path) -> None:
        class Edits(Hook):
            def on_repl_exec_enter(self, event: REPLExecEnter) -> Any:
                return InsertCode("x = 'inserted'\n", at=0) if event.iteration == 0 else None

        await reproduced(tmp_path, ["y = x", "return y"], Edits())

    async def test_inputs_that_hooks_add_and_drop(self, tmp_path: Path) -> None:
        class Changes(Hook):
            def on_invoke_enter(self, event: Any) -> Any:
                if event.parent_id is None:
                    return None
                return [DropInputs(("secret",)), add_inputs(extra=[1, 2])]

        with Changes():
            await reproduced(
                tmp_path,
                {"0": ["return invoke(secret=1, shown=2)"], "*": ["return ['secret' in globals(), shown, extra]"]},
            )

    async def test_variables_that_hooks_bind_name_themselves_when_used(self, tmp_path: Path) -> None:
        class Binds(Hook):
            def on_repl_exec_enter(self, event: Any) -> Any:
                return add_variables(tool=len) if event.iteration == 0 else None

        events, _ = await run(["x = 1", "return tool('abc')"], Binds())
        assert "InputUnavailable: the input 'tool' is not part of this workflow" in replay(tmp_path, events).stderr

    async def test_results_that_hooks_change(self, tmp_path: Path) -> None:
        class Changes(Hook):
            def on_repl_exec_complete(self, event: Any) -> Any:
                refused = event.iteration == 0
                return ModifyExecResult(Continue("", "not yet\n")) if refused else None

            def on_invoke_complete(self, event: Any) -> Any:
                return ModifyInvokeResult(returned({"better": 1}))

        events = await reproduced(tmp_path, ["x = 1\nreturn x", "return x + 1"], Changes())
        assert "return frame.result()" in source(events)

    async def test_values_of_many_types_come_back(self, tmp_path: Path) -> None:
        values = {
            "plain": {"a": [1, 2.5, None, True, (b"x", "é'\"\n")], 3: {4}},
            "number": float("inf"),
            "when": datetime.date(2024, 2, 29),
            "many": frozenset({1}),
        }
        events = await reproduced(tmp_path, ["return [plain, number, when, many]"], **values)
        files = {path.relative_to(tmp_path / "flow").as_posix() for path in (tmp_path / "flow").rglob("*.p*")}
        assert sum(name.startswith("data/") for name in files) == 3
        for name in ("__init__.py", "recorded.py"):
            assert "WARNING: the values in `data/` are pickles" in (tmp_path / "flow" / name).read_text()
        assert "'plain': {'a': [1, 2.5, None, True, (b'x', " in (tmp_path / "flow" / "recorded.py").read_text()
        assert events

    async def test_functions_and_arrays_come_back_where_their_libraries_are(self, tmp_path: Path) -> None:
        await reproduced(tmp_path, ["return f(a.sum())"], site=True, f=lambda x: int(x) + 1, a=np.arange(5))

    async def test_an_input_that_cannot_be_loaded_names_itself(self, tmp_path: Path) -> None:
        events, _ = await run(["return a.sum()"], a=np.arange(5))
        error = replay(tmp_path, events).stderr
        assert "InputUnavailable: the input 'a' is not part of this workflow: loading its pickle raised" in error
        assert "numpy" in error

    async def test_references_and_shared_memory_name_themselves(self, tmp_path: Path) -> None:
        class Counter:
            def add(self, n: int) -> int:
                return n + 1

        script = ["x = 0", "x = counter.add(1)", "x = str(big.sum())", "return tools[0].add(1)"]
        inputs = {"counter": by_reference(Counter()), "big": np.zeros(10**6), "tools": [by_reference(Counter())]}
        events, outcome = await run(script, **inputs)
        assert isinstance(outcome, Completed), outcome
        text = Workflow()
        for event in events:
            text.add(event)
        recorded = text.files()["recorded.py"].decode()
        assert recorded.count("Missing('it was passed by reference") == 2
        assert "'big': Missing('its numpy.ndarray was in shared memory" in recorded
        assert "the input 'counter' is not part of this workflow: it was passed" in replay(tmp_path, events).stderr

    async def test_scope_reaches_every_descendant(self, tmp_path: Path) -> None:
        with scope(shared=datetime.date(2000, 1, 1)):
            await reproduced(
                tmp_path,
                {"0": ["return invoke()"], "0.0": ["return [invoke(), shared]"], "*": ["return shared.year"]},
            )
        assert (tmp_path / "flow" / "recorded.py").read_text().count("'shared'") == 1

    async def test_a_turn_that_was_stopped_is_stopped_again(self, tmp_path: Path) -> None:
        with ConfigOverride(repl=REPL(timeout=1.0)):
            await reproduced(
                tmp_path,
                [
                    "x = 1\nwhile True: pass",
                    "import asyncio\nx += 1\nawait asyncio.sleep(3600)",
                    "import time\nx += 1\ntime.sleep(3600)",
                    "await asyncio.sleep(0)\nx += 1\nwhile True: pass",
                    "return x",
                ],
            )

    async def test_children_that_a_lost_process_called_are_counted(self, tmp_path: Path) -> None:
        script = {
            "0": ["x = invoke(i=0)", "import os\ny = invoke(i=1)\nos._exit(1)", "return invoke(i=2)"],
            "*": ["return i"],
            "0.2": ["return 'third'"],
        }
        events = await reproduced(tmp_path, script)
        assert "frame.fresh(2)\n" in source(events)


def test_what_was_killed_is_marked_and_raises(tmp_path: Path) -> None:
    tape = Tape("0").turn("x = 1", Continue(""))
    tape.query("x = 2")
    tape.emit(REPLExecSend, iteration=1, code="while True: pass")
    text = source(tape.events)
    assert "# Invocation 0: the recording has no end of it.\n" in text
    assert "    # Turn 1 did not end:\n    # while True: pass\n" in text
    done = replay(tmp_path, tape.events)
    assert done.returncode == 1
    assert "InvocationEnded: the recording stops before the invocation has ended" in done.stderr


@pytest.mark.parametrize(
    ("outcome", "error", "raised"),
    [
        (AbortedRecord, ErrorRecord("LookupError", "enough"), "\nLookupError: enough"),
        (FailedRecord, ErrorRecord("a.b.Gone", "no host"), "InvocationEnded: a.b.Gone: no host"),
        (FailedRecord, ErrorRecord("UnicodeDecodeError", "x"), "InvocationEnded: UnicodeDecodeError: x"),
    ],
)
def test_how_it_ended_is_marked_and_raised(tmp_path: Path, outcome: Any, error: ErrorRecord, raised: str) -> None:
    events = Tape("0").turn("x = 1", Continue("")).end(outcome(error))
    mark = f"{outcome.__struct_config__.tag}: {error.type_name}: {error.message}"
    assert f"# Invocation 0 {mark}" in source(events)
    done = replay(tmp_path, events)
    assert done.returncode == 1
    assert raised in done.stderr
    assert "Recorded: invocation 0 " in done.stderr


def test_texts_of_errors_and_ids_cannot_leave_their_comment(tmp_path: Path) -> None:
    evil = "x\nimport nowhere\r\0'''\u2028\"\"\""
    tape = Tape("0").turn("1 / 0", Continue("", f"{evil}\n")).turn("(", Continue("", "SyntaxError\n"))
    events = tape.end(FailedRecord(ErrorRecord(evil, evil)))
    assert "nowhere" in replay(tmp_path, events).stderr.rpartition("InvocationEnded: ")[2]


def test_paths_that_come_to_one_name_are_told_apart(tmp_path: Path) -> None:
    code = "return [invoke(key='a-b'), invoke(key='a_b')]"
    root = Tape("0").returns(code, [1, 2])
    first = Tape("0.a-b", parent_iteration=0).returns("return 1", 1)
    second = Tape("0.a_b", parent_iteration=0).returns("return 2", 2)
    assert printed(tmp_path, [*root, *first, *second]) == "[1, 2]"


def test_a_child_that_the_recording_lacks_is_named(tmp_path: Path) -> None:
    assert (
        "NotRecorded: the recording has no invocation 0.0"
        in replay(tmp_path, Tape("0").returns("return invoke()", 1)).stderr
    )


def test_only_the_wanted_root_is_written(tmp_path: Path) -> None:
    events = [*Tape("0").returns("return 'first'", 0), *Tape("1").returns("return 'second'", 0)]
    assert printed(tmp_path / "a", events) == "first"
    write_workflow(tmp_path / "b" / "flow", events, root="run:1")
    done = subprocess.run([sys.executable, "-m", "flow"], cwd=tmp_path / "b", capture_output=True, text=True)
    assert done.stdout == "second\n"


def test_comments_and_layout_stay_where_they_can() -> None:
    code = "# why\nx = {  # note\n    'a':   1,\n}\nx['a']"
    turn = turn_source(code, "turn_0", taken=())
    assert turn is not None
    assert turn.text == (
        "def turn_0():\n    global x\n    # why\n    x = {  # note\n        'a':   1,\n    }\n    __show__(x['a'])\n"
    )
