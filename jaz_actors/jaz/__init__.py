"""JAZ's names for what this package has, so that a program written for JAZ runs with its imports changed alone.

`from jaz_actors.jaz import invoke` stands for `from jaz import invoke`, `jaz_actors.jaz.hooks` for `jaz.hooks`, and so
on. What differs, and why, is said in docs/coming-from-jaz.md. New programs import from `jaz_actors`.
"""

from __future__ import annotations

from typing import Any

from jaz_actors import config
from jaz_actors.capture import scope
from jaz_actors.code_protocol import CodeProtocol
from jaz_actors.config import get_config
from jaz_actors.descriptions import Display, describe
from jaz_actors.frames.repl import REPL
from jaz_actors.frontdoor import ainvoke, invoke
from jaz_actors.jaz import exceptions, hooks, llm, protocol, repl
from jaz_actors.jaz.llm import BaseLLM, as_backend
from jaz_actors.protocols import Backend

__all__ = [
    "ConfigOverride",
    "Display",
    "ainvoke",
    "configure",
    "describe",
    "exceptions",
    "get_config",
    "hooks",
    "invoke",
    "llm",
    "protocol",
    "repl",
    "scope",
]


def configure(
    *,
    llm: Backend | BaseLLM | None = None,
    repl: REPL | None = None,
    protocol: CodeProtocol | None = None,
    **runtime: Any,
) -> None:
    """`jaz_actors.configure`, where the model is called `llm`."""
    config.configure(backend=as_backend(llm), repl=repl, protocol=protocol, **runtime)


class ConfigOverride(config.ConfigOverride):
    """`jaz_actors.ConfigOverride`, where the model is called `llm`."""

    def __init__(
        self,
        *,
        llm: Backend | BaseLLM | None = None,
        repl: REPL | None = None,
        protocol: CodeProtocol | None = None,
    ) -> None:
        super().__init__(backend=as_backend(llm), repl=repl, protocol=protocol)
