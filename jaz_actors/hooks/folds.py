"""From all effects of one event to one decision. Pure, and independent of the order in which hooks answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from jaz_actors.effects import (
    Abort,
    AddInputs,
    AddMessages,
    AddVariables,
    BlackboardWrite,
    DeleteCode,
    DropInputs,
    DropMessages,
    DropVariables,
    Effect,
    InsertCode,
    ModifyExecResult,
    ModifyInvokeResult,
    ModifyLLMResponse,
    SupplyExecResult,
    SupplyInvokeResult,
    SupplyLLMResponse,
)
from jaz_actors.errors import CodeOffsetError, DropTargetMissing, EffectConflict, MessageIndexError
from jaz_actors.events import MessageAdd, MessageDrop, edited
from jaz_actors.messages import Completion, Message
from jaz_actors.outcomes import Continue, ExecResult, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput

_encode = msgspec.msgpack.Encoder().encode

_ResultEffect = SupplyExecResult | ModifyExecResult | SupplyInvokeResult | ModifyInvokeResult


def fold_abort(effects: Iterable[Effect]) -> Abort | None:
    """One abort; several different ones become the first in the order of type and message, naming the others."""
    errors = [effect.error for effect in effects if isinstance(effect, Abort)]
    return Abort(combined(errors)) if errors else None


def fold_blackboard(event: str, board: Mapping[str, Any], effects: Iterable[Effect]) -> dict[str, Any]:
    """The blackboard with one event's writes. Raises EffectConflict for different values under one key."""
    written: dict[str, Any] = {}
    for effect in effects:
        if isinstance(effect, BlackboardWrite):
            if effect.key in written and _encode(written[effect.key]) != _encode(effect.value):
                raise EffectConflict(event, f"different values are written to {effect.key!r} of the blackboard")
            written[effect.key] = effect.value
    return {**board, **written}


@dataclass(frozen=True, slots=True)
class Bindings:
    """What hooks bind and unbind: inputs of an invocation, or variables of its namespace.

    required: those of `dropped` that must be there.
    """

    added: tuple[PackedInput, ...]
    dropped: frozenset[str]
    required: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped)


def fold_bindings(event: str, effects: Iterable[Effect]) -> Bindings:
    """All additions and drops of one event. Raises EffectConflict for one name added with different values."""
    added: dict[str, PackedInput] = {}
    dropped: set[str] = set()
    required: set[str] = set()
    for effect in effects:
        if isinstance(effect, (DropInputs, DropVariables)):
            dropped |= set(effect.names)
            if not effect.allow_missing:
                required |= set(effect.names)
        elif isinstance(effect, (AddInputs, AddVariables)):
            for item in effect.inputs if isinstance(effect, AddInputs) else effect.variables:
                known = added.setdefault(item.name, item)
                if known != item:
                    raise EffectConflict(event, f"{item.name!r} is added with different values")
    return Bindings(tuple(added[name] for name in sorted(added)), frozenset(dropped), frozenset(required))


def bound_inputs(
    event: str, given: Sequence[PackedInput], bindings: Bindings, *, taken: Collection[str]
) -> tuple[PackedInput, ...]:
    """The inputs after drops, then additions. Raises DropTargetMissing, EffectConflict.

    taken: other names that are bound: of the scope, and those that the frame itself uses.
    """
    names = {item.name for item in given}
    for name in sorted(bindings.required - names):
        raise DropTargetMissing("input", name)
    kept = [item for item in given if item.name not in bindings.dropped]
    bound = {item.name for item in kept} | set(taken)
    for item in bindings.added:
        if item.name in bound:
            raise EffectConflict(event, f"a hook adds the input {item.name!r}, and there is one of that name")
    return (*kept, *bindings.added)


def fold_code(code: str, effects: Iterable[Effect]) -> str:
    """The code after all edits, which index into the original. Raises CodeOffsetError."""
    inserts: list[tuple[int, float, str]] = []
    deleted = bytearray(len(code))
    for effect in effects:
        if isinstance(effect, InsertCode):
            at = _offset(effect.at, len(code))
            inserts.append((at, effect.sort_key, effect.text))
        elif isinstance(effect, DeleteCode):
            start, end = _offset(effect.start, len(code)), _offset(effect.end, len(code))
            if start > end:
                raise CodeOffsetError(start, end, len(code))
            deleted[start:end] = b"\1" * (end - start)
    if not inserts and not any(deleted):
        return code
    parts: list[str] = []
    done = 0
    for at, _, text in sorted(inserts):
        parts += [_undeleted(code, deleted, done, at), text]
        done = at
    return "".join([*parts, _undeleted(code, deleted, done, len(code))])


