"""Recorded values as source text of a standalone program: literals, files of pickles, or the reason why not.

A pickle is opened here only as far as it holds plain data: no code of its maker runs.
"""

from __future__ import annotations

import ast
import hashlib
import io
import pickle
import pickletools
from collections.abc import Mapping
from typing import Any

from jaz_actors.payload import Payload, SharedBuffer


class ValueStore:
    """Turns payloads into expressions, and collects the files that those name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def expression(self, payload: Payload) -> str:
        if any(isinstance(buffer, SharedBuffer) for buffer in payload.buffers):
            return f"Missing({f'its {payload.type_name} was in shared memory, of which no copy was recorded'!r})"
        literal = _literal(payload)
        if literal is not None:
            return literal
        if _refers(payload.pickled):
            return f"Missing({'it was passed by reference, and stayed in the process that made the call'!r})"
        data = pickle.dumps((payload.pickled, list(payload.buffers)), protocol=5)
        name = f"{hashlib.sha256(data).hexdigest()[:16]}.pickle"
        self.files[f"data/{name}"] = data
        return f"Pickled({name!r})"

    def mapping(self, values: Mapping[str, Payload], indent: str) -> str:
        lines = [f"{indent}    {name!r}: {self.expression(payload)},\n" for name, payload in values.items()]
        return f"{{\n{''.join(lines)}{indent}}}" if lines else "{}"


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "complex"):
            return complex
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


def _literal(payload: Payload) -> str | None:
    """The value's repr when it can be read back, as the same types and in the same order."""
    if payload.buffers:
        return None
    try:
        value = _Plain(io.BytesIO(payload.pickled)).load()
        text = repr(value)
        (((again,),),) = ast.literal_eval(f"((({text},),),)")  # as deep as it will stand
        same = type(again) is type(value) and again == value and repr(again) == text
    except Exception:  # of any pickle, and of what its values do to repr: RecursionError, ValueError, MemoryError
        return None
    return text if same else None


def _refers(pickled: bytes) -> bool:
    """Whether a proxy of an object elsewhere is in it."""
    try:
        strings = [argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)]
    except Exception:  # no pickle that this Python knows: loading it will say so
        return False
    return "jaz_actors.refs" in strings and "rebuild" in strings
