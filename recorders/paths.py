"""The order in which views list invocations: by path, parents first. Knows no event."""

from __future__ import annotations

from jaz_actors.ids import InvokeId


def path_order(invoke_id: str) -> tuple[str, list[tuple[int, int, str]]]:
    """A sort key: ordinals as numbers, before keys."""
    name = InvokeId.parse(invoke_id)
    parts = name.path.split(".")
    return name.run, [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
