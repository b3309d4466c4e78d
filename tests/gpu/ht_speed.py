# SPDX-License-Identifier: Apache-2.0
"""Time of high-throughput calls, by CUDA events around single calls; also alternating with DeepEP's. Parts of ll_cases.py.

Before each call the ranks meet on the GPU, and the L2 cache is filled with something else. A figure is the median over the rounds, of the slowest rank.
Nothing is judged. Ratios: ours divided by DeepEP's.
"""
import statistics

import torch
import torch.distributed as dist

from ht_batch import Batch
from ll_speed import peer, slowest

HIDDEN, TOPK, EXPERTS = 7168, 8, 256
ROUNDS = 15
SMS = (24, 16, 12, 8)
# Rows that DeepEP sends at once, between which its own test chooses.
CHUNKS = {"dispatch": (4, 8, 16, 24, 32), "combine": (4, 8, 12, 16)}


def to_fp8(x):
    """Rows as E4M3 with one scale for each 128 numbers."""
    groups = x.view(x.size(0), -1, 128).float()
    scale = groups.abs().amax(2).clamp(1e-4) / 448.0
    return (groups / scale[..., None]).to(torch.float8_e4m3fn).view_as(x), scale


class Calls:
    """The calls of one Buffer on one batch, by name."""

    def __init__(self, rank, b, batch, config):
        self.rank, self.b, self.config = rank, b, config
        self.x, self.idx, self.weights, self.experts = batch.x, batch.idx, batch.weights, batch.experts
        self.layout = b.get_dispatch_layout(self.idx, self.experts)[:4]
        self.fp8 = to_fp8(self.x)
        self.chunk = {}
        self.rows, _, _, _, self.handle, _ = self._dispatch(self.x)
        self.y = self.rows.clone()

    def _dispatch(self, x):
        per_rank, per_node, per_expert, in_rank = self.layout
        return self.b.dispatch(x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
                               num_tokens_per_expert=per_expert, topk_idx=self.idx, topk_weights=self.weights, config=self._of("dispatch"))

    def _of(self, kind):
        return self.config(self.chunk.get(kind))

    def calls(self):
        return {
            "layout": lambda: self.b.get_dispatch_layout(self.idx, self.experts),
            "dispatch bf16": lambda: self._dispatch(self.x),
            "dispatch fp8": lambda: self._dispatch(self.fp8),
            "cached bf16": lambda: self.b.dispatch(self.x, handle=self.handle, config=self._of("dispatch")),
            "cached fp8": lambda: self.b.dispatch(self.fp8, handle=self.handle, config=self._of("dispatch")),
            "combine": lambda: self.b.combine(self.y, self.handle, config=self._of("combine")),
        }

    def whole(self):
        """Layout, dispatch and combine, one after the other."""
        layout = self.b.get_dispatch_layout(self.idx, self.experts)[:4]
        per_rank, per_node, per_expert, in_rank = layout
        rows, _, _, _, handle, _ = self.b.dispatch(self.x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
                                                   num_tokens_per_expert=per_expert, topk_idx=self.idx, topk_weights=self.weights,
                                                   config=self._of("dispatch"))
        self.b.combine(rows, handle, config=self._of("combine"))


class Clock:
    """Times calls of all ranks together."""

    def __init__(self, rank):
        self.flush = torch.empty(64 << 20, dtype=torch.int32, device=rank.device)
        self.meeting = torch.zeros(1, device=rank.device)

    def once(self, call):
        """Returns microseconds of one call on this rank."""
        self.flush.zero_()
        torch.cuda._sleep(2000000)  # the call is launched meanwhile
        dist.all_reduce(self.meeting)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3


def measured(rank, everybody, rounds=ROUNDS):
    """Returns microseconds by name for each of several tables of calls, measured alternating."""
    clock = Clock(rank)
    samples = [{name: [] for name in calls} for calls in everybody]
    for i in range(rounds + 2):
        for calls, into in zip(everybody, samples):
            for name, call in calls.items():
                took = clock.once(call)
                if i >= 2:
                    into[name].append(took)
    return [{name: slowest(rank, values) for name, values in into.items()} for into in samples]


def choose_chunks(rank, calls, config):
    """DeepEP's own way: the sizes that are fastest here."""
    for kind, name in (("dispatch", "cached bf16"), ("combine", "combine")):
        best = None
        for chunk in CHUNKS[kind]:
            calls.chunk[kind] = chunk
            took = measured(rank, [{name: calls.calls()[name]}], 5)[0][name]
            best = min(best or (took, chunk), (took, chunk))
        calls.chunk[kind] = best[1]


