"""jaz-actors: recursive code-writing agents, each invocation in a process of its own, on one machine or a Ray cluster.

from jaz_actors import configure, invoke
configure(backend=...)
print(invoke(task="Add up the numbers.", numbers=[1, 2, 3]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaz_actors import errors, hooks
    from jaz_actors.backends.chat_format import HFChatFormat
    from jaz_actors.backends.generate_api import Sampling
    from jaz_actors.backends.openai import OpenAI
    from jaz_actors.backends.scripted import Scripted
    from jaz_actors.backends.sglang import SGLang
    from jaz_actors.capture import scope
    from jaz_actors.code_protocol import CodeProtocol
    from jaz_actors.config import ConfigOverride, configure, get_config
    from jaz_actors.descriptions import Display, describe
    from jaz_actors.frames.process import FrameOptions
    from jaz_actors.frames.repl import REPL
    from jaz_actors.frontdoor import Invocation, ainvoke, amap, invoke, start, statistics
    from jaz_actors.hooks.base import Hook
    from jaz_actors.hooks.budget import BudgetPool
    from jaz_actors.hooks.limits import IterationLimit, RecursionLimit, TimeLimit
    from jaz_actors.hooks.loggers import FileLogger, PrintLogger
    from jaz_actors.hooks.returns import ReturnType
    from jaz_actors.ids import InvokeId
    from jaz_actors.library import Library
    from jaz_actors.live_views import JaegerTracing, LangfuseTracing, TrajectoryDirectoryRecorder, View
    from jaz_actors.record import Recorder, TrajectoryRecorder
    from jaz_actors.refs import by_reference
    from jaz_actors.replay import TrajectoryReplay, resume
    from jaz_actors.results import Aborted, Completed, Failed, Outcome, Raised
    from jaz_actors.rollout_record import RolloutRecorder
    from jaz_actors.runtime import shutdown
    from jaz_actors.tools import software_tools

# Loaded on first use: a frame is forked from a process that imported what it needs and nothing more.
_HOMES = {
    "Aborted": "results",
    "CodeProtocol": "code_protocol",
    "BudgetPool": "hooks.budget",
    "Completed": "results",
    "ConfigOverride": "config",
    "Display": "descriptions",
    "Failed": "results",
    "FileLogger": "hooks.loggers",
    "FrameOptions": "frames.process",
    "HFChatFormat": "backends.chat_format",
    "Hook": "hooks.base",
    "Invocation": "frontdoor",
    "InvokeId": "ids",
    "IterationLimit": "hooks.limits",
    "JaegerTracing": "live_views",
    "LangfuseTracing": "live_views",
    "Library": "library",
    "OpenAI": "backends.openai",
    "Outcome": "results",
    "PrintLogger": "hooks.loggers",
    "REPL": "frames.repl",
    "Raised": "results",
    "Recorder": "record",
    "RecursionLimit": "hooks.limits",
    "ReturnType": "hooks.returns",
    "RolloutRecorder": "rollout_record",
    "SGLang": "backends.sglang",
    "Sampling": "backends.generate_api",
    "Scripted": "backends.scripted",
    "TimeLimit": "hooks.limits",
    "TrajectoryDirectoryRecorder": "live_views",
    "TrajectoryRecorder": "record",
    "TrajectoryReplay": "replay",
    "View": "live_views",
    "ainvoke": "frontdoor",
    "amap": "frontdoor",
    "by_reference": "refs",
    "configure": "config",
    "describe": "descriptions",
    "errors": "",
    "get_config": "config",
    "hooks": "",
    "invoke": "frontdoor",
    "resume": "replay",
    "scope": "capture",
    "shutdown": "runtime",
    "software_tools": "tools",
    "start": "frontdoor",
    "statistics": "frontdoor",
}

__all__ = [
    "REPL",
    "Aborted",
    "BudgetPool",
    "CodeProtocol",
    "Completed",
    "ConfigOverride",
    "Display",
    "Failed",
    "FileLogger",
    "FrameOptions",
    "HFChatFormat",
    "Hook",
    "Invocation",
    "InvokeId",
    "IterationLimit",
    "JaegerTracing",
    "LangfuseTracing",
    "Library",
    "OpenAI",
    "Outcome",
    "PrintLogger",
    "Raised",
    "Recorder",
    "RecursionLimit",
    "ReturnType",
    "RolloutRecorder",
    "SGLang",
    "Sampling",
    "Scripted",
    "TimeLimit",
    "TrajectoryDirectoryRecorder",
    "TrajectoryRecorder",
    "TrajectoryReplay",
    "View",
    "ainvoke",
    "amap",
    "by_reference",
    "configure",
    "describe",
    "errors",
    "get_config",
    "hooks",
    "invoke",
    "resume",
    "scope",
    "shutdown",
    "software_tools",
    "start",
    "statistics",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module(f"{__name__}.{home or name}")
    if home:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
