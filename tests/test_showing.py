"""What an agent is shown of its inputs: described, hidden, as a catalog; bounded in time and size, in its own frame."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jaz_actors import (
    REPL,
    CodeProtocol,
    ConfigOverride,
    Display,
    Library,
    Scripted,
    ainvoke,
    describe,
    errors,
    invoke,
    scope,
    software_tools,
)
from jaz_actors.protocols import CompletionRequest

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]


async def shown(*local: Any, **inputs: object) -> str:
    """The user message that an agent with these inputs gets."""

    def answer(request: CompletionRequest) -> str:
        return f"return {request.messages[1].content!r}"

    with ConfigOverride(backend=Scripted(answer)):
        return await ainvoke(*local, **inputs)  # type: ignore[no-any-return]


async def test_a_description_stands_for_the_text_and_a_hidden_input_is_bound_all_the_same() -> None:
    table = describe({"a": 1}, "a table of everything")
    text = await shown(table=table, n=Display(5, "five, in figures"), secret=Display("hush", None))
    assert "a table of everything" in text
    assert "five, in figures" in text
    assert "hush" not in text
    with ConfigOverride(backend=Scripted(["return n, secret"])):
        assert await ainvoke(n=Display(5, "five"), secret=Display("hush", None)) == (5, "hush")


async def test_scope_is_shown_and_hidden_in_the_same_way() -> None:
    def answer(request: CompletionRequest) -> str:
        return f"return {request.messages[0].content!r}, hidden"

    with ConfigOverride(backend=Scripted(answer)), scope(limit=Display(9, "the limit"), hidden=Display(3, None)):
        system, hidden = await ainvoke()
    assert "the limit" in system
    assert '<hidden type="int">' not in system
    assert hidden == 3


class Slow:
    def __str__(self) -> str:
        time.sleep(30)
        return "slow"


class Endless:
    def __str__(self) -> str:
        while True:
            pass


class Broken:
    def __str__(self) -> str:
        raise ValueError("no text")


class Huge:
    def __str__(self) -> str:
        return "x" * 5_000_000


class Leaves:
    def __str__(self) -> str:
        os._exit(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(Slow(), "its text took over 2 s"), (Endless(), "its text took over 2 s"), (Broken(), "raised ValueError")],
)
async def test_a_value_that_cannot_say_how_it_reads_costs_its_text_and_not_the_invocation(
    value: object, text: str
) -> None:
    started = time.monotonic()
    assert text in await shown(value=value)
    assert time.monotonic() - started < 20


async def test_a_long_text_is_cut_and_says_how_to_read_the_rest() -> None:
    text = await shown(value=Huge())
    assert len(text) < 60_000
    assert "print(str(value)[25000:4975000]) shows them" in text
    with ConfigOverride(protocol=CodeProtocol(max_input_characters=100, head_ratio=0.9)):
        assert len(await shown(value=Huge())) < 500


async def test_a_value_whose_text_ends_the_process_is_refused_and_the_host_lives() -> None:
    with ConfigOverride(backend=Scripted(["return 1"])):
        with pytest.raises(errors.InfrastructureError):
            await ainvoke(value=Leaves())
        assert await ainvoke() == 1


class Deaf:
    """Its loading takes for ever, and no signal stops it."""

    def __reduce__(self) -> Any:
        return _wait_deaf, ()


def _wait_deaf() -> None:
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGINT])
    time.sleep(60)


async def test_loading_that_never_ends_is_refused_by_the_inputs_name() -> None:
    with pytest.raises(errors.InputRefused, match="deaf"):
        await ainvoke(ConfigOverride(backend=Scripted(["return 1"]), repl=REPL(timeout=0.5)), fine=[1], deaf=Deaf())


# -- tools


def _lookup(word: str) -> str:
    """Look a word up."""
    return word.upper()


async def test_a_library_is_shown_as_its_catalog_and_used_by_dotted_names() -> None:
    library = Library("words", "All about words.", lookup=_lookup)
    library.add("deep.lookup", _lookup)
    text = await shown(words=library)
    assert "words.lookup(word: str) -> str  # Look a word up." in text
    assert "words.deep.lookup(word: str) -> str" in text
    with ConfigOverride(backend=Scripted(["return words.lookup('a') + words.deep.lookup('b')"])):
        assert await ainvoke(words=library) == "AB"


async def test_a_library_of_thousands_is_shown_in_part_and_paged() -> None:
    library = Library("many", **{f"f{n}": _lookup for n in range(3000)})
    text = await shown(many=library)
    assert len(text) < 25_000
    assert "2,900 of 3,000 objects left out" in text
    with ConfigOverride(backend=Scripted(["print(many.catalog(start=2990))", "return __history__[0].repl_output"])):
        assert "many.f2999" in await ainvoke(many=library)


async def test_members_that_cannot_be_copied_stay_at_home_and_the_others_run_in_the_frame() -> None:
    lock = __import__("threading").Lock()
    library = Library("mixed", pid=os.getpid, lock=lock)
    with ConfigOverride(backend=Scripted(["mixed.lock.acquire()\nreturn mixed.pid(), str(mixed)"])):
        pid, text = await ainvoke(mixed=library)
    assert pid != os.getpid()
    assert lock.locked()
    assert "mixed.lock: _thread.lock" in text


async def test_the_software_tools_work_in_the_frames_own_folder() -> None:
    turns = [
        "print(tools.edit('a.py', '', 'x = 1\\n'))",
        "print(tools.edit('a.py', 'x = 1', 'x = 2'))",
        "print(tools.read('a.py'), tools.bash('python3 -c \"import a; print(a.x)\"; pwd'))",
        "import os\nreturn __history__[2].repl_output, os.getcwd()",
    ]
    with ConfigOverride(backend=Scripted(turns)):
        output, folder = await ainvoke(tools=software_tools())
    assert "x = 2" in output
    assert "x = 2 2\n" in output
    assert folder in output
    assert not Path("a.py").exists()


async def test_a_signature_shows_its_types_without_quotes() -> None:
    assert "_lookup(word: str) -> str" in await shown(f=_lookup)


# -- template strings


@pytest.mark.skipif(sys.version_info < (3, 14), reason="template strings are Python 3.14's")
async def test_a_template_names_what_it_holds_and_binds_it() -> None:
    namespace: dict[str, Any] = {"report": [1, 2], "who": "them"}
    exec("task = t'Sum up {report} for {who!r}: {len(report)}'", namespace)
    assert "Sum up `report` for `who`: `_arg0`" in await shown(task=namespace["task"])
    code = Scripted(["return report, who, _arg0"])
    assert await ainvoke(ConfigOverride(backend=code), task=namespace["task"]) == ([1, 2], "them", 2)
    with pytest.raises(errors.InputRefused, match="report"):
        await ainvoke(ConfigOverride(backend=code), task=namespace["task"], report=[3])


async def test_blocking_invoke_shows_the_same() -> None:
    with ConfigOverride(backend=Scripted(["return n"])):
        assert invoke(n=Display(5, None)) == 5