def kernels(rank, calls):
    """Prints the GPU time of each of our kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for name, call in calls.items():
            for _ in range(6):
                dist.all_reduce(torch.zeros(1, device=rank.device))
                call()
            torch.cuda.synchronize()
    took = {}
    for e in profiler.events():
        if "ep_fabric" in e.name:
            took.setdefault(e.name.split("(")[0].split("::")[-1], []).append(e.time_range.elapsed_us())
    return ", ".join(f"{name} {statistics.median(times):.1f}" for name, times in sorted(took.items()))


def bytes_of(batch):
    """Rows that this rank receives from itself and from others."""
    rows = [int(batch.goes(r, batch.rank).sum()) for r in range(batch.size)]
    return rows[batch.rank], sum(rows) - rows[batch.rank]


def all_to_all(rank, batch):
    """NCCL's all-to-all of the same rows, each once to each rank, put in order beforehand: what a program without such a library waits for at least."""
    goes = [batch.goes(rank.rank, r) for r in range(rank.size)]
    comes = [int(batch.goes(r, rank.rank).sum()) for r in range(rank.size)]
    rows = torch.cat([batch.x[g] for g in goes])
    into = rows.new_empty((sum(comes), rows.size(1)))
    sizes = [int(g.sum()) for g in goes]
    return measured(rank, [{"all-to-all": lambda: dist.all_to_all_single(into, rows, comes, sizes)}])[0]["all-to-all"]


def one_shape(rank, mine, theirs, tokens, sms):
    """Measures one batch at one number of multiprocessors; returns the ratios."""
    from deep_ep import Config
    batch = Batch(rank, [tokens] * rank.size, HIDDEN, EXPERTS, TOPK, seed=tokens, holes=0)
    ours = Calls(rank, mine, batch, lambda chunk: Config(sms))
    forms, peers = [ours.calls()], None
    forms[0]["all"] = ours.whole
    if theirs is not None:
        peers = Calls(rank, theirs[1], batch, lambda chunk: theirs[0].Config(sms, chunk or 8, 256))
        choose_chunks(rank, peers, None)
        forms.append(peers.calls())
        forms[1]["all"] = peers.whole
    results = measured(rank, forms)
    own, away = bytes_of(batch)
    rank.say(f"# {tokens} tokens, {sms} SMs; rows of rank 0: {own} own, {away} over the link = {away * HIDDEN * 2 / 1e6:.1f} MB in bf16"
             + (f"; DeepEP's chunks {peers.chunk}" if peers else ""))
    ratios = []
    for name, us in results[0].items():
        line = f"  {tokens:5d} tokens {sms:3d} SMs {name:14s} {us:8.1f}"
        if peers:
            ratios.append((name, us / results[1][name]))
            line += f" / {results[1][name]:8.1f} = {ratios[-1][1]:5.2f}"
        rank.say(line)
    if sms == SMS[0]:
        rank.say(f"  {tokens:5d} tokens NCCL's all-to-all of these rows {all_to_all(rank, batch):8.1f}")
    rank.say(f"  {tokens:5d} tokens {sms:3d} SMs kernels: {kernels(rank, ours.calls())}")
    return ratios


def speed(rank):
    """Ours, and DeepEP's where --deepep names it, alternating, with the same inputs in one process group."""
    theirs = None
    if rank.args.deepep:
        module = peer(rank.args.deepep)
        theirs = (module, module.Buffer(rank.group, 1 << 30, 0, explicitly_destroy=True))
    mine = rank.throughput_buffer()
    rank.say(f"# us a call, median of {ROUNDS}, slowest rank; {torch.cuda.get_device_name(rank.device)}; {rank.size} ranks, hidden {HIDDEN}, top-{TOPK} "
             f"of {EXPERTS}" + (": ours / DeepEP's = ratio" if theirs else ""))
    ratios = []
    for tokens in (4096, 128) if not rank.args.quick else (4096,):
        for sms in SMS if tokens == 4096 else SMS[:1]:
            ratios += one_shape(rank, mine, theirs, tokens, sms)
    mine.destroy()
    if not ratios:
        return "no peer"
    return "ratios: " + ", ".join(f"{name} {statistics.median(r for n, r in ratios if n == name):.2f}" for name in dict(ratios))
