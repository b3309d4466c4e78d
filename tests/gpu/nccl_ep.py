# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's NCCL EP (package nccl-extensions), low latency and high throughput: every received row and every combined row is compared with what it must be.
Run under torch.distributed.run.

  nccl_ep.py [--algorithm ll|ht] [--tokens N] [--hidden N] [--topk N] [--experts N] [--rounds N] [--own-host]

--own-host: each rank has a host name of its own. NCCL EP counts nodes by host names; with NCCL_LSA_TEAM_SIZE=1 alone, high throughput takes two GPUs of a machine for one node in
its tables and for two in its kernels, which then follow a table that is not there. NCCL itself goes on with one host (NCCL_HOSTID). Needs the right to make a namespace (root).

Rows hold their rank and token in their first elements, so a row that is missing, twice, torn or from another round is named. Rank 0 prints times of dispatch and
combine as the host sees them, synchronized.
"""
import argparse
import ctypes
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

import nccl.ep as ep
from nccl.ep.interop.torch import get_nccl_comm_from_group

CLONE_NEWUTS = 0x04000000
NAMED = 4  # elements of a row that say which it is


def rows_of(rank, o, salt):
    """The rows that a rank sends: small integers, exact in bfloat16."""
    t = torch.arange(o.tokens, device="cuda")
    x = ((t[:, None] * 7 + torch.arange(o.hidden, device="cuda")[None] * 3 + rank * 13 + salt * 29) % 61).to(torch.bfloat16)
    x[:, 0], x[:, 1], x[:, 2], x[:, 3] = rank, t // 128, t % 128, salt % 128
    return x


def routes_of(rank, o, salt):
    """Which experts a rank's tokens go to: k different ones."""
    g = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.stack([torch.randperm(o.experts, generator=g)[:o.topk] for _ in range(o.tokens)]).cuda()


def compare(what, got, wanted):
    """Compares two sets of rows, in any order; returns the number of errors."""
    def key(x):
        return (x[:, 0].float() * 1000 + x[:, 1].float()) * 128 + x[:, 2].float()
    if got.shape != wanted.shape:
        print(f"WRONG {what}: {tuple(got.shape)} rows, not {tuple(wanted.shape)}", flush=True)
        return 1
    got, wanted = got[torch.argsort(key(got))], wanted[torch.argsort(key(wanted))]
    bad = (got != wanted).any(dim=1)
    if not bool(bad.any()):
        return 0
    first = int(bad.nonzero()[0])
    print(f"WRONG {what}: {int(bad.sum())} of {len(bad)} rows, first is {got[first, :NAMED].tolist()}, not {wanted[first, :NAMED].tolist()}; "
          f"{int((got[first] != wanted[first]).sum())} of its elements differ", flush=True)
    return int(bad.sum())


def near(what, got, wanted):
    bad = ((got.float() - wanted.float()).abs() > 0.02 * wanted.float().abs() + 0.1).any(dim=1)
    if bool(bad.any()):
        print(f"WRONG {what}: {int(bad.sum())} of {len(bad)} rows, first {int(bad.nonzero()[0])}", flush=True)
    return int(bad.sum())


