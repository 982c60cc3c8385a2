"""What a hook may ask for. Each stage takes the effects listed for it in `hooks.stages`; every other is refused.

Effects are values: two hooks that ask for the same thing agree, two that ask for different things conflict, and the
outcome does not depend on which was asked first.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jaz_actors.messages import Completion, Role
from jaz_actors.outcomes import ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput


class Effect(msgspec.Struct, frozen=True):
    """Base of all effects."""


class Abort(Effect, frozen=True, tag="abort"):
    """End the invocation with outcome Aborted. Beats every other effect of its stage."""

    error: ErrorRecord


class BlackboardWrite(Effect, frozen=True, tag="blackboard_write"):
    """Leave a value for the other hooks of this invocation; every later event shows it. Every stage takes it.

    `value` is plain data: None, bool, int, float, str, bytes, lists and dicts of these.
    """

    key: str
    value: Any


class AddInputs(Effect, frozen=True, tag="add_inputs"):
    """Give the agent more inputs. `hooks.add_inputs(name=value, ...)` makes one from values.

    A name that the caller gave may be added again only when the same stage drops it.
    """

    inputs: tuple[PackedInput, ...]


class DropInputs(Effect, frozen=True, tag="drop_inputs"):
    """Withhold inputs of the caller. A name that is not there is an error unless `allow_missing`."""

    names: tuple[str, ...]
    allow_missing: bool = False


class DisableRecursion(Effect, frozen=True, tag="disable_recursion"):
    """Take `invoke` and `ainvoke` from this invocation's namespace and prompt."""


class SupplyInvokeResult(Effect, frozen=True, tag="supply_invoke_result"):
    """Answer the invocation at once: no frame, no prompt, no query."""

    result: Return | Raise


class ModifyInvokeResult(Effect, frozen=True, tag="modify_invoke_result"):
    result: Return | Raise


class NewMessage(msgspec.Struct, frozen=True):
    role: Role
    content: str


class AddMessages(Effect, frozen=True, tag="add_messages"):
    """Insert before buffer position `index` (negative counts from the end; None is the end).

    Transient edits are for this query only; persistent ones stay in the buffer once the query has succeeded. Adds at
    one position are ordered by `sort_key`, then by their text. `pinned` asks hooks that shorten the buffer to spare
    the messages.
    """

    messages: tuple[NewMessage, ...]
    index: int | None = None
    persistent: bool = False
    sort_key: float = 0.0
    pinned: bool = False


class DropMessages(Effect, frozen=True, tag="drop_messages"):
    """Leave out the messages at these buffer positions (negative counts from the end)."""

    indices: tuple[int, ...]
    persistent: bool = False


class SupplyLLMResponse(Effect, frozen=True, tag="supply_llm_response"):
    """Use this completion and make no model call."""

    completion: Completion


class ModifyLLMResponse(Effect, frozen=True, tag="modify_llm_response"):
    """Replace the completion. The tokens of the original are kept only where the new one carries them."""

    completion: Completion


class InsertCode(Effect, frozen=True, tag="insert_code"):
    """Insert before character `at` of the model's code (negative counts from the end; None is the end).

    Inserts at one place are ordered by `sort_key`, then by their text. The message in the buffer keeps the original.
    """

    text: str
    at: int | None = 0
    sort_key: float = 0.0


class DeleteCode(Effect, frozen=True, tag="delete_code"):
    """Leave out the characters from `start` up to `end` (negative counts from the end; None is the end)."""

    start: int
    end: int | None = None


class AddVariables(Effect, frozen=True, tag="add_variables"):
    """Bind variables in the agent's namespace before its code runs; a name that is bound already is refused.

    `hooks.add_variables(name=value, ...)` makes one from values.
    """

    variables: tuple[PackedInput, ...]


class DropVariables(Effect, frozen=True, tag="drop_variables"):
    """Unbind variables before the code runs. A name that is not bound is an error unless `allow_missing`."""

    names: tuple[str, ...]
    allow_missing: bool = False


class SupplyExecResult(Effect, frozen=True, tag="supply_exec_result"):
    """Use this result and execute nothing."""

    result: ExecResult


class ModifyExecResult(Effect, frozen=True, tag="modify_exec_result"):
    result: ExecResult


AnyEffect = (
    Abort
    | BlackboardWrite
    | AddInputs
    | DropInputs
    | DisableRecursion
    | SupplyInvokeResult
    | ModifyInvokeResult
    | AddMessages
    | DropMessages
    | SupplyLLMResponse
    | ModifyLLMResponse
    | InsertCode
    | DeleteCode
    | AddVariables
    | DropVariables
    | SupplyExecResult
    | ModifyExecResult
)

__all__ = [
    "Abort",
    "AddInputs",
    "AddMessages",
    "AddVariables",
    "AnyEffect",
    "BlackboardWrite",
    "DeleteCode",
    "DisableRecursion",
    "DropInputs",
    "DropMessages",
    "DropVariables",
    "Effect",
    "InsertCode",
    "ModifyExecResult",
    "ModifyInvokeResult",
    "ModifyLLMResponse",
    "NewMessage",
    "SupplyExecResult",
    "SupplyInvokeResult",
    "SupplyLLMResponse",
]
