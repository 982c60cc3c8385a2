"""JAZ's names for the prompt protocol."""

from __future__ import annotations

from jaz_actors.code_protocol import CodeProtocol

__all__ = ["CodeOnlyProtocol"]


def CodeOnlyProtocol(
    *,
    system_prompt_template: str | None = None,
    user_prompt_template: str | None = None,
    max_invoke_input_length: int = 50_000,
    max_repl_output_length: int = 50_000,
    truncation_prefix_ratio: float = 0.5,
) -> CodeProtocol:
    """Templates are Jinja2 sources, not names of files."""
    return CodeProtocol(
        system_template=system_prompt_template,
        user_template=user_prompt_template,
        max_input_characters=max_invoke_input_length,
        max_output_characters=max_repl_output_length,
        head_ratio=truncation_prefix_ratio,
    )
