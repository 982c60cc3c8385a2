"""Every error that a user can meet.

    JazError
    ├── InputRefused (TypeError)        an input can cross neither by copy nor by reference; nothing was started
    ├── KeyRefused (ValueError)         a `key=` that cannot be a path component, or is taken
    ├── ConfigurationError (ValueError) a component or option that cannot work, found before anything starts
    ├── DecodeError                     a value arrived that cannot be unpickled here
    ├── RemoteError                     stands for an exception that could not be pickled
    ├── ReferenceGone                   an object passed by reference whose home or entry no longer exists
    ├── HookError
    │   ├── HookActivationError         a hook used in a way that it does not allow
    │   ├── HookFailed                  a hook raised; names hook and event
    │   ├── InvalidEffect               an effect at a stage that does not take it
    │   ├── EffectConflict              two hooks asked for different things
    │   ├── MessageIndexError (IndexError)
    │   ├── CodeOffsetError (IndexError)
    │   └── DropTargetMissing (KeyError) an input or variable to be dropped is not there
    ├── LimitExceeded                   what a limit aborts an invocation with
    │   ├── IterationLimitExceeded
    │   ├── RecursionLimitExceeded
    │   ├── TimeLimitExceeded
    │   └── BudgetExceeded              a budget shared by many invocations is used up
    ├── UsageUnknown                    a budget, and a model that does not say what it uses
    ├── ReturnTypeError (TypeError)     a returned value of the wrong type
    ├── ReplayDiverged                  a replayed agent is shown something else than when it was recorded
    ├── InvocationCancelled             the invocation, or an ancestor, was cancelled
    ├── JournalError                    a run's record that cannot be written, or is damaged
    ├── RolloutRefused                  a rollout that is not to be trained on
    ├── NonMonotoneRollout              a rollout whose turns are not one sequence
    ├── RolloutFileError                a file of rollouts that cannot be written, is damaged, or is newer than this
    ├── BackendError                    the model server's answer
    │   ├── RateLimited                 429
    │   ├── ServerUnavailable           connection failures, 5xx, broken streams
    │   ├── RequestRefused              other 4xx
    │   │   ├── AuthenticationFailed    401, 403
    │   │   ├── ModelNotFound           404
    │   │   └── ContextOverflow         the prompt does not fit the model's window
    │   ├── ContentFiltered             refused by the provider's policy
    │   ├── GenerationAborted           the server ended the request before it was complete
    │   └── MalformedResponse           an answer that breaks the contract
    └── InfrastructureError             a failure of the runtime, never of the agent
        ├── HostDied
        ├── HostStartFailed
        ├── FrameStartFailed
        ├── FrameLost
        ├── ChannelClosed
        ├── RecorderLost                what must be recorded cannot be
        ├── ExportFailed                a server did not take what was recorded
        └── RuntimeClosed

    FatalError (BaseException)          raised by tools and hooks to end every enclosing invocation

Every class passes all its fields positionally to `super().__init__`, so that it survives pickling as itself, and
renders itself in `__str__`.
"""

from __future__ import annotations


class JazError(Exception):
    """Root of everything this package raises on purpose."""


class FatalError(BaseException):
    """Raise it, or a subclass, from a tool or as a hook's abort to end the invocation and all that enclose it.

    No `Exception`: agent code that catches errors does not stop it, and it reaches the caller of the root.
    """


class InputRefused(JazError, TypeError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"input {self.name!r} was refused: {self.reason}"


class KeyRefused(JazError, ValueError):
    def __init__(self, key: object, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"key {self.key!r} was refused: {self.reason}"


class ConfigurationError(JazError, ValueError):
    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


class DecodeError(JazError):
    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what} cannot be decoded here: {self.reason}"


class RemoteError(JazError):
    """An exception that could not be pickled: its type's qualified name, its message, its traceback text."""

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        super().__init__(type_name, message, traceback)
        self.type_name = type_name
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class ReferenceGone(JazError):
    def __init__(self, description: str, reason: str) -> None:
        super().__init__(description, reason)
        self.description = description
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.description}, passed by reference, cannot be reached: {self.reason}"


class HookError(JazError):
    """A hook, or its use, is at fault."""


