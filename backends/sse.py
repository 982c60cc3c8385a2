"""Server-sent events: bytes in, the data of each event out. Knows no API."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable

_LINE_END = re.compile(rb"\r\n|\n|\r(?!$)")


async def events(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The `data` of each event, its lines joined by newlines. Comments and other fields are left out.

    Only the protocol's own line ends count: str.splitlines would also cut at characters that JSON text may
    contain.
    """
    pending = b""
    data: list[bytes] = []
    async for chunk in chunks:
        *lines, pending = _LINE_END.split(pending + chunk)
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
