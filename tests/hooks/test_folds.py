"""From effects to one decision: precedence, agreement, conflict, and no influence of order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.effects import (
    Abort,
    AddInputs,
    AddMessages,
    BlackboardWrite,
    DeleteCode,
    DropInputs,
    Effect,
    InsertCode,
    ModifyExecResult,
    ModifyInvokeResult,
    ModifyLLMResponse,
    NewMessage,
    SupplyExecResult,
    SupplyLLMResponse,
)
from jaz_actors.errors import CodeOffsetError, EffectConflict, HookError, IterationLimitExceeded
from jaz_actors.hooks import folds
from jaz_actors.hooks.folds import fold_abort
from jaz_actors.hooks.values import abort
from jaz_actors.messages import Completion, SampledTokens
from jaz_actors.outcomes import Continue, ExecResult, Raise, Rejection, Return
from jaz_actors.payload import ErrorRecord, PackedInput, Payload, SharedBuffer
from jaz_actors.transfer import load_error

BOOM = ErrorRecord("ValueError", "boom", "Traceback of boom\n")
BANG = ErrorRecord("KeyError", "bang", "Traceback of bang\n")

fold_completion = partial(folds.fold_completion, "LLMQuerySend")
fold_exec_result = partial(folds.fold_exec_result, "REPLExecComplete")
fold_invoke_result = partial(folds.fold_invoke_result, "InvokeComplete")

_words = st.sampled_from(["", "a", "b", "aa", "line\n"])
_errors = st.builds(ErrorRecord, _words, _words, _words, st.sampled_from([None, b"1", b"2"]))
_payloads = st.builds(Payload, st.sampled_from([b"1", b"2"]), preview=_words)
_results = st.one_of(
    st.builds(Continue, _words, _words),
    st.builds(Return, _payloads, st.sampled_from([(), (Rejection(0, "no"),)])),
    st.builds(Raise, _errors),
)
_completions = st.builds(Completion, _words, model=_words)
_effects: st.SearchStrategy[list[Effect]] = st.lists(
    st.one_of(
        st.builds(Abort, _errors),
        st.builds(ModifyExecResult, _results),
        st.builds(ModifyLLMResponse, _completions),
        st.just(AddMessages((NewMessage("user", "hi"),))),
    ),
    max_size=6,
)


def _settled(fold: Callable[[], Any]) -> Any:
    """The decision, or the conflict, as a value."""
    try:
        return fold()
    except EffectConflict as conflict:
        return conflict.args


def _folds(original: ExecResult | None) -> list[Callable[[list[Effect]], object]]:
    return [fold_completion, lambda effects: fold_exec_result(original, effects)]


@given(st.data(), _effects, st.none() | _results)
def test_the_order_of_effects_changes_nothing(data: st.DataObject, effects: list[Effect], original: Any) -> None:
    shuffled = data.draw(st.permutations(effects))
    assert fold_abort(shuffled) == fold_abort(effects)
    for fold in _folds(original):
        assert _settled(partial(fold, shuffled)) == _settled(partial(fold, effects))


@given(_effects, st.none() | _results)
def test_asking_twice_for_the_same_is_asking_once(effects: list[Effect], original: Any) -> None:
    doubled = effects + effects
    assert fold_abort(doubled) == fold_abort(effects)
    for fold in _folds(original):
        assert _settled(partial(fold, doubled)) == _settled(partial(fold, effects))


@given(_effects, st.none() | _results)
def test_the_strongest_kind_wins(effects: list[Effect], original: Any) -> None:
    wanted = [effect.result for effect in effects if isinstance(effect, ModifyExecResult)]
    settled = _settled(lambda: fold_exec_result(original, effects))
    kinds = {type(result) for result in wanted}
    if not kinds:
        assert settled is None
    elif Raise in kinds:
        assert isinstance(settled, Raise)
    elif Return in kinds:
        values = {result.value.pickled for result in wanted if isinstance(result, Return)}
        assert isinstance(settled, Return if len(values) == 1 else tuple)
    else:
        assert isinstance(settled, Continue)


# -- aborts


def test_no_abort_among_other_effects_is_none() -> None:
    assert fold_abort([AddMessages(())]) is None


def test_one_abort_is_itself() -> None:
    effect = abort(IterationLimitExceeded(3))
    assert fold_abort([AddMessages(()), effect]) == effect


def test_several_aborts_keep_the_first_by_type_and_message_and_name_the_others() -> None:
    limit = abort(IterationLimitExceeded(3)).error
    errors = [ErrorRecord("zz.Late", "short", "its traceback"), limit, ErrorRecord("zz.Late", "a longer message")]
    folded = fold_abort([Abort(error) for error in errors])
    assert folded is not None
    assert folded.error.type_name == limit.type_name
    assert folded.error.message == f"{limit.message} (also zz.Late: a longer message; zz.Late: short)"
    error = load_error(folded.error)
    assert isinstance(error, IterationLimitExceeded)
    (note,) = error.__notes__
    assert note.index("zz.Late: a longer message") < note.index("zz.Late: short") < note.index("its traceback")


# -- results of executions and invocations


@pytest.mark.parametrize("effect", [SupplyExecResult, ModifyExecResult])
@pytest.mark.parametrize("result", [Continue("x\n", "e"), Return(Payload(b"1")), Raise(BOOM)])
def test_a_single_result_is_taken_as_it_is(effect: Any, result: ExecResult) -> None:
    assert fold_exec_result(None, [effect(result)]) == result
    assert fold_exec_result(Return(Payload(b"9")), [effect(result)]) == result


def test_an_original_continue_speaks_first() -> None:
    effects = [ModifyExecResult(Continue("b", "why")), ModifyExecResult(Continue("aa\n"))]
    folded = fold_exec_result(Continue("zz", "because\n"), effects)
    assert folded == Continue("zz\naa\nb", "because\nwhy")


def test_repeating_the_original_adds_nothing() -> None:
    original = Continue("out\n", "err")
    assert fold_exec_result(original, [ModifyExecResult(original)]) == original


def test_a_continue_takes_back_an_original_return_or_raise() -> None:
    for original in (Return(Payload(b"1"), (Rejection(0, "refused"),)), Raise(BOOM)):
        assert fold_exec_result(original, [ModifyExecResult(Continue("", "go on"))]) == Continue("", "go on")


def test_returns_agree_when_their_bytes_do() -> None:
    one = Return(Payload(b"1", (b"x",), "int", "1"))
    same = Return(Payload(b"1", (b"x",), "int", "one"))
    results = [fold_exec_result(None, [ModifyExecResult(r) for r in rs]) for rs in itertools.permutations((one, same))]
    assert results[0] == results[1]
    assert isinstance(results[0], Return)


@pytest.mark.parametrize(
    "other", [Payload(b"2"), Payload(b"1", (b"x",)), Payload(b"1", (SharedBuffer("boot", 1, 2, 3, 4),))]
)
def test_different_returns_conflict(other: Payload) -> None:
    with pytest.raises(EffectConflict, match="2 different return values"):
        fold_exec_result(None, [ModifyExecResult(Return(Payload(b"1"))), ModifyExecResult(Return(other))])


def test_several_raises_become_one_that_names_all() -> None:
    folded = fold_exec_result(None, [ModifyExecResult(Raise(BOOM)), ModifyExecResult(Raise(BANG))])
    assert isinstance(folded, Raise)
    assert folded.error.type_name == "KeyError"
    assert folded.error.message == "bang (also ValueError: boom)"
    assert folded.error.traceback == "Traceback of bang\nAlso ValueError: boom\nTraceback of boom\n"


def test_a_raise_outweighs_returns_that_conflict() -> None:
    effects = [ModifyExecResult(r) for r in (Return(Payload(b"1")), Return(Payload(b"2")), Raise(BOOM))]
    assert fold_exec_result(None, effects) == Raise(BOOM)


def test_an_invocation_result_folds_the_same_way() -> None:
    assert fold_invoke_result(Return(Payload(b"1")), []) is None
    effects = [ModifyInvokeResult(Return(Payload(b"2"))), ModifyInvokeResult(Raise(BOOM))]
    assert fold_invoke_result(Return(Payload(b"1")), effects) == Raise(BOOM)


# -- completions


def test_equal_completions_agree_and_different_ones_conflict() -> None:
    tokens = SampledTokens([1], [2], [-0.5])
    same = [SupplyLLMResponse(Completion("x", tokens=tokens)) for _ in range(2)]
    assert fold_completion(same) == Completion("x", tokens=tokens)
    assert fold_completion([]) is None
    with pytest.raises(EffectConflict, match="2 different completions"):
        fold_completion([*same, SupplyLLMResponse(Completion("x"))])


# -- bindings, code, blackboard

_names = st.sampled_from(["a", "b", "c"])
_inputs = st.builds(PackedInput, _names, st.builds(Payload, st.sampled_from([b"1", b"2"])))
_bindings = st.lists(
    st.one_of(
        st.builds(AddInputs, st.lists(_inputs, max_size=2).map(tuple)),
        st.builds(DropInputs, st.lists(_names, max_size=2).map(tuple), st.booleans()),
    ),
    max_size=5,
)
CODE = "abcdefghij"
_offsets = st.integers(-12, 12) | st.none()
_edits = st.lists(
    st.one_of(
        st.builds(InsertCode, st.sampled_from(["X", "YY", ""]), _offsets, st.sampled_from([0.0, 1.0, -1.0])),
        st.builds(DeleteCode, st.integers(-12, 12), _offsets),
    ),
    max_size=6,
)
_writes = st.lists(st.builds(BlackboardWrite, _names, st.integers(0, 2) | st.booleans()), max_size=5)


def _outcome(fold: Callable[[], Any]) -> Any:
    try:
        return fold()
    except HookError as error:
        return type(error)


def _bound(effects: list[Effect]) -> Any:
    given = (PackedInput("a", Payload(b"0")), PackedInput("b", Payload(b"0")))
    bindings = folds.fold_bindings("InvokeEnter", effects)
    return folds.bound_inputs("InvokeEnter", given, bindings, taken={"c"})


@given(st.data(), _bindings, _edits, _writes)
def test_no_order_of_bindings_edits_or_writes_matters(
    data: st.DataObject, bindings: list[Effect], edits: list[Effect], writes: list[Effect]
) -> None:
    for effects, fold in (
        (bindings, _bound),
        (edits, lambda some: folds.fold_code(CODE, some)),
        (writes, lambda some: folds.fold_blackboard("InvokeSend", {"a": 5}, some)),
    ):
        shuffled = data.draw(st.permutations(effects))
        assert _outcome(partial(fold, shuffled)) == _outcome(partial(fold, effects))


@given(_edits)
def test_edited_code_is_the_original_without_what_was_deleted_and_with_every_insert(edits: list[Effect]) -> None:
    try:
        edited = folds.fold_code(CODE, edits)
    except CodeOffsetError:
        return
    deleted: set[int] = set()
    for edit in edits:
        if isinstance(edit, DeleteCode):
            deleted |= set(range(len(CODE))[edit.start : edit.end])
    assert "".join(c for c in edited if c.islower()) == "".join(c for i, c in enumerate(CODE) if i not in deleted)
    inserted = "".join(edit.text for edit in edits if isinstance(edit, InsertCode))
    assert sorted(c for c in edited if c.isupper()) == sorted(inserted)


def test_code_without_edits_is_itself() -> None:
    assert folds.fold_code(CODE, [AddMessages(())]) is CODE


def test_a_write_keeps_other_keys_and_true_is_not_one() -> None:
    assert folds.fold_blackboard("X", {"a": 1, "b": 2}, [BlackboardWrite("a", 3)]) == {"a": 3, "b": 2}
    with pytest.raises(EffectConflict, match="'k'"):
        folds.fold_blackboard("X", {}, [BlackboardWrite("k", 1), BlackboardWrite("k", True)])