class HookActivationError(HookError):
    def __init__(self, hook: str, reason: str) -> None:
        super().__init__(hook, reason)
        self.hook = hook
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.hook} cannot be activated: {self.reason}"


class HookFailed(HookError):
    def __init__(self, hook: str, event: str, message: str) -> None:
        super().__init__(hook, event, message)
        self.hook = hook
        self.event = event
        self.message = message

    def __str__(self) -> str:
        return f"hook {self.hook} raised on {self.event}: {self.message}"


class InvalidEffect(HookError):
    def __init__(self, hook: str, effect: str, event: str) -> None:
        super().__init__(hook, effect, event)
        self.hook = hook
        self.effect = effect
        self.event = event

    def __str__(self) -> str:
        return f"hook {self.hook} answered {self.event} with {self.effect}, which that stage does not take"


class EffectConflict(HookError):
    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event = event
        self.reason = reason

    def __str__(self) -> str:
        return f"conflicting effects on {self.event}: {self.reason}"


class MessageIndexError(HookError, IndexError):
    def __init__(self, index: int, length: int) -> None:
        super().__init__(index, length)
        self.index = index
        self.length = length

    def __str__(self) -> str:
        return f"message index {self.index} is out of range for a buffer of {self.length}"


class CodeOffsetError(HookError, IndexError):
    def __init__(self, start: int, end: int, length: int) -> None:
        super().__init__(start, end, length)
        self.start = start
        self.end = end
        self.length = length

    def __str__(self) -> str:
        place = f"offset {self.start}" if self.start == self.end else f"range {self.start}:{self.end}"
        return f"{place} does not lie within code of {self.length} characters"


class DropTargetMissing(HookError, KeyError):
    """`kind` is "input" or "variable"."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"a hook drops the {self.kind} {self.name!r}, which is not there; allow_missing=True permits that"


class LimitExceeded(JazError):
    """A limit that the caller set was reached."""


class IterationLimitExceeded(LimitExceeded):
    def __init__(self, max_iterations: int) -> None:
        super().__init__(max_iterations)
        self.max_iterations = max_iterations

    def __str__(self) -> str:
        return f"no result within {self.max_iterations} iterations"


class RecursionLimitExceeded(LimitExceeded):
    def __init__(self, depth: int, max_depth: int) -> None:
        super().__init__(depth, max_depth)
        self.depth = depth
        self.max_depth = max_depth

    def __str__(self) -> str:
        return f"depth {self.depth} is beyond the recursion limit of {self.max_depth}"


class TimeLimitExceeded(LimitExceeded):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"no result within {self.seconds:g} s"


class BudgetExceeded(LimitExceeded):
    """`holders` names who used most of it: path and amount, most first."""

    def __init__(self, unit: str, budget: float, spent: float, holders: tuple[tuple[str, float], ...] = ()) -> None:
        super().__init__(unit, budget, spent, holders)
        self.unit = unit
        self.budget = budget
        self.spent = spent
        self.holders = holders

    def __str__(self) -> str:
        held = ", ".join(f"{path} {amount:g}" for path, amount in self.holders)
        return f"the budget of {self.budget:g} {self.unit} is used up: {self.spent:g} spent ({held})"


class UsageUnknown(JazError):
    def __init__(self, unit: str, model: str) -> None:
        super().__init__(unit, model)
        self.unit = unit
        self.model = model

    def __str__(self) -> str:
        return f"a budget in {self.unit} is set, and {self.model} does not say how much of them it uses"


class ReturnTypeError(JazError, TypeError):
    def __init__(self, expected: str, reason: str) -> None:
        super().__init__(expected, reason)
        self.expected = expected
        self.reason = reason

    def __str__(self) -> str:
        return f"the returned value is not of type {self.expected}: {self.reason}"


class ReplayDiverged(JazError):
    """`index` is the message of the query, of turn `iteration`, that is the first to differ."""

    def __init__(self, path: str, iteration: int, index: int, expected: str, got: str) -> None:
        super().__init__(path, iteration, index, expected, got)
        self.path = path
        self.iteration = iteration
        self.index = index
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        where = f"{self.path}, turn {self.iteration}, message {self.index}"
        return f"the replay diverged at {where}: expected {self.expected!r}, got {self.got!r}"


class InvocationCancelled(JazError):
    def __init__(self, invoke_id: str, reason: str) -> None:
        super().__init__(invoke_id, reason)
        self.invoke_id = invoke_id
        self.reason = reason

    def __str__(self) -> str:
        return f"invocation {self.invoke_id} was cancelled: {self.reason}"


class JournalError(JazError):
    """`path` is the file or folder; `reason` names the byte where it is damaged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"journal {self.path}: {self.reason}"


