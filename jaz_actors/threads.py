"""An event loop on a thread of its own, for code that must run beside whatever the user's threads do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def submit(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
    """Run a coroutine on another thread's loop, in an empty context: nothing that surrounds the caller goes along."""
    return Context().run(asyncio.run_coroutine_threadsafe, coroutine, loop)


class LoopThread:
    """Owner of one loop; `stop` cancels what is left on it and joins the thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return submit(coroutine, self.loop)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon_threadsafe(function, *args)

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def owns_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        if self.loop.is_closed():
            return

        async def drain() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.loop.shutdown_asyncgens()
            await self.loop.shutdown_default_executor()

        self.submit(drain()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Run a function that may never return: a thread that the interpreter does not wait for at its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def work() -> None:
        try:
            set_outcome, outcome = future.set_result, function()
        except BaseException as error:
            set_outcome, outcome = future.set_exception, error  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits any more
            loop.call_soon_threadsafe(deliver, set_outcome, outcome)

    threading.Thread(target=work, name="jaz-work", daemon=True).start()
    return await future
