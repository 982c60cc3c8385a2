"""Every error class survives pickling as itself and says what it holds."""

from __future__ import annotations

import pickle

import pytest

from jaz_actors import errors
from jaz_actors.transfer import error_record, load_error

EXAMPLES: dict[str, tuple[object, ...]] = {
    "JazError": ("x",),
    "InputRefused": ("name", "why"),
    "KeyRefused": ("key", "why"),
    "ConfigurationError": ("subject", "why"),
    "DecodeError": ("what", "why"),
    "RemoteError": ("pkg.Type", "message", "traceback"),
    "ReferenceGone": ("object", "why"),
    "HookError": ("x",),
    "HookActivationError": ("Hook", "why"),
    "HookFailed": ("Hook", "Event", "why"),
    "InvalidEffect": ("Hook", "Effect", "Event"),
    "EffectConflict": ("Event", "why"),
    "MessageIndexError": (7, 3),
    "CodeOffsetError": (7, 9, 3),
    "DropTargetMissing": ("input", "x"),
    "LimitExceeded": ("x",),
    "IterationLimitExceeded": (5,),
    "RecursionLimitExceeded": (4, 3),
    "TimeLimitExceeded": (1.5,),
    "BudgetExceeded": ("calls", 10, 10, (("0.1", 6), ("0.2", 4))),
    "UsageUnknown": ("US dollars", "model"),
    "ReturnTypeError": ("int", "why"),
    "ReplayDiverged": ("0.1", 2, 3, "then", "now"),
    "InvocationCancelled": ("run:0", "why"),
    "JournalError": ("path", "why"),
    "RolloutRefused": ("run:0.1", "why"),
    "NonMonotoneRollout": ("run:0.1", 3),
    "RolloutFileError": ("path", "why"),
    "BackendError": ("backend", "message", 418),
    "RateLimited": ("backend", "message", 429, 2.5),
    "ServerUnavailable": ("backend", "message", 503, None),
    "RequestRefused": ("backend", "message", 400),
    "AuthenticationFailed": ("backend", "message", 401),
    "ModelNotFound": ("backend", "message", 404),
    "ContextOverflow": ("backend", "message", 400),
    "ContentFiltered": ("backend", "message"),
    "GenerationAborted": ("backend", "message"),
    "MalformedResponse": ("backend", "message"),
    "InfrastructureError": ("x",),
    "HostDied": ("host", "why"),
    "HostStartFailed": ("host", "why"),
    "FrameStartFailed": ("why",),
    "FrameLost": ("why",),
    "ChannelClosed": ("peer", "why"),
    "RecorderLost": ("recorder", "why"),
    "ExportFailed": ("http://server", "why", 503),
    "RuntimeClosed": ("why",),
}


def _classes() -> list[type[Exception]]:
    return [
        value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    ]


def test_every_class_has_an_example_and_stands_in_the_tree() -> None:
    names = {cls.__name__ for cls in _classes()}
    assert names == EXAMPLES.keys()
    assert errors.__doc__ is not None
    assert [name for name in names if name not in errors.__doc__] == []


@pytest.mark.parametrize("cls", _classes(), ids=lambda cls: cls.__name__)
def test_it_survives_pickling_with_its_fields_and_text(cls: type[Exception]) -> None:
    error = cls(*EXAMPLES[cls.__name__])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert again.args == error.args
    assert vars(again) == vars(error)
    assert str(again) == str(error)


class _Unpicklable(Exception):
    def __init__(self, *, field: object) -> None:
        super().__init__("text")
        self.field = field


def test_an_exception_that_cannot_travel_becomes_a_remote_error_with_its_name_and_message() -> None:
    record = error_record(_Unpicklable(field=1))
    assert record.pickled is None
    error = load_error(record)
    assert isinstance(error, errors.RemoteError)
    assert error.type_name.endswith("_Unpicklable")
    assert error.message == "text"


def test_an_exception_carries_its_remote_traceback_as_a_note() -> None:
    try:
        raise ValueError("far away")
    except ValueError as caught:
        error = load_error(error_record(caught))
    assert type(error) is ValueError
    assert any("far away" in note for note in error.__notes__)
