"""What is wrong with an ATIF document: what no public checker looks at, and enough of the schema to look at that.

Takes any JSON value. A public model, such as that of the package `atif`, checks the rest of the schema.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_OF_AGENTS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


def validate(document: Any) -> list[str]:
    """Each problem with its place, as a JSON path. No problem: what stands in it agrees with itself."""
    check = _Check()
    check.trajectory(document, "$")
    return check.problems


@dataclass(slots=True)
class _Check:
    """One document with all below it: ids are unique over the whole."""

    problems: list[str] = field(default_factory=list)
    trajectory_ids: set[str] = field(default_factory=set)
    call_ids: set[str] = field(default_factory=set)

    def say(self, place: str, problem: str) -> None:
        self.problems.append(f"{place}: {problem}")

    def trajectory(self, document: Any, place: str) -> None:
        if not isinstance(document, Mapping):
            self.say(place, "is not an object")
            return
        own = {name: item for name, item in document.items() if name != "subagent_trajectories" or item is None}
        self._values(own, place)
        self._head(document, place)
        steps = list(self._objects(document, "steps", place))
        if not steps:
            self.say(f"{place}.steps", "there is none")
        time: float | None = None
        sampled: int | None = None
        refs: list[str] = []
        for number, (where, step) in enumerate(steps, start=1):
            if step.get("step_id") != number:
                self.say(f"{where}.step_id", f"is {step.get('step_id')!r}; counted from 1 it is {number}")
            time = self._timestamp(step, where, time)
            self._step(step, where)
            sampled = self._metrics(step, where, sampled)
            refs += self._results(step, where)
        self._children(document, place, refs)
        self._totals(document, [step for _, step in steps], place)

    # -- values and shapes

    def _values(self, value: Any, place: str) -> None:
        match value:
            case None:
                self.say(place, "null")
            case float() if not math.isfinite(value):
                self.say(place, f"{value}")
            case str() if not _encodable(value):
                self.say(place, "a lone surrogate")
            case Mapping():
                for name, item in value.items():
                    if not isinstance(name, str) or not _encodable(name):
                        self.say(place, f"{name!r} is no name")
                    self._values(item, f"{place}.{name}")
            case list():
                for number, item in enumerate(value):
                    self._values(item, f"{place}[{number}]")

    def _object(self, parent: Mapping[str, Any], name: str, place: str) -> Mapping[str, Any]:
        """An empty one where there is none."""
        value = parent.get(name)
        if value is None:  # a null is reported among the values
            return {}
        if not isinstance(value, Mapping):
            self.say(f"{place}.{name}", "is not an object")
            return {}
        return value

    def _objects(self, parent: Mapping[str, Any], name: str, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The objects of an array, each with its place."""
        values = parent.get(name)
        if values is not None and not isinstance(values, list):
            self.say(f"{place}.{name}", "is not an array")
        for number, value in enumerate(values if isinstance(values, list) else ()):
            if isinstance(value, Mapping):
                yield f"{place}.{name}[{number}]", value
            else:
                self.say(f"{place}.{name}[{number}]", "is not an object")

    # -- the parts

    def _head(self, document: Mapping[str, Any], place: str) -> None:
        version = document.get("schema_version")
        if not isinstance(version, str) or not re.fullmatch(r"ATIF-v1\.\d+", version):
            self.say(f"{place}.schema_version", f"{version!r} is no version")
        agent = self._object(document, "agent", place)
        for owner, name, where in (
            (document, "session_id", place),
            (document, "trajectory_id", place),
            (agent, "name", f"{place}.agent"),
            (agent, "version", f"{place}.agent"),
        ):
            if not isinstance(owner.get(name), str) or not owner[name]:
                self.say(f"{where}.{name}", "is missing, or no text")
        self._unique(document.get("trajectory_id"), self.trajectory_ids, f"{place}.trajectory_id")

    def _unique(self, name: Any, seen: set[str], place: str) -> None:
        if isinstance(name, str):
            if name in seen:
                self.say(place, f"{name!r} is there twice")
            seen.add(name)

    def _timestamp(self, step: Mapping[str, Any], place: str, before: float | None) -> float | None:
        if "timestamp" not in step:
            return before
        try:
            time = datetime.fromisoformat(step["timestamp"])
        except (ValueError, TypeError):
            self.say(f"{place}.timestamp", f"{step['timestamp']!r} is no time")
            return before
        if time.tzinfo is None:
            self.say(f"{place}.timestamp", "has no time zone")
            return before
        if before is not None and time.timestamp() < before:
            self.say(f"{place}.timestamp", "is before that of the step before")
        return time.timestamp()

    def _step(self, step: Mapping[str, Any], place: str) -> None:
        source = step.get("source")
        if source not in ("system", "user", "agent"):
            self.say(f"{place}.source", f"{source!r} is none")
        if not isinstance(step.get("message"), (str, list)):
            self.say(f"{place}.message", "is missing, or no text")
        for name in _OF_AGENTS:
            if name in step and source != "agent":
                self.say(f"{place}.{name}", "belongs to steps of agents")
        if step.get("metrics") and step.get("llm_call_count") == 0:
            self.say(f"{place}.metrics", "of a step without a query")
        for where, call in self._objects(step, "tool_calls", place):
            if not isinstance(call.get("tool_call_id"), str):
                self.say(f"{where}.tool_call_id", "is missing, or no text")
            self._unique(call.get("tool_call_id"), self.call_ids, f"{where}.tool_call_id")
            if not isinstance(call.get("arguments"), Mapping):
                self.say(f"{where}.arguments", "is not an object")

    def _metrics(self, step: Mapping[str, Any], place: str, sampled: int | None) -> int | None:
        """How many ids prompt and completion of the last step that tells have together."""
        metrics, place = self._object(step, "metrics", place), f"{place}.metrics"
        for name in (*_COUNTS, "cost_usd"):
            if name in metrics and not _is_count(metrics[name], whole=name != "cost_usd"):
                self.say(f"{place}.{name}", f"{metrics[name]!r} is no count")
        ids = self._numbers(metrics, "completion_token_ids", place, whole=True)
        logprobs = self._numbers(metrics, "logprobs", place, whole=False)
        prompt = self._numbers(metrics, "prompt_token_ids", place, whole=True)
        if ids != logprobs:
            self.say(place, f"ids and logprobs do not match: {ids} and {logprobs}")
        self._agrees(metrics, "completion_tokens", ids, place)
        extra = self._object(metrics, "extra", place)
        if "prompt_token_ids_delta" in extra:
            prompt = self._delta(extra, f"{place}.extra", sampled)
        self._agrees(metrics, "prompt_tokens", prompt, place)
        if ids is not None and prompt is None:
            self.say(place, "ids of a completion, and none of its prompt")
        return sampled if ids is None or prompt is None else prompt + ids

    def _delta(self, extra: Mapping[str, Any], place: str, sampled: int | None) -> int | None:
        delta = self._object(extra, "prompt_token_ids_delta", place)
        place = f"{place}.prompt_token_ids_delta"
        shared, new = delta.get("shared_prefix"), self._numbers(delta, "ids", place, whole=True)
        if new is None or not _is_count(shared, whole=True):
            self.say(place, "has no ids or no shared_prefix")
            return None
        assert isinstance(shared, int)
        if shared > (sampled or 0):
            self.say(f"{place}.shared_prefix", f"is {shared}, and the step before has {sampled or 0} ids")
        return shared + new

    def _numbers(self, owner: Mapping[str, Any], name: str, place: str, *, whole: bool) -> int | None:
        """The length of an array of numbers; None where there is none."""
        values = owner.get(name)
        if values is None:
            return None
        kinds = (int,) if whole else (int, float)
        if not isinstance(values, list) or not all(type(value) in kinds for value in values):
            self.say(f"{place}.{name}", "is not an array of numbers")
            return None
        return len(values)

    def _agrees(self, metrics: Mapping[str, Any], name: str, length: int | None, place: str) -> None:
        if length is not None and metrics.get(name, length) != length:
            self.say(place, f"ids and {name} do not match: {length} and {metrics[name]}")

    def _results(self, step: Mapping[str, Any], place: str) -> list[str]:
        """The trajectories referred to that are not in files."""
        made = step.get("tool_calls")
        calls = [_part({"": call}, "").get("tool_call_id") for call in (made if isinstance(made, list) else ())]
        refs = []
        observation, place = self._object(step, "observation", place), f"{place}.observation"
        for where, result in self._objects(observation, "results", place):
            if "source_call_id" in result and result["source_call_id"] not in calls:
                self.say(f"{where}.source_call_id", "is of no call of the step")
            for at, ref in self._objects(result, "subagent_trajectory_ref", where):
                if "trajectory_path" not in ref:
                    refs.append(str(ref.get("trajectory_id")))
                if "trajectory_path" not in ref and "trajectory_id" not in ref:
                    self.say(at, "refers to nothing")
        return refs

    def _children(self, document: Mapping[str, Any], place: str, refs: list[str]) -> None:
        children = list(self._objects(document, "subagent_trajectories", place))
        names = [str(child.get("trajectory_id")) for _, child in children]
        place = f"{place}.subagent_trajectories"
        for name, count in Counter(refs).items():
            if count > 1:
                self.say(place, f"{name!r} is referred to {count} times")
            if name not in names:
                self.say(place, f"{name!r} is referred to and not there")
        for name in names:
            if name not in refs:
                self.say(place, f"{name!r} is referred to by no step")
        if sorted(names) == sorted(refs) and names != refs:
            self.say(place, "are not in the order in which they are referred to")
        for where, child in children:
            self.trajectory(child, where)

    def _totals(self, document: Mapping[str, Any], steps: list[Mapping[str, Any]], place: str) -> None:
        final, place = self._object(document, "final_metrics", place), f"{place}.final_metrics"
        children = document.get("subagent_trajectories")
        for name in (*_COUNTS, "cost_usd"):
            own = [value for step in steps if (value := _number(step, "metrics", name)) is not None]
            self._sum(final, f"total_{name}", own, place)
            below = [
                value
                for child in (children if isinstance(children, list) else ())
                if (value := _number(_part(child, "final_metrics"), "extra", f"subtree_{name}")) is not None
            ]
            self._sum(_part(final, "extra"), f"subtree_{name}", [*own, *below], f"{place}.extra")
        if final.get("total_steps", len(steps)) != len(steps):
            self.say(f"{place}.total_steps", f"{final['total_steps']}, and there are {len(steps)}")

    def _sum(self, owner: Mapping[str, Any], name: str, values: list[float], place: str) -> None:
        total = owner.get(name)
        if not values and total is None:
            return
        if not isinstance(total, (int, float)) or not math.isclose(sum(values), total, abs_tol=1e-9):
            self.say(f"{place}.{name}", f"{total}, and the steps have {sum(values) if values else None}")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: Any, *, whole: bool) -> bool:
    return type(value) in ((int,) if whole else (int, float)) and value >= 0


def _part(owner: Any, name: str) -> Mapping[str, Any]:
    part = owner.get(name) if isinstance(owner, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _number(owner: Any, part: str, name: str) -> float | None:
    value = _part(owner, part).get(name)
    return value if type(value) in (int, float) else None
