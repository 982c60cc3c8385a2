"""Trajectories of a run as ATIF v1.7 documents (RFC 0001 of the Harbor project): one a root, children embedded.

A seed message is a system or user step. A completed query is an agent step: `message` is what the model wrote, a tool
call `python` what was run, its observation what the agent was shown of that; the observation is no user step besides,
so nothing stands twice. Messages that hooks add or hide are in `extra.edits` of the step. A child hangs on the call
during which it was started; one that a hook started, on a system step. What ATIF has no field for is under `extra`.

Totals are of a document's own steps; sums over a tree stand in `final_metrics.extra`.
"""

from __future__ import annotations

import bisect
import importlib.metadata
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jaz_actors import events as e
from jaz_actors.events import AnyEvent, MessageAdd
from jaz_actors.messages import Completion, Message, SampledTokens
from jaz_actors.outcomes import CompletedRecord, Continue, ExecResult, OutcomeRecord, Raise, Return
from jaz_actors.payload import ErrorRecord, PackedInput
from jaz_actors.recorders.deltas import common_prefix

VERSION = "ATIF-v1.7"
NOTES = (
    "Token and cost totals are of this document's own steps; final_metrics.extra has those of the whole tree. "
    "Prompt ids are left out where they repeat the step before: metrics.extra says how many."
)


class Trajectories:
    """Give it every event of a run, each invocation's in their order; ask for the documents at any time.

    full_prompt_ids:  write each query's whole prompt, which grows with the square of the turns.
    """

    def __init__(self, *, full_prompt_ids: bool = False) -> None:
        self._full_prompt_ids = full_prompt_ids
        self._trajectories: dict[str, _Trajectory] = {}

    def add(self, event: AnyEvent) -> None:
        trajectory = self._trajectories.get(event.invoke_id)
        if trajectory is None:
            trajectory = self._trajectories[event.invoke_id] = _Trajectory(event.invoke_id, self._full_prompt_ids)
        trajectory.add(event)

    def documents(self) -> list[dict[str, Any]]:
        """A document a root, in the order in which roots began."""
        below: dict[str, list[_Trajectory]] = {}
        roots = []
        for trajectory in self._trajectories.values():
            if trajectory.parent_id in self._trajectories:
                below.setdefault(str(trajectory.parent_id), []).append(trajectory)
            else:
                roots.append(trajectory)
        return [_clean(root.document(below)) for root in roots]


@dataclass(slots=True)
class _Step:
    """`children` are those that were started while this step's call ran."""

    fields: dict[str, Any]
    iteration: int | None = None
    children: list[str] = field(default_factory=list)


