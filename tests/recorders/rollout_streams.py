"""Made-up rollouts of every shape, by hypothesis: histories that go on, break, shrink, and repeat each other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from jaz_actors.messages import Segment, Span, VersionSpan
from jaz_actors.recorders.deltas import common_prefix
from jaz_actors.recorders.rollouts import Rollout, TokenTurn

# Few different ids, so that prompts of different rollouts have beginnings in common.
token_ids = st.integers(0, 3)
some_ids = st.lists(token_ids, max_size=6)


@st.composite
def rollouts(draw: st.DrawFn, name: str = "r:0", reward: Any = None) -> Rollout:
    before: list[int] = []
    turns: list[TokenTurn] = []
    earlier: list[list[int]] = [[]]
    for iteration in range(draw(st.integers(0, 5))):
        base = draw(st.sampled_from(earlier))
        kept = draw(st.sampled_from(["all", "some"]))
        head = base if kept == "all" else base[: draw(st.integers(0, len(base)))]
        prompt = [*head, *draw(some_ids)]
        output = draw(some_ids)
        shared = common_prefix(prompt, before)
        before = [*prompt, *output]
        earlier.append(before)
        turns.append(
            TokenTurn(
                iteration,
                shared,
                prompt[shared:],
                output,
                [-float(iteration) - n / 64 for n in range(len(output))],
                draw(versions(len(output))),
                (Segment(0, len(output), "1", "2"),),
                "stop",
                Span(0, 1) if output else None,
                draw(st.booleans()),
                "m",
                {"temperature": 1.0},
            )
        )
    return Rollout(name, None, 1, tuple(turns), "completed", reward=reward, started_at=1.0, ended_at=2.0)


@st.composite
def versions(draw: st.DrawFn, length: int) -> tuple[VersionSpan, ...]:
    cut = draw(st.integers(0, length))
    spans = [VersionSpan(0, cut, "1", "1"), VersionSpan(cut, length, "2", "3")]
    return tuple(span for span in spans if span.end > span.start)


def many(most: int = 4) -> st.SearchStrategy[list[Rollout]]:
    return st.integers(0, most).flatmap(lambda n: st.tuples(*(rollouts(f"r:{i}") for i in range(n))).map(list))
