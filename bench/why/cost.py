#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What counting costs (setting call-stats): the same calls on four Buffers of the same processes, two that count and two that do not, alternating.

    cost.py [--ranks N] [--device cuda|cpu] [--rounds N] [--calls N] [--tokens N] [--hidden N] [--experts N] [--topk N] [--ll-tokens N]

Prints for each call the medians over rounds of both, their difference, and the spread of the rounds, in microseconds; and the load of the machine. A GPU's times
are those of events around the calls of a round, back to back; a CPU's are the wall clock's. PYTHONPATH, EPF_LIBRARY and EPF_LL_LIBRARY select what is measured.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--calls", type=int, default=20, help="of a round")
    p.add_argument("--tokens", type=int, default=4096, help="high throughput, of a rank")
    p.add_argument("--ll-tokens", type=int, default=128, help="low latency, of a rank")
    p.add_argument("--hidden", type=int, default=7168)
    p.add_argument("--experts", type=int, default=256)
    p.add_argument("--topk", type=int, default=8)
    return p.parse_args()


class Clock:
    """Time of what runs between begin() and end(), in microseconds."""

    def __init__(self, torch, cuda):
        self._torch, self._cuda = torch, cuda

    def begin(self):
        if self._cuda:
            self._torch.cuda.synchronize()
            self._start = self._torch.cuda.Event(enable_timing=True)
            self._start.record()
        else:
            self._start = time.perf_counter()

    def end(self):
        if not self._cuda:
            return (time.perf_counter() - self._start) * 1e6
        stop = self._torch.cuda.Event(enable_timing=True)
        stop.record()
        self._torch.cuda.synchronize()
        return self._start.elapsed_time(stop) * 1e3


def make_buffer(dist, deep_ep, args, counts):
    os.environ["EPF_CALL_STATS"] = "yes" if counts else "no"
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(args.ll_tokens, args.hidden, args.ranks, args.experts)
    return deep_ep.Buffer(dist.group.WORLD, 1 << 28, hint, low_latency_mode=True, explicitly_destroy=True)


def make_calls(torch, device, args):
    """Functions of a Buffer, by name: what a round repeats."""
    generator = torch.Generator().manual_seed(1)

    def routing(tokens):
        scores = torch.rand(tokens, args.experts, generator=generator)
        return scores.topk(args.topk, dim=1).indices.to(device)
    idx, ll_idx = routing(args.tokens), routing(args.ll_tokens)
    x = torch.randn(args.tokens, args.hidden).to(torch.bfloat16).to(device)
    ll_x, weights = x[:args.ll_tokens].contiguous(), torch.ones(args.tokens, args.topk, device=device)
    ll_weights = weights[:args.ll_tokens].contiguous()
    handles = {}

    def ht_layout(b):
        handles[b, "layout"] = b.get_dispatch_layout(idx, args.experts)[:4]

    def ht_dispatch(b):
        per_rank, _, per_expert, in_rank = handles[b, "layout"]
        handles[b, "rows"], _, _, _, handles[b, "ht"], _ = b.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=weights)

    def ht_cached(b):
        b.dispatch(x, handle=handles[b, "ht"])

    def ht_combine(b):
        b.combine(handles[b, "rows"], handles[b, "ht"])

    def ll_both(b):
        rows, _, handle, _, _ = b.low_latency_dispatch(ll_x, ll_idx, args.ll_tokens, args.experts, use_fp8=False)
        b.low_latency_combine(rows, ll_idx, ll_weights, handle)

    def ll_hook(b):
        rows, _, handle, _, receive = b.low_latency_dispatch(ll_x, ll_idx, args.ll_tokens, args.experts, use_fp8=True, return_recv_hook=True)
        receive()
        out = rows[0].to(torch.bfloat16) if device.type == "cpu" else handles.setdefault("bf16", torch.zeros(rows[0].shape, dtype=torch.bfloat16, device=device))
        b.low_latency_combine(out, ll_idx, ll_weights, handle)
    return {"ht.layout": ht_layout, "ht.dispatch": ht_dispatch, "ht.dispatch cached": ht_cached, "ht.combine": ht_combine,
            "ll.dispatch + ll.combine": ll_both, "ll.dispatch fp8, hook + ll.combine": ll_hook}


def rank_main(rank, args, folder):
    import torch
    import torch.distributed as dist

    cuda = args.device == "cuda"
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=args.ranks)
    import deep_ep
    torch.manual_seed(rank)
    # Where a Buffer's memory lies costs time, too: two of each kind, and the difference of two alike says how much.
    buffers = [make_buffer(dist, deep_ep, args, counts) for counts in (False, True, True, False)]
    clock = Clock(torch, cuda)
    lines = []
    for name, call in make_calls(torch, device, args).items():
        times = ([], [], [], [])
        for turn in range(args.rounds + 3):
            for which in ((0, 1, 2, 3) if turn % 2 else (3, 2, 1, 0)):
                dist.barrier()
                clock.begin()
                for _ in range(args.calls):
                    call(buffers[which])
                each = clock.end() / args.calls
                if turn >= 3:
                    times[which].append(each)
        off, on = (statistics.median(times[i] + times[3 - i]) for i in (0, 1))
        pairs = statistics.median((b + c - a - d) / 2 for a, b, c, d in zip(*times))
        alike = max(abs(statistics.median(y - x for x, y in zip(times[i], times[3 - i]))) for i in (0, 1))
        lines.append(f"{name:36} {off:10.2f} {on:10.2f} {pairs:+9.2f} {100 * pairs / off:+7.2f} % {alike:10.2f}")
    if rank == 0:
        where = torch.cuda.get_device_name(device) if cuda else "CPU tensors"
        print(f"# {args.ranks} ranks, {where}, load {os.getloadavg()[0]:.1f}, {args.rounds} rounds of {args.calls} calls; {args.tokens} and {args.ll_tokens} tokens, "
              f"hidden {args.hidden}, {args.experts} experts, top-{args.topk}")
        print(f"{'us a call, rank 0':36} {'off':>10} {'on':>10} {'median of differences':>21} {'two alike':>10}")
        print("\n".join(lines))
        print("# answer of the Buffer that counts:")
        buffers[1].why_slow()
    dist.barrier()
    for b in buffers:
        b.destroy()
    dist.destroy_process_group()


def main():
    args = parse()
    import torch.multiprocessing as mp
    os.environ.setdefault("EPF_GPU_TIMEOUT", "60s")
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank_main, (args, folder), nprocs=args.ranks, start_method="spawn")


if __name__ == "__main__":
    sys.exit(main())
