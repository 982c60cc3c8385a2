"""JAZ's names and arguments for effects: values in place of packed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaz_actors import effects
from jaz_actors.effects import (
    AddMessages,
    BlackboardWrite,
    DeleteCode,
    DisableRecursion,
    DropInputs,
    DropMessages,
    Effect,
    InsertCode,
    ModifyExecResult,
    ModifyInvokeResult,
    SupplyExecResult,
    SupplyInvokeResult,
)
from jaz_actors.effects import DropVariables as DropFromNamespace
from jaz_actors.hooks.values import NewBindings, add_inputs, add_variables
from jaz_actors.hooks.values import abort as Abort
from jaz_actors.jaz.llm import LLMResponse, completion

DropVariables = DropFromNamespace

__all__ = [
    "Abort",
    "AddInputs",
    "AddMessages",
    "AddToNamespace",
    "AddVariables",
    "BlackboardWrite",
    "DeleteCode",
    "DisableRecursion",
    "DropFromNamespace",
    "DropInputs",
    "DropMessages",
    "DropVariables",
    "Effect",
    "InsertCode",
    "ModifyExecResult",
    "ModifyInvokeResult",
    "ModifyLLMResponse",
    "SupplyExecResult",
    "SupplyInvokeResult",
    "SupplyLLMResponse",
]


def AddInputs(inputs: Mapping[str, object]) -> NewBindings:
    return add_inputs(**inputs)


def AddToNamespace(variables: Mapping[str, object]) -> NewBindings:
    return add_variables(**variables)


AddVariables = AddToNamespace


def SupplyLLMResponse(content: str | None, **fields: Any) -> effects.SupplyLLMResponse:
    """`fields` are those of LLMResponse."""
    return effects.SupplyLLMResponse(completion(LLMResponse(content, **fields)))


def ModifyLLMResponse(content: str | None, **fields: Any) -> effects.ModifyLLMResponse:
    """The whole response is replaced, so what is not given here is not known of the new one."""
    return effects.ModifyLLMResponse(completion(LLMResponse(content, **fields)))
