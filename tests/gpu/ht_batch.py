# SPDX-License-Identifier: Apache-2.0
"""Batches of high throughput, of which each rank makes the inputs of all ranks, so it knows its results; calls on them, compared bit for bit."""
import torch

from ll_reference import Wrong, bits

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int8": torch.int8, "fp8": torch.uint8}
# How a call is ordered: on the current stream; as an event; as an event behind one given, with outputs of the communication stream.
ORDERS = ("sync", "async", "comm", "previous")


class Batch:
    """One batch of all ranks."""

    def __init__(self, rank, tokens, hidden, experts, topk, seed, kind="bf16", holes=0.1):
        self.rank, self.size, self.device, self.nodes = rank.rank, rank.size, rank.device, rank.nodes
        self.tokens, self.hidden, self.experts, self.topk, self.kind = tokens, hidden, experts, topk, kind
        self.local = experts // self.size
        self.all = [self._inputs(r, seed, holes) for r in range(self.size)]
        self.x, self.scales, self.idx, self.weights, self.bias = self.all[self.rank]

    def _inputs(self, r, seed, holes):
        g = torch.Generator(device=self.device).manual_seed(seed * 1000 + r)
        n, dtype = self.tokens[r], DTYPES[self.kind]

        def rand(*size):
            return torch.randn(size, generator=g, device=self.device)
        x = rand(n, self.hidden)
        x = x.to(dtype) if dtype.is_floating_point else (x * 40).to(torch.int8).view(dtype)
        # Column-major, as quantisers for TMA give them.
        scales = rand(self.hidden // 128, n).t() if self.kind == "fp8" else None
        idx = torch.rand((n, self.experts), generator=g, device=self.device).argsort(1)[:, :self.topk].contiguous()
        idx[torch.rand(idx.shape, generator=g, device=self.device) < holes] = -1
        weights = torch.rand((n, self.topk), generator=g, device=self.device)
        bias = tuple(rand(n, self.hidden).to(torch.bfloat16) for _ in range(2))
        return x, scales, idx, weights, bias

    def __str__(self):
        return f"tokens {self.tokens}, hidden {self.hidden} {self.kind}, {self.experts} experts, top-{self.topk}"

    def goes(self, source, to):
        """Which tokens of a rank go to a rank: bool [tokens]."""
        idx = self.all[source][2]
        return ((idx >= to * self.local) & (idx < (to + 1) * self.local)).any(1)

    def expected(self):
        """What this rank receives: rows, scales, experts, weights, counts of experts."""
        rows, scales, index, weights = [], [], [], []
        for r in range(self.size):
            x, s, idx, w, _ = self.all[r]
            come = self.goes(r, self.rank)
            rows.append(x[come])
            scales.append(s[come] if s is not None else None)
            mine = idx[come] - self.rank * self.local
            there = (mine >= 0) & (mine < self.local) & (idx[come] >= 0)
            index.append(torch.where(there, mine, torch.full_like(mine, -1)))
            weights.append(torch.where(there, w[come], torch.zeros_like(w[come])))
        index = torch.cat(index)
        counts = [int((index == e).sum()) for e in range(self.local)]
        return torch.cat(rows), torch.cat(scales) if self.kind == "fp8" else None, index, torch.cat(weights), counts

    def output(self, rows, rank):
        """What a rank makes of rows."""
        return (rows.float() * (1 + rank / 8)).to(torch.bfloat16)

    def sums(self, biases):
        acc = torch.zeros((self.tokens[self.rank], self.hidden), device=self.device)
        for b in self.bias[:biases]:
            acc = acc + b.float()
        nodes = sorted(set(self.nodes), key=self.nodes.index)  # by their lowest rank
        for node in nodes:
            part = acc if len(nodes) == 1 else torch.zeros_like(acc)
            for r in (r for r in range(self.size) if self.nodes[r] == node):
                part = torch.where(self.goes(self.rank, r)[:, None], part + self.output(self.x, r).float(), part)
            acc = part if len(nodes) == 1 else acc + part.to(torch.bfloat16).float()
        return acc.to(torch.bfloat16)

    def sums_of_weights(self):
        """Each rank gives its entries' weights times its number plus 1."""
        owner = torch.div(self.idx, self.local, rounding_mode="floor")
        return torch.where(self.idx >= 0, self.weights * (owner + 1).float(), torch.zeros_like(self.weights))


# Zeros, numbers too small for an exponent, the smallest one with an exponent, the largest, infinities, NaNs.
SPECIAL = (0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffff)
NAN = 0x7fff  # what sums make of a NaN


def bf16_of(patterns):
    return torch.where(patterns >= 1 << 15, patterns - (1 << 16), patterns).to(torch.int16).view(torch.bfloat16)


class Odd(Batch):
    """A batch of all kinds of BF16 numbers, which ranks turn around, leave, or make others of."""

    def _inputs(self, r, seed, holes):
        _, *others = super()._inputs(r, seed, holes)
        g = torch.Generator(device=self.device).manual_seed(seed * 1000 + 500 + r)
        shape = self.tokens[r], self.hidden
        special = torch.tensor(SPECIAL, device=self.device)[torch.randint(len(SPECIAL), shape, generator=g, device=self.device)]
        patterns = torch.randint(1 << 16, shape, generator=g, device=self.device)
        return (bf16_of(torch.where(torch.rand(shape, generator=g, device=self.device) < 0.3, special, patterns)), *others)

    def output(self, rows, rank):
        v, column = rows.view(torch.int16).int() & 0xffff, torch.arange(self.hidden, device=self.device) % 3
        return bf16_of(torch.where(column == 0, v ^ (rank % 2) << 15, torch.where(column == 1, v, v * (2 * rank + 1) + 77 * rank & 0xffff)))

    def sums(self, biases):
        sums = super().sums(biases)
        return torch.where(sums.isnan(), bf16_of(torch.full_like(sums, NAN, dtype=torch.int32)), sums)


def same(got, want, what):
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Wrong(f"{what}: {got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}")
    differ = bits(got) != bits(want)
    if bool(differ.any()):
        at = differ.nonzero()[0].tolist()
        raise Wrong(f"{what}: {int(differ.sum())} of {got.numel()} differ, the first at {at}: {got[tuple(at)].item()} instead of {want[tuple(at)].item()}")


def ordered(order, b):
    """Arguments of a call that is ordered in one way."""
    if order == "async":
        return {"async_finish": True}
    if order == "comm":
        return {"async_finish": True, "allocate_on_comm_stream": True, "previous_event": b.capture()}
    return {"previous_event": b.capture()} if order == "previous" else {}


def wait(event, order):
    if order in ("async", "comm"):
        event.current_stream_wait()
    elif event.event is not None:
        raise Wrong("an event without async_finish")


def spoil(rank, *sizes):
    """Leaves a pattern in memory that the allocator gives out next."""
    for size in sizes:
        torch.full((size,), 0xa5, dtype=torch.uint8, device=rank.device)


def received(b, batch, order="sync", topk=True, worst=0, align=1, config=None):
    """Layout and dispatch of a batch, compared: (rows, weights, handle)."""
    layout = b.get_dispatch_layout(batch.idx, batch.experts, **ordered(order, b))
    per_rank, per_node, per_expert, in_rank, event = layout
    wait(event, order)
    for r in range(batch.size):
        same(in_rank[:, r], batch.goes(batch.rank, r), f"is_token_in_rank of rank {r}")
    same(per_rank, torch.stack([batch.goes(batch.rank, r).sum() for r in range(batch.size)]).to(torch.int32), "num_tokens_per_rank")
    same(per_expert, torch.bincount(batch.idx[batch.idx >= 0], minlength=batch.experts).to(torch.int32), "num_tokens_per_expert")
    spoil(b, batch.size * max(batch.tokens) * batch.hidden)
    x = batch.x if batch.scales is None else (batch.x, batch.scales)
    rows, index, weights, counts, handle, event = b.dispatch(
        x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
        topk_idx=batch.idx if topk else None, topk_weights=batch.weights if topk else None, expert_alignment=align, num_worst_tokens=worst,
        config=config, **ordered(order, b))
    wait(event, order)
    check_rows(batch, rows, worst)
    want = batch.expected()
    n = want[0].size(0)
    matrix = torch.stack([torch.stack([batch.goes(i, r).sum() for r in range(batch.size)]) for i in range(batch.size)]).cumsum(0)
    same(handle[0], matrix.to(torch.int32), "handle[0]")
    if topk:
        if not index.size(0) == weights.size(0) == (worst or n):
            raise Wrong(f"recv_topk_idx has {index.size(0)} rows, recv_topk_weights {weights.size(0)}, instead of {worst or n}")
        same(index[:n], want[2], "recv_topk_idx")
        if not bool((index[n:] == -1).all()):
            raise Wrong(f"recv_topk_idx behind the {n} rows received is not -1")
        same(weights[:n], want[3], "recv_topk_weights")
    elif index is not None or weights is not None:
        raise Wrong("recv_topk_idx without topk_idx")
    expected = [] if worst else [-(-c // align) * align for c in want[4]]
    if counts != expected:
        raise Wrong(f"num_recv_tokens_per_expert_list is {counts} instead of {expected}")
    return rows, weights, handle


def check_rows(batch, rows, worst=0):
    want = batch.expected()
    x, scales = rows if batch.scales is not None else (rows, None)
    n = want[0].size(0)
    if x.size(0) != (worst or n):
        raise Wrong(f"{x.size(0)} rows instead of {worst or n}")
    same(x[:n], want[0], "recv_x")
    if scales is not None:
        if scales.size(0) != x.size(0):
            raise Wrong(f"{scales.size(0)} rows of scales instead of {x.size(0)}")
        same(scales[:n], want[1], "scales")


def returned(b, batch, rows, weights, handle, order="sync", biases=0, config=None):
    """Combine of a batch, compared."""
    bias = None if biases == 0 else batch.bias[0] if biases == 1 else batch.bias
    given = None if weights is None else weights * (batch.rank + 1)
    y = batch.output(rows, batch.rank)
    sums, summed, event = b.combine(y, handle, topk_weights=given, bias=bias, config=config, **ordered(order, b))
    wait(event, order)
    same(sums, batch.sums(biases), "sums")
    if weights is not None:
        same(summed, batch.sums_of_weights(), "sums of weights")
    return sums


def named(rank, what, function, *arguments, **more):
    try:
        result = function(*arguments, **more)
        rank.sync()
        return result
    except Wrong as error:
        raise Wrong(f"{what}: {error}") from None


def one(rank, b, batch, what="", **form):
    """A dispatch, a cached one, and a combine where rows are BF16."""
    biases, config = form.pop("biases", 0), form.get("config")
    text = f"{what}{batch}, {form}"
    rows, weights, handle = named(rank, text, received, b, batch, **form)
    again = b.dispatch(batch.x if batch.scales is None else (batch.x, batch.scales), handle=handle, config=config)
    rank.sync()
    if again[1:5] != (None, None, None, None):
        raise Wrong(f"{text}: a cached dispatch gave more than rows and event")
    named(rank, text + ", cached", check_rows, batch, again[0], form.get("worst", 0))
    if batch.kind == "bf16":
        named(rank, text + ", combine", returned, b, batch, rows, weights, handle, form.get("order", "sync"), biases, config)
