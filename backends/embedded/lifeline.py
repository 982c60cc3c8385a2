"""End this process when the one that started it does. Knows no server."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 1.0


def end_with_parent(parent: int, on_orphaned: Callable[[], None]) -> None:
    """Call in the main thread. `on_orphaned` is called once `parent` is not this process's parent any more.

    Linux sends the signal also when only the *thread* that started us ends, so it is a hint to look and not a verdict.
    """

    def look(*_: object) -> None:
        if os.getppid() != parent:
            on_orphaned()

    if sys.platform == "linux":
        signal.signal(signal.SIGHUP, look)
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    else:
        threading.Thread(target=_poll, args=(look,), name="lifeline", daemon=True).start()
    look()


def _poll(look: Callable[[], None]) -> None:
    never = threading.Event()
    while not never.wait(POLL_SECONDS):
        look()
