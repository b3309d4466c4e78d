# SPDX-License-Identifier: Apache-2.0
"""Starting the processes of a test: one process group over NCCL."""
from __future__ import annotations

import inspect
import os
import random
from typing import Any, Tuple


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> Tuple[int, int, Any]:
    """Makes the process group of a test, whose node is numbered RANK of WORLD_SIZE nodes, at MASTER_ADDR and MASTER_PORT.

    Afterwards new tensors are bfloat16 on this rank's GPU, as the tests expect. Returns rank, ranks, and a group of them all.
    """
    import torch
    import torch.distributed as dist

    nodes, node = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    address = os.environ.get("MASTER_ADDR", "127.0.0.1") + ":" + os.environ.get("MASTER_PORT", "8361")
    torch.cuda.set_device(local_rank)
    more = {}
    if "device_id" in inspect.signature(dist.init_process_group).parameters:
        more["device_id"] = torch.device("cuda", local_rank)
    ranks = nodes * num_local_ranks
    dist.init_process_group("nccl", init_method=f"tcp://{address}", world_size=ranks, rank=node * num_local_ranks + local_rank, **more)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    rank = dist.get_rank()
    torch.manual_seed(seed + rank)
    random.seed(seed + rank)
    return rank, ranks, dist.new_group(list(range(ranks)))
