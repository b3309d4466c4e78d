#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of deep_ep.Buffer costs the CPU thread that makes it: its own CPU time, while the GPU runs behind.

Usage: call_cost.py [--tokens 128] [--hidden 7168] [--experts 256] [--topk 8] [--only REGEX] [--deepep DIR] [--port 29555]

Two ranks, on two GPUs or on one (then start MPS). For each call, in the same run and alternating: the call; "floor", its outputs by torch.empty and its
launches, with structures made before. Median of several rounds, of rank 0. First with the extension, then by ctypes alone (EPF_PYTHON_EXTENSION=off). "as
DeepEP's test": the low-latency pair between two events, behind a kernel that empties the cache, mean of 50, which the CPU decides where it is slower than the
GPU. "as vLLM calls it": the calls of one layer of its high-throughput backend, asynchronous, each waited for by the current stream; the CPU's waiting for counts is in it.
"as training calls it": the same with what Megatron-core and SGLang give, previous_event of Buffer.capture(). --deepep: these and the single calls over DeepEP itself, from a folder
with its package and compiled module, which needs two GPUs. Nothing is judged.
"""
import argparse
import os
import re
import statistics
import sys
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


def layer_of(buffer, x, idx, weights, experts, event_of):
    """Returns a function with the calls of one layer. event_of: makes the previous_event of each call, or None."""
    def layer():
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
        rows, *_, handle, event = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                                                  topk_idx=idx, topk_weights=weights, previous_event=event_of(), async_finish=True)
        event.current_stream_wait()
        out, _, event = buffer.combine(rows, handle, previous_event=event_of(), async_finish=True)
        event.current_stream_wait()
        return out
    return layer


def calls_of(buffer, a, ours):
    """Returns (name, call, whether it has a floor) in the order of the table; each call with a floor returns the tensors it makes."""
    tokens, experts, topk = a.tokens, a.experts, a.topk
    x = torch.randn(tokens, a.hidden, dtype=torch.bfloat16, device="cuda")
    idx = torch.stack([torch.randperm(experts)[:topk] for _ in range(tokens)]).cuda()
    weights = torch.rand(tokens, topk, device="cuda")
    y = torch.zeros((experts // 2, tokens * 2, a.hidden), dtype=torch.bfloat16, device="cuda") if ours else None
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
    rows, *_, handle, _ = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                                          topk_idx=idx, topk_weights=weights)

    def pair():
        (codes, scales), count, handle, _, _ = buffer.low_latency_dispatch(x, idx, tokens, experts)
        return [codes, scales, count, handle[0], handle[1], buffer.low_latency_combine(y, idx, weights, handle)[0]]
    return [("low-latency dispatch + combine", pair, True)] * ours + [
        ("layout", lambda: [t for t in buffer.get_dispatch_layout(idx, experts)[:4] if t is not None], ours),
        ("dispatch, cached handle", lambda: [buffer.dispatch(x, handle=handle)[0]], ours),
        ("combine", lambda: [buffer.combine(rows, handle)[0]], ours),
        ("as vLLM calls it", layer_of(buffer, x, idx, weights, experts, lambda: None), False),
        ("as training calls it", layer_of(buffer, x, idx, weights, experts, buffer.capture), False)]


def rank_main(rank, a, deepep):
    """deepep: the folder of DeepEP's package; None: ours."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo", rank=rank, world_size=2)
    if deepep:
        sys.path.insert(0, deepep)
    import deep_ep
    if deepep:
        buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 30, 0, explicitly_destroy=True)
    else:
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(a.tokens, a.hidden, 2, a.experts)
        buffer = deep_ep.Buffer(dist.group.WORLD, 0, size, low_latency_mode=True)
    if rank == 0:
        print(f"# load {os.getloadavg()[0]:.1f}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}; "
              f"us of CPU time a call, {a.tokens} tokens, hidden {a.hidden}, top-{a.topk} of {a.experts}\n# call{'':27}   ours  floor  ratio")
    for name, call, has_floor in calls_of(buffer, a, not deepep):
        if not re.search(a.only, name):
            continue
        call()
        if not has_floor:
            took = statistics.median(once(call) for _ in range(ROUNDS))
            if rank == 0:
                print(f"  {name:31} {took:6.1f}", flush=True)
            continue
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
    parser.add_argument("--only", default=".")
    parser.add_argument("--deepep")
    options = parser.parse_args()
    for how in ("on", "off"):
        os.environ["EPF_PYTHON_EXTENSION"] = how
        print(f"# extension {how}", flush=True)
        mp.spawn(rank_main, args=(options, None), nprocs=2)
    if options.deepep:
        print("# DeepEP", flush=True)
        mp.spawn(rank_main, args=(options, os.path.abspath(options.deepep)), nprocs=2)
