"""Template strings as inputs (`t"..."`, Python 3.14): the text names the values, and the values become inputs.

`invoke(task=t"Sum up {report} for {audience!r}")` shows the agent "Sum up `report` for `audience`" and binds `report`
and `audience`. An expression that is no plain name is bound as `_arg0`, `_arg1`, ... in order of appearance.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from jaz_actors.errors import InputRefused

if sys.version_info >= (3, 14):
    from string.templatelib import Template
else:

    class Template:
        """Stands for a type that this Python does not have: nothing is an instance of it."""


def lowered(inputs: Mapping[str, object]) -> Mapping[str, object]:
    """The inputs with each template as text, and what it holds as inputs beside it.

    Raises InputRefused when one name stands for two different objects.
    """
    if not any(isinstance(value, Template) for value in inputs.values()):
        return inputs
    plain: dict[str, object] = {name: value for name, value in inputs.items() if not isinstance(value, Template)}
    texts: dict[str, object] = {}
    for name, value in inputs.items():
        if isinstance(value, Template):
            texts[name] = _text(name, value, plain, inputs)
    return {name: texts.get(name, plain.get(name)) for name in (*inputs, *(n for n in plain if n not in inputs))}


def _text(input_name: str, template: Any, bound: dict[str, object], given: Mapping[str, object]) -> str:
    parts: list[str] = []
    for part in template:
        if isinstance(part, str):
            parts.append(part)
            continue
        expression = part.expression.strip()
        name = expression if expression.isidentifier() else _free_name(part.value, bound, given)
        if name in given and isinstance(given[name], Template):
            raise InputRefused(name, f"the template {input_name!r} uses the name for a value, and it is a template")
        if name in bound and bound[name] is not part.value:
            raise InputRefused(name, f"the template {input_name!r} uses the name for another object than the input")
        bound[name] = part.value
        parts.append(f"`{name}`")
    return "".join(parts)


def _free_name(value: object, bound: Mapping[str, object], given: Mapping[str, object]) -> str:
    number = 0
    while (name := f"_arg{number}") in given or (name in bound and bound[name] is not value):
        number += 1
    return name
