"""From all effects of one event to one decision. Pure, and independent of the order in which hooks answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from jaz_actors.effects import (
    Abort,
    AddMessages,
    DropMessages,
    Effect,
    ModifyExecResult,
    ModifyInvokeResult,
    ModifyLLMResponse,
    SupplyExecResult,
    SupplyInvokeResult,
    SupplyLLMResponse,
)
from jaz_actors.errors import EffectConflict, MessageIndexError
from jaz_actors.events import MessageAdd, MessageDrop
from jaz_actors.messages import Completion, Message
from jaz_actors.outcomes import Continue, ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord

T = TypeVar("T")

_ResultEffect = SupplyExecResult | ModifyExecResult | SupplyInvokeResult | ModifyInvokeResult


def fold_abort(effects: Iterable[Effect]) -> Abort | None:
    """One abort; several different ones become the first in the order of their text, naming the others."""
    errors = _distinct(effect.error for effect in effects if isinstance(effect, Abort))
    return Abort(_combined(errors)) if errors else None


def fold_completion(effects: Iterable[Effect]) -> Completion | None:
    """The completion that was supplied or put in place of another; None when no effect has one.

    Raises EffectConflict when two hooks want different ones.
    """
    wanted = [e for e in effects if isinstance(e, (SupplyLLMResponse, ModifyLLMResponse))]
    completions = _distinct(effect.completion for effect in wanted)
    if len(completions) > 1:
        raise EffectConflict("the model's response", f"{len(completions)} hooks want different completions")
    return completions[0] if completions else None


def fold_exec_result(original: ExecResult | None, effects: Iterable[Effect]) -> ExecResult | None:
    """The result of a turn after supplies or modifications; None when there is neither.

    Raise beats Return beats Continue. An original Continue keeps its output in front of what Continues add; any other
    original is replaced. Raises EffectConflict for different Returns.
    """
    results = _distinct(effect.result for effect in effects if isinstance(effect, _ResultEffect))
    if not results:
        return None
    raises = [result for result in results if isinstance(result, Raise)]
    if raises:
        return Raise(_combined(_distinct(result.error for result in raises)))
    returns = [result for result in results if isinstance(result, Return)]
    if len(returns) > 1:
        raise EffectConflict("a result", f"{len(returns)} hooks want different return values")
    if returns:
        return returns[0]
    continues = [result for result in results if isinstance(result, Continue)]
    if isinstance(original, Continue):
        continues.insert(0, original)
    return Continue(_joined(r.output for r in continues), _joined(r.error for r in continues))


def fold_invoke_result(original: Return | Raise | None, effects: Iterable[Effect]) -> Return | Raise | None:
    """The same for a whole invocation, where no Continue can occur."""
    result = fold_exec_result(original, effects)
    assert not isinstance(result, Continue)
    return result


@dataclass(frozen=True, slots=True)
class ResolvedEdits:
    """shown: this query's messages. kept: the buffer once the query has succeeded."""

    shown: tuple[Message, ...]
    kept: tuple[Message, ...]
    drops: tuple[MessageDrop, ...]
    adds: tuple[MessageAdd, ...]
    next_number: int


def resolve_message_edits(
    buffer: tuple[Message, ...], effects: Sequence[Effect], *, next_number: int, iteration: int
) -> ResolvedEdits:
    """All edits of one query against the buffer they saw. Raises MessageIndexError."""
    drop_effects = [effect for effect in effects if isinstance(effect, DropMessages)]
    add_effects = [effect for effect in effects if isinstance(effect, AddMessages)]
    if not drop_effects and not add_effects:
        return ResolvedEdits(buffer, buffer, (), (), next_number)
    dropped: dict[int, bool] = {}  # position -> whether for good
    for effect in drop_effects:
        for index in effect.indices:
            position = _position(index, len(buffer), len(buffer) - 1)
            dropped[position] = dropped.get(position, False) or effect.persistent
    adds: list[MessageAdd] = []
    for add in sorted(add_effects, key=lambda add: (add.sort_key, _text(add))):
        position = len(buffer) if add.index is None else _position(add.index, len(buffer), len(buffer))
        messages = []
        for new in add.messages:
            messages.append(Message(new.role, new.content, "added", next_number, iteration))
            next_number += 1
        adds.append(MessageAdd(position, tuple(messages), add.persistent))
    drops = tuple(MessageDrop(p, buffer[p], dropped[p]) for p in sorted(dropped))
    return ResolvedEdits(
        _applied(buffer, set(dropped), adds),
        _applied(buffer, {p for p in dropped if dropped[p]}, [add for add in adds if add.persistent]),
        drops,
        tuple(adds),
        next_number,
    )


def _applied(buffer: tuple[Message, ...], dropped: set[int], adds: Sequence[MessageAdd]) -> tuple[Message, ...]:
    result: list[Message] = []
    for position in range(len(buffer) + 1):
        for add in adds:
            if add.position == position:
                result += add.messages
        if position < len(buffer) and position not in dropped:
            result.append(buffer[position])
    return tuple(result)


def _position(index: int, length: int, last: int) -> int:
    position = index + length if index < 0 else index
    if not 0 <= position <= last:
        raise MessageIndexError(index, length)
    return position


def _text(record: object) -> bytes:
    return msgspec.msgpack.encode(record)


def _distinct(records: Iterable[T]) -> list[T]:
    return [record for _, record in sorted({_text(record): record for record in records}.items())]


def _combined(errors: Sequence[ErrorRecord]) -> ErrorRecord:
    first, *others = errors
    if not others:
        return first
    also = "; ".join(f"{error.type_name}: {error.message}" for error in others)
    return msgspec.structs.replace(first, message=f"{first.message} (also {also})")


def _joined(texts: Iterable[str]) -> str:
    return "\n".join(text.rstrip("\n") for text in texts if text)
