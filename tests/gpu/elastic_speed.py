#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of ElasticBuffer's calls: of ours, or of DeepEP V2's, whichever deep_ep is found first.

    elastic_speed.py run FILE [--ranks N] [--sms N] [--quick]       measures and appends a JSON object to FILE
    elastic_speed.py ratio OURS THEIRS                              prints medians of the runs in two files, and ours divided by theirs

One process a GPU, over NCCL. Before each call the ranks meet on the GPU, and the L2 cache is filled with something else. A figure is the median over the
rounds, of the slowest rank, by CUDA events; on CPU tensors, where it means nothing, by the clock. Nothing is judged.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HIDDEN, TOPK, EXPERTS = (7168, 8, 256) if ON_GPU else (512, 4, 16)
ROUNDS = 15 if ON_GPU else 3


def to_fp8(x):
    """Rows as E4M3 with one scale for each 128 numbers."""
    groups = x.view(x.size(0), -1, 128).float()
    scale = groups.abs().amax(2).clamp(1e-4) / 448.0
    return (groups / scale[..., None]).to(torch.float8_e4m3fn).view_as(x), scale


class Clock:
    """Times calls of all ranks together."""

    def __init__(self):
        self.flush = torch.empty(64 << 20 if ON_GPU else 1, dtype=torch.int32, device=DEVICE)
        self.meeting = torch.zeros(1, device=DEVICE)

    def once(self, call):
        """Returns microseconds of one call on this rank."""
        self.flush.zero_()
        if not ON_GPU:
            dist.barrier()
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        torch.cuda._sleep(2000000)  # the call is launched meanwhile
        dist.all_reduce(self.meeting)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3

    def median(self, call):
        """Of the slowest rank."""
        took = [self.once(call) for _ in range(ROUNDS + 2)][2:]
        mine = torch.tensor([statistics.median(took)], dtype=torch.float64, device=DEVICE)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        return float(mine)


def calls_of(b, tokens, sms):
    """The calls on one batch, by name."""
    x = torch.randn((tokens, HIDDEN), device=DEVICE).bfloat16()
    weights, idx = torch.rand((tokens, EXPERTS), device=DEVICE).topk(TOPK)
    fp8 = to_fp8(x)
    common = {"topk_idx": idx, "topk_weights": weights, "num_experts": EXPERTS, "num_max_tokens_per_rank": tokens, "num_sms": sms}
    rows, _, _, handle, _ = b.dispatch(x, **common)
    grouped, _, _, groups, _ = b.dispatch(x, **common, do_expand=True)
    y, z = rows.clone(), grouped.clone()
    return {
        "dispatch bf16": lambda: b.dispatch(x, **common),
        "dispatch fp8": lambda: b.dispatch(fp8, **common),
        "dispatch without CPU sync": lambda: b.dispatch(x, **common, do_cpu_sync=False),
        "along a handle bf16": lambda: b.dispatch(x, handle=handle, num_sms=sms),
        "along a handle fp8": lambda: b.dispatch(fp8, handle=handle, num_sms=sms),
        "grouped bf16": lambda: b.dispatch(x, **common, do_expand=True),
        "grouped fp8": lambda: b.dispatch(fp8, **common, do_expand=True),
        "combine": lambda: b.combine(y, handle, num_sms=sms),
        "combine grouped": lambda: b.combine(z, groups, num_sms=sms),
    }


def worker(rank, args, folder):
    """The process of a rank."""
    if ON_GPU:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if ON_GPU else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=args.ranks,
                            **({"device_id": torch.device("cuda", rank)} if ON_GPU else {}))
    torch.manual_seed(rank)
    import deep_ep
    found, clock = {}, Clock()
    for tokens in ((4096,) if args.quick else (4096, 128)) if ON_GPU else (64,):
        b = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=tokens, hidden=HIDDEN, num_topk=TOPK, explicitly_destroy=True)
        sms = args.sms or b.get_theoretical_num_sms(EXPERTS, TOPK)
        for name, call in calls_of(b, tokens, sms).items():
            found[f"{tokens} tokens, {args.sms or 'own choice of'} SMs, {name}"] = clock.median(call)
        b.destroy()
    if rank == 0:
        with open(args.file, "a", encoding="ascii") as f:
            f.write(json.dumps({"version": deep_ep.__version__, "device": torch.cuda.get_device_name() if ON_GPU else "CPU", "us": found}) + "\n")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def medians(path):
    with open(path, encoding="ascii") as f:
        runs = [json.loads(line) for line in f]
    us = {}
    for one in runs:
        for name, took in one["us"].items():
            us.setdefault(name, []).append(took)
    return f"{runs[0]['version']}, {runs[0]['device']}, {len(runs)} runs", {name: statistics.median(took) for name, took in us.items()}


def ratio(ours, theirs):
    (mine, us), (other, them) = medians(ours), medians(theirs) if os.path.exists(theirs) else ("nothing", {})
    print(f"# us a call: {mine} / {other}")
    for name, took in us.items():
        print(f"  {name:50s} {took:9.1f}" + (f" / {them[name]:9.1f} = {took / them[name]:5.2f}" if name in them else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "ratio"))
    parser.add_argument("file")
    parser.add_argument("other", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sms", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.what == "ratio":
        ratio(args.file, args.other)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, args=(args, folder), nprocs=args.ranks)


if __name__ == "__main__":
    main()
