"""A trainer in a process of its own: the first of a Gloo group, it broadcasts the tensors of a file and ends.

python trainer.py PORT GROUP FILE
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import GroupName, PrefixStore
from torch.distributed.rendezvous import rendezvous


def main() -> None:
    port, name, file = sys.argv[1:]
    timeout = timedelta(seconds=60)
    store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=timeout))
    group, _ = distributed_c10d._new_process_group_helper(
        size, rank, [], dist.Backend("gloo"), PrefixStore(name, store), group_name=GroupName(name), timeout=timeout
    )
    print("joined", flush=True)
    sys.stdin.readline()
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    for tensor in load_file(file).values():
        group.broadcast([tensor], options).wait()
    print("sent", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
