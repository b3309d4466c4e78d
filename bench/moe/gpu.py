#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep-bench moe --gpu: dispatch and combine of a Mixture-of-Experts layer on the GPUs of this machine, by deep_ep.Buffer, in both modes.

    ep-bench moe --gpu [--ranks N] [--tokens N,N] [--ll-tokens N,N] [--hidden N] [--topk N] [--experts N] [--sms N,N] [--rounds N] [--skew F] [--json]

One process a GPU. Each call is timed by itself, between CUDA events, after all ranks have met on their GPUs and with another content in the L2 cache: median
of the rounds, of the slowest rank. `link` is what leaves a rank for others, own rows not counted, and its rate. `CPU` is time of the calling thread in calls
made back to back. `wrong` counts tokens that differ from what the routing says: rows of a dispatch bit for bit, sums of a high-throughput combine bit for bit,
of a low-latency combine to 4 % of their largest number (its rows are FP8 on the way). --skew F sends that share of all tokens to the experts of rank 0.

Exit status: 0, nothing is wrong; 1, something is; 77, no GPU, or no PyTorch, with the reason.
"""
import argparse
import json
import os
import socket
import statistics
import sys
import time

CALLS = 20  # made back to back for the CPU time of one


def numbers(text):
    return [int(part) for part in text.split(",")]


def options():
    parser = argparse.ArgumentParser(prog="ep-bench moe --gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("hidden", 7168), ("topk", 8), ("experts", 256), ("rounds", 15), ("ranks", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    for name, value in (("tokens", [4096]), ("ll-tokens", [128]), ("sms", [24, 12, 8])):
        parser.add_argument("--" + name, type=numbers, default=value)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Batch:
    """Tokens of one rank and where they go, and those of the others, to know what has to come."""

    def __init__(self, torch, dist, a, tokens):
        self.rank, self.ranks, self.local = dist.get_rank(), dist.get_world_size(), a.experts // dist.get_world_size()
        g = torch.Generator(device="cuda").manual_seed(1000 + self.rank)
        self.x = torch.randn(tokens, a.hidden, generator=g, device="cuda").bfloat16()
        scores = torch.rand(tokens, a.experts, generator=g, device="cuda")
        skewed = torch.rand(tokens, generator=g, device="cuda") < a.skew
        scores[skewed, :self.local] += 1.0
        self.idx = scores.topk(a.topk, sorted=False).indices.contiguous()
        self.weights = torch.rand(tokens, a.topk, generator=g, device="cuda") + 0.5
        shares = [torch.empty_like(self.x) for _ in range(self.ranks)]
        dist.all_gather(shares, self.x)
        where = [torch.empty_like(self.idx) for _ in range(self.ranks)]
        dist.all_gather(where, self.idx)
        self.everyone, self.everywhere = shares, where

    def goes(self, source, rank):
        """bool [tokens]: which tokens of a rank go to another."""
        return (self.everywhere[source] // self.local == rank).any(1)

    def rows(self, torch):
        """What a high-throughput dispatch has to give: ranks ascending, then tokens."""
        return torch.cat([self.everyone[r][self.goes(r, self.rank)] for r in range(self.ranks)])

    def away(self):
        """Rows that leave this rank for others."""
        return sum(int(self.goes(self.rank, r).sum()) for r in range(self.ranks) if r != self.rank)


class Clock:
    """Times one call at a time, with all ranks in step."""

    def __init__(self, torch, dist, rounds):
        self.torch, self.dist, self.rounds = torch, dist, rounds
        self.other = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
        self.meeting = torch.zeros(1, device="cuda")

    def gpu(self, call):
        """Returns microseconds on the GPU."""
        took = []
        for i in range(self.rounds + 2):
            self.other.zero_()
            self.torch.cuda._sleep(2000000)  # the call is launched meanwhile
            self.dist.all_reduce(self.meeting)
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            self.torch.cuda.synchronize()
            if i >= 2:
                took.append(begin.elapsed_time(end) * 1e3)
        slowest = self.torch.tensor(took, device="cuda")
        self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
        return statistics.median(slowest.tolist())

    def cpu(self, call):
        """Returns microseconds of CPU time of the calling thread."""
        self.torch.cuda.synchronize()
        self.dist.barrier()
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        took = (time.thread_time() - began) / CALLS * 1e6
        self.torch.cuda.synchronize()
        return took


def high_throughput(torch, deep_ep, clock, b, batch, sms):
    """Returns rows of the table: (call, us, bytes over the link, CPU us, wrong)."""
    config = deep_ep.Config(sms)

    def layout():
        return b.get_dispatch_layout(batch.idx, batch.local * batch.ranks)[:4]

    def dispatch():
        per_rank, per_node, per_expert, in_rank = layout()
        return b.dispatch(batch.x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                          topk_idx=batch.idx, topk_weights=batch.weights, config=config)
    rows, _, _, _, handle, _ = dispatch()
    sums = b.combine(rows, handle, config=config)[0]
    want = batch.rows(torch)
    times = sum(batch.goes(batch.rank, r).float() for r in range(batch.ranks))
    wrong = [abs(rows.size(0) - want.size(0)) or int((rows != want).any(1).sum()), int((sums != (batch.x.float() * times[:, None]).bfloat16()).any(1).sum())]
    across = batch.away() * batch.x.size(1) * 2
    calls = [("layout", layout, 0, 0), ("layout, dispatch", dispatch, across, wrong[0]),
             ("dispatch, cached", lambda: b.dispatch(batch.x, handle=handle, config=config), across, wrong[0]),
             ("combine", lambda: b.combine(rows, handle, config=config), across, wrong[1])]
    return [(name, clock.gpu(call), size, clock.cpu(call), bad) for name, call, size, bad in calls]


def low_latency(torch, clock, b, batch, tokens):
    """The same for the low-latency calls: FP8 there, BF16 back."""
    experts, hidden = batch.local * batch.ranks, batch.x.size(1)

    def dispatch():
        return b.low_latency_dispatch(batch.x, batch.idx, tokens, experts)
    (codes, scales), counts, handle, _, _ = dispatch()
    rows = (codes.float().view(*codes.shape[:2], -1, 128) * scales[..., None].float()).view(codes.shape).bfloat16()
    mine = torch.stack([sum((batch.everywhere[r] == batch.rank * batch.local + e).sum() for r in range(batch.ranks)) for e in range(batch.local)])

    def combine():
        return b.low_latency_combine(rows, batch.idx, batch.weights, handle)
    sums, want = combine()[0].float(), batch.x.float() * batch.weights.sum(1, keepdim=True)
    far = (sums - want).abs().amax(1) > 0.04 * want.abs().amax(1)
    size = sum(int(batch.goes(batch.rank, r).sum()) for r in range(batch.ranks) if r != batch.rank)
    calls = [("ll dispatch", dispatch, size * hidden, int((counts != mine).sum())), ("ll combine", combine, size * hidden * 2, int(far.sum()))]
    return [(name, clock.gpu(call), across, clock.cpu(call), bad) for name, call, across, bad in calls]


def rank_main(rank, a, port):
    import torch
    import torch.distributed as dist
    import deep_ep
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=a.ranks, device_id=torch.device("cuda", rank))
    most = max(a.ll_tokens)
    b = deep_ep.Buffer(dist.group.WORLD, 1 << 30, deep_ep.Buffer.get_low_latency_rdma_size_hint(most, a.hidden, a.ranks, a.experts), low_latency_mode=True)
    clock, table = Clock(torch, dist, a.rounds), []
    for tokens in a.tokens:
        batch = Batch(torch, dist, a, tokens)
        for sms in a.sms:
            table += [(tokens, sms, *row) for row in high_throughput(torch, deep_ep, clock, b, batch, sms)]
    for tokens in a.ll_tokens:
        table += [(tokens, None, *row) for row in low_latency(torch, clock, b, Batch(torch, dist, a, tokens), most)]
    wrong = torch.tensor([row[-1] for row in table], device="cuda")
    dist.all_reduce(wrong)
    if rank == 0:
        report(a, torch, table, wrong.tolist())
    b.destroy()
    dist.destroy_process_group()
    sys.exit(int(wrong.sum() > 0))


def report(a, torch, table, wrong):
    names = ("tokens", "sms", "call", "us", "link_bytes", "cpu_us")
    rows = [dict(zip(names, row), wrong=bad) for row, bad in zip(table, wrong)]
    about = {"gpu": torch.cuda.get_device_name(), "ranks": a.ranks, "hidden": a.hidden, "topk": a.topk, "experts": a.experts, "load": os.getloadavg()[0]}
    if a.json:
        print(json.dumps({**about, "rows": rows}))
        return
    print("# {ranks} x {gpu}, hidden {hidden}, top-{topk} of {experts} experts, load {load:.2f}".format(**about))
    print(f"{'tokens':>7} {'SMs':>4}  {'call':18} {'us':>9} {'link MB':>9} {'GB/s':>7} {'CPU us':>7} {'#wrong':>7}")
    for r in rows:
        print(f"{r['tokens']:7d} {r['sms'] or 'all':>4}  {r['call']:18} {r['us']:9.1f} {r['link_bytes'] / 1e6:9.1f} {r['link_bytes'] / r['us'] / 1e3:7.1f} "
              f"{r['cpu_us']:7.1f} {r['wrong']:7d}")


def main():
    a = options()
    try:
        import torch
    except ImportError as error:
        print(f"ep-bench moe --gpu: PyTorch is not installed for {sys.executable} ({error}); `ep-bench moe` alone needs none")
        return 77
    gpus = torch.cuda.device_count()
    a.ranks = a.ranks or gpus
    if not gpus or a.ranks > gpus:
        print(f"ep-bench moe --gpu: PyTorch finds {gpus} GPUs, and each of --ranks {a.ranks or 1} needs its own, or times would mean nothing")
        return 77
    if a.experts % a.ranks or a.topk > a.experts // a.ranks and a.skew:
        print(f"ep-bench moe --gpu: --experts {a.experts} must be a multiple of --ranks {a.ranks}, and with --skew hold --topk {a.topk} experts on each")
        return 2
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.start_processes(rank_main, args=(a, port), nprocs=a.ranks, join=False, start_method="spawn")
    for p in context.processes:
        p.join()
    return int(any(p.exitcode for p in context.processes))


if __name__ == "__main__":
    sys.exit(main())
