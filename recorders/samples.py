"""Training samples of one rollout: one sequence, one for each unbroken stretch, or one a query. Pure.

In each, ids and mask are exact: the mask is 1 on ids that the turns of this very sample have sampled, and on no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from jaz_actors.errors import NonMonotoneRollout, RolloutRefused
from jaz_actors.messages import VersionSpan
from jaz_actors.recorders.rollouts import Rollout, TokenTurn, fault_of


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence of N ids.

    loss_mask:    [N] 1 on sampled ids, 0 elsewhere.
    logprobs:     [N] as sampled; 0.0 where the mask is 0.
    temperatures: [N] that the logprobs are at, see `TokenTurn.temperature`; 1.0 where the mask is 0.
    versions:     which weights sampled which ids, for all with mask 1, in places of this sequence.
    iterations:   the turns that it holds.
    reward:       of the whole rollout; each of its samples has the same.
    """

    invoke_id: str
    ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    temperatures: list[float]
    versions: tuple[VersionSpan, ...]
    iterations: tuple[int, ...]
    reward: float | None

    @property
    def prompt_length(self) -> int:
        """Ids before the first sampled one."""
        return self.loss_mask.index(1) if 1 in self.loss_mask else len(self.ids)


@dataclass(frozen=True, slots=True)
class TurnSample:
    """One query: N ids sampled after a prompt, which is made from the rollout when asked for."""

    rollout: Rollout
    place: int

    @property
    def turn(self) -> TokenTurn:
        return self.rollout.turns[self.place]

    @property
    def prompt_ids(self) -> list[int]:
        """[P]."""
        ids = next(islice(self.rollout.sequences(), self.place, None))
        return ids[: self.turn.prompt_length]

    @property
    def output_ids(self) -> list[int]:
        return self.turn.output_ids

    @property
    def logprobs(self) -> list[float]:
        return self.turn.logprobs

    @property
    def reward(self) -> float | None:
        return self.rollout.reward


def to_flat(rollout: Rollout) -> Sample:
    """All turns as one sequence. Raises NonMonotoneRollout where they are not one, RolloutRefused."""
    check_trainable(rollout)
    for place in range(1, len(rollout.turns)):
        if not rollout.continues(place):
            raise NonMonotoneRollout(rollout.invoke_id, rollout.turns[place].iteration)
    return _sample(rollout, 0, len(rollout.turns), [])


def to_pieces(rollout: Rollout) -> list[Sample]:
    """A sequence for each stretch of turns that go on from each other; none for a rollout without turns.

    A piece begins with the whole prompt of its first turn. Raises RolloutRefused.
    """
    check_trainable(rollout)
    starts = [place for place in range(len(rollout.turns)) if not rollout.continues(place)]
    prompts = {place: ids[: rollout.turns[place].prompt_length] for place, ids in _sequences_at(rollout, starts)}
    stretches = pairwise([*starts, len(rollout.turns)])
    return [_sample(rollout, start, end, prompts[start]) for start, end in stretches]


def to_turn_samples(rollout: Rollout) -> list[TurnSample]:
    """One sample a query. Raises RolloutRefused."""
    check_trainable(rollout)
    return [TurnSample(rollout, place) for place in range(len(rollout.turns))]


def check_trainable(rollout: Rollout) -> None:
    """Raises RolloutRefused for one that is refused, and for one that contradicts itself."""
    reason = rollout.refused or fault_of(rollout)
    if reason is not None:
        raise RolloutRefused(rollout.invoke_id, reason)


def _sequences_at(rollout: Rollout, places: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    wanted = set(places)
    return ((place, ids) for place, ids in enumerate(rollout.sequences()) if place in wanted)


def _sample(rollout: Rollout, start: int, end: int, prompt: list[int]) -> Sample:
    """Turns `start` to `end` (exclusive), which go on from each other. `prompt` is the first one's."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    temperatures: list[float] = []
    versions: list[VersionSpan] = []
    for place in range(start, end):
        turn = rollout.turns[place]
        new = (prompt or turn.new_ids) if place == start else turn.new_ids
        ids += new
        mask += [0] * len(new)
        logprobs += [0.0] * len(new)
        temperatures += [1.0] * len(new)
        at = len(ids)
        ids += turn.output_ids
        mask += [1] * len(turn.output_ids)
        logprobs += turn.logprobs
        temperatures += [turn.temperature] * len(turn.output_ids)
        versions += [VersionSpan(at + span.start, at + span.end, span.oldest, span.newest) for span in turn.versions]
    iterations = tuple(rollout.turns[place].iteration for place in range(start, end))
    return Sample(rollout.invoke_id, ids, mask, logprobs, temperatures, tuple(versions), iterations, rollout.reward)
