"""From ATIF documents that this package wrote back to the turns of their invocations, for replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from jaz_actors.events import MessageAdd, MessageDrop, edited
from jaz_actors.messages import (
    Completion,
    FinishReason,
    Message,
    Role,
    SampledTokens,
    Segment,
    Span,
    Stamp,
    Usage,
    VersionSpan,
)
from jaz_actors.outcomes import Continue
from jaz_actors.recorders.atif_values import PROVENANCE
from jaz_actors.recorders.entries import ToolAnswer
from jaz_actors.recorders.runs import Turn

_RECORDS: Mapping[str, type[msgspec.Struct]] = {"segments": Segment, "versions": VersionSpan}
_ROLES: dict[str, Role] = {"system": "system", "user": "user", "agent": "assistant"}


class DocumentedInvocation:
    """One trajectory. What ATIF does not hold, the answers of tools, is not there."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.path = str(document["trajectory_id"]).partition(":")[2]
        status = document.get("extra", {}).get("outcome", {}).get("status")
        self.finished = status in ("completed", "raised")
        self.answers: dict[int, ToolAnswer] = {}

    def turns(self) -> list[Turn]:
        turns: list[Turn] = []
        buffer: tuple[Message, ...] = ()
        ids: list[int] = []
        stamps: tuple[Stamp, ...] = ()
        added: dict[int, str] = {}
        for step in self._document["steps"]:
            extra = step.get("extra", {})
            if step.get("llm_call_count") != 1:
                if extra.get("kind") == "seed":
                    buffer = (*buffer, Message(_ROLES[step["source"]], step["message"], "seed", extra["message"]))
                elif extra.get("kind") == "added":
                    added[extra["message"]] = step["message"]
                continue
            if "status" in extra:  # its query did not complete
                continue
            drops, adds = _edits(extra.get("edits", {}), buffer, added)
            raw = _completion(step, ids, stamps)
            final = Completion(extra["modified"], raw.finish_reason, raw.model) if "modified" in extra else raw
            results = step.get("observation", {}).get("results", [])
            done = Continue("") if results and "result" in results[0].get("extra", {}) else None
            turns.append(Turn(extra["iteration"], edited(buffer, drops, adds), raw, final, done))
            buffer = (*edited(buffer, drops, adds, persistent_only=True), _said("assistant", final.content))
            if results and "message" in results[0].get("extra", {}):
                buffer = (*buffer, _said("user", results[0]["content"]))
            if raw.tokens is not None:
                ids = [*raw.tokens.prompt_ids, *raw.tokens.output_ids]
                stamps = raw.tokens.stamps
        return turns


def documented(documents: Iterable[Mapping[str, Any]]) -> dict[str, DocumentedInvocation]:
    """The invocations of documents and of all that is embedded in them, by path."""
    return {invocation.path: invocation for document in documents for invocation in _tree(document)}


def _tree(document: Mapping[str, Any]) -> Iterator[DocumentedInvocation]:
    yield DocumentedInvocation(document)
    for child in document.get("subagent_trajectories", ()):
        yield from _tree(child)


def _said(role: Role, content: str) -> Message:
    return Message(role, content, "assistant" if role == "assistant" else "observation", -1)


def _edits(
    edits: Mapping[str, Any], buffer: tuple[Message, ...], added: Mapping[int, str]
) -> tuple[tuple[MessageDrop, ...], tuple[MessageAdd, ...]]:
    drops = tuple(
        MessageDrop(drop["position"], buffer[drop["position"]], drop["persistent"]) for drop in edits.get("dropped", ())
    )
    adds = tuple(
        MessageAdd(
            add["position"],
            tuple(_added(message, added) for message in add["messages"]),
            add["persistent"],
        )
        for add in edits.get("added", ())
    )
    return drops, adds


def _added(message: Mapping[str, Any], texts: Mapping[int, str]) -> Message:
    """One that stays is a step of its own, which has its text."""
    number = message["message"]
    return Message(message["role"], message["content"] if "content" in message else texts[number], "added", number)


def _completion(step: Mapping[str, Any], ids: list[int], stamps: tuple[Stamp, ...]) -> Completion:
    metrics = step.get("metrics", {})
    usage = Usage(
        metrics.get("prompt_tokens"),
        metrics.get("completion_tokens"),
        metrics.get("cached_tokens"),
        metrics.get("cost_usd"),
    )
    finish = cast(FinishReason, step.get("extra", {}).get("finish_reason", "unknown"))
    return Completion(step["message"], finish, step.get("model_name", ""), usage, _tokens(metrics, ids, stamps))


def _tokens(metrics: Mapping[str, Any], ids: list[int], stamps: tuple[Stamp, ...]) -> SampledTokens | None:
    if "completion_token_ids" not in metrics:
        return None
    extra = metrics.get("extra", {})
    prompt = metrics.get("prompt_token_ids")
    if prompt is None:
        delta = extra["prompt_token_ids_delta"]
        prompt = [*ids[: delta["shared_prefix"]], *delta["ids"]]
    known = extra.get("stamps_delta", {"shared_prefix": 0, "stamps": []})
    fields = {name: extra[name] for name in ("version_at_submit", "version_at_return", *PROVENANCE) if name in extra}
    fields |= {name: _as_lists(kind, fields[name]) for name, kind in _RECORDS.items() if name in fields}
    if "reasoning" in fields:
        (fields["reasoning"],) = _as_lists(Span, [fields["reasoning"]])
    return msgspec.convert(
        {
            "prompt_ids": prompt,
            "output_ids": metrics["completion_token_ids"],
            "logprobs": metrics["logprobs"],
            "stamps": [
                *msgspec.to_builtins(stamps[: known["shared_prefix"]]),
                *_as_lists(Stamp, known["stamps"]),
            ],
            **fields,
        },
        SampledTokens,
    )


def _as_lists(kind: type[msgspec.Struct], values: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """The objects as `kind` is read; what is None is not told in them."""
    return [[value.get(name) for name in kind.__struct_fields__] for value in values]
