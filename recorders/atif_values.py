"""How our records are spelt in ATIF: metrics, edits, results, errors, and what JSON cannot hold. Knows no order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from jaz_actors.events import LLMQuerySend, MessageAdd
from jaz_actors.messages import Completion, Message, SampledTokens, Stamp
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, OutcomeRecord, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput
from jaz_actors.recorders.deltas import common_prefix

COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
TOKEN_ARRAYS = frozenset({"completion_token_ids", "prompt_token_ids", "logprobs", "ids"})
# Fields of SampledTokens that go into `extra` under their own names.
PROVENANCE = ("segments", "versions", "suffix_ids", "reasoning", "kept", "sampling")
_MEANINGLESS_WHEN_EMPTY = frozenset({"extra", "metrics", "observation"})


def metrics_of(completion: Completion, before: SampledTokens | None, *, full_prompt_ids: bool) -> dict[str, Any]:
    """What one query took. `before` are the tokens that prompt ids are told relative to."""
    usage, tokens = completion.usage, completion.tokens
    metrics: dict[str, Any] = {name: _plausible(getattr(usage, name)) for name in COUNTED}
    if tokens is None:
        return metrics
    fault = _fault(tokens, completion)
    if fault:
        return metrics | {"extra": {"trainable": False, "reason": fault}}
    extra: dict[str, Any] = {
        "version_at_submit": tokens.version_at_submit,
        "version_at_return": tokens.version_at_return,
    }
    if full_prompt_ids:
        metrics["prompt_token_ids"] = tokens.prompt_ids
    else:
        shared = 0 if before is None else _shared(tokens.prompt_ids, before)
        extra["prompt_token_ids_delta"] = {"shared_prefix": shared, "ids": tokens.prompt_ids[shared:]}
    extra |= _provenance(tokens, () if before is None else before.stamps)
    return metrics | {"completion_token_ids": tokens.output_ids, "logprobs": tokens.logprobs, "extra": extra}


def _provenance(tokens: SampledTokens, before: Sequence[Stamp]) -> dict[str, Any]:
    """What ATIF has no fields for; stamps are told relative to those before, what says nothing is left out."""
    told = {name: _spelt(getattr(tokens, name)) for name in PROVENANCE}
    told = {name: value for name, value in told.items() if value or name == "kept"}
    if tokens.stamps:
        known = common_prefix(tokens.stamps, before)
        told["stamps_delta"] = {"shared_prefix": known, "stamps": _spelt(tokens.stamps[known:])}
    return told


def _spelt(value: Any) -> Any:
    """Our records as objects: ATIF allows no null, so that what is None is left out."""
    if isinstance(value, tuple | list):
        return [_spelt(item) for item in value]
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: item for name, item in fields.items() if item is not None}
    if isinstance(value, dict):
        return {name: _spelt(item) for name, item in value.items() if item is not None}
    return value


def _shared(prompt_ids: list[int], before: SampledTokens) -> int:
    """How many ids a prompt has in common with the prompt before it and what was sampled then."""
    shared = common_prefix(prompt_ids, before.prompt_ids)
    if shared < len(before.prompt_ids):
        return shared
    return shared + common_prefix(prompt_ids[shared : shared + len(before.output_ids)], before.output_ids)


def _fault(tokens: SampledTokens, completion: Completion) -> str:
    usage = completion.usage
    if len(tokens.output_ids) != len(tokens.logprobs):
        return "ids and logprobs differ in length"
    if not all(math.isfinite(logprob) for logprob in tokens.logprobs):
        return "a logprob is not finite"
    if usage.completion_tokens not in (None, len(tokens.output_ids)):
        return "ids and the count of tokens differ"
    return "" if usage.prompt_tokens in (None, len(tokens.prompt_ids)) else "prompt ids and prompt_tokens differ"


def _plausible(number: float | None) -> float | None:
    """None for what is no count, so that nothing is summed up of it."""
    return None if number is None or not math.isfinite(number) or number < 0 else number


def totals_of(steps: Sequence[Mapping[str, Any]], children: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the steps, and in `extra` over the tree below as well; absent where nothing is known."""
    totals: dict[str, Any] = {"total_steps": len(steps)}
    extra: dict[str, Any] = {}
    for name in COUNTED:
        own = _known(step.get("metrics", {}).get(name) for step in steps)
        tree = _known(child["final_metrics"].get("extra", {}).get(f"subtree_{name}") for child in children)
        if own:
            totals[f"total_{name}"] = sum(own)
        if own or tree:
            extra[f"subtree_{name}"] = sum([*own, *tree])
    return totals | {"extra": extra}


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def edits_of(event: LLMQuerySend, *, committed: bool) -> dict[str, Any]:
    """What hooks hid and added. committed: persistent additions are steps of their own, so only their numbers."""
    dropped = [{"position": d.position, "message": d.message.number, "persistent": d.persistent} for d in event.drops]
    added = [_added(add, texts=not (committed and add.persistent)) for add in event.adds]
    return ({"dropped": dropped} if dropped else {}) | ({"added": added} if added else {})


def _added(add: MessageAdd, *, texts: bool) -> dict[str, Any]:
    messages = [
        {"role": m.role, "message": m.number, "content": m.content if texts else None, "pinned": m.pinned or None}
        for m in add.messages
    ]
    return {"position": add.position, "persistent": add.persistent, "messages": messages}


def conversation(messages: Iterable[Message]) -> str:
    return "\n\n".join(f"{message.role}:\n{message.content}" for message in messages)


def shown_inputs(inputs: Sequence[PackedInput]) -> dict[str, Any]:
    return {
        item.name: {
            "type": item.payload.type_name,
            "preview": item.payload.preview,
            "description": item.description,
            "hidden": item.hidden or None,
        }
        for item in inputs
    }


def result_text(result: ExecResult) -> str:
    match result:
        case Continue():
            return result.text
        case Return():
            return result.value.preview
        case Raise():
            return error_text(result.error)


def error_text(error: ErrorRecord) -> str:
    return f"{error.type_name}: {error.message}"


def error_fields(error: ErrorRecord | None) -> dict[str, Any]:
    return {} if error is None else {"error_type": error.type_name, "error": error.message}


def outcome_fields(outcome: OutcomeRecord) -> dict[str, Any]:
    status = str(outcome.__struct_config__.tag)
    if isinstance(outcome, CompletedRecord):
        return {"status": status, "type": outcome.value.type_name, "preview": outcome.value.preview}
    return {"status": status} | error_fields(outcome.error)


def iso(timestamp: float) -> str:
    """Always of the same length, so that texts sort as times do."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="microseconds")


def clean(value: Any) -> Any:
    """A deep copy without nulls, empty containers of no meaning, numbers that JSON has not, and lone surrogates."""
    match value:
        case dict():
            cleaned = {}
            for name, item in value.items():
                if item is None:
                    continue
                kept = list(item) if name in TOKEN_ARRAYS else clean(item)
                if not (kept == {} and name in _MEANINGLESS_WHEN_EMPTY):
                    cleaned[clean(name)] = kept
            return cleaned
        case list() | tuple():
            return [clean(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
        case str():
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
        case _:
            return value
