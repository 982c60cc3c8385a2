"""The two forms in which tensors come by HTTP: a list of names and tensors, or one flat tensor and what is in it."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

import torch

from jaz_actors.backends.embedded.safe_unpickler import FlattenedTensorMetadata, PayloadRefused, load_pickled
from jaz_actors.backends.embedded.weights import Named

FLATTENED = "flattened_bucket"


def read_payload(text: str, load_format: str | None) -> list[Named]:
    """text: base64 of a pickle. Raises PayloadRefused."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PayloadRefused(f"it is no base64: {error}") from error
    loaded = load_pickled(data)
    if load_format == FLATTENED:
        return _from_bucket(loaded)
    if load_format is not None:
        raise PayloadRefused(f"load_format {load_format!r} is not served")
    if not isinstance(loaded, list | tuple) or not all(_is_named(item) for item in loaded):
        raise PayloadRefused("it is no list of (name, tensor)")
    return [(name, tensor) for name, tensor in loaded]


def split_flat(flat: torch.Tensor, names: Sequence[str], dtypes: Sequence[torch.dtype], shapes: Any) -> list[Named]:
    """flat: [bytes] uint8, the tensors one after the other. Raises PayloadRefused."""
    named: list[Named] = []
    start = 0
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        end = start + math.prod(shape) * dtype.itemsize
        named.append((name, _cut(flat, name, start, end, dtype, shape)))
        start = end
    return named


def _from_bucket(loaded: Any) -> list[Named]:
    flat = loaded.get("flattened_tensor") if isinstance(loaded, dict) else None
    metadata = loaded.get("metadata") if isinstance(loaded, dict) else None
    if not isinstance(flat, torch.Tensor) or not isinstance(metadata, list | tuple):
        raise PayloadRefused("a bucket is {flattened_tensor, metadata}")
    if not flat.is_contiguous() or flat.dim() != 1:
        raise PayloadRefused("a bucket's tensor is one contiguous row")
    flat = flat.view(torch.uint8)
    try:
        return [(one.name, _cut(flat, one.name, one.start_idx, one.end_idx, one.dtype, one.shape)) for one in metadata]
    except (AttributeError, TypeError) as error:
        raise PayloadRefused(f"a bucket's metadata is incomplete: {error}") from error


def _cut(flat: torch.Tensor, name: str, start: int, end: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if not isinstance(name, str) or not isinstance(dtype, torch.dtype):
        raise PayloadRefused("a bucket's metadata names no tensor")
    if not 0 <= start <= end <= flat.numel() or end - start != math.prod(shape) * dtype.itemsize:
        raise PayloadRefused(f"{name} does not lie within the bucket")
    # Cloned: a view of another dtype must begin at a multiple of its size.
    return flat[start:end].clone().view(dtype).reshape(tuple(shape))


def _is_named(item: Any) -> bool:
    return (
        isinstance(item, list | tuple)
        and len(item) == 2
        and isinstance(item[0], str)
        and isinstance(item[1], torch.Tensor)
    )


__all__ = ["FLATTENED", "FlattenedTensorMetadata", "read_payload", "split_flat"]
