"""From events to rollouts: a pure fold, the same live and afterwards. Knows no journal."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from jaz_actors import events as e
from jaz_actors.events import AnyEvent
from jaz_actors.messages import Completion, SampledTokens
from jaz_actors.outcomes import CompletedRecord, FailedRecord, OutcomeRecord
from jaz_actors.payload import ErrorRecord
from jaz_actors.recorders.deltas import common_prefix
from jaz_actors.recorders.rollouts import Rollout, RolloutStatus, TokenTurn, fault_of


class RolloutFold:
    """Give it every event of a run, each invocation's in their order; invocations may be interleaved.

    In memory are the invocations that have not ended. One that begins again, as in a resumed run, begins anew.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Growing] = {}

    def add(self, event: AnyEvent) -> Rollout | None:
        """The rollout of an invocation that ends with this event."""
        growing = self._open.get(event.invoke_id)
        if growing is None or isinstance(event, e.InvokeEnter):
            growing = self._open[event.invoke_id] = _Growing(event.invoke_id, event.depth, event.timestamp)
        growing.add(event)
        if not isinstance(event, e.InvokeExit):
            return None
        del self._open[event.invoke_id]
        return growing.rollout(event.outcome, event.timestamp)

    def __contains__(self, invoke_id: str) -> bool:
        """Whether that invocation has begun and not ended."""
        return invoke_id in self._open

    def unfinished(self) -> list[Rollout]:
        """Those that have not ended, as far as they are."""
        return [growing.rollout(None, None) for growing in self._open.values()]


@dataclass(slots=True)
class _Growing:
    invoke_id: str
    depth: int
    started_at: float
    parent_id: str | None = None
    parent_iteration: int | None = None
    turns: list[TokenTurn] = field(default_factory=list)
    answer: e.LLMQueryComplete | None = None
    refused: str | None = None
    ids: list[int] = field(default_factory=list)

    def add(self, event: AnyEvent) -> None:
        match event:
            case e.InvokeEnter():
                self.parent_id, self.parent_iteration = event.parent_id, event.parent_iteration
            case e.LLMQueryEnter():
                self._settle(None)
            case e.LLMQueryComplete():
                self._settle(None)
                self.answer = event
            case e.LLMQueryExit():
                self._settle(event.completion)
            case e.InvokeExit():
                self._settle(None)

    def _settle(self, final: Completion | None) -> None:
        """Take the answer that is at hand; `final` is what hooks have left of it."""
        event, self.answer = self.answer, None
        if event is None:
            return
        completion = event.completion
        if completion.tokens is None:
            if self.refused is None:
                who = "a hook gave" if event.supplied else "the model gave"
                self.refused = f"{who} the answer of turn {event.iteration} without its tokens"
            return
        edited = final is not None and final.content != completion.content
        self.turns.append(self._turn(event.iteration, completion, completion.tokens, edited=edited))

    def _turn(self, iteration: int, completion: Completion, tokens: SampledTokens, *, edited: bool) -> TokenTurn:
        shared = common_prefix(tokens.prompt_ids, self.ids)
        new_ids = tokens.prompt_ids[shared:]
        self.ids[shared:] = [*new_ids, *tokens.output_ids]
        return TokenTurn(
            iteration,
            shared,
            new_ids,
            tokens.output_ids,
            tokens.logprobs,
            tokens.versions,
            tokens.segments,
            completion.finish_reason,
            tokens.reasoning,
            edited,
            completion.model,
            tokens.sampling,
        )

    def rollout(self, outcome: OutcomeRecord | None, ended_at: float | None) -> Rollout:
        made = Rollout(
            self.invoke_id,
            self.parent_id,
            self.depth,
            tuple(self.turns),
            _status(outcome),
            self.parent_iteration,
            None if outcome is None or isinstance(outcome, CompletedRecord) else _told(outcome.error),
            self.refused or _unfit(outcome),
            None,
            self.started_at,
            ended_at,
        )
        fault = fault_of(made) if made.refused is None else None  # a backend or hook of someone's own may be wrong
        return made if fault is None else msgspec.structs.replace(made, refused=fault)


def _status(outcome: OutcomeRecord | None) -> RolloutStatus:
    if outcome is None:
        return "unfinished"
    status: RolloutStatus = str(outcome.__struct_config__.tag)  # type: ignore[assignment]
    return status


def _unfit(outcome: OutcomeRecord | None) -> str | None:
    """What infrastructure ended says nothing of the policy."""
    if outcome is None:
        return "the invocation has not ended"
    return f"infrastructure failed: {_told(outcome.error)}" if isinstance(outcome, FailedRecord) else None


def _told(error: ErrorRecord) -> str:
    return f"{error.type_name}: {error.message}"
