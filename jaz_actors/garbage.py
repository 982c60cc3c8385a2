"""How often Python looks for garbage in a process of ours. A leaf."""

from __future__ import annotations

import gc

YOUNG = 50_000  # objects; Python's own 700 looks through thousands of requests under way again and again


def settle() -> None:
    """Once a process has imported what it needs: leave that out of every later search, and search less often.

    Not for a user's process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
