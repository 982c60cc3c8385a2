"""Reads pickled tensors without running what the pickle asks for. Knows no HTTP.

Only tensors that carry their values are made, with containers, numbers, strings, dtypes and the metadata of flattened
buckets. Whatever else a pickle names is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

# Where trainers that have SGLang find the class; others pickle one of that name.
BUCKET_MODULE: Final = "sglang.srt.weight_sync.tensor_bucket"
BUCKET_CLASS: Final = "FlattenedTensorMetadata"


class PayloadRefused(Exception):
    """A payload that is no pickle of tensors by value."""


class FlattenedTensorMetadata:
    """Of one tensor in a bucket: name, shape, dtype, start_idx, end_idx, numel; the last three in bytes."""

    name: str
    shape: Sequence[int]
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


def load_pickled(data: bytes) -> Any:
    """Raises PayloadRefused."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except PayloadRefused:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise PayloadRefused(f"it cannot be read: {type(error).__name__}: {error}") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is not None:
            return found
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise PayloadRefused(f"it names {module}.{name}, which is no part of a tensor by value")

    def persistent_load(self, pid: Any) -> Any:
        raise PayloadRefused("it refers to something outside of it")


def _storage(data: bytes) -> Any:
    """A storage by value is a checkpoint of its own within the pickle."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> torch.Tensor:
    """Like torch's own, but a view must lie within its storage, which would grow otherwise."""
    if not isinstance(storage, torch.TypedStorage):
        raise PayloadRefused("a tensor has no storage")
    if len(size) != len(stride) or offset < 0 or min([0, *size, *stride]) < 0:
        raise PayloadRefused("a tensor has an impossible shape")
    untyped = storage._untyped_storage
    room = untyped.nbytes() // storage.dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) and (last >= room or math.prod(size) > room):
        raise PayloadRefused("a tensor is larger than its storage")
    made = torch.empty(0, dtype=storage.dtype)
    return made.set_(untyped, offset, tuple(size), tuple(stride))


def _parameter(data: torch.Tensor, *_: Any) -> torch.Tensor:
    return data


def _size(values: Sequence[int] = ()) -> tuple[int, ...]:
    return tuple(values)


def _bytes(text: str, encoding: str) -> bytes:
    """How old pickle protocols spell bytes."""
    if encoding != "latin1":
        raise PayloadRefused(f"it spells bytes in {encoding!r}")
    return text.encode(encoding)


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _bytes,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): _size,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.storage", "_load_from_bytes"): _storage,
    (BUCKET_MODULE, BUCKET_CLASS): FlattenedTensorMetadata,
}
