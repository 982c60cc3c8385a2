"""JAZ's names for hooks."""

from __future__ import annotations

from jaz_actors.hooks import (
    BudgetForcing,
    BudgetPool,
    Compaction,
    ContextWindowWarning,
    FileLogger,
    Hook,
    IterationLimit,
    MetaData,
    PrintLogger,
    RecursionLimit,
    ReturnType,
    SlidingWindow,
    ValidateREPLCode,
    ValidateReturn,
)
from jaz_actors.jaz.hooks import effects, events
from jaz_actors.live_views import JaegerTracing, LangfuseTracing, TrajectoryDirectoryRecorder
from jaz_actors.record import TrajectoryRecorder
from jaz_actors.replay import TrajectoryReplay
from jaz_actors.rollout_record import RolloutRecorder

__all__ = [
    "BudgetForcing",
    "BudgetPool",
    "Compaction",
    "ContextWindowWarning",
    "FileLogger",
    "Hook",
    "IterationLimit",
    "JaegerTracing",
    "LangfuseTracing",
    "MetaData",
    "PrintLogger",
    "RecursionLimit",
    "ReturnType",
    "RolloutRecorder",
    "SlidingWindow",
    "TrajectoryDirectoryRecorder",
    "TrajectoryRecorder",
    "TrajectoryReplay",
    "ValidateREPLCode",
    "ValidateReturn",
    "effects",
    "events",
]
