"""ATIF documents as files: written whole or not at all, split into files and joined, and checked. Knows no events."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaz_actors.recorders.atif import refs_of

ROOT_FILE = "trajectory.json"


def write_documents(path: Path, documents: Sequence[Mapping[str, Any]]) -> list[Path]:
    """One file a root, each replaced whole: `path` for a single one, else `STEM.ROOT.json` beside it."""
    single = len(documents) == 1
    written = []
    for document in documents:
        root = document["trajectory_id"].partition(":")[2]
        target = path if single else path.with_name(f"{path.stem}.{root}{path.suffix or '.json'}")
        write_whole(target, json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2))
        written.append(target)
    return written


def write_whole(path: Path, text: str) -> None:
    """A reader sees the file as it was before or as it is now, and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def split(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The file form: children in files of their own, that references name by `trajectory_path`."""
    files: dict[str, dict[str, Any]] = {}
    _split(document, ROOT_FILE, files)
    return files


def _split(document: Mapping[str, Any], name: str, files: dict[str, dict[str, Any]]) -> None:
    parent = files[name] = json.loads(json.dumps({k: v for k, v in document.items() if k != "subagent_trajectories"}))
    names = {}
    for child in document.get("subagent_trajectories", ()):
        names[child["trajectory_id"]] = file = f"trajectory.{child['trajectory_id'].partition(':')[2]}.json"
        _split(child, file, files)
    for ref in _refs(parent):
        if ref.get("trajectory_id") in names:
            ref["trajectory_path"] = names[ref["trajectory_id"]]


def join(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The document that `split` made the files of. Raises KeyError for a file that is not there."""
    return _joined(files, ROOT_FILE)


def _joined(files: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(files[name]))
    children = []
    for ref in _refs(document):
        file = ref.pop("trajectory_path", None)
        if file is not None:
            children.append(_joined(files, file))
    if children:
        document["subagent_trajectories"] = children
    return document


def _refs(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for step in document.get("steps", ()):
        for result in step.get("observation", {}).get("results", ()):
            yield from result.get("subagent_trajectory_ref", ())


def validate(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with a document, each with its place; beyond the schema, what no public checker looks at."""
    problems: list[str] = []
    seen: set[str] = set()
    _check_tree(document, "$", seen, problems)
    _check_values(document, "$", problems)
    return problems


def _check_tree(document: Mapping[str, Any], place: str, seen: set[str], problems: list[str]) -> None:
    name = document.get("trajectory_id", "")
    if name in seen:
        problems.append(f"{place}.trajectory_id: {name!r} is there twice")
    seen.add(name)
    steps = document.get("steps", [])
    if [step.get("step_id") for step in steps] != list(range(1, len(steps) + 1)):
        problems.append(f"{place}.steps: step_id does not count from 1")
    calls = [call["tool_call_id"] for step in steps for call in step.get("tool_calls", ())]
    if len(calls) != len(set(calls)):
        problems.append(f"{place}.steps: a tool_call_id is there twice")
    times = [step["timestamp"] for step in steps if "timestamp" in step]
    if times != sorted(times):
        problems.append(f"{place}.steps: timestamps go back")
    for number, step in enumerate(steps):
        _check_step(step, f"{place}.steps[{number}]", problems)
    for name, total in document.get("final_metrics", {}).items():
        field = name.removeprefix("total_")
        if field in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"):
            own = sum(step.get("metrics", {}).get(field, 0) for step in steps)
            if not math.isclose(own, total, abs_tol=1e-9):
                problems.append(f"{place}.final_metrics.{name}: {total}, and the steps have {own}")
    children = document.get("subagent_trajectories", [])
    if [child.get("trajectory_id") for child in children] != refs_of(steps):
        problems.append(f"{place}.subagent_trajectories: not the ones referred to, in their order")
    for number, child in enumerate(children):
        _check_tree(child, f"{place}.subagent_trajectories[{number}]", seen, problems)


def _check_step(step: Mapping[str, Any], place: str, problems: list[str]) -> None:
    metrics = step.get("metrics", {})
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    if (ids is None) != (logprobs is None) or (ids is not None and len(ids) != len(logprobs)):
        problems.append(f"{place}.metrics: ids and logprobs do not match")
    if ids is not None and metrics.get("completion_tokens", len(ids)) != len(ids):
        problems.append(f"{place}.metrics: ids and completion_tokens do not match")
    if metrics and step.get("llm_call_count") != 1:
        problems.append(f"{place}.metrics: of a step without a query")
    calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
    results = step.get("observation", {}).get("results", ())
    if any("source_call_id" in result and result["source_call_id"] not in calls for result in results):
        problems.append(f"{place}.observation: result of no call of the step")


def _check_values(value: Any, place: str, problems: list[str]) -> None:
    match value:
        case None:
            problems.append(f"{place}: null")
        case float() if not math.isfinite(value):
            problems.append(f"{place}: {value}")
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                problems.append(f"{place}: a lone surrogate")
        case Mapping():
            for name, item in value.items():
                _check_values(item, f"{place}.{name}", problems)
        case list():
            for number, item in enumerate(value):
                _check_values(item, f"{place}[{number}]", problems)
