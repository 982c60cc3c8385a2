"""Keys and values of earlier sequences, found again by what a new prompt begins with. Knows no batch and no request.

Entries of different namespaces (`extra_key`, for example a weight version) never serve each other.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaz_actors.backends.embedded.cache import Snapshot

# Shorter prefixes are not worth a copy, and the first tokens make a quick index.
MIN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Hit:
    """The first `length` positions of the snapshot are those of the prompt."""

    snapshot: Snapshot
    length: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    namespace: str | None
    first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    token_ids: npt.NDArray[np.int64]
    snapshot: Snapshot


class PrefixCache:
    """Least recently used entries go first once `max_bytes` are passed. Owned by the engine's thread."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._buckets: OrderedDict[_Bucket, list[_Entry]] = OrderedDict()

    @property
    def bytes(self) -> int:
        return self._bytes

    def longest(self, namespace: str | None, token_ids: list[int]) -> Hit | None:
        if len(token_ids) < MIN_TOKENS:
            return None
        bucket = _Bucket(namespace, tuple(token_ids[:MIN_TOKENS]))
        entries = self._buckets.get(bucket)
        if not entries:
            return None
        self._buckets.move_to_end(bucket)
        wanted = np.array(token_ids)
        lengths = [_common(entry.token_ids, wanted) for entry in entries]
        best = max(range(len(entries)), key=lengths.__getitem__)
        entry = entries.pop(best)
        entries.append(entry)
        return Hit(entry.snapshot, lengths[best])

    def store(self, namespace: str | None, token_ids: list[int], snapshot: Snapshot) -> None:
        """An entry that begins the new one is replaced by it."""
        if len(token_ids) < MIN_TOKENS:
            return
        added = _Entry(np.array(token_ids), snapshot)
        bucket = _Bucket(namespace, tuple(token_ids[:MIN_TOKENS]))
        kept = [e for e in self._buckets.get(bucket, ()) if _common(e.token_ids, added.token_ids) < len(e.token_ids)]
        self._bytes -= sum(entry.snapshot.bytes for entry in self._buckets.get(bucket, ()))
        self._bytes += sum(entry.snapshot.bytes for entry in (*kept, added))
        self._buckets[bucket] = [*kept, added]
        self._buckets.move_to_end(bucket)
        self._evict()

    def clear(self) -> None:
        self._buckets.clear()
        self._bytes = 0

    def _evict(self) -> None:
        while self._bytes > self._max_bytes and self._buckets:
            bucket, entries = next(iter(self._buckets.items()))
            self._bytes -= entries.pop(0).snapshot.bytes
            if not entries:
                del self._buckets[bucket]


def _common(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length
