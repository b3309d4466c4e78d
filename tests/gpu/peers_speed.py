# SPDX-License-Identifier: Apache-2.0
"""Ours, DeepEP's, NVIDIA's NCCL EP and NIXL EP on the same batches in one process group, alternating, in both modes. Parts of ll_cases.py; peers.sh runs them.

A call is timed by CUDA events around all that a program calls for it: with high throughput, a dispatch includes the exchange of counts, and with NCCL EP the handle's
update. Before each call the ranks meet on the GPU. A figure is the median of ht_speed.ROUNDS, of the slowest rank. Rows are small integers, and before BF16 calls are
timed each library's outputs must hold the same: sums of received rows by expert or rank, and combined rows. FP8 outputs are not compared. Nothing is judged by time. Ratios: ours divided by theirs.
"""
import os
import statistics
import sys

import torch
import torch.distributed as dist

from ht_speed import CHUNKS, ROUNDS, Clock, to_fp8
from ll_speed import peer, slowest

HIDDEN, TOPK, EXPERTS, SMS = 7168, 8, 256, 24
LL_TOKENS, HT_TOKENS = 128, 4096


class Batch:
    """What each library is given: rows of small integers, so that sums are exact in any order, and equal weights."""

    def __init__(self, rank, tokens):
        seeded = torch.Generator().manual_seed(rank.rank * 1000 + tokens)
        self.tokens, self.local = tokens, EXPERTS // rank.size
        self.x = torch.randint(-30, 31, (tokens, HIDDEN), generator=seeded).bfloat16().to(rank.device)
        self.idx = torch.stack([torch.randperm(EXPERTS, generator=seeded)[:TOPK] for _ in range(tokens)]).to(rank.device)
        self.weights = torch.full((tokens, TOPK), 1.0 / TOPK, device=rank.device)
        self.ranks_of = torch.stack([(self.idx // self.local == r).any(1) for r in range(rank.size)]).sum(0)


class Buffer:
    """Low latency of deep_ep.Buffer or of a class with its interface."""

    def __init__(self, b, batch, fp8):
        self.b, self.batch, self.fp8, self.idx = b, batch, fp8, batch.idx.to(getattr(b, "topk_idx_t", torch.int64))
        self.y = None

    def dispatch(self):
        self.got, self.count, self.handle, _, _ = self.b.low_latency_dispatch(self.batch.x, self.idx, self.batch.tokens, EXPERTS, use_fp8=self.fp8)

    def combine(self):
        y = self.y if self.y is not None else self.got
        self.back, _, _ = self.b.low_latency_combine(y, self.idx, self.batch.weights, self.handle)

    def received(self):
        return by_expert(self.got, self.count)


class Throughput:
    """deep_ep.Buffer's high throughput, or that of a class with its interface. make: gives the Config of a kind of call."""

    def __init__(self, b, batch, make, fp8):
        self.b, self.batch, self.make, self.fp8 = b, batch, make, fp8
        self.x = to_fp8(batch.x) if fp8 else batch.x
        self.y = None

    def dispatch(self):
        batch = self.batch
        per_rank, per_node, per_expert, in_rank, _ = self.b.get_dispatch_layout(batch.idx, EXPERTS)
        self.got, _, _, _, self.handle, _ = self.b.dispatch(self.x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
                                                            num_tokens_per_expert=per_expert, topk_idx=batch.idx, topk_weights=batch.weights,
                                                            config=self.make("dispatch"))

    def combine(self):
        if self.fp8 and self.y is None:
            self.y = torch.randn((len(self.got[0]), HIDDEN), dtype=torch.bfloat16, device=self.batch.x.device)
        self.back, _, _ = self.b.combine(self.y if self.fp8 else self.got, self.handle, config=self.make("combine"))

    def received(self):
        return self.got.double().sum(0), len(self.got)


class NcclEp:
    """Either mode of NCCL EP."""

    def __init__(self, rank, batch, low_latency):
        import nccl.ep as ep
        from nccl.ep.interop.torch import get_nccl_comm_from_group
        self.ep, self.batch, self.ll = ep, batch, low_latency
        self.stream = torch.cuda.current_stream().cuda_stream
        most, device = batch.tokens * rank.size, rank.device
        self.comm = get_nccl_comm_from_group()
        self.group = ep.Group.create(self.comm, ep.GroupConfig(
            algorithm=ep.Algorithm.LOW_LATENCY if low_latency else ep.Algorithm.HIGH_THROUGHPUT, num_experts=EXPERTS, num_topk=TOPK,
            max_dispatch_tokens_per_rank=batch.tokens, max_recv_tokens_per_rank=most, max_token_bytes=HIDDEN * 2, timeout_ns=20_000_000_000,
            max_num_sms=0 if low_latency else SMS))
        self.idx, weights = ep.Tensor(batch.idx), ep.Tensor(batch.weights)
        self.back = torch.zeros_like(batch.x)
        self.total = torch.zeros(1, device=device, dtype=torch.int32)
        self.counts = torch.zeros(batch.local, device=device, dtype=torch.int32)
        if low_latency:
            self.got = torch.zeros((batch.local, most, HIDDEN), device=device, dtype=torch.bfloat16)
            self.inputs, self.outputs = ep.DispatchInputs(tokens=ep.Tensor(batch.x)), ep.DispatchOutputs(tokens=ep.Tensor(self.got))
            self.told, layout, self.before = ep.LayoutInfo(expert_counters=ep.Tensor(self.counts)), ep.Layout.EXPERT_MAJOR, None
            self.results = ep.CombineOutputs(tokens=ep.Tensor(self.back), topk_weights=weights)
        else:
            self.got = torch.zeros((most, HIDDEN), device=device, dtype=torch.bfloat16)
            self.out_weights = torch.zeros((most, TOPK), device=device)
            self.out_index = torch.zeros((most, TOPK), device=device, dtype=torch.int64)
            self.inputs = ep.DispatchInputs(tokens=ep.Tensor(batch.x), topk_weights=weights)
            self.outputs = ep.DispatchOutputs(tokens=ep.Tensor(self.got), topk_weights=ep.Tensor(self.out_weights), topk_idx=ep.Tensor(self.out_index))
            self.told, layout, self.before = None, ep.Layout.FLAT, ep.LayoutInfo(recv_total_counter=ep.Tensor(self.total))
            self.results = ep.CombineOutputs(tokens=ep.Tensor(self.back))
        self.handle = self.group.create_handle(layout, self.idx, layout_info=self.before, config=ep.HandleConfig(), stream=self.stream)
        self.y = None

    def dispatch(self):
        self.handle.update(self.idx, layout_info=self.before, stream=self.stream)
        self.handle.dispatch(self.inputs, self.outputs, layout_info=self.told, config=self.ep.DispatchConfig(), stream=self.stream)
        self.handle.complete(stream=self.stream)

    def combine(self):
        rows = self.got if self.y is None else self.y
        self.handle.combine(self.ep.CombineInputs(tokens=self.ep.Tensor(rows)), self.results, config=self.ep.CombineConfig(), stream=self.stream)
        self.handle.complete(stream=self.stream)

    def received(self):
        if self.ll:
            return by_expert(self.got, self.counts)
        rows = int(self.total)
        return self.got[:rows].double().sum(0), rows


def nixl_ep(rank, folder, batch):
    """NIXL EP's Buffer, of the wheel unpacked in a folder; its high throughput is for several nodes only."""
    sys.path.append(folder)
    import nixl_ep_cu13 as nixl
    store = dist.TCPStore("127.0.0.1", int(os.environ.get("PEERS_PORT", "29613")), is_master=rank.rank == 0)
    b = nixl.Buffer(rank=rank.rank, low_latency_mode=True, explicitly_destroy=True, tcp_store_group=store)
    b.update_memory_buffers(rank.size, batch.local, nixl.Buffer.get_low_latency_buffer_size_hint(batch.tokens, HIDDEN, rank.size, EXPERTS))
    b.connect_ranks([r for r in range(rank.size) if r != rank.rank])
    b.store, b.topk_idx_t = store, nixl.topk_idx_t
    return b


def by_expert(rows, counts):
    """Sums of the rows received for each expert, and their numbers."""
    rows = rows[0] if isinstance(rows, tuple) else rows
    return torch.stack([rows[e, :n].double().sum(0) for e, n in enumerate(counts.tolist())]), counts.tolist()


def same(name, one, other):
    if one[1] != other[1] or not torch.equal(one[0], other[0]):
        raise AssertionError(f"{name} received other rows than ours")


def measured(rank, parties):
    """Microseconds of each party's dispatch and combine, alternating, each combine behind its dispatch."""
    clock = Clock(rank)
    took = {name: {"dispatch": [], "combine": []} for name in parties}
    for i in range(ROUNDS + 2):
        for name, party in parties.items():
            for kind in ("dispatch", "combine"):
                us = clock.once(getattr(party, kind))
                if i >= 2:
                    took[name][kind].append(us)
    return {name: {kind: slowest(rank, us) for kind, us in kinds.items()} for name, kinds in took.items()}


def compare(rank, mode, parties, check):
    """Checks outputs where check(party) says what a combine must give, then measures and prints."""
    ours = next(iter(parties))
    for name, party in parties.items():
        party.dispatch()
        torch.cuda.synchronize()
        wanted = check(party)
        if wanted is not None:
            same(name, parties[ours].received(), party.received())
        party.combine()
        torch.cuda.synchronize()
        if wanted is not None and not torch.allclose(party.back.float(), wanted, rtol=0.01, atol=0.01):
            raise AssertionError(f"{name} combined other rows")
        rank.meet()
    us = measured(rank, parties)
    for name, kinds in us.items():
        text = "  ".join(f"{kind} {took:8.1f}" + ("" if name == ours else f" (ratio {us[ours][kind] / took:4.2f})") for kind, took in kinds.items())
        rank.say(f"# peers: {mode}, {name}: {text}")
    return us


def tried(rank, parties, name, make):
    """Adds a party, or says why it cannot take part; the ranks agree."""
    try:
        made, why = make(), None
    except Exception as error:  # of a library that is not ours
        made, why = None, f"{type(error).__name__}: {error}"
    reasons = [None] * rank.size
    dist.all_gather_object(reasons, why)
    if any(reasons):
        rank.say(f"# peers: {name} is left out: {next(r for r in reasons if r)[:200]}")
    else:
        parties[name] = made


def low_latency(rank):
    """128 tokens. FP8 rows where a library makes them itself; NCCL EP is given BF16 rows."""
    batch, options = Batch(rank, LL_TOKENS), rank.args
    shapes = [(LL_TOKENS, HIDDEN, EXPERTS)]
    buffers = {}
    tried(rank, buffers, "ours", lambda: rank.buffer(shapes))
    if options.deepep:
        tried(rank, buffers, "DeepEP", lambda: rank.buffer(shapes, module=peer(options.deepep)))
    if options.nixl:
        tried(rank, buffers, "NIXL EP", lambda: nixl_ep(rank, options.nixl, batch))
    parties = {name: Buffer(b, batch, False) for name, b in buffers.items()}
    if options.nccl_ep:
        tried(rank, parties, "NCCL EP", lambda: NcclEp(rank, batch, True))
    results = [compare(rank, "low latency BF16", parties, lambda _: batch.x.float())]
    parties = {name: Buffer(b, batch, True) for name, b in buffers.items()}
    for party in parties.values():
        party.y = torch.randn((batch.local, batch.tokens * rank.size, HIDDEN), dtype=torch.bfloat16, device=rank.device)
    results.append(compare(rank, "low latency FP8", parties, lambda _: None))
    return summary(results)


def choose_chunks(rank, party, config):
    """DeepEP's own way: the sizes of its chunks that are fastest here."""
    chunks, clock = {"dispatch": 8, "combine": 8}, Clock(rank)
    party.make = lambda kind: config(SMS, chunks[kind], 256)
    party.dispatch()
    for kind, sizes in CHUNKS.items():
        best = None
        for chunks[kind] in sizes:
            took = slowest(rank, [clock.once(getattr(party, kind)) for _ in range(5)][1:])
            best = min(best or (took, chunks[kind]), (took, chunks[kind]))
        chunks[kind] = best[1]


def high_throughput(rank):
    """4,096 tokens, 24 multiprocessors."""
    from deep_ep import Config
    batch, options = Batch(rank, HT_TOKENS), rank.args
    mine = rank.throughput_buffer()
    module = peer(options.deepep) if options.deepep else None
    other = rank.throughput_buffer(module) if module else None
    results = []
    for fp8 in (False, True):
        parties = {"ours": Throughput(mine, batch, lambda kind: Config(SMS), fp8)}
        if module:
            parties["DeepEP"] = Throughput(other, batch, None, fp8)
            choose_chunks(rank, parties["DeepEP"], module.Config)
        if options.nccl_ep and not fp8:
            tried(rank, parties, "NCCL EP", lambda: NcclEp(rank, batch, False))
        results.append(compare(rank, f"high throughput {'FP8' if fp8 else 'BF16'}", parties,
                               lambda _: None if fp8 else batch.x.float() * batch.ranks_of[:, None]))
    return summary(results)


def summary(results):
    """The ratios of all comparisons, by peer."""
    ratios = {}
    for us in results:
        ours = next(iter(us.values()))
        for name, kinds in list(us.items())[1:]:
            ratios.setdefault(name, []).extend(ours[kind] / took for kind, took in kinds.items())
    return "; ".join(f"beside {name} {min(of):.2f} to {max(of):.2f}, median {statistics.median(of):.2f}" for name, of in ratios.items()) or "no peer"
