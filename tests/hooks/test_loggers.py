"""What a user reads."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from jaz_actors import events
from jaz_actors.errors import ConfigurationError
from jaz_actors.events import EVENT_TYPES
from jaz_actors.hooks.base import answer, handled_events
from jaz_actors.hooks.loggers import PrintLogger
from jaz_actors.messages import Completion, Usage
from jaz_actors.outcomes import AbortedRecord, CompletedRecord, Continue, FailedRecord, Raise, RaisedRecord, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload

ERROR = ErrorRecord("KeyError", "'gone'")


def _input(name: str) -> PackedInput:
    return PackedInput(name, Payload(b""))


async def _printed(event: Any, **options: Any) -> str:
    stream = io.StringIO()
    assert await answer(PrintLogger(stream=stream, **options), event) == []
    return stream.getvalue()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (events.InvokeEnter, {"inputs": (_input("task"), _input("n"))}, "invoked with task, n"),
        (events.InvokeEnter, {"inputs": ()}, "invoked with no inputs"),
        (events.LLMQueryRetry, {}, "retry 1 in 0.5 s after E: busy"),
        (
            events.LLMQueryExit,
            {"iteration": 2, "completion": Completion("a = 1\nreturn a\n", usage=Usage(9, 7))},
            "turn 2, 7 tokens\na = 1\nreturn a",
        ),
        (events.LLMQueryExit, {"completion": Completion("")}, "turn 0"),
        (
            events.LLMQueryExit,
            {"status": "failed", "completion": None, "error": ERROR},
            "query failed: KeyError: 'gone'",
        ),
        (events.REPLExecExit, {"result": Continue("out\n", "err\n")}, "→ out\nerr"),
        (events.REPLExecExit, {"result": Continue("")}, "→ (no output)"),
        (events.REPLExecExit, {"result": Return(Payload(b"", preview="3"))}, "→ return 3"),
        (events.REPLExecExit, {"result": Raise(ERROR)}, "→ raise KeyError: 'gone'"),
        (
            events.REPLExecExit,
            {"status": "aborted", "result": None, "error": ERROR},
            "execution aborted: KeyError: 'gone'",
        ),
        (events.InvokeExit, {"outcome": CompletedRecord(Payload(b"", preview="3"))}, "completed: 3"),
        (events.InvokeExit, {"outcome": RaisedRecord(ERROR)}, "raised KeyError: 'gone'"),
        (events.InvokeExit, {"outcome": AbortedRecord(ERROR)}, "aborted by KeyError: 'gone'"),
        (events.InvokeExit, {"outcome": FailedRecord(ERROR)}, "failed with KeyError: 'gone'"),
    ],
)
async def test_every_line_begins_with_the_path(
    kind: Any, fields: dict[str, Any], text: str, make: Callable[..., Any]
) -> None:
    printed = await _printed(make(kind, invoke_id="run:0.doc-17.2", **fields))
    assert printed == "".join(f"[0.doc-17.2] {line}\n" for line in text.split("\n"))


@pytest.mark.asyncio
async def test_events_that_carry_the_whole_buffer_are_not_sent_to_it(make: Callable[..., Any]) -> None:
    assert handled_events(PrintLogger) == {
        events.InvokeEnter,
        events.InvokeExit,
        events.LLMQueryExit,
        events.LLMQueryRetry,
        events.REPLExecExit,
    }
    for kind in set(EVENT_TYPES) - handled_events(PrintLogger):
        assert await _printed(make(kind)) == ""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (events.InvokeEnter, {"inputs": (_input("long_name"),) * 1000}),
        (events.LLMQueryRetry, {"error": ErrorRecord("E", "m" * 9000)}),
        (events.LLMQueryExit, {"completion": Completion("c" * 9000)}),
        (events.LLMQueryExit, {"status": "failed", "completion": None, "error": ErrorRecord("E", "m" * 9000)}),
        (events.REPLExecExit, {"result": Continue("o" * 9000)}),
        (events.REPLExecExit, {"result": Return(Payload(b"", preview="v" * 9000))}),
        (events.InvokeExit, {"outcome": CompletedRecord(Payload(b"", preview="v" * 9000))}),
        (events.InvokeExit, {"outcome": FailedRecord(ErrorRecord("E", "m" * 9000))}),
    ],
)
@pytest.mark.parametrize("max_field", [1, 40])
async def test_long_fields_are_shortened(
    kind: Any, fields: dict[str, Any], max_field: int, make: Callable[..., Any]
) -> None:
    printed = await _printed(make(kind, **fields), max_field=max_field)
    assert "left out" in printed
    assert len(printed) < max_field + 150


@pytest.mark.asyncio
async def test_it_prints_to_the_stdout_of_the_moment(
    make: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    logger = PrintLogger()
    await answer(logger, make(events.InvokeEnter))
    assert capsys.readouterr().out == "[0] invoked with task\n"


def test_it_observes_and_never_fails_an_invocation() -> None:
    assert (PrintLogger.placement, PrintLogger.on_error) == ("observer", "ignore")
    with pytest.raises(ConfigurationError):
        PrintLogger(max_field=0)