class _Trajectory:
    """One invocation."""

    def __init__(self, invoke_id: str, full_prompt_ids: bool) -> None:
        self.invoke_id = invoke_id
        self.parent_id: str | None = None
        self.parent_iteration: int | None = None
        self._full = full_prompt_ids
        self._steps: list[_Step] = []
        self._seen = -1
        self._time = 0.0
        self._model = ""
        self._extra: dict[str, Any] = {}
        self._edits: dict[str, Any] = {}
        self._raw: Completion | None = None
        self._last_ids: list[int] = []
        self._agent: _Step | None = None
        self._begun = 0.0
        self.begun = 0.0

    def add(self, event: AnyEvent) -> None:
        self._time = max(self._time, event.timestamp)
        match event:
            case e.InvokeEnter():
                self.begun = event.timestamp
                self.parent_id, self.parent_iteration = event.parent_id, event.parent_iteration
                self._extra |= {
                    "depth": event.depth,
                    "path": self.invoke_id.partition(":")[2],
                    "hooks": list(event.hooks),
                }
                self._extra |= {"parent_trajectory_id": event.parent_id, "parent_iteration": event.parent_iteration}
                self._extra |= {"inputs": _shown(event.inputs), "scope": _shown(event.scope)}
            case e.InvokeSend() if event.added or event.dropped:
                self._extra |= {"inputs": _shown(event.inputs), "hook_added_inputs": list(event.added)}
                self._extra |= {"hook_dropped_inputs": list(event.dropped)}
            case e.LLMQueryEnter():
                self._model = event.model
                self._raw = None
                self._begun = event.timestamp
                self._messages(event.messages)
            case e.LLMQuerySend():
                self._edit(event)
            case e.LLMQueryRetry():
                retry = {"iteration": event.iteration, "attempt": event.attempt, "wait_seconds": event.wait}
                self._extra.setdefault("retries", []).append(retry | _error(event.error))
            case e.LLMQueryComplete():
                self._raw = event.completion
            case e.LLMQueryExit(completion=Completion() as final):
                self._answer(event, final)
            case e.LLMQueryExit():
                failure = {"iteration": event.iteration, "status": event.status}
                self._extra.setdefault("query_failures", []).append(failure | _error(event.error))
            case e.REPLExecSend() if self._agent is not None:
                self._agent.fields["tool_calls"] = [
                    {
                        "tool_call_id": self._call_id(event.iteration),
                        "function_name": "python",
                        "arguments": {"code": event.code},
                        "extra": {"invocation": {"start_timestamp": event.timestamp}},
                    }
                ]
            case e.REPLExecExit() if self._agent is not None:
                self._executed(self._agent, event)
            case e.InvokeExit():
                self._extra["outcome"] = _outcome(event.outcome)
                self._extra["invocation"] = {"end_timestamp": event.timestamp}

    # -- steps

    def _step(self, source: str, message: str, extra: dict[str, Any], iteration: int | None) -> _Step:
        fields: dict[str, Any] = {"source": source, "message": message, "timestamp": _iso(self._time)}
        step = _Step(fields | {"extra": extra}, iteration)
        self._steps.append(step)
        return step

    def _messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.number <= self._seen:
                continue
            self._seen = message.number
            if message.kind == "seed":
                self._message(message)
            elif (
                message.kind == "observation" and self._agent is not None and self._agent.iteration == message.iteration
            ):
                for result in self._agent.fields.get("observation", {}).get("results", []):
                    result["content"] = message.content
                    result["extra"] = {**result.get("extra", {}), "message": message.number}

    def _message(self, message: Message) -> None:
        source = {"system": "system", "user": "user", "assistant": "agent"}[message.role]
        extra = {"message": message.number, "kind": message.kind, "iteration": message.iteration}
        step = self._step(source, message.content, extra, None)
        step.fields["llm_call_count"] = 0

    def _edit(self, event: e.LLMQuerySend) -> None:
        self._edits = {}
        if event.drops:
            self._edits["dropped"] = [
                {"position": d.position, "message": d.message.number, "persistent": d.persistent} for d in event.drops
            ]
        if event.adds:
            self._edits["added"] = [_add(add) for add in event.adds]

    def _answer(self, event: e.LLMQueryExit, final: Completion) -> None:
        raw = self._raw or final
        extra: dict[str, Any] = {"iteration": event.iteration, "finish_reason": raw.finish_reason}
        if self._edits:
            extra["edits"] = self._edits
        if final.content != raw.content:
            extra["modified"] = final.content
        extra["invocation"] = {"start_timestamp": self._begun, "end_timestamp": event.timestamp}
        step = self._agent = self._step("agent", raw.content, extra, event.iteration)
        step.fields["llm_call_count"] = 1
        step.fields["model_name"] = raw.model or self._model
        step.fields["metrics"] = self._metrics(raw)

    def _metrics(self, completion: Completion) -> dict[str, Any]:
        usage, tokens = completion.usage, completion.tokens
        metrics: dict[str, Any] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
        }
        if tokens is None:
            return metrics
        fault = _token_fault(tokens, completion)
        if fault:
            return metrics | {"extra": {"trainable": False, "reason": fault}}
        metrics |= {"completion_token_ids": tokens.output_ids, "logprobs": tokens.logprobs}
        versions = {"version_at_submit": tokens.version_at_submit, "version_at_return": tokens.version_at_return}
        extra: dict[str, Any] = {name: version for name, version in versions.items() if version is not None}
        if self._full:
            metrics["prompt_token_ids"] = tokens.prompt_ids
        else:
            shared = common_prefix(tokens.prompt_ids, self._last_ids)
            extra["prompt_token_ids_delta"] = {"shared_prefix": shared, "ids": tokens.prompt_ids[shared:]}
        self._last_ids = [*tokens.prompt_ids, *tokens.output_ids]
        return metrics | {"extra": extra} if extra else metrics

    def _executed(self, step: _Step, event: e.REPLExecExit) -> None:
        result: dict[str, Any] = {"source_call_id": self._call_id(event.iteration), "extra": {"status": event.status}}
        if event.result is not None:
            result |= {"content": _result_text(event.result)}
            result["extra"]["result"] = type(event.result).__name__.lower()
        if event.error is not None:
            result["extra"] |= _error(event.error)
            result["content"] = f"{event.error.type_name}: {event.error.message}"
        if "tool_calls" in step.fields:
            step.fields["tool_calls"][0]["extra"]["invocation"]["end_timestamp"] = event.timestamp
        else:
            del result["source_call_id"]
        step.fields["observation"] = {"results": [result]}

    def _call_id(self, iteration: int) -> str:
        return f"{self.invoke_id}/turn-{iteration}"

    # -- the document

    def document(self, below: dict[str, list[_Trajectory]]) -> dict[str, Any]:
        steps = [step.fields | {} for step in self._steps]
        turns = {step.iteration: fields for step, fields in zip(self._steps, steps, strict=True)}
        children = below.get(self.invoke_id, [])
        for child in children:
            fields = turns.get(child.parent_iteration)
            if child.by_hook or fields is None or "tool_calls" not in fields:
                fields = _hook_step(child)
                bisect.insort(steps, fields, key=lambda step: step["timestamp"])
            fields["observation"] = _with_ref(fields, child.invoke_id, self._run)
        if not steps:
            steps.append({"source": "system", "message": "It ended before its first message.", "llm_call_count": 0})
        for number, fields in enumerate(steps, start=1):
            fields["step_id"] = number
        order = {ref: place for place, ref in enumerate(refs_of(steps))}
        embedded = [child.document(below) for child in sorted(children, key=lambda child: order[child.invoke_id])]
        document: dict[str, Any] = {
            "schema_version": VERSION,
            "session_id": self._run,
            "trajectory_id": self.invoke_id,
            "agent": {
                "name": "jaz-actors",
                "version": importlib.metadata.version("jaz-actors"),
                "model_name": self._model,
            },
            "notes": NOTES,
            "steps": steps,
            "final_metrics": _totals(steps, embedded),
            "extra": {"outcome": {"status": "unfinished"}, **self._extra},
        }
        if embedded:
            document["subagent_trajectories"] = embedded
        return document

    @property
    def _run(self) -> str:
        return self.invoke_id.partition(":")[0]

    @property
    def by_hook(self) -> bool:
        return self.invoke_id.rpartition(".")[2].startswith("hook-")


