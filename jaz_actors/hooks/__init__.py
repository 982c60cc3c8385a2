"""Hooks: see an invocation's events, answer with effects."""

from jaz_actors import effects, events
from jaz_actors.hooks.base import Hook
from jaz_actors.hooks.budget import BudgetPool
from jaz_actors.hooks.limits import BudgetForcing, IterationLimit, RecursionLimit, TimeLimit
from jaz_actors.hooks.loggers import FileLogger, PrintLogger
from jaz_actors.hooks.metadata import MetaData
from jaz_actors.hooks.returns import ReturnType, ValidateREPLCode, ValidateReturn
from jaz_actors.hooks.values import abort, add_inputs, add_variables, load, raised, returned
from jaz_actors.hooks.window import Compaction, ContextWindowWarning, SlidingWindow

__all__ = [
    "BudgetForcing",
    "BudgetPool",
    "Compaction",
    "ContextWindowWarning",
    "FileLogger",
    "Hook",
    "IterationLimit",
    "MetaData",
    "PrintLogger",
    "RecursionLimit",
    "ReturnType",
    "SlidingWindow",
    "TimeLimit",
    "ValidateREPLCode",
    "ValidateReturn",
    "abort",
    "add_inputs",
    "add_variables",
    "effects",
    "events",
    "load",
    "raised",
    "returned",
]