class Run:
    """One group, one handle, and its calls."""

    def __init__(self, o):
        self.o, self.rank, self.world = o, dist.get_rank(), dist.get_world_size()
        self.local = o.experts // self.world
        self.stream = torch.cuda.current_stream().cuda_stream
        self.ll = o.algorithm == "ll"
        self.comm = get_nccl_comm_from_group()
        algorithm = ep.Algorithm.LOW_LATENCY if self.ll else ep.Algorithm.HIGH_THROUGHPUT
        self.group = ep.Group.create(self.comm, ep.GroupConfig(
            algorithm=algorithm, num_experts=o.experts, max_dispatch_tokens_per_rank=o.tokens, max_recv_tokens_per_rank=o.tokens * self.world,
            max_token_bytes=o.hidden * 2, num_topk=o.topk, timeout_ns=20_000_000_000))
        print(f"# rank {self.rank}: group made", flush=True)  # its other properties need NCCL 2.32

    def exchange(self, routes, x):
        """Returns (dispatched tensor, received rows by expert or all, time)."""
        o = self.o
        top, tokens = ep.Tensor(routes), ep.Tensor(x)
        weights = torch.full((o.tokens, o.topk), 1.0 / o.topk, device="cuda", dtype=torch.float32)
        total = torch.zeros(1, device="cuda", dtype=torch.int32)
        counts = torch.zeros(self.local, device="cuda", dtype=torch.int32)
        if self.ll:
            handle = self.group.create_handle(ep.Layout.EXPERT_MAJOR, top, layout_info=None, config=ep.HandleConfig(), stream=self.stream)
            out = torch.zeros((self.local, o.tokens * self.world, o.hidden), device="cuda", dtype=torch.bfloat16)
            inputs, outputs = ep.DispatchInputs(tokens=tokens), ep.DispatchOutputs(tokens=ep.Tensor(out))
            layout = ep.LayoutInfo(expert_counters=ep.Tensor(counts))
        else:
            handle = self.group.create_handle(ep.Layout.FLAT, top, layout_info=ep.LayoutInfo(recv_total_counter=ep.Tensor(total)), config=ep.HandleConfig(),
                                              stream=self.stream)
            out = torch.zeros((o.tokens * self.world, o.hidden), device="cuda", dtype=torch.bfloat16)
            out_weights = torch.zeros((o.tokens * self.world, o.topk), device="cuda", dtype=torch.float32)
            out_index = torch.zeros((o.tokens * self.world, o.topk), device="cuda", dtype=torch.int64)
            inputs = ep.DispatchInputs(tokens=tokens, topk_weights=ep.Tensor(weights))
            outputs = ep.DispatchOutputs(tokens=ep.Tensor(out), topk_weights=ep.Tensor(out_weights), topk_idx=ep.Tensor(out_index))
            layout = None
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        handle.dispatch(inputs, outputs, layout_info=layout, config=ep.DispatchConfig(), stream=self.stream)
        handle.complete(stream=self.stream)
        torch.cuda.synchronize()
        dispatch = time.perf_counter() - begin
        back = torch.zeros((o.tokens, o.hidden), device="cuda", dtype=torch.bfloat16)
        # Low latency weighs by expert; high throughput adds what the ranks send.
        results = ep.CombineOutputs(tokens=ep.Tensor(back), topk_weights=ep.Tensor(weights)) if self.ll else ep.CombineOutputs(tokens=ep.Tensor(back))
        dist.barrier()
        begin = time.perf_counter()
        handle.combine(ep.CombineInputs(tokens=ep.Tensor(out)), results, config=ep.CombineConfig(), stream=self.stream)
        handle.complete(stream=self.stream)
        torch.cuda.synchronize()
        combine = time.perf_counter() - begin
        handle.destroy()
        return out, counts if self.ll else total, back, (dispatch, combine)

    def round(self, salt):
        o = self.o
        x, routes = rows_of(self.rank, o, salt), routes_of(self.rank, o, salt)
        out, counts, back, times = self.exchange(routes, x)
        everyones = [(rows_of(r, o, salt), routes_of(r, o, salt)) for r in range(self.world)]
        wrong = 0
        if self.ll:
            for e in range(self.local):
                wanted = torch.cat([rows[(to == self.rank * self.local + e).any(dim=1)] for rows, to in everyones])
                wrong += compare(f"round {salt} dispatch, expert {e}", out[e, :int(counts[e])], wanted)
            wrong += near(f"round {salt} combine", back, x)
        else:
            wanted = torch.cat([rows[(to // self.local == self.rank).any(dim=1)] for rows, to in everyones])
            wrong += compare(f"round {salt} dispatch", out[:int(counts[0])], wanted)
            ranks = torch.stack([(routes // self.local == r).any(dim=1) for r in range(self.world)]).sum(dim=0)
            wrong += near(f"round {salt} combine", back, x.float() * ranks[:, None])
        return wrong, times


def take_host_name(name):
    os.environ.setdefault("NCCL_HOSTID", socket.gethostname())
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would look for the name's address
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
        sys.exit(f"no host name of its own for a rank: {os.strerror(ctypes.get_errno())}")
    socket.sethostname(name)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--algorithm", choices=("ll", "ht"), default="ll")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--hidden", type=int, default=7168)
    p.add_argument("--topk", type=int, default=8)
    p.add_argument("--experts", type=int, default=32)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--own-host", action="store_true")
    o = p.parse_args()
    if o.own_host:
        take_host_name(f"node-{os.environ['RANK']}")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    run = Run(o)
    wrong, times = 0, []
    for salt in range(o.rounds):
        bad, one = run.round(salt)
        wrong += bad
        times.append(one)
        print(f"# rank {run.rank} round {salt}: {bad} wrong, dispatch {one[0] * 1e6:.0f} us, combine {one[1] * 1e6:.0f} us", flush=True)
    run.group.destroy()
    run.comm.destroy()
    dist.barrier()
    if run.rank == 0:
        best = [min(t[i] for t in times) * 1e6 for i in range(2)]
        print(f"# NCCL EP {ep.get_lib_version()} {o.algorithm}: {o.tokens} tokens of {o.hidden}, top {o.topk} of {o.experts}: dispatch {best[0]:.0f} us, "
              f"combine {best[1]:.0f} us (host, synchronized, best of {o.rounds})", flush=True)
    dist.destroy_process_group()
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
