"""What a hook may ask for. Each stage takes the effects listed for it in `hooks.stages`; every other is refused.

Effects are values: two hooks that ask for the same thing agree, two that ask for different things conflict, and the
outcome does not depend on which was asked first.
"""

from __future__ import annotations

import msgspec

from jaz_actors.messages import Completion, Role
from jaz_actors.outcomes import ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord


class Effect(msgspec.Struct, frozen=True):
    """Base of all effects."""


class Abort(Effect, frozen=True, tag="abort"):
    """End the invocation with outcome Aborted. Beats every other effect of its stage."""

    error: ErrorRecord


class DisableRecursion(Effect, frozen=True, tag="disable_recursion"):
    """Take `invoke` and `ainvoke` from this invocation's namespace and prompt."""


class SupplyInvokeResult(Effect, frozen=True, tag="supply_invoke_result"):
    """Answer the invocation at once: no frame, no prompt, no query."""

    result: Return | Raise


class ModifyInvokeResult(Effect, frozen=True, tag="modify_invoke_result"):
    result: Return | Raise


class NewMessage(msgspec.Struct, frozen=True, array_like=True):
    role: Role
    content: str


class AddMessages(Effect, frozen=True, tag="add_messages"):
    """Insert before buffer position `index` (negative counts from the end; None is the end).

    Transient edits are for this query only; persistent ones stay in the buffer once the query has succeeded. Adds at
    one position are ordered by `sort_key`, then by their text.
    """

    messages: tuple[NewMessage, ...]
    index: int | None = None
    persistent: bool = False
    sort_key: float = 0.0


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


class SupplyExecResult(Effect, frozen=True, tag="supply_exec_result"):
    """Use this result and execute nothing."""

    result: ExecResult


class ModifyExecResult(Effect, frozen=True, tag="modify_exec_result"):
    result: ExecResult


AnyEffect = (
    Abort
    | DisableRecursion
    | SupplyInvokeResult
    | ModifyInvokeResult
    | AddMessages
    | DropMessages
    | SupplyLLMResponse
    | ModifyLLMResponse
    | SupplyExecResult
    | ModifyExecResult
)

__all__ = [
    "Abort",
    "AddMessages",
    "AnyEffect",
    "DisableRecursion",
    "DropMessages",
    "Effect",
    "ModifyExecResult",
    "ModifyInvokeResult",
    "ModifyLLMResponse",
    "NewMessage",
    "SupplyExecResult",
    "SupplyInvokeResult",
    "SupplyLLMResponse",
]
