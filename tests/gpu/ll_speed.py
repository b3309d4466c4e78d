# SPDX-License-Identifier: Apache-2.0
"""Time of low-latency calls, by CUDA events around replays of a graph; also alternating with DeepEP's. Parts of ll_cases.py.

The ranks meet on the GPU before each replay. A figure is the median over the replays of the slowest rank, divided by the calls in the graph. Nothing is
judged. Ratios: ours divided by DeepEP's.
"""
import importlib.util
import os
import statistics
import sys

import torch
import torch.distributed as dist

from ll_reference import Case

HIDDEN, TOPK = 7168, 8
CALLS = 10  # in a graph
ROUNDS = 9  # replays


class Calls:
    """Graphs of dispatches, of combines and of both, over one Buffer."""

    def __init__(self, rank, b, case, hook, sums=None):
        self.rank, self.b, self.case, self.hook = rank, b, case, hook
        if sums is not None:
            b._sums = sums  # our Buffer: for all later calls, on all ranks
        self.x, self.idx, self.weight = case.inputs(rank.rank)
        self.y = torch.randn((case.local, case.rows, case.hidden), dtype=torch.bfloat16, device=rank.device)
        # DeepEP alternates its two buffers on the host, even during capture: each sequence of calls has an even length.
        self.handle = self._dispatch()
        self._combine()
        rank.meet()
        self.graphs = {name: self._capture(call) for name, call in
                       (("dispatch", self._dispatch), ("combine", self._combine), ("both", self._both))}
        self.first = self._capture(self._both, 2)

    def _dispatch(self):
        _, _, handle, _, hook = self.b.low_latency_dispatch(self.x, self.idx, self.case.most, self.case.experts, use_fp8=True,
                                                            return_recv_hook=self.hook)
        if self.hook:
            hook()
        return handle

    def _combine(self, handle=None):
        _, _, hook = self.b.low_latency_combine(self.y, self.idx, self.weight, handle or self.handle, return_recv_hook=self.hook)
        if self.hook:
            hook()

    def _both(self):
        self._combine(self._dispatch())

    def _capture(self, call, times=CALLS):
        call()
        call()
        self.rank.meet()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(times):
                call()
        self.rank.meet()
        return g

    def once(self, name):
        """Returns microseconds per call on this rank."""
        dist.barrier()
        torch.cuda._sleep(1000000)  # the next calls are launched meanwhile
        self.first.replay()  # the ranks meet on the GPU
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graphs[name].replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / CALLS

    def parts(self):
        """Returns microseconds of each launch when all data has arrived before the receive: send and receive of a dispatch, of a combine."""
        def half_by_half():
            _, _, handle, _, hook = self.b.low_latency_dispatch(self.x, self.idx, self.case.most, self.case.experts, use_fp8=True,
                                                                return_recv_hook=True)
            torch.cuda._sleep(1000000)
            hook()
            torch.cuda._sleep(1000000)
            _, _, hook = self.b.low_latency_combine(self.y, self.idx, self.weight, handle, return_recv_hook=True)
            torch.cuda._sleep(1000000)
            hook()
        half_by_half()
        self.rank.meet()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(8):
                half_by_half()
            torch.cuda.synchronize()
        took = {}
        for kind in ("dispatch", "combine"):
            events = sorted((e.time_range.start, e.time_range.elapsed_us()) for e in profiler.events() if f"::{kind}" in e.name)
            took[kind] = [statistics.median(us for _, us in events[half::2]) if events else float("nan") for half in (0, 1)]
        return took


