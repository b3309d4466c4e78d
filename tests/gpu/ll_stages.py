# SPDX-License-Identifier: Apache-2.0
"""Time of low-latency calls over the command path, by stage: a part of ll_cases.py, for our Buffer or, with --deepep under ep-fabric shim, DeepEP's.

Reads the engines' statistics files before and after a number of calls (`ep-fabric stats`) and subtracts them. Figures are per rank and call; a stage's
median and 99th percentile are over all ranks and calls, of the commands that the engine samples (one at a time).

  kernel   the sending and the receiving launch, each by CUDA events
  ring     from when the core sees a command in its ring until it dequeues it
  engine   dequeue to post
  NIC      post to completion, including the receiver's copies and the way back
  behind additions   wait of arrivals at the receiver for additions to GPU memory

The NIC's ceiling is `ep-bench copies` for the same list of copies and additions, on all GPUs at once, after the ranks have exited (they would share the
GPUs): `ll_stages.py STATS_DIR` prints it, and the remaining share outside the NIC.
"""
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import time

if __name__ != "__main__":
    import torch
    import torch.distributed as dist

    from ll_reference import Case

HIDDEN, TOPK = 7168, 8
CORE = ("cmds_dequeued", "doorbells", "wrs_posted", "completions", "arrivals", "signals_applied", "cmds_deferred", "put_bytes_remote_node", "put_bytes_same_node",
        "busy_tsc", "dequeue_tsc", "check_tsc", "stage_tsc", "flush_tsc", "reap_tsc", "arrive_tsc")
STAGES = (("ring", "ring_wait_ns"), ("engine", "queue_delay_ns"), ("NIC", "nic_ns"), ("behind additions", "hold_ns"))


class Reading:
    """The statistics of all engines of the job, summed."""

    def __init__(self, folder, program):
        self.sums, self.hists, self.hz = dict.fromkeys(CORE, 0), {row: {} for _, row in STAGES}, 1.0
        out = subprocess.run([program, "stats", "--json", "--stats-dir", folder], capture_output=True, text=True, timeout=20, check=True)
        for instance in json.loads(out.stdout)["instances"]:
            self.hz = instance.get("tsc_hz") or self.hz
            for block in instance.get("blocks", []):
                if block["class"] == "core":
                    self._add(block["values"])

    def _add(self, values):
        for name in CORE:
            self.sums[name] += values.get(name) or 0
        for _, row in STAGES:
            for low, high, n in (values.get(row) or {}).get("buckets", []):
                self.hists[row][(low, high)] = self.hists[row].get((low, high), 0) + n

    def since(self, before):
        self.sums = {name: n - before.sums[name] for name, n in self.sums.items()}
        self.hists = {row: {k: n - before.hists[row].get(k, 0) for k, n in h.items()} for row, h in self.hists.items()}
        return self

    def quantile(self, row, q):
        """Returns microseconds, the middle of the bucket."""
        left = q * sum(self.hists[row].values())
        for (low, high), n in sorted(self.hists[row].items()):
            left -= n
            if n and left <= 0:
                return (low + high) / 2e3
        return float("nan")


def program(name):
    """Returns the path of a program of the build."""
    build = os.environ.get("STAGES_BUILD", "build")
    for at in (name, "tools/" + name, "bench/" + name):
        if os.path.exists(os.path.join(build, at)):
            return os.path.join(build, at)
    raise FileNotFoundError(f"no {name} in {build} (STAGES_BUILD)")


class Side:
    """A Buffer and one shape; ours or DeepEP's."""

    def __init__(self, rank, module, tokens, experts):
        self.rank = rank
        self.case = Case(rank.device, [tokens] * rank.size, HIDDEN, experts, TOPK, seed=tokens, holes=0)
        self.b = rank.buffer([(tokens, HIDDEN, experts)], module=module)
        self.x, self.idx, self.weight = self.case.inputs(rank.rank)
        self.y = torch.randn((self.case.local, self.case.rows, HIDDEN), dtype=torch.bfloat16, device=rank.device)
        for _ in range(3):
            self.handle = self.dispatch()
            self.combine()
        rank.meet()

    def dispatch(self, hook=False):
        _, _, handle, _, receive = self.b.low_latency_dispatch(self.x, self.idx, self.case.most, self.case.experts, use_fp8=True, return_recv_hook=hook)
        return receive if hook else handle

    def combine(self, hook=False):
        _, _, receive = self.b.low_latency_combine(self.y, self.idx, self.weight, self.handle, return_recv_hook=hook)
        return receive if hook else None

    def halves(self, call, times):
        """Median microseconds of the launch that sends and of the one that receives."""
        took = ([], [])
        for _ in range(times):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            dist.barrier()
            torch.cuda.synchronize()
            torch.cuda._sleep(2000000)  # the next calls are launched meanwhile
            events[0].record()
            receive = call(hook=True)
            events[1].record()
            receive()
            events[2].record()
            torch.cuda.synchronize()
            took[0].append(events[0].elapsed_time(events[1]) * 1e3)
            took[1].append(events[1].elapsed_time(events[2]) * 1e3)
        return [statistics.median(t) for t in took]

    def timed(self, call, times):
        """Returns microseconds per call of consecutive calls, of the slowest rank."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        mine = torch.tensor([begin.elapsed_time(end) * 1e3 / times], dtype=torch.float64, device=self.rank.device)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        return float(mine)


def puts(case, once_a_rank):
    """Returns the mean puts per rank and call: one for each (token, expert) of another rank, or for each (token, rank)."""
    n = 0
    for r, idx in enumerate(case.idx):
        for to in range(len(case.idx)):
            there = (idx >= to * case.local) & (idx < (to + 1) * case.local)
            n += 0 if to == r else int(there.any(1).sum() if once_a_rank else there.sum())
    return round(n / len(case.idx))


def ceiling(copies, size, adds, kernel):
    """Returns microseconds of the NIC's copies alone for such a list; nothing else may run."""
    out = subprocess.run([program("ep-bench"), "copies", "-n", str(copies), "-s", str(size), "--adds", str(adds), "--json",
                          "--gpu-copy", "kernel" if kernel else "engine"], capture_output=True, text=True, timeout=60)
    found = re.search(r'"list_us": *([0-9.]+)', out.stdout)
    return float(found.group(1)) if found else float("nan")


