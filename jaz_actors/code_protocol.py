"""The code-only protocol: what the model is told, how its reply becomes code, what it is shown of a result.

Pure: no I/O but the templates, no frames, no model. A reply is the code; one that is exactly one fenced block is taken
as the block's content.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from jaz_actors.errors import ConfigurationError
from jaz_actors.events import InputInfo
from jaz_actors.messages import Message
from jaz_actors.outcomes import Continue
from jaz_actors.render import abbreviate

if TYPE_CHECKING:
    from jinja2 import Template

_FENCED = re.compile(r"\s*```[A-Za-z0-9_+-]*[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
_PRAGMA = re.compile(r"#\s*timeout\s*:\s*(?P<value>[^\s#]+)")
NO_OUTPUT = "(no output)"


@dataclass(frozen=True, slots=True)
class ParsedCode:
    """timeout: seconds asked for by the code's own pragma. error: why the code must not run."""

    code: str
    timeout: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the prompt says about the REPL that will run the code. Durations in seconds."""

    timeout: float | None
    allow_raise: bool
    reject_finish_on_output: bool
    recursion: bool


@dataclass(frozen=True, slots=True)
class CodeProtocol:
    """Prompt templates and bounds.

    system_template / user_template:  Jinja2 sources, None for our own (`jaz_actors/prompts`). The system template gets
        the fields of `Rules` and `scope`, the user template `inputs`; both lists have name, type_name and text.
    max_input_characters / max_output_characters:  what is shown of one input and of one turn's output.
    head_ratio:  share of those characters taken from the start; the rest comes from the end.
    """

    system_template: str | None = None
    user_template: str | None = None
    max_input_characters: int = 50_000
    max_output_characters: int = 50_000
    head_ratio: float = 0.5

    def __post_init__(self) -> None:
        for name in ("max_input_characters", "max_output_characters"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, "must be at least 1")
        if not 0 <= self.head_ratio <= 1:
            raise ConfigurationError("head_ratio", "must lie between 0 and 1")
        for name in ("system_template", "user_template"):
            source = getattr(self, name)
            if source is not None:
                _checked(name, source)

    def seed(self, rules: Rules, inputs: tuple[InputInfo, ...], scope: tuple[InputInfo, ...]) -> tuple[Message, ...]:
        """The messages that an invocation starts with."""
        system = _system_text(self.system_template, rules) if not scope else _render_system(self, rules, scope)
        user = _template(self.user_template, "user.j2").render(inputs=inputs).strip()
        return (
            Message("system", system, "seed", 0),
            Message("user", user, "seed", 1),
        )

    def parse(self, reply: str) -> ParsedCode:
        """The code of a reply and its timeout pragma; never raises."""
        fenced = _FENCED.fullmatch(reply)
        code = fenced.group(1) if fenced and "```" not in fenced.group(1) else reply
        code = code.strip("\r\n")
        for line in code.splitlines():
            text = line.strip()
            if text and not text.startswith("#"):
                break
            pragma = _PRAGMA.match(text)
            if pragma:
                return _with_timeout(code, pragma.group("value"))
        return ParsedCode(code)

    def observation(self, result: Continue, iteration: int) -> str:
        """What the model is shown of a turn that did not finish."""
        recover = f"print(__history__[{iteration}].repl_output[{{start}}:{{end}}]) shows them"
        text = result.text.rstrip("\n")
        return abbreviate(text, self.max_output_characters, self.head_ratio, recover) or NO_OUTPUT


def _with_timeout(code: str, value: str) -> ParsedCode:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        return ParsedCode(code, error=f"ValueError: '# timeout: {value}' is not a positive number; nothing was run.\n")
    return ParsedCode(code, seconds)


def _render_system(protocol: CodeProtocol, rules: Rules, scope: tuple[InputInfo, ...]) -> str:
    template = _template(protocol.system_template, "system.j2")
    return template.render(
        timeout=None if rules.timeout is None else f"{rules.timeout:g}",
        allow_raise=rules.allow_raise,
        reject_finish_on_output=rules.reject_finish_on_output,
        recursion=rules.recursion,
        scope=scope,
    ).strip()


@lru_cache(maxsize=256)
def _system_text(source: str | None, rules: Rules) -> str:
    return _render_system(CodeProtocol(system_template=source), rules, ())


@lru_cache(maxsize=64)
def _template(source: str | None, name: str) -> Template:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    if source is None:
        source = (files("jaz_actors") / "prompts" / name).read_text(encoding="utf-8")
    return environment.from_string(source)


def _checked(name: str, source: str) -> None:
    import jinja2

    try:
        _template(source, name)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError(name, f"is no Jinja2 template: {error}") from error
