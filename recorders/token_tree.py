"""Many rollouts as one tree of ids: what they have in common stands once, each sampled id in exactly one place. Pure.

For training with shared prefixes: the parts on the way from a root to a part are what its ids were conditioned on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from jaz_actors.messages import VersionSpan
from jaz_actors.recorders.deltas import common_prefix
from jaz_actors.recorders.rollouts import Rollout, TokenTurn
from jaz_actors.recorders.samples import check_trainable


@dataclass(frozen=True, slots=True)
class TreePart:
    """A stretch of ids.

    parent:     the place of the part before it, None for one that begins a sequence.
    start:      how many ids stand before it on the way from the root.
    sampled_by: the place, in `TokenTree.rollouts`, of the rollout that sampled these ids; None for ids that are
                not to be trained on.
    iteration:  the turn of that rollout.
    offset:     which of the ids that the turn sampled is the first here.
    logprobs:   one for each id where they were sampled, else none.
    """

    parent: int | None
    start: int
    ids: list[int]
    sampled_by: int | None = None
    iteration: int | None = None
    offset: int = 0
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PathSample:
    """What one turn sampled, after what. rollout: its place in `TokenTree.rollouts`."""

    rollout: int
    iteration: int
    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class TokenTree:
    """parts: each after its parent. rollouts: those that are in it, for rewards, versions and the rest."""

    parts: list[TreePart]
    rollouts: list[Rollout]

    @property
    def tokens(self) -> int:
        return sum(len(part.ids) for part in self.parts)

    def samples(self) -> Iterator[PathSample]:
        """What each turn sampled, read back from the tree: rollout by rollout, turn by turn."""
        mine: dict[tuple[int, int], list[int]] = {}
        for place, part in enumerate(self.parts):
            if part.sampled_by is not None and part.iteration is not None:
                mine.setdefault((part.sampled_by, part.iteration), []).append(place)
        for index, rollout in enumerate(self.rollouts):
            for turn in rollout.turns:
                places = mine[index, turn.iteration]
                parts = [self.parts[place] for place in places]
                ids = [i for part in parts for i in part.ids]
                logprobs = [p for part in parts for p in part.logprobs]
                yield PathSample(index, turn.iteration, self._before(places[0]), ids, logprobs)

    def versions(self, part: TreePart) -> tuple[VersionSpan, ...]:
        """Which weights sampled a part's ids, in places of the part."""
        if part.sampled_by is None:
            return ()
        turn = next(t for t in self.rollouts[part.sampled_by].turns if t.iteration == part.iteration)
        low, high = part.offset, part.offset + len(part.ids)
        return tuple(
            VersionSpan(max(s.start, low) - low, min(s.end, high) - low, s.oldest, s.newest)
            for s in turn.versions
            if s.start < high and s.end > low
        )

    def _before(self, place: int) -> list[int]:
        way: list[TreePart] = []
        at = self.parts[place].parent
        while at is not None:
            way.append(self.parts[at])
            at = self.parts[at].parent
        return [i for part in reversed(way) for i in part.ids]


def to_tree(rollouts: Iterable[Rollout]) -> TokenTree:
    """The tree of all turns of these rollouts. Raises RolloutRefused for one that is not to be trained on."""
    root = _Node(None, 0, [])
    taken: list[Rollout] = []
    for rollout in rollouts:
        check_trainable(rollout)
        leaf = root
        for turn in rollout.turns:
            leaf = _grown(leaf, turn, len(taken))
        taken.append(rollout)
    return TokenTree(list(_parts(root)), taken)


@dataclass(eq=False, slots=True)
class _Node:
    """Children by their first id; None for those without ids."""

    parent: _Node | None
    start: int
    ids: list[int]
    sampled_by: int | None = None
    iteration: int | None = None
    offset: int = 0
    logprobs: list[float] = field(default_factory=list)
    children: dict[int | None, list[_Node]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def adopt(self, child: _Node) -> _Node:
        self.children.setdefault(child.ids[0] if child.ids else None, []).append(child)
        return child

    def split(self, at: int) -> _Node:
        """Make the first `at` ids a node of their own and give it; this one stays the lower, whoever refers to it."""
        assert self.parent is not None
        upper = _Node(
            self.parent,
            self.start,
            self.ids[:at],
            self.sampled_by,
            self.iteration,
            self.offset,
            self.logprobs[:at],
        )
        siblings = self.parent.children[self.ids[0]]
        siblings[siblings.index(self)] = upper
        self.parent, self.start, self.offset = upper, self.start + at, self.offset + at
        self.ids, self.logprobs = self.ids[at:], self.logprobs[at:]
        upper.adopt(self)
        return upper


def _grown(leaf: _Node, turn: TokenTurn, rollout: int) -> _Node:
    """Add a turn whose prompt begins with `turn.shared` ids of the sequence that ends at `leaf`."""
    node = leaf
    while node.start > turn.shared or (node.start == turn.shared and node.parent is not None):
        assert node.parent is not None
        node = node.parent
    if turn.shared < node.end:
        node = node.split(turn.shared - node.start)
    node = _walked(node, turn.new_ids)
    made = _Node(node, node.end, list(turn.output_ids), rollout, turn.iteration, 0, list(turn.logprobs))
    return node.adopt(made)


def _walked(node: _Node, ids: list[int]) -> _Node:
    """Where a context of these ids ends: along what is there as far as it is the same, no matter who sampled that."""
    done = 0
    while done < len(ids):
        rest = ids[done:]
        best, same = None, 0
        for child in node.children.get(rest[0], ()):
            common = common_prefix(child.ids, rest)
            if common > same:
                best, same = child, common
        if best is None:
            return node.adopt(_Node(node, node.end, rest))
        node = best if same == len(best.ids) else best.split(same)
        done += same
    return node


def _parts(root: _Node) -> Iterator[TreePart]:
    """Each after its parent; the root itself, which holds nothing, is none."""
    waiting: list[tuple[_Node, int | None]] = [(root, None)]
    count = 0
    while waiting:
        node, parent = waiting.pop()
        place = parent
        if node is not root:
            place, count = count, count + 1
            yield TreePart(parent, node.start, node.ids, node.sampled_by, node.iteration, node.offset, node.logprobs)
        children = [child for group in node.children.values() for child in group]
        waiting += [(child, place) for child in reversed(children)]
