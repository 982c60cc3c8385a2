"""ATIF documents as files: written whole or not at all, split into files and joined. Knows no events."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaz_actors.recorders.atif import refs_of

ROOT_FILE = "trajectory.json"


def write_documents(path: Path, documents: Sequence[Mapping[str, Any]]) -> list[Path]:
    """One file a root, each replaced whole: `path` for a single one, else `STEM.ROOT.json` beside it.

    What was written to `path` while there was only one root goes, once that root has a file of its own.
    """
    single = len(documents) == 1
    written = []
    for document in documents:
        root = document["trajectory_id"].partition(":")[2]
        target = path if single else path.with_name(f"{path.stem}.{root}{path.suffix or '.json'}")
        write_whole(target, json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2))
        written.append(target)
    if not single and _id_in(path) in {document["trajectory_id"] for document in documents}:
        path.unlink(missing_ok=True)
    return written


def _id_in(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text("utf-8"))["trajectory_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_whole(path: Path, text: str) -> None:
    """A reader sees the file as it was before or as it is now, and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def split(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The file form: children in files of their own, that references name by `trajectory_path`.

    Raises ValueError for a document that could not be joined again: `atif_check.validate` says why.
    """
    files: dict[str, dict[str, Any]] = {}
    _split(document, ROOT_FILE, files)
    return files


def _split(document: Mapping[str, Any], name: str, files: dict[str, dict[str, Any]]) -> None:
    parent = files[name] = json.loads(json.dumps({k: v for k, v in document.items() if k != "subagent_trajectories"}))
    children = document.get("subagent_trajectories", ())
    if [child["trajectory_id"] for child in children] != refs_of(parent["steps"]):
        raise ValueError(f"{document['trajectory_id']}: its children are not those that it refers to, in their order")
    for ref, child in zip(_refs(parent), children, strict=True):
        file = _file_name(str(child["trajectory_id"]))
        if file in files or "trajectory_path" in ref:
            raise ValueError(f"{child['trajectory_id']}: there is a file {ref.get('trajectory_path', file)} already")
        ref["trajectory_path"] = file
        _split(child, file, files)


def _file_name(trajectory_id: str) -> str:
    """Names of our own ids stay readable; no id leads out of the folder."""
    path = trajectory_id.partition(":")[2] or trajectory_id
    return f"trajectory.{re.sub(r'[^A-Za-z0-9._-]', '_', path)}.json"


def join(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The document that `split` made the files of. Raises KeyError for a file that is not there, ValueError for one
    that is referred to twice."""
    return _joined(files, ROOT_FILE, set())


def _joined(files: Mapping[str, Mapping[str, Any]], name: str, seen: set[str]) -> dict[str, Any]:
    if name in seen:
        raise ValueError(f"{name} is referred to twice")
    seen.add(name)
    document: dict[str, Any] = json.loads(json.dumps(files[name]))
    children = []
    for ref in _refs(document):
        file = ref.pop("trajectory_path", None)
        if file is not None:
            children.append(_joined(files, file, seen))
    if children:
        document["subagent_trajectories"] = children
    return document


def _refs(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for step in document.get("steps", ()):
        for result in step.get("observation", {}).get("results", ()):
            yield from result.get("subagent_trajectory_ref", ())
