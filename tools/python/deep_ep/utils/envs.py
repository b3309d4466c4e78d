# SPDX-License-Identifier: Apache-2.0
"""Starting the processes of a test: one process group over NCCL."""
from __future__ import annotations

import inspect
import os
import random
from typing import Any, Optional, Tuple

_seeds = (0, 0)
_local_rank: Optional[int] = None


def init_seed(global_seed: int) -> None:
    """Seeds this rank's random numbers with global_seed plus its rank."""
    global _seeds
    import torch
    import torch.distributed as dist
    _seeds = (global_seed, global_seed + dist.get_rank())
    torch.manual_seed(_seeds[1])
    random.seed(_seeds[1])


def get_global_seed() -> int:
    """The number given to init_seed()."""
    return _seeds[0]


def get_local_seed() -> int:
    """The seed of this rank's random numbers."""
    return _seeds[1]


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints a line, at every rank or at the first of each node, and waits for all ranks."""
    import torch.distributed as dist
    if not once_in_node or _local_rank == 0:
        print(s, flush=True)
    dist.barrier()


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> Tuple[int, int, Any]:
    """Makes the process group of a test, whose node is numbered RANK of WORLD_SIZE nodes, at MASTER_ADDR and MASTER_PORT.

    Afterwards new tensors are bfloat16 on this rank's GPU, as the tests expect; without a GPU they are on the CPU, and the group uses gloo. Returns rank,
    ranks, and a group of all ranks.
    """
    global _local_rank
    import torch
    import torch.distributed as dist

    _local_rank, on_gpu = local_rank, torch.cuda.is_available()
    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    address = os.environ.get("MASTER_ADDR", "127.0.0.1") + ":" + os.environ.get("MASTER_PORT", "8361")
    if on_gpu:
        torch.cuda.set_device(local_rank)
    more = {}
    if on_gpu and "device_id" in inspect.signature(dist.init_process_group).parameters:
        more["device_id"] = torch.device("cuda", local_rank)
    ranks = nodes * num_local_ranks
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=f"tcp://{address}", world_size=ranks, rank=node * num_local_ranks + local_rank, **more)
    torch.set_default_dtype(torch.bfloat16)
    if on_gpu:
        torch.set_default_device("cuda")
    init_seed(seed)
    return dist.get_rank(), ranks, dist.new_group(list(range(ranks)))