def measure(rank, side, name, times):
    """Measures a call; rank 0 prints it."""
    call = side.dispatch if name == "dispatch" else side.combine
    folder, stats = os.environ["EPF_STATS_DIR"], program("ep-fabric")
    side.timed(call, 5)
    send, receive = side.halves(call, times)
    rank.meet()
    time.sleep(0.1)
    before = Reading(folder, stats) if rank.rank == 0 else None
    rank.meet()
    us = side.timed(call, times)
    rank.meet()
    time.sleep(0.1)
    if rank.rank:
        return
    r = Reading(folder, stats).since(before)
    each = {n: v / times / rank.size for n, v in r.sums.items()}
    sent = each["put_bytes_remote_node"] + each["put_bytes_same_node"]
    copies = puts(side.case, name == "dispatch" and not rank.args.deepep)
    adds = side.case.local * (rank.size - 1) if rank.args.deepep else 0
    put = round(sent / max(copies, 1))
    with open(os.path.join(folder, "lists"), "a") as lists:
        print(name, us, copies, put, adds, file=lists)
    rank.say(f"  {name}: {us:.0f} us a call; halves by themselves: send {send:.0f}, receive {receive:.0f} us")
    rank.say(f"    a call of a rank: {each['cmds_dequeued']:.0f} commands, {each['doorbells']:.1f} doorbells, {each['wrs_posted']:.0f} requests, "
             f"{sent / 1e6:.3f} MB, {each['arrivals']:.0f} arrivals, {each['signals_applied']:.0f} signals, {each['cmds_deferred']:.0f} deferred")
    rank.say("    stages, us, median / p99 (samples): " + "; ".join(
        f"{label} {r.quantile(row, .5):.1f} / {r.quantile(row, .99):.1f} ({sum(r.hists[row].values())})" for label, row in STAGES))
    us_of = {n: each[n] / r.hz * 1e6 for n in each if n.endswith("_tsc")}
    rank.say("    core's time a call, us: " + ", ".join(f"{n[:-4]} {v:.0f}" for n, v in us_of.items()))


def ceilings(folder):
    """For each recorded list, prints the time of the NIC's copies alone, and the rest of the call."""
    with open(os.path.join(folder, "lists")) as lists:
        for line in lists:
            name, us, copies, put, adds = line.split()
            floor = ceiling(copies, put, adds, os.environ.get("EPF_EMU_GPU_COPY") == "kernel")
            print(f"  {name}: the NIC's own copies, {copies} of {put} bytes and {adds} additions: {floor:.0f} of {float(us):.0f} us; outside of that "
                  f"{100 * (1 - floor / float(us)):.0f} %")


def stages(rank):
    """128 tokens, 256 experts; DeepEP's Buffer with --deepep, else ours."""
    import ll_speed
    times = 40 if rank.args.quick else 100
    module = ll_speed.peer(rank.args.deepep) if rank.args.deepep else None
    side = Side(rank, module, 128, 256)
    rank.say(f"# {'DeepEP by the shim' if module else 'ours'}, command path, {rank.size} ranks, 128 tokens, hidden {HIDDEN}, top-{TOPK}, 256 experts, FP8 "
             f"dispatch; copies by {os.environ.get('EPF_EMU_GPU_COPY', 'engine')}; {times} calls; "
             f"{len(glob.glob(os.environ['EPF_STATS_DIR'] + '/*.stats'))} engines")
    for name in ("dispatch", "combine"):
        measure(rank, side, name, times)
    rank.meet()
    side.b.destroy()
    return "times by stage"


if __name__ == "__main__":
    ceilings(sys.argv[1])
