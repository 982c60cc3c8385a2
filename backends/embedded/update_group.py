"""Groups in which a trainer broadcasts weights, over torch.distributed. Knows no HTTP and no model.

The rendezvous is the one that trainers for SGLang use: a TCP store at the trainer, and a group of its own beside any
default group.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

RENDEZVOUS_SECONDS: Final = 60.0
BROADCAST_SECONDS: Final = 300.0


class GroupFailed(Exception):
    """A rendezvous or a broadcast did not come about."""


def join_group(
    address: str, port: int, *, rank: int, world_size: int, name: str, backend: str, seconds: float = RENDEZVOUS_SECONDS
) -> Any:
    """Blocks until all are there. Returns the process group. Raises GroupFailed."""
    try:
        return _joined(f"tcp://{address}:{port}", rank, world_size, name, backend, seconds)
    except (RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise GroupFailed(str(error).strip().splitlines()[0]) from error


def _joined(where: str, rank: int, world_size: int, name: str, backend: str, seconds: float) -> Any:
    timeout = timedelta(seconds=seconds)
    store, rank, world_size = next(rendezvous(where, rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = distributed_c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        dist.Backend(backend),
        PrefixStore(name, store),
        group_name=distributed_c10d.GroupName(name),
        timeout=timedelta(seconds=BROADCAST_SECONDS),
    )
    # What torch enters for groups that it makes itself, and needs to destroy one.
    distributed_c10d._world.pg_group_ranks[group] = {one: one for one in range(world_size)}
    return group


def receive(group: Any, dtypes: Sequence[torch.dtype], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """What the first of the group broadcasts, in order. Blocks. Raises GroupFailed."""
    try:
        tensors = [torch.empty(tuple(shape), dtype=dtype) for dtype, shape in zip(dtypes, shapes, strict=True)]
        works = [_broadcast(group, tensor) for tensor in tensors]
        for work in works:
            work.wait()
    except (RuntimeError, ValueError, TypeError) as error:
        raise GroupFailed(str(error).strip().splitlines()[0]) from error
    return tensors


def _broadcast(group: Any, tensor: torch.Tensor) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    return group.broadcast([tensor], options)


def leave_group(group: Any) -> None:
    dist.destroy_process_group(group)
