"""Server-sent events, however the network cuts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.backends.sse import events

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


async def read(chunks: list[bytes]) -> list[bytes]:
    async def arriving() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [data async for data in events(arriving())]


@given(st.lists(st.text(min_size=1, max_size=6).map(str.encode), max_size=5), ENDS, st.data())
def test_events_do_not_depend_on_where_the_bytes_are_cut(said: list[bytes], end: bytes, data: st.DataObject) -> None:
    said = [text.replace(b"\n", b"").replace(b"\r", b"") for text in said]
    raw = b"".join(b"event: x" + end + b"data: " + text + end + end for text in said) + b"data: after"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=6)))
    edges = [0, *cuts, len(raw)]
    chunks = [raw[a:b] for a, b in pairwise(edges)]
    assert asyncio.run(read(chunks)) == said


def test_comments_are_left_out_lines_are_joined_and_an_unfinished_event_is_none() -> None:
    raw = b": ping\n\nid: 3\n\ndata:a\ndata: b\n\ndata: \xe2\x80\xa8\x0b\x85\n\ndata: cut"
    assert asyncio.run(read([raw])) == [b"a\nb", b"\xe2\x80\xa8\x0b\x85"]
