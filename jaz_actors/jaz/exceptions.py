"""JAZ's names for errors."""

from __future__ import annotations

from jaz_actors.errors import AuthenticationFailed as AuthenticationError
from jaz_actors.errors import BackendError as LLMError
from jaz_actors.errors import BudgetExceeded as BudgetPoolExhaustedError
from jaz_actors.errors import CodeOffsetError as CodeEditOffsetError
from jaz_actors.errors import ContentFiltered as ContentPolicyViolationError
from jaz_actors.errors import ContextOverflow as ContextWindowExceededError
from jaz_actors.errors import DropTargetMissing as MissingDropTargetError
from jaz_actors.errors import FatalError, HookActivationError, ReturnTypeError
from jaz_actors.errors import InvalidEffect as InvalidEffectError
from jaz_actors.errors import IterationLimitExceeded as IterationLimitExhaustedError
from jaz_actors.errors import JazError as JazException
from jaz_actors.errors import LimitExceeded as BudgetExhaustedError
from jaz_actors.errors import MessageIndexError as MessageEditIndexError
from jaz_actors.errors import ModelNotFound as NotFoundError
from jaz_actors.errors import RateLimited as RateLimitError
from jaz_actors.errors import RecursionLimitExceeded as RecursionLimitError
from jaz_actors.errors import RequestRefused as APIError
from jaz_actors.errors import ServerUnavailable as ServerError
from jaz_actors.errors import UsageUnknown as ModelPricingUnavailableError

__all__ = [
    "APIError",
    "AuthenticationError",
    "BudgetExhaustedError",
    "BudgetPoolExhaustedError",
    "CodeEditOffsetError",
    "ContentPolicyViolationError",
    "ContextWindowExceededError",
    "FatalError",
    "HookActivationError",
    "InvalidEffectError",
    "IterationLimitExhaustedError",
    "JazException",
    "LLMError",
    "MessageEditIndexError",
    "MissingDropTargetError",
    "ModelPricingUnavailableError",
    "NotFoundError",
    "RateLimitError",
    "RecursionLimitError",
    "ReturnTypeError",
    "ServerError",
]
