"""One answer from the requests that it took: each goes on from what those before it sampled. Knows no server."""

from __future__ import annotations

from collections.abc import Iterator

from jaz_actors.backends.generate_api import Generated
from jaz_actors.messages import Segment, VersionSpan


class Segments:
    """Belongs to one query. What a request sampled stays, whatever becomes of the next."""

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []
        self.versions: list[VersionSpan] = []
        self.cached_tokens: int | None = None
        self.last: Generated | None = None

    def add(self, generated: Generated, *, submitted_under: str | None) -> None:
        start = len(self.output_ids)
        end = start + len(generated.output_ids)
        if not self.segments:
            self.cached_tokens = generated.cached_tokens
        self.output_ids += generated.output_ids
        self.logprobs += generated.logprobs
        self.segments.append(Segment(start, end, submitted_under, generated.weight_version))
        self.versions += _shifted(generated, submitted_under, start, end)
        self.last = generated

    @property
    def version_at_submit(self) -> str | None:
        return self.segments[0].version_at_submit

    @property
    def version_at_return(self) -> str | None:
        return self.segments[-1].version_at_return


def _shifted(generated: Generated, submitted_under: str | None, start: int, end: int) -> Iterator[VersionSpan]:
    if not generated.versions and end > start:
        yield VersionSpan(start, end, submitted_under, generated.weight_version)
    for span in generated.versions:
        if span.end > span.start:
            yield VersionSpan(start + span.start, start + span.end, span.oldest, span.newest)
