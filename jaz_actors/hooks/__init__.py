"""Hooks: see an invocation's events, answer with effects."""

from jaz_actors import effects, events
from jaz_actors.hooks.base import Hook, abort
from jaz_actors.hooks.limits import IterationLimit, RecursionLimit
from jaz_actors.hooks.print_logger import PrintLogger
from jaz_actors.hooks.returns import ReturnType

__all__ = [
    "Hook",
    "IterationLimit",
    "PrintLogger",
    "RecursionLimit",
    "ReturnType",
    "abort",
    "effects",
    "events",
]