def _undeleted(code: str, deleted: bytearray, start: int, end: int) -> str:
    return "".join(code[i] for i in range(start, end) if not deleted[i])


def _offset(offset: int | None, length: int) -> int:
    place = length if offset is None else offset + length if offset < 0 else offset
    if not 0 <= place <= length:
        raise CodeOffsetError(place, place, length)
    return place


def fold_completion(event: str, effects: Iterable[Effect]) -> Completion | None:
    """The completion that was supplied or put in place of another; None when no effect has one.

    Raises EffectConflict when two hooks want different ones.
    """
    wanted = [effect.completion for effect in effects if isinstance(effect, (SupplyLLMResponse, ModifyLLMResponse))]
    different = {_encode(completion) for completion in wanted}
    if len(different) > 1:
        raise EffectConflict(event, f"{len(different)} different completions are wanted")
    return wanted[0] if wanted else None


def fold_exec_result(event: str, original: ExecResult | None, effects: Iterable[Effect]) -> ExecResult | None:
    """The result of a turn after supplies or modifications; None when there is neither.

    Raise beats Return beats Continue. An original Continue keeps its output in front of what other Continues say; any
    other original is replaced. Returns are the same when their pickled bytes are. Raises EffectConflict for different
    ones.
    """
    results = [effect.result for effect in effects if isinstance(effect, _ResultEffect)]
    raises = [result.error for result in results if isinstance(result, Raise)]
    if raises:
        return Raise(combined(raises))
    returns = [result for result in results if isinstance(result, Return)]
    different = {_encode((result.value.pickled, result.value.buffers)) for result in returns}
    if len(different) > 1:
        raise EffectConflict(event, f"{len(different)} different return values are wanted")
    if returns:
        return min(returns, key=_encode)
    if not results:
        return None
    continues = {(result.output, result.error): result for result in results if isinstance(result, Continue)}
    first = [original] if isinstance(original, Continue) else []
    joined = [*first, *(result for _, result in sorted(continues.items()) if result not in first)]
    return Continue(_joined(result.output for result in joined), _joined(result.error for result in joined))


def fold_invoke_result(event: str, original: Return | Raise | None, effects: Iterable[Effect]) -> Return | Raise | None:
    """The same for a whole invocation, where no Continue can occur."""
    result = fold_exec_result(event, original, effects)
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
    for place, add in sorted(((_place(add, len(buffer)), add) for add in add_effects), key=itemgetter(0)):
        numbered = enumerate(add.messages, start=next_number)
        messages = tuple(
            Message(new.role, new.content, "added", number, iteration, add.pinned) for number, new in numbered
        )
        adds.append(MessageAdd(place.position, messages, add.persistent))
        next_number += len(messages)
    drops = tuple(MessageDrop(p, buffer[p], dropped[p]) for p in sorted(dropped))
    return ResolvedEdits(
        edited(buffer, drops, adds),
        edited(buffer, drops, adds, persistent_only=True),
        drops,
        tuple(adds),
        next_number,
    )


def _position(index: int, length: int, last: int) -> int:
    position = index + length if index < 0 else index
    if not 0 <= position <= last:
        raise MessageIndexError(index, length)
    return position


class _Place(NamedTuple):
    """Where an add goes, and before which others at the same position."""

    position: int
    sort_key: float
    text: tuple[tuple[str, str], ...]
    persistent: bool
    pinned: bool


def _place(add: AddMessages, length: int) -> _Place:
    position = length if add.index is None else _position(add.index, length, length)
    text = tuple((message.content, message.role) for message in add.messages)
    return _Place(position, add.sort_key, text, add.persistent, add.pinned)


def combined(errors: Sequence[ErrorRecord]) -> ErrorRecord:
    """The first in the order of type and message; its message names the others, their tracebacks follow its own."""
    different = {(error.type_name, error.message): error for error in sorted(errors, key=_encode)}
    first, *others = (error for _, error in sorted(different.items()))
    if not others:
        return first
    named = [f"{error.type_name}: {error.message}" for error in others]
    parts = [first.traceback, *(f"Also {name}\n{error.traceback}" for name, error in zip(named, others, strict=True))]
    return msgspec.structs.replace(
        first, message=f"{first.message} (also {'; '.join(named)})", traceback=_joined(parts)
    )


def _joined(texts: Iterable[str]) -> str:
    """Every text begins on a line of its own."""
    *before, last = [text for text in texts if text] or [""]
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in before) + last