def slowest(rank, values):
    """Returns the median over the replays, of the slowest rank."""
    mine = torch.tensor([statistics.median(values)], dtype=torch.float64, device=rank.device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


def measured(rank, everybody, names=("dispatch", "combine", "both")):
    """Returns microseconds by name for each of several Calls, measured alternating."""
    samples = [{name: [] for name in names} for _ in everybody]
    for _ in range(ROUNDS):
        for calls, into in zip(everybody, samples):
            for name in names:
                into[name].append(calls.once(name))
    return [{name: slowest(rank, values) for name, values in into.items()} for into in samples]


def floor(case, rank):
    """Returns the least bytes that leave this rank: of a dispatch in FP8 once per rank, of a combine in BF16 once per rank."""
    idx = case.idx[rank.rank]
    away = sum(int(((idx >= r * case.local) & (idx < (r + 1) * case.local)).any(1).sum()) for r in range(rank.size) if r != rank.rank)
    return away * (case.hidden + case.hidden // 32), away * case.hidden * 2


def shapes(rank, least=1):
    tokens = (128, 8) if rank.args.quick else (least, 8, 32, 128, 512)
    return [(t, e) for e in (256, 288) for t in tokens if e % rank.size == 0 and not (rank.args.quick and e == 288 and t != 128)]


def speed(rank):
    """Our Buffer alone, with and without hook, with the time of each half."""
    biggest = [(t, HIDDEN, e) for t, e in shapes(rank)]
    b = rank.buffer(biggest)
    rank.say(f"# {'command path' if rank.args.commands else 'NVLink'}, {rank.size} ranks, hidden {HIDDEN}, top-{TOPK}, FP8 dispatch; us a call, median")
    rank.say("# tokens experts  dispatch combine    both | hook: dispatch combine    both | halves: send, receive (dispatch)  send, receive (combine)"
             " | bytes that leave: dispatch, combine")
    for tokens, experts in shapes(rank):
        case = Case(rank.device, [tokens] * rank.size, HIDDEN, experts, TOPK, seed=tokens, holes=0)
        before = commands(b)
        plain = Calls(rank, b, case, False, rank.args.sums)
        one = measured(rank, [plain])[0]
        sent = commands(b) - before
        two = measured(rank, [Calls(rank, b, case, True, rank.args.sums)])[0]
        halves = plain.parts()
        rank.say(f"  {tokens:6d} {experts:7d} {one['dispatch']:9.1f} {one['combine']:7.1f} {one['both']:7.1f} | {two['dispatch']:14.1f} "
                 f"{two['combine']:7.1f} {two['both']:7.1f} | {halves['dispatch'][0]:6.1f} {halves['dispatch'][1]:6.1f}  "
                 f"{halves['combine'][0]:6.1f} {halves['combine'][1]:6.1f} | {floor(case, rank)}"
                 + (f" | {sent / ((ROUNDS * 4 + 3) * CALLS):.0f} commands a call" if rank.args.commands else ""))
    b.destroy()
    return f"{len(shapes(rank))} shapes"


def commands(b):
    try:
        return b._fabric.counter("cmds_dequeued")
    except Exception:
        return 0


def peer(folder):
    """Loads DeepEP's package from a folder under another name."""
    package = module = None
    for at, _, files in os.walk(folder):
        if os.path.basename(at) == "deep_ep" and "__init__.py" in files:
            package = package or at
        if any(f.startswith("deep_ep_cpp") and f.endswith(".so") for f in files):
            module = module or at
    if not package or not module:
        raise FileNotFoundError(f"{folder}: no deep_ep/__init__.py, or no deep_ep_cpp*.so")
    sys.path.append(module)
    spec = importlib.util.spec_from_file_location("deepep_peer", os.path.join(package, "__init__.py"), submodule_search_locations=[package])
    sys.modules["deepep_peer"] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def compare(rank):
    """Ours, ours with sums at the sender, and DeepEP's, alternating, with the same inputs in one process group."""
    theirs = peer(rank.args.deepep)
    least = 4  # DeepEP needs a multiple of 4 tokens over all ranks
    biggest = [(t, HIDDEN, e) for t, e in shapes(rank, least)]
    other = rank.buffer(biggest, module=theirs)
    rank.say("# DeepEP's Buffer is open")
    mine = rank.buffer(biggest)
    rank.say(f"# {'command path' if rank.args.commands else 'NVLink'}, {rank.size} ranks, hidden {HIDDEN}, top-{TOPK}, FP8 dispatch; us a call, "
             "median: ours / DeepEP's = ratio; second line: ours with sums at the sender; alternating")
    ratios = {False: [], True: []}
    for tokens, experts in shapes(rank, least):
        case = Case(rank.device, [tokens] * rank.size, HIDDEN, experts, TOPK, seed=tokens, holes=0)
        for hook in (False, True):
            if rank.args.commands and hook:
                continue
            forms = [Calls(rank, mine, case, hook, sums) for sums in ("off", "auto")] + [Calls(rank, other, case, hook)]
            *ours, its = measured(rank, forms)
            for sums, us in enumerate(ours):
                text = "  ".join(f"{name} {us[name]:7.1f} / {its[name]:7.1f} = {us[name] / its[name]:4.2f}" for name in us)
                ratios[bool(sums)] += [us[name] / its[name] for name in us]
                rank.say(f"  {tokens:4d} tokens, {experts} experts, {'hook' if hook else 'one call'}{', sums' if sums else ''}: {text}")
    return "; ".join(f"{'with sums at the sender' if sums else 'ratios'} {min(of):.2f} to {max(of):.2f}, median {statistics.median(of):.2f}"
                     for sums, of in ratios.items())
