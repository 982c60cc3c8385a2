"""Short ways to have events for views: of real invocations on the inline runtime, and made up."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jaz_actors import ConfigOverride, Hook, Outcome, Scripted, start
from jaz_actors.events import (
    Event,
    InvokeComplete,
    InvokeEnter,
    InvokeExit,
    InvokeSend,
    LLMQueryComplete,
    LLMQueryEnter,
    LLMQueryExit,
    LLMQuerySend,
    REPLExecComplete,
    REPLExecEnter,
    REPLExecExit,
    REPLExecSend,
)
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Completion, Message, Usage
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, OutcomeRecord, Raise, RaisedRecord, Return
from jaz_actors.payload import PackedInput
from jaz_actors.transfer import pack

USAGE = Usage(10, 5, 0, 0.25)
INLINE = [
    pytest.mark.asyncio,
    pytest.mark.usefixtures("runtime"),
    pytest.mark.parametrize("runtime", ["inline"], indirect=True),
]
"""Marks of tests that run invocations, on the inline runtime alone: what is recorded is the same on each."""


class Collects(Hook):
    """Keeps every event that there is."""

    placement = "observer"

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_any(self, event: Event) -> None:
        self.seen.append(event)


async def recorded(script: Sequence[str] | Mapping[str, Sequence[str]], *hooks: Hook, **inputs: Any) -> list[Event]:
    return (await run(script, *hooks, **inputs))[0]


async def run(
    script: Sequence[str] | Mapping[str, Sequence[str]], *hooks: Hook, **inputs: Any
) -> tuple[list[Event], Outcome]:
    """The events of one root and all below it, and how it ended. In the script, a root is `0` whatever its path."""
    backend = Scripted(lambda request: _reply(script, request.invoke_id, request.iteration))
    with ConfigOverride(backend=backend), Collects() as collects:
        outcome = await (await start(*hooks, **inputs)).outcome()
    return collects.seen, outcome


def _reply(script: Sequence[str] | Mapping[str, Sequence[str]], invoke_id: InvokeId, iteration: int) -> str:
    if isinstance(script, Mapping):
        _, dot, rest = invoke_id.path.partition(".")
        path = f"0{dot}{rest}"
        script = script[path] if path in script else script["*"]
    return script[iteration]


def shuffled(events: Sequence[Event], seed: int) -> list[Event]:
    """Another order in which they might have come: each invocation's own stay in order, and parents begin first."""
    queues: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        queues[event.invoke_id].append(event)
    choice, result, begun = random.Random(seed), list[Event](), set[str]()
    while queues:
        ready = [name for name in queues if (up := InvokeId.parse(name).parent) is None or str(up) in begun]
        name = choice.choice(ready)
        begun.add(name)
        result.append(queues[name].pop(0))
        if not queues[name]:
            del queues[name]
    return result


class Tape:
    """Makes the events of one invocation up, with the fields that come from the stream filled in."""

    def __init__(self, path: str = "0", *, run: str = "run", parent_iteration: int | None = None, **inputs: object):
        self.id = InvokeId(run, path)
        self.events: list[Event] = []
        self._numbers = itertools.count()
        self._messages: tuple[Message, ...] = (Message("system", "be good", "seed", 0),)
        self._iteration = -1
        packed = tuple(PackedInput(name, pack(value)) for name, value in inputs.items())
        up = self.id.parent
        self.emit(
            InvokeEnter,
            parent_id=None if up is None else str(up),
            parent_iteration=parent_iteration,
            inputs=packed,
            scope=(),
            hooks=(),
        )
        self.emit(InvokeSend, inputs=packed)

    def emit(self, kind: type[Event], **fields: Any) -> None:
        number = next(self._numbers)
        common = {"invoke_id": str(self.id), "depth": self.id.depth, "sequence": number, "timestamp": 100.0 + number}
        self.events.append(kind(**common, **fields))

    def query(self, reply: str, usage: Usage = USAGE, **sent: Any) -> Tape:
        self._iteration += 1
        completion = Completion(reply, usage=usage)
        self.emit(LLMQueryEnter, iteration=self._iteration, messages=self._messages, model="made up", can_recurse=True)
        self.emit(
            LLMQuerySend, **{"iteration": self._iteration, "messages": self._messages, "model": "made up", **sent}
        )
        self.emit(LLMQueryComplete, iteration=self._iteration, completion=completion)
        self.emit(LLMQueryExit, iteration=self._iteration, status="completed", completion=completion)
        self._say("assistant", reply, "assistant")
        return self

    def turn(self, code: str, result: ExecResult, *, ran: str | None = None) -> Tape:
        """A query and an execution; `ran` is the code after edits."""
        self.query(code)
        self.emit(REPLExecEnter, iteration=self._iteration, code=code)
        self.emit(REPLExecSend, iteration=self._iteration, code=code if ran is None else ran)
        self.emit(REPLExecComplete, iteration=self._iteration, result=result)
        self.emit(REPLExecExit, iteration=self._iteration, status="completed", result=result)
        if isinstance(result, Continue):
            self._say("user", result.text or "(no output)", "observation")
        return self

    def _say(self, role: Any, content: str, kind: Any) -> None:
        message = Message(role, content, kind, self._messages[-1].number + 1, self._iteration)
        self._messages = (*self._messages, message)

    def returns(self, code: str, value: object) -> list[Event]:
        """The last turn, and the end; all events."""
        return self.finish(code, Return(pack(value)))

    def finish(self, code: str, result: Return | Raise) -> list[Event]:
        self.turn(code, result)
        self.emit(InvokeComplete, result=result)
        return self.end(CompletedRecord(result.value) if isinstance(result, Return) else RaisedRecord(result.error))

    def end(self, outcome: OutcomeRecord) -> list[Event]:
        self.emit(InvokeExit, outcome=outcome)
        return self.events
