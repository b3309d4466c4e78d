# SPDX-License-Identifier: Apache-2.0
"""The patterns of NCCL's tests in one process group: every result is compared with what it must be, then timed. Run under torch.distributed.run.

  nccl_patterns.py [--backend nccl] [--most BYTES] [--rounds N] [--only REGEX] [--json FILE] [--no-times]

Numbers are small integers, so that sums are exact in any order and an error anywhere is seen. Rank 0 prints one line a pattern and size: time, and the bus
bandwidth as nccl-tests define it (bytes that a rank must move, over the time). Exit 0: all results were right. --backend gloo runs on CPU tensors, to check this
file.
"""
import argparse
import json
import os
import re
import sys
import time

import torch
import torch.distributed as dist


class Group:
    """This rank, the others, and where its tensors are."""

    def __init__(self, backend):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.on_gpu = backend == "nccl"
        if os.environ.get("TEST_HOST_PER_RANK"):  # NCCL refuses two ranks of one host on one GPU
            os.environ["NCCL_HOSTID"] = f"host{self.rank}"
        if self.on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        self.device = torch.device("cuda") if self.on_gpu else torch.device("cpu")
        dist.init_process_group(backend)

    def numbers(self, n, who, salt=0):
        """n values that only rank `who` has."""
        i = torch.arange(n, device=self.device, dtype=torch.int64)
        return ((i * 7 + who * 13 + salt * 29) % 61).to(torch.float32)

    def sync(self):
        if self.on_gpu:
            torch.cuda.synchronize()


def all_reduce(g, n):
    x = g.numbers(n, g.rank)
    want = sum(g.numbers(n, r) for r in range(g.world))
    dist.all_reduce(x)
    buf = g.numbers(n, g.rank)
    return [(x, want)], lambda: dist.all_reduce(buf), 2 * (g.world - 1) / g.world


def all_gather(g, n):
    part = max(n // g.world, 1)
    out = torch.empty(part * g.world, device=g.device)
    mine = g.numbers(part, g.rank)
    dist.all_gather_into_tensor(out, mine)
    want = torch.cat([g.numbers(part, r) for r in range(g.world)])
    return [(out, want)], lambda: dist.all_gather_into_tensor(out, mine), (g.world - 1) / g.world


def reduce_scatter(g, n):
    part = max(n // g.world, 1)
    mine = torch.cat([g.numbers(part, g.rank, d) for d in range(g.world)])
    out = torch.empty(part, device=g.device)
    dist.reduce_scatter_tensor(out, mine)
    want = sum(g.numbers(part, r, g.rank) for r in range(g.world))
    return [(out, want)], lambda: dist.reduce_scatter_tensor(out, mine), (g.world - 1) / g.world


def all_to_all(g, n):
    part = max(n // g.world, 1)
    mine = torch.cat([g.numbers(part, g.rank, d) for d in range(g.world)])
    out = torch.empty(part * g.world, device=g.device)
    dist.all_to_all_single(out, mine)
    want = torch.cat([g.numbers(part, r, g.rank) for r in range(g.world)])
    return [(out, want)], lambda: dist.all_to_all_single(out, mine), (g.world - 1) / g.world


def uneven_all_to_all(g, n):
    """As an expert-parallel layer sends: another length for each pair, some of them 0."""
    def length(s, d):
        return (n // g.world) * ((s + 2 * d) % 3) // 2
    sends = [length(g.rank, d) for d in range(g.world)]
    recvs = [length(s, g.rank) for s in range(g.world)]
    mine = torch.cat([g.numbers(k, g.rank, d) for d, k in enumerate(sends)])
    out = torch.empty(sum(recvs), device=g.device)
    dist.all_to_all_single(out, mine, recvs, sends)
    want = torch.cat([g.numbers(k, s, g.rank) for s, k in enumerate(recvs)])
    return [(out, want)], lambda: dist.all_to_all_single(out, mine, recvs, sends), (g.world - 1) / g.world


def send_recv(g, n):
    """A ring: each rank sends to the next and receives from the one before, at once."""
    mine, out = g.numbers(n, g.rank), torch.empty(n, device=g.device)
    to, source = (g.rank + 1) % g.world, (g.rank - 1) % g.world

    def both():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, to), dist.P2POp(dist.irecv, out, source)]):
            work.wait()
    both()
    return [(out, g.numbers(n, source))], both, 1.0


def broadcast(g, n):
    x = g.numbers(n, g.rank)
    dist.broadcast(x, 0)
    return [(x, g.numbers(n, 0))], lambda: dist.broadcast(x, 0), 1.0


PATTERNS = [all_reduce, all_gather, reduce_scatter, all_to_all, uneven_all_to_all, send_recv, broadcast]


def measure(g, call, rounds):
    """Returns seconds of one call: the best of three series of `rounds`, of the slowest rank."""
    best = float("inf")
    for _ in range(3):
        g.sync()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(rounds):
            call()
        g.sync()
        best = min(best, (time.perf_counter() - begin) / rounds)
    t = torch.tensor([best], device=g.device, dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return float(t)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--backend", default="nccl")
    p.add_argument("--most", type=int, default=64 << 20)
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--only", default=".")
    p.add_argument("--json")
    p.add_argument("--no-times", action="store_true")
    o = p.parse_args()
    g = Group(o.backend)
    rows, wrong = [], 0
    sizes = [b for b in (8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20, 256 << 20) if b <= o.most]
    for pattern in PATTERNS:
        if not re.search(o.only, pattern.__name__):
            continue
        for size in sizes:
            n = max(size // 4, 1)
            checks, call, factor = pattern(g, n)
            g.sync()
            bad = torch.tensor([sum(int((a != b).sum()) for a, b in checks)], device=g.device)
            dist.all_reduce(bad)
            wrong += int(bad)
            seconds = 0.0 if o.no_times else measure(g, call, o.rounds if size <= 16 << 20 else max(o.rounds // 3, 1))
            row = {"pattern": pattern.__name__, "bytes": size, "us": round(seconds * 1e6, 1), "wrong": int(bad),
                   "busbw_gb_s": round(size * factor / seconds / 1e9, 3) if seconds else None}
            rows.append(row)
            if g.rank == 0:
                print(f"# {row['pattern']:<18} {size:>10} B {row['us']:>10} us {row['busbw_gb_s'] or '-':>8} GB/s wrong {row['wrong']}", flush=True)
    if g.rank == 0 and o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    dist.barrier()
    dist.destroy_process_group()
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
