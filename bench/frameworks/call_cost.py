#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of deep_ep.Buffer costs the CPU thread that makes it: its own CPU time, while the GPU runs behind.

Usage: call_cost.py [--tokens 128] [--hidden 7168] [--experts 256] [--topk 8] [--port 29555]

Two ranks, on two GPUs or on one (then start MPS). For each call, in the same run and alternating: the call; "floor", its outputs by torch.empty and its
launches, with structures made before. Median of several rounds, of rank 0. First with the extension, then by ctypes alone (EPF_PYTHON_EXTENSION=off). "as
DeepEP's test": the low-latency pair between two events, behind a kernel that empties the cache, mean of 50, which the CPU decides where it is slower than the
GPU. Nothing is judged.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS, CALLS = 11, 40


def once(call):
    """Returns microseconds of this thread's CPU time per call."""
    torch.cuda.synchronize()
    dist.barrier()
    start = time.thread_time()
    for _ in range(CALLS):
        call()
    took = (time.thread_time() - start) / CALLS * 1e6
    torch.cuda.synchronize()
    return took


class Remembers:
    """Stands before an object of the C library for one call, to keep the structure that the call was given."""

    def __init__(self, real):
        self._real, self.launches = real, []

    def __getattr__(self, name):
        function = getattr(self._real, name)
        if name not in ("dispatch", "combine", "layout"):
            return function

        def launch(*arguments):
            self.launches.append((function, arguments))
            return function(*arguments)
        return launch


def between_events(call, rounds=50):
    """Returns microseconds on the GPU from before a call until after it, the way DeepEP's test measures them."""
    cache = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    torch.cuda.synchronize()
    dist.barrier()
    for begin, end in events:
        cache.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.mean(begin.elapsed_time(end) * 1e3 for begin, end in events[1:])


def floor_of(buffer, call):
    """Returns a function with the launches and allocations of a call, and nothing else. call: returns its outputs."""
    ll, ht = buffer._ll, buffer._ht
    buffer._ll, buffer._ht = Remembers(ll), Remembers(ht)
    try:
        outputs = call()
        launches = buffer._ll.launches + buffer._ht.launches
    finally:
        buffer._ll, buffer._ht = ll, ht
    made = [(tuple(t.shape), t.dtype) for t in outputs]

    def floor():
        for shape, dtype in made:
            torch.empty(shape, dtype=dtype, device="cuda")
        for function, arguments in launches:
            function(*arguments)
    floor.keep = outputs  # the launches write there
    return floor


def calls_of(buffer, a):
    """Returns (name, call) in the order of the table; each call returns the tensors it makes."""
    tokens, experts, topk = a.tokens, a.experts, a.topk
    x = torch.randn(tokens, a.hidden, dtype=torch.bfloat16, device="cuda")
    idx = torch.stack([torch.randperm(experts)[:topk] for _ in range(tokens)]).cuda()
    weights = torch.rand(tokens, topk, device="cuda")
    y = torch.zeros((experts // 2, tokens * 2, a.hidden), dtype=torch.bfloat16, device="cuda")
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
    rows, *_, handle, _ = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                                          topk_idx=idx, topk_weights=weights)

    def pair():
        (codes, scales), count, handle, _, _ = buffer.low_latency_dispatch(x, idx, tokens, experts)
        return [codes, scales, count, handle[0], handle[1], buffer.low_latency_combine(y, idx, weights, handle)[0]]
    return [("low-latency dispatch + combine", pair),
            ("layout", lambda: [t for t in buffer.get_dispatch_layout(idx, experts)[:4] if t is not None]),
            ("dispatch, cached handle", lambda: [buffer.dispatch(x, handle=handle)[0]]),
            ("combine", lambda: [buffer.combine(rows, handle)[0]])]


def rank_main(rank, a):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo", rank=rank, world_size=2)
    import deep_ep
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(a.tokens, a.hidden, 2, a.experts)
    buffer = deep_ep.Buffer(dist.group.WORLD, 0, size, low_latency_mode=True)
    if rank == 0:
        print(f"# load {os.getloadavg()[0]:.1f}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}; "
              f"us of CPU time a call, {a.tokens} tokens, hidden {a.hidden}, top-{a.topk} of {a.experts}\n# call{'':27}   ours  floor  ratio")
    for name, call in calls_of(buffer, a):
        call()
        floor = floor_of(buffer, call)
        ours, least = zip(*((once(call), once(floor)) for _ in range(ROUNDS)))
        ours, least = statistics.median(ours), statistics.median(least)
        if rank == 0:
            print(f"  {name:31} {ours:6.1f} {least:6.1f} {ours / least:6.2f}", flush=True)
        if name.startswith("low-latency"):
            took = between_events(call)
            if rank == 0:
                like = "  as DeepEP's test"
                print(f"  {like:31} {took:6.1f}", flush=True)
    dist.barrier()
    buffer.destroy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, value in (("tokens", 128), ("hidden", 7168), ("experts", 256), ("topk", 8), ("port", 29555)):
        parser.add_argument(f"--{option}", type=int, default=value)
    options = parser.parse_args()
    for how in ("on", "off"):
        os.environ["EPF_PYTHON_EXTENSION"] = how
        print(f"# extension {how}", flush=True)
        mp.spawn(rank_main, args=(options,), nprocs=2)
