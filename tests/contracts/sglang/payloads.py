"""Weights as trainers send them: pickled by value, as a list of names and tensors or as one flattened bucket."""

from __future__ import annotations

import base64
import pickle
import sys
import types
from typing import Any

import torch


class FlattenedTensorMetadata:
    def __init__(self, **fields: Any) -> None:
        self.__dict__ |= fields


# Its pickles name the server's own class, also where SGLang is not installed.
FlattenedTensorMetadata.__module__ = "sglang.srt.weight_sync.tensor_bucket"
FlattenedTensorMetadata.__qualname__ = "FlattenedTensorMetadata"


def plain(tensors: dict[str, torch.Tensor]) -> list[str]:
    return [encoded(list(tensors.items()))]


def bucket(tensors: dict[str, torch.Tensor]) -> list[str]:
    parts, metadata, start = [], [], 0
    for name, tensor in tensors.items():
        flat = tensor.contiguous().flatten().view(torch.uint8)
        end = start + flat.numel()
        metadata.append(
            FlattenedTensorMetadata(
                name=name, shape=tensor.shape, dtype=tensor.dtype, start_idx=start, end_idx=end, numel=flat.numel()
            )
        )
        parts.append(flat)
        start = end
    return [encoded({"flattened_tensor": torch.cat(parts), "metadata": metadata})]


def encoded(value: Any) -> str:
    name = FlattenedTensorMetadata.__module__
    added = [name.rpartition(".")[0][: len(part)] for part in _packages(name)]
    before = set(sys.modules)
    for package in (*added, name):
        sys.modules.setdefault(package, types.ModuleType(package))
    holder: Any = sys.modules[name]
    try:
        if not hasattr(holder, "FlattenedTensorMetadata"):
            holder.FlattenedTensorMetadata = FlattenedTensorMetadata
        return base64.b64encode(pickle.dumps(value)).decode()
    finally:
        for module in set(sys.modules) - before:
            del sys.modules[module]


def _packages(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
