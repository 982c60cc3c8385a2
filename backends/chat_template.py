"""Rendering a model's own chat template the way Hugging Face does. Knows text, not tokens.

Templates come with model folders and are run in a sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Role


class ChatTemplate:
    """One compiled template.

    special_tokens:  its variables `bos_token`, `eos_token` and so on.
    variables:       further ones, such as enable_thinking.
    today:           what a template that writes the date is told; None refuses such a template.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        variables: Mapping[str, Any] | None = None,
        today: date | None = None,
    ) -> None:
        import jinja2

        self._variables = {"tools": None, "documents": None, **special_tokens, **(variables or {})}
        try:
            self._template = _environment(today).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigurationError("chat template", str(error)) from error

    def render(self, messages: Sequence[tuple[Role, str]], *, reply: bool = True) -> str:
        """The text of the conversation, with `reply` up to where the assistant's answer begins.

        Raises ConfigurationError for messages that the template does not take.
        """
        import jinja2

        said = [{"role": role, "content": content} for role, content in messages]
        try:
            return str(self._template.render(messages=said, add_generation_prompt=reply, **self._variables))
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ConfigurationError("chat template", f"does not take these messages: {error}") from error


def _environment(today: date | None) -> Any:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant said; here it is as if the marks were not there."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(format: str) -> str:  # noqa: A002 - the name that templates give it
        if today is None:
            raise jinja2.TemplateError("it writes today's date; give `today`")
        return today.strftime(format)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment
