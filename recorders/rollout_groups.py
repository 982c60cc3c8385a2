"""Rollouts compared with each other: groups, advantages within a group, staleness, and what a set of them adds up to.

Pure. A group is what its key says: one tree (`by_root`), the same first prompt (`by_prompt`), or any function of a
rollout. Every number here comes from a rollout's own reward: nothing is handed from a parent to its children.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaz_actors.errors import ConfigurationError
from jaz_actors.recorders.rollouts import Rollout

Key = Callable[[Rollout], Hashable]


def by_root(rollout: Rollout) -> str:
    """The tree: a root and all below it have the same."""
    return rollout.root_id


def by_prompt(rollout: Rollout) -> tuple[int, str]:
    """Depth and first prompt: invocations at one depth that were asked the same in the same ids have the same.

    A rollout without turns was asked nothing, and is alone.
    """
    if not rollout.turns:
        return rollout.depth, rollout.invoke_id
    ids = repr(rollout.turns[0].new_ids).encode()
    return rollout.depth, hashlib.blake2b(ids, digest_size=16).hexdigest()


def grouped(rollouts: Iterable[Rollout], key: Key = by_root) -> dict[Hashable, list[Rollout]]:
    """Lists of those with the same key, each and all in the order in which they came."""
    groups: dict[Hashable, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(key(rollout), []).append(rollout)
    return groups


def advantages(
    rollouts: Iterable[Rollout], key: Key = by_prompt, *, scale: bool = True, eps: float = 1e-6
) -> dict[str, float]:
    """By invoke id: (reward - mean) / (standard deviation + eps) in its group, as in GRPO (arXiv 2402.03300, 4.1.2).

    The deviation is that of a sample (n - 1). Where all of a group have the same reward, and where it is alone, the
    advantage is 0. Rollouts without a reward and those that are `refused` are in no group and have none.

    scale:  False leaves the division out, as in Dr. GRPO (arXiv 2503.20783).

    Raises ConfigurationError for an `eps` that is not above 0 and a reward that is no finite number.
    """
    if not eps > 0:
        raise ConfigurationError("eps", f"must be above 0, got {eps!r}")
    found: dict[str, float] = {}
    for group in grouped((r for r in rollouts if r.reward is not None and r.refused is None), key).values():
        scores = _scores([_reward(rollout) for rollout in group], eps, scale=scale)
        found |= {rollout.invoke_id: score for rollout, score in zip(group, scores, strict=True)}
    return found


def _scores(rewards: list[float], eps: float, *, scale: bool) -> list[float]:
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    unit = max(map(abs, rewards))  # in units of the largest, no sum of squares is too large
    mean = math.fsum(reward / unit for reward in rewards) / len(rewards)
    away = [reward / unit - mean for reward in rewards]
    if not scale:
        return [d * unit for d in away]
    spread = math.sqrt(math.fsum(d * d for d in away) / (len(away) - 1)) + eps / unit
    return [d / spread for d in away]


def _reward(rollout: Rollout) -> float:
    assert rollout.reward is not None
    if not math.isfinite(rollout.reward):
        raise ConfigurationError("rollouts", f"{rollout.invoke_id} has the reward {rollout.reward!r}")
    return rollout.reward


def staleness(rollout: Rollout, versions: Sequence[str]) -> int | None:
    """How many updates its oldest sampled id is behind the newest weights; None where nothing was sampled.

    versions:  every label that the weights have had, oldest first; the last is what a trainer has now. Order is what
               this list says: labels themselves are not compared.

    Raises ConfigurationError where ids were sampled by weights that are not in the list or not known.
    """
    return _staleness(rollout, _places(versions))


def fresh(rollouts: Iterable[Rollout], versions: Sequence[str], *, at_most: int) -> Iterator[Rollout]:
    """Those whose every sampled id is at most so many updates behind. Raises ConfigurationError, see `staleness`."""
    if at_most < 0:
        raise ConfigurationError("at_most", f"must be 0 or more, got {at_most}")
    places = _places(versions)
    return (rollout for rollout in rollouts if (_staleness(rollout, places) or 0) <= at_most)


@dataclass(frozen=True, slots=True)
class Totals:
    """What rollouts add up to.

    rollouts, refused, rewarded:  how many there are; of them, not to be trained on; with a reward.
    statuses:      how many ended how.
    turns:         queries.
    sampled, said: ids; `said` counts each prompt's repeated beginning once.
    mean_reward:   of those that have one, None without any.
    versions:      sampled ids by the newest weights that can have sampled them; None where that is not known.
    """

    rollouts: int
    refused: int
    rewarded: int
    statuses: Mapping[str, int]
    turns: int
    sampled: int
    said: int
    mean_reward: float | None
    versions: Mapping[str | None, int]


def totals(rollouts: Iterable[Rollout]) -> Totals:
    """In one pass, one rollout in memory at a time."""
    count = refused = turns = sampled = said = 0
    statuses: Counter[str] = Counter()
    versions: Counter[str | None] = Counter()
    rewards: list[float] = []
    for rollout in rollouts:
        count += 1
        refused += rollout.refused is not None
        statuses[rollout.status] += 1
        turns += len(rollout.turns)
        sampled += rollout.sampled
        said += rollout.said
        if rollout.reward is not None:
            rewards.append(_reward(rollout))
        for turn in rollout.turns:
            known = 0
            for span in turn.versions:
                versions[span.newest] += span.end - span.start
                known += span.end - span.start
            if known < len(turn.output_ids):
                versions[None] += len(turn.output_ids) - known
    mean = math.fsum(reward / len(rewards) for reward in rewards) if rewards else None
    return Totals(count, refused, len(rewards), dict(statuses), turns, sampled, said, mean, dict(versions))


def _places(versions: Sequence[str]) -> dict[str, int]:
    places = {label: len(versions) - 1 - place for place, label in enumerate(versions)}
    if len(places) < len(versions):
        twice = next(label for label, count in Counter(versions).items() if count > 1)
        raise ConfigurationError("versions", f"names {twice!r} twice, so that its ids have no one age")
    return places


def _staleness(rollout: Rollout, places: Mapping[str, int]) -> int | None:
    ages: list[int] = []
    for turn in rollout.turns:
        if turn.output_ids and sum(span.end - span.start for span in turn.versions) < len(turn.output_ids):
            raise ConfigurationError(
                "rollouts", f"turn {turn.iteration} of {rollout.invoke_id} has ids whose weights are not known"
            )
        # Of both ends: an answer may come from a server that is behind the one last heard of.
        spans = (span for span in turn.versions if span.end > span.start)
        ages += [_age(rollout, label, places) for span in spans for label in (span.oldest, span.newest)]
    return max(ages, default=None)


def _age(rollout: Rollout, label: str | None, places: Mapping[str, int]) -> int:
    if label is None or label not in places:
        raise ConfigurationError(
            "versions", f"does not name {label!r}, whose weights sampled ids of {rollout.invoke_id}; known: {[*places]}"
        )
    return places[label]
