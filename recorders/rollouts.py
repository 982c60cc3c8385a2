"""Rollouts: what the policy of each invocation was shown and sampled, exactly, as training data. Plain records.

A turn says only what is new in its prompt, so a rollout is as long as what was said, not as its square. Each invocation
has a rollout of its own: no token of a child is in its parent's, and a reward is given to one of them by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Real
from typing import Any, Literal, get_args

import msgspec

from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import FinishReason, Segment, Span, VersionSpan

_MOST = 2**63

RolloutStatus = Literal["completed", "raised", "aborted", "failed", "unfinished"]


class TokenTurn(msgspec.Struct, frozen=True):
    """One completed query of a model that tells its tokens.

    shared:      leading ids of the prompt that are those of the turn before, its prompt and what it sampled.
    new_ids:     the rest of the prompt.
    output_ids:  [N] ids sampled, the one that ended the answer included; the only ones to train on.
    logprobs:    [N] natural-log probabilities at the sampling temperature, before top-p, top-k and min-p.
    versions:    which weights sampled which of the N.
    segments:    the requests that it took.
    reasoning:   which of the N are reasoning.
    edited:      hooks changed the visible text, so that not what was sampled ran.
    sampling:    the parameters as sent.
    """

    iteration: int
    shared: int
    new_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]
    versions: tuple[VersionSpan, ...] = ()
    segments: tuple[Segment, ...] = ()
    finish_reason: FinishReason = "stop"
    reasoning: Span | None = None
    edited: bool = False
    model: str = ""
    sampling: dict[str, Any] = {}

    @property
    def temperature(self) -> float:
        """Of `logprobs`: divide logits by it to compare. 1.0 where none was sent, and where 0 asked for the likeliest
        id, whose logprob servers give without scaling."""
        return float(self.sampling.get("temperature") or 1.0)

    @property
    def prompt_length(self) -> int:
        return self.shared + len(self.new_ids)

    @property
    def length(self) -> int:
        """Of the prompt and what was sampled."""
        return self.prompt_length + len(self.output_ids)


class Rollout(msgspec.Struct, frozen=True):
    """What one invocation's policy did.

    path, parent_id, parent_iteration, depth:  its place in its tree; a root has depth 1 and no parent.
    status, error:   how it ended; `error` is type and message where it did not complete.
    refused:         why it is not to be trained on: infrastructure failed, it has not ended, or not all of its answers
                     are known in tokens. None for a good one.
    reward:          set by name, None until then. A child has none by its parent's.
    started_at, ended_at:  seconds since the epoch.
    """

    invoke_id: str
    parent_id: str | None
    depth: int
    turns: tuple[TokenTurn, ...]
    status: RolloutStatus
    parent_iteration: int | None = None
    error: str | None = None
    refused: str | None = None
    reward: float | None = None
    started_at: float = 0.0
    ended_at: float | None = None

    @property
    def path(self) -> str:
        return self.invoke_id.partition(":")[2]

    @property
    def root_id(self) -> str:
        """The invoke id of the root of its tree."""
        run, _, path = self.invoke_id.partition(":")
        return f"{run}:{path.partition('.')[0]}"

    @property
    def sampled(self) -> int:
        """How many ids were sampled."""
        return sum(len(turn.output_ids) for turn in self.turns)

    @property
    def said(self) -> int:
        """How many ids were said: each once, however many prompts repeat it."""
        return sum(len(turn.new_ids) + len(turn.output_ids) for turn in self.turns)

    def sequences(self) -> Iterator[list[int]]:
        """Of each turn, the prompt and what was sampled. One list that is changed from turn to turn: copy to keep."""
        ids: list[int] = []
        for turn in self.turns:
            del ids[turn.shared :]
            ids += turn.new_ids
            ids += turn.output_ids
            yield ids

    def continues(self, place: int) -> bool:
        """Whether the turn at that place goes on from the whole of the turn before it."""
        return place > 0 and self.turns[place].shared == self.turns[place - 1].length


def with_reward(rollout: Rollout, reward: float | None) -> Rollout:
    """Raises ConfigurationError for a reward that is no finite number."""
    return msgspec.structs.replace(rollout, reward=checked_reward(reward))


def checked_reward(reward: float | None) -> float | None:
    """Raises ConfigurationError for what is no finite number."""
    if reward is None:
        return None
    try:
        number = float(reward) if isinstance(reward, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError("reward", f"must be a finite number or None, got {str(reward)[:40]}")
    return number


def fault_of(rollout: Rollout) -> str | None:
    """What in it contradicts itself, so that no export of it could be right; None for a sound one."""
    if rollout.status not in get_args(RolloutStatus):
        return f"its status is {rollout.status!r}"
    if rollout.reward is not None and not math.isfinite(rollout.reward):
        return f"its reward is {rollout.reward!r}"
    before, iteration = 0, -1
    for turn in rollout.turns:
        if turn.iteration <= iteration:
            return f"turn {turn.iteration} comes after turn {iteration}"
        fault = _fault_of_turn(turn, before)
        if fault is not None:
            return f"turn {turn.iteration}: {fault}"
        before, iteration = turn.length, turn.iteration
    return None


def _fault_of_turn(turn: TokenTurn, before: int) -> str | None:
    """before: ids of the turn before it."""
    count = len(turn.output_ids)
    if turn.finish_reason not in get_args(FinishReason):
        return f"its finish reason is {turn.finish_reason!r}"
    if not 0 <= turn.shared <= before:
        return f"it shares {turn.shared} ids with the {before} of the turn before it"
    if len(turn.logprobs) != count:
        return f"{count} ids were sampled, with {len(turn.logprobs)} logprobs"
    if not all(map(math.isfinite, turn.logprobs)):
        return "a logprob is no finite number"
    if not all(0 <= i < _MOST for ids in (turn.new_ids, turn.output_ids) for i in ids):
        return "an id is no token id"
    if turn.reasoning is not None and not 0 <= turn.reasoning.start <= turn.reasoning.end <= count:
        return f"its reasoning is at {turn.reasoning.start} to {turn.reasoning.end} of {count} ids"
    for name, spans in (("versions", turn.versions), ("segments", turn.segments)):
        at = 0
        for span in spans:
            if span.start != at or span.end < at:
                return f"its {name} leave a gap or overlap at id {at}"
            at = span.end
        if spans and at != count:
            return f"its {name} end at {at} of {count} ids"
    return None