class BackendError(JazError):
    """A model server's refusal or failure. `status` is the HTTP status, None where there was none."""

    def __init__(self, backend: str, message: str, status: int | None = None) -> None:
        super().__init__(backend, message, status)
        self.backend = backend
        self.message = message
        self.status = status

    def __str__(self) -> str:
        status = "" if self.status is None else f" (HTTP {self.status})"
        return f"{self.backend}{status}: {self.message}"


class _Temporary(BackendError):
    """`retry_after` is the server's own wish in seconds, None where it had none."""

    def __init__(self, backend: str, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        BackendError.__init__(self, backend, message, status)
        self.args = (backend, message, status, retry_after)
        self.retry_after = retry_after


class RateLimited(_Temporary):
    pass


class ServerUnavailable(_Temporary):
    pass


class RequestRefused(BackendError):
    pass


class AuthenticationFailed(RequestRefused):
    pass


class ModelNotFound(RequestRefused):
    pass


class ContextOverflow(RequestRefused):
    pass


class ContentFiltered(BackendError):
    pass


class GenerationAborted(BackendError):
    pass


class MalformedResponse(BackendError):
    pass


class RolloutRefused(JazError):
    def __init__(self, invoke_id: str, reason: str) -> None:
        super().__init__(invoke_id, reason)
        self.invoke_id = invoke_id
        self.reason = reason

    def __str__(self) -> str:
        return f"the rollout of {self.invoke_id} is not to be trained on: {self.reason}"


class NonMonotoneRollout(JazError):
    """`iteration` is the first turn whose prompt does not begin with all of the turn before it."""

    def __init__(self, invoke_id: str, iteration: int) -> None:
        super().__init__(invoke_id, iteration)
        self.invoke_id = invoke_id
        self.iteration = iteration

    def __str__(self) -> str:
        return (
            f"the rollout of {self.invoke_id} is no single sequence: turn {self.iteration} does not go on from the one "
            "before it; use to_pieces, to_turn_samples or to_tree"
        )


class RolloutFileError(JazError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"rollouts {self.path}: {self.reason}"


class InfrastructureError(JazError):
    """The runtime failed. The outcome of what it hit is `Failed`, never a value."""


class HostDied(InfrastructureError):
    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, reason)
        self.host = host
        self.reason = reason

    def __str__(self) -> str:
        return f"host {self.host} died: {self.reason}"


class HostStartFailed(InfrastructureError):
    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, reason)
        self.host = host
        self.reason = reason

    def __str__(self) -> str:
        return f"host {self.host} did not start: {self.reason}"


class FrameStartFailed(InfrastructureError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a frame could not be started: {self.reason}"


class FrameLost(InfrastructureError):
    """A frame ended while it was being used; `reason` says how (signal, exit status)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the frame was lost: {self.reason}"


class ChannelClosed(InfrastructureError):
    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.peer = peer
        self.reason = reason

    def __str__(self) -> str:
        return f"the channel to {self.peer} is closed: {self.reason}"


class RecorderLost(InfrastructureError):
    def __init__(self, recorder: str, reason: str) -> None:
        super().__init__(recorder, reason)
        self.recorder = recorder
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.recorder} takes no more entries: {self.reason}"


class ExportFailed(InfrastructureError):
    """What was recorded did not reach a server; `status` is that of its answer, None when there was none."""

    def __init__(self, endpoint: str, reason: str, status: int | None) -> None:
        super().__init__(endpoint, reason, status)
        self.endpoint = endpoint
        self.reason = reason
        self.status = status

    def __str__(self) -> str:
        status = "" if self.status is None else f" ({self.status})"
        return f"{self.endpoint} did not take the export{status}: {self.reason}"


class RuntimeClosed(InfrastructureError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the runtime is closed: {self.reason}"
