"""What a server's error answer means: status, headers and body in, one of our errors out.

Pure; knows no transport.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec

from jaz_actors.errors import (
    AuthenticationFailed,
    BackendError,
    ContentFiltered,
    ContextOverflow,
    ModelNotFound,
    RateLimited,
    RequestRefused,
    ServerUnavailable,
)

QUOTED_CHARACTERS = 500

# How servers say that the prompt, alone or with the answer asked for, does not fit.
_OVERFLOW = re.compile(
    r"context[ _]length|context[ _]window|context[ _]size|context limit"
    r"|(prompt|input) is too long|input token count|exceeds? the maximum( allowed)? (input )?length"
    r"|reduce the length of the (messages|prompt|input)",
    re.IGNORECASE,
)
_MAY_BE_OVERFLOW = frozenset({None, 400, 413, 422, 500})
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "moderation_blocked"})


class Explanation(msgspec.Struct, frozen=True):
    """What an error body says. `code` is the provider's own, empty where it gives none."""

    message: str
    code: str = ""


def is_context_overflow(message: str) -> bool:
    return _OVERFLOW.search(message) is not None


def error_of_answer(backend: str, status: int, headers: Mapping[str, str], body: bytes) -> BackendError:
    """The error that an answer with this status, outside 200 to 299, stands for."""
    said = explain(body) or Explanation(_reason_phrase(status))
    if status < 400:
        where = headers.get("location", "")
        return RequestRefused(backend, f"{said.message} {where}".strip(), status)
    return error_of(backend, status, said, retry_after=_retry_after(headers))


def error_of(backend: str, status: int | None, said: Explanation, *, retry_after: float | None = None) -> BackendError:
    """The error for a status of 400 or more; None for a failure told in an answer that began as a success."""
    message, code = said.message, said.code
    if code in _FILTER_CODES:
        return ContentFiltered(backend, message, status)
    if status in _MAY_BE_OVERFLOW and (
        status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        or code == "context_length_exceeded"
        or is_context_overflow(message)
    ):
        return ContextOverflow(backend, message, status)
    if status == HTTPStatus.TOO_MANY_REQUESTS and code == "insufficient_quota":
        return RequestRefused(backend, message, status)  # an empty account does not fill by waiting
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(backend, message, status, retry_after)
    if status is None or status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT:
        return ServerUnavailable(backend, message, status, retry_after)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return AuthenticationFailed(backend, message, status)
    if status == HTTPStatus.NOT_FOUND:
        return ModelNotFound(backend, message, status)
    return RequestRefused(backend, message, status)


def explain(body: bytes) -> Explanation | None:
    """The message in any of the shapes that servers use, or the text itself; None for an empty body.

    The shapes: {"error": {"message", "code"}}, {"error": text}, {"object": "error", "message"}, {"detail"}.
    """
    text = body.decode("utf-8", "replace").strip()
    if not text:
        return None
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Explanation(_shortened(text))
    inner = data
    if isinstance(data, dict):
        inner = next((data[key] for key in ("error", "message", "detail") if data.get(key)), data)
    code = ""
    for level in (data, inner):
        if isinstance(level, dict):
            code = next((str(level[key]) for key in ("code", "type") if level.get(key)), code)
    return Explanation(_shortened(_message_of(inner)), code)


def _message_of(inner: Any) -> str:
    if isinstance(inner, str):
        return inner
    if isinstance(inner, dict) and isinstance(inner.get("message"), str):
        return str(inner["message"])
    return msgspec.json.encode(inner).decode()


def _shortened(text: str) -> str:
    return text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "..."


def _reason_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no explanation"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `Retry-After` (a number or a date) or OpenAI's `retry-after-ms`."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
