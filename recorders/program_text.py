"""One recorded invocation as the source text of a function: its turns in order, each as it ended. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaz_actors.events import (
    Event,
    InvokeEnter,
    InvokeExit,
    InvokeSend,
    LLMQueryExit,
    REPLExecComplete,
    REPLExecExit,
    REPLExecSend,
)
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, OutcomeRecord, Raise, RaisedRecord, Return
from jaz_actors.payload import PackedInput, Payload
from jaz_actors.recorders.program_source import commented, indented, turn_source
from jaz_actors.recorders.story import one_line, outcome_text

_INDENT = "    "
# What a turn's error says, in the words of `frames.repl` and `code_protocol`, when its code did not run to its end.
_STOPPED = re.compile(r"TimeoutError: the turn was stopped after (\S+) s of its own time\. Variables are kept\.\n\Z")
_LOST = "A fresh process was started: "
_REFUSED = re.compile(r"ValueError: '# timeout: .*nothing was run\.\n\Z")


@dataclass(slots=True)
class Turn:
    """ran: what the code came to. seen: that, after hooks."""

    iteration: int
    code: str
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    reply: str
    ran: ExecResult | None = None
    seen: ExecResult | None = None


@dataclass(slots=True)
class Invocation:
    path: str
    parent_iteration: int | None = None
    given: frozenset[str] = frozenset()
    inputs: tuple[PackedInput, ...] = ()
    scope: tuple[PackedInput, ...] = ()
    reply: str = ""
    turns: list[Turn] = field(default_factory=list)
    outcome: OutcomeRecord | None = None
    keeps_history: bool = False
    function: str = ""

    def add(self, event: Event) -> None:
        match event:
            case InvokeEnter():
                self.parent_iteration = event.parent_iteration
                self.given = frozenset(item.name for item in event.inputs)
                self.inputs, self.scope = event.inputs, event.scope
            case InvokeSend():
                self.inputs = event.inputs
            case LLMQueryExit() if event.completion is not None:
                self.reply = event.completion.content
            case REPLExecSend():
                changes = event.added_variables, event.dropped_variables
                self.turns.append(Turn(event.iteration, event.code, *changes, self.reply))
                self.keeps_history = self.keeps_history or "__history__" in event.code
            case REPLExecComplete() if self.turns:
                self.turns[-1].ran = self.turns[-1].seen = event.result
            case REPLExecExit() if self.turns and event.result is not None:
                self.turns[-1].seen = event.result
            case InvokeExit():
                self.outcome = event.outcome

    @property
    def ends_with_its_last_turn(self) -> bool:
        """Whether it came to what the code of its last turn came to."""
        match self.turns[-1].ran if self.turns else None, self.outcome:
            case Return(value=value), CompletedRecord(value=result):
                return value == result
            case Raise(error=error), RaisedRecord(error=result):
                return error == result
            case _:
                return False

    @property
    def own_result(self) -> Payload | None:
        """The value that it completed with, when that is not what its last turn returned."""
        if not isinstance(self.outcome, CompletedRecord) or self.ends_with_its_last_turn:
            return None
        return self.outcome.value


def lost_children(invocation: Invocation, invocations: Sequence[Invocation]) -> dict[int, int]:
    """For each turn that lost its process: the ordinal of the next child. Children of other turns are called anew."""
    lost = [turn.iteration for turn in invocation.turns if _is_lost(turn)]
    if not lost:
        return {}
    children = [one for one in invocations if one.path.rpartition(".")[0] == invocation.path]
    ordinals = [
        (one.parent_iteration or 0, int(last)) for one in children if (last := one.path.rpartition(".")[2]).isdigit()
    ]
    return {turn: max((n + 1 for parent, n in ordinals if parent <= turn), default=0) for turn in lost}


def _is_lost(turn: Turn) -> bool:
    return isinstance(turn.ran, Continue) and _LOST in turn.ran.error


def function_text(invocation: Invocation, lost: dict[int, int], futures: set[str]) -> str:
    taken = {"frame", "RECOVERABLE", *(f"turn_{turn.iteration}" for turn in invocation.turns)}
    parts = [_summary(invocation)]
    for turn in invocation.turns:
        parts += [f"frame.bind({name!r})\n" for name in turn.added]
        parts += [f"frame.unbind({name!r})\n" for name in turn.dropped]
        finishes = turn is invocation.turns[-1] and invocation.ends_with_its_last_turn
        parts.append(_turn_text(turn, lost, taken, futures, finishes=finishes))
        if invocation.keeps_history and isinstance(turn.seen, Continue):
            parts.append(f"frame.remember({turn.reply!r}, {turn.seen.text!r})\n")
    parts.append(_ending(invocation))
    return f"def {invocation.function}(frame):\n" + "\n".join(indented(part) for part in parts if part)


def _summary(invocation: Invocation) -> str:
    if invocation.outcome is None:
        return commented(f"Invocation {invocation.path}: the recording has no end of it.")
    text = outcome_text(invocation.outcome).strip().rpartition("\n")[2]
    how = invocation.outcome.__struct_config__.tag
    return commented(one_line(f"Invocation {invocation.path} {how}: {text}", 400))


def _turn_text(turn: Turn, lost: dict[int, int], taken: set[str], futures: set[str], *, finishes: bool) -> str:
    name = f"turn_{turn.iteration}"
    error = turn.ran.error if isinstance(turn.ran, Continue) else ""
    source = turn_source(turn.code, name, taken=taken)
    if source is None or turn.ran is None or _LOST in error or _REFUSED.match(error):
        why = "did not end" if turn.ran is None else "lost its process" if _LOST in error else "did not run"
        fresh = f"frame.fresh({lost[turn.iteration]})\n" if _LOST in error else ""
        return commented(f"Turn {turn.iteration} {why}:\n{turn.code}") + fresh
    futures |= source.futures
    stopped = _STOPPED.search(error)
    run = f"frame.run({name}, limit={stopped[1]})\n" if stopped else f"frame.run({name})\n"
    if error or (isinstance(turn.ran, Raise) and not finishes):
        how = one_line(error.strip().rpartition("\n")[2]) or "an error that hooks did not let through"
        run = commented(f"Ended in {how}") + f"try:\n{_INDENT}{run}except RECOVERABLE:\n{_INDENT}pass\n"
    elif finishes and isinstance(turn.ran, Return):
        run = f"return {run}"
    return f"{source.text}\n{run}"


def _ending(invocation: Invocation) -> str:
    outcome = invocation.outcome
    if outcome is None:
        return "raise frame.ended('has no end', '', 'the recording stops before the invocation has ended')\n"
    if not isinstance(outcome, CompletedRecord):
        how, error = str(outcome.__struct_config__.tag), outcome.error
        return f"raise frame.ended({how!r}, {error.type_name!r}, {error.message!r})\n"
    return "" if invocation.ends_with_its_last_turn else "return frame.result()\n"
