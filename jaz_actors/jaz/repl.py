"""JAZ's names for the REPL and its results."""

from __future__ import annotations

from jaz_actors.frames.repl import REPL
from jaz_actors.hooks.values import raised as Raise
from jaz_actors.hooks.values import returned as Return
from jaz_actors.outcomes import Continue

__all__ = ["Continue", "PythonREPL", "Raise", "Return"]


def PythonREPL(*, exec_timeout: float | None = 30.0, allow_raise: bool = True) -> REPL:
    """A REPL. Imports and files are not restricted by looking at the code: a frame is a process of its own."""
    return REPL(timeout=exec_timeout, allow_raise=allow_raise)
