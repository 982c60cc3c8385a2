"""Work that must reach its end although whoever waits for it is cancelled, perhaps more than once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Cancellations that come meanwhile are raised once it is over, and are lost on it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        task.exception()  # taken note of
        raise cancelled
    return task.result()


async def end_all(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
