#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's symmetric memory over NVSHMEM and DeepEP over the shim in the same processes: shim_torch.py RANKS, run by ep-fabric shim.

PyTorch uses the real NVSHMEM library before, between and after DeepEP's low-latency calls; the bytes of both must be right. Run with DeepEP's
folder in PYTHONPATH. Prints "symmetric ..." lines; exit 0: everything was right.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

TOKENS, HIDDEN, TOPK, EXPERTS = 32, 2048, 4, 16


def torch_side(rank, ranks, tensor, turn):
    """Even ranks put their number to the next rank over NVSHMEM, then odd ones; each must receive its predecessor's."""
    for giver in (0, 1):
        tensor.fill_(float(1000 * turn + rank))
        torch.cuda.synchronize()
        dist.barrier()
        if rank % 2 == giver:
            torch.ops.symm_mem.nvshmem_put(tensor, (rank + 1) % ranks)
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        want = 1000 * turn + (rank if rank % 2 == giver else (rank - 1) % ranks)
        assert bool((tensor == want).all()), f"symmetric memory: {tensor[:4].tolist()}, not {want}"


def deep_ep_side(rank, ranks, buffer):
    """One dispatch and one combine of rows that carry their rank."""
    x = torch.full((TOKENS, HIDDEN), float(rank + 1), dtype=torch.bfloat16, device="cuda")
    index = torch.stack([(torch.arange(TOKENS, device="cuda") + 3 * k) % EXPERTS for k in range(TOPK)], dim=1)
    weights = torch.full((TOKENS, TOPK), 1.0 / TOPK, dtype=torch.float32, device="cuda")
    rows, count, handle, event, _ = buffer.low_latency_dispatch(x, index, TOKENS, EXPERTS, use_fp8=False, async_finish=True)
    event.current_stream_wait()
    assert int(count.sum()) == ranks * TOKENS * TOPK // ranks, count.tolist()
    out, event, _ = buffer.low_latency_combine(rows, index, weights, handle, async_finish=True)
    event.current_stream_wait()
    assert bool((out == x).all()), f"DeepEP: {out[0, :4].tolist()}, not {rank + 1}"


def run(rank, ranks):
    import deep_ep
    os.environ["NVSHMEM_DISABLE_P2P"] = "0"
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:8362", world_size=ranks, rank=rank, device_id=device)
    symm.set_backend("NVSHMEM")
    tensor = symm.empty(4096, dtype=torch.float32, device=device)
    symm.rendezvous(tensor, dist.group.WORLD)
    torch_side(rank, ranks, tensor, 1)
    if rank == 0:
        print("symmetric memory of PyTorch: right before DeepEP's start", flush=True)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, ranks, EXPERTS)
    buffer = deep_ep.Buffer(dist.group.WORLD, num_rdma_bytes=size, low_latency_mode=True, num_qps_per_rank=EXPERTS // ranks,
                            allow_nvlink_for_low_latency_mode=False, explicitly_destroy=True)
    for turn in range(2, 12):
        deep_ep_side(rank, ranks, buffer)
        torch_side(rank, ranks, tensor, turn)
    if rank == 0:
        print("symmetric memory of PyTorch and DeepEP's calls, alternating, 10 rounds: right", flush=True)
    buffer.destroy()
    torch_side(rank, ranks, tensor, 12)
    if rank == 0:
        print("symmetric memory of PyTorch after DeepEP's end: right", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