def _hook_step(child: _Trajectory) -> dict[str, Any]:
    return {
        "source": "system",
        "message": "An agent was started outside the code of a turn.",
        "timestamp": _iso(child.begun),
        "llm_call_count": 0,
        "extra": {"kind": "subagent", "iteration": child.parent_iteration},
        "observation": {"results": [{}]},
    }


def refs_of(steps: Iterable[dict[str, Any]]) -> list[str]:
    """The trajectory ids that steps refer to, in their order."""
    return [
        ref["trajectory_id"]
        for step in steps
        for result in step.get("observation", {}).get("results", [])
        for ref in result.get("subagent_trajectory_ref", [])
    ]


def _with_ref(fields: dict[str, Any], child: str, run: str) -> dict[str, Any]:
    """The step's observation with a reference to a child; what it holds already stays."""
    results = [dict(result) for result in fields.get("observation", {}).get("results", [])]
    if not results:
        results = [{"source_call_id": fields["tool_calls"][0]["tool_call_id"]}]
    refs = [*results[0].get("subagent_trajectory_ref", []), {"trajectory_id": child, "session_id": run}]
    results[0]["subagent_trajectory_ref"] = refs
    return {"results": results}


def _totals(steps: Iterable[dict[str, Any]], children: Iterable[dict[str, Any]]) -> dict[str, Any]:
    names = {"prompt_tokens": 0.0, "completion_tokens": 0.0, "cached_tokens": 0.0, "cost_usd": 0.0}
    steps = list(steps)
    totals: dict[str, Any] = {"total_steps": len(steps)}
    extra: dict[str, Any] = {}
    for name in names:
        own = [step["metrics"][name] for step in steps if step.get("metrics", {}).get(name) is not None]
        if own:
            totals[f"total_{name}"] = sum(own)
        below = [child["final_metrics"].get("extra", {}).get(f"subtree_{name}") for child in children]
        tree = [*own, *(value for value in below if value is not None)]
        if tree:
            extra[f"subtree_{name}"] = sum(tree)
    return totals | {"extra": extra} if extra else totals


def _token_fault(tokens: SampledTokens, completion: Completion) -> str:
    if len(tokens.output_ids) != len(tokens.logprobs):
        return "ids and logprobs differ in length"
    if not all(math.isfinite(logprob) for logprob in tokens.logprobs):
        return "a logprob is not finite"
    counted = completion.usage.completion_tokens
    return "" if counted in (None, len(tokens.output_ids)) else "ids and the count of tokens differ"


def _add(add: MessageAdd) -> dict[str, Any]:
    messages = [{"role": m.role, "content": m.content, "message": m.number} for m in add.messages]
    return {"position": add.position, "persistent": add.persistent, "messages": messages}


def _shown(inputs: Sequence[PackedInput]) -> dict[str, Any]:
    return {item.name: {"type": item.payload.type_name, "preview": item.payload.preview} for item in inputs}


def _result_text(result: ExecResult) -> str:
    match result:
        case Continue():
            return result.text
        case Return():
            return result.value.preview
        case Raise():
            return f"{result.error.type_name}: {result.error.message}"


def _outcome(outcome: OutcomeRecord) -> dict[str, Any]:
    status = str(outcome.__struct_config__.tag)
    if isinstance(outcome, CompletedRecord):
        return {"status": status, "type": outcome.value.type_name, "preview": outcome.value.preview}
    return {"status": status} | _error(outcome.error)


def _error(error: ErrorRecord | None) -> dict[str, Any]:
    return {} if error is None else {"error_type": error.type_name, "error": error.message}


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat()


def _clean(value: Any) -> Any:
    """Without nulls, empty containers of no meaning, numbers that JSON has not, and lone surrogates."""
    match value:
        case dict():
            cleaned = {_clean(k): _clean(v) for k, v in value.items() if v is not None}
            return {k: v for k, v in cleaned.items() if not (k in ("extra", "metrics", "observation") and v == {})}
        case list() | tuple():
            return [_clean(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
        case str():
            return value.encode("utf-8", "backslashreplace").decode() if not value.isascii() else value
        case _:
            return value
