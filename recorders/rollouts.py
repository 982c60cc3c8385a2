"""Rollouts: what the policy of each invocation was shown and sampled, exactly, as training data. Plain records.

A turn says only what is new in its prompt, so a rollout is as long as what was said, not as its square. Each invocation
has a rollout of its own: no token of a child is in its parent's, and a reward is given to one of them by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import FinishReason, Segment, Span, VersionSpan

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
    if not (isinstance(reward, (int, float)) and math.isfinite(reward)):
        raise ConfigurationError("reward", f"must be a finite number or None, got {reward!r}")
    return float(reward)
