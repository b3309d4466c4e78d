# SPDX-License-Identifier: Apache-2.0
"""Parts of ll_cases.py about ElasticBuffer: dispatch and combine in both layouts, with and without the CPU waiting, against a reference in PyTorch, bit for bit.

Every rank makes the inputs of all ranks from a seed (ht_batch.Batch), so it knows what it must receive and what its sums must be.
"""
from ctypes import c_int, c_size_t, c_void_p
from random import Random
from types import SimpleNamespace

import torch

from ht_batch import ORDERS, Batch, named, same, spoil
from ht_cases import die, grow, lost
from ll_reference import Wrong

MOST = 7  # tokens that a call may have beyond those of the rank with most


def buffer(rank, **more):
    import deep_ep
    b = deep_ep.ElasticBuffer(rank.group, explicitly_destroy=True, device=rank.device, **more)
    rank.made.append(b._buffer)
    return b


def align(n, to):
    return -(-n // to) * to


def ordered(order, b):
    if order == "async":
        return {"async_with_compute_stream": True}
    if order == "comm":
        return {"async_with_compute_stream": True, "allocate_on_comm_stream": True, "previous_event": b.capture()}
    return {"allocate_on_comm_stream": True, "previous_event": b.capture(), "previous_event_before_epilogue": b.capture()} if order == "previous" else {}


def wait(event, order):
    if order in ("async", "comm"):
        event.current_stream_wait()
    elif event.event is not None:
        raise Wrong("an event without async_with_compute_stream")


class Expected:
    """What a rank receives and gives, in one layout."""

    def __init__(self, batch, alignment, expand, most):
        self.batch, self.alignment, self.expand = batch, alignment, expand
        self.rows, self.scales, self.index, self.weights, self.counts = batch.expected()
        self.padded = [align(c, alignment) for c in self.counts]
        self.received = self.rows.size(0)
        # Grouped by expert: which row and which entry each is; -1 between groups.
        self.row_of, self.entry_of = [], []
        for expert, count in enumerate(self.padded):
            at = (self.index == expert).nonzero()
            spare = count - at.size(0)
            self.row_of += at[:, 0].tolist() + [-1] * spare
            self.entry_of += at[:, 1].tolist() + [-1] * spare
        self.source = torch.cat([r * most + batch.goes(r, batch.rank).nonzero()[:, 0] for r in range(batch.size)]).int()

    def grouped(self):
        return torch.tensor(self.row_of, dtype=torch.int64, device=self.batch.device)


def given(batch):
    return batch.x if batch.scales is None else (batch.x, batch.scales)


def check_data(e, got, zero, exact, tma):
    """Rows and scales."""
    x, scales = got if e.batch.scales is not None else (got, None)
    rows = e.grouped() if e.expand else torch.arange(e.received, device=e.batch.device)
    if exact and x.size(0) != rows.numel():
        raise Wrong(f"{x.size(0)} rows instead of {rows.numel()}")
    if scales is not None and scales.size(0) != x.size(0):
        raise Wrong(f"{scales.size(0)} rows of scales instead of {x.size(0)}")
    for what, t, want in (("recv_x", x, e.rows), ("scales", scales, e.scales)):
        if t is None:
            continue
        there = rows >= 0
        same(t[:rows.numel()][there], want[rows[there]], what)
        if zero and bool(t[:rows.numel()][~there].view(torch.uint8).any()):
            raise Wrong(f"{what}: rows between groups are not zeros")
    if scales is not None and tma and scales.size(0) > 1 and (scales.stride(0) != 1 or scales.stride(1) % 4 or scales.stride(1) < scales.size(0)):
        raise Wrong(f"column-major scales have strides {scales.stride()}")
    if scales is not None and not tma and not scales.is_contiguous():
        raise Wrong("scales are not contiguous")


def check_entries(e, index, weights, given_weights):
    """Experts and weights of received rows."""
    if e.expand:
        if index is not None:
            raise Wrong("recv_topk_idx of rows grouped by expert")
    else:
        same(index[:e.received], e.index, "recv_topk_idx")
        if bool((index[e.received:] != -1).any()):
            raise Wrong("recv_topk_idx behind the rows received is not -1")
    if not given_weights:
        if weights is not None:
            raise Wrong("recv_topk_weights without weights")
        return
    if e.expand:
        rows, entries = e.grouped(), torch.tensor(e.entry_of, dtype=torch.int64, device=e.batch.device)
        there = rows >= 0
        same(weights[:rows.numel()][there], e.weights[rows[there], entries[there]], "recv_topk_weights")
    else:
        same(weights[:e.received], e.weights, "recv_topk_weights")


def check_handle(e, handle, b, batch, most, exact):
    """Attributes that programs read."""
    def whole(values):
        return torch.tensor(values, dtype=torch.int32, device=batch.device)
    ends, total = [], 0
    for count, padded in zip(e.counts, e.padded):
        ends.append(total + (count if e.expand else padded))
        total += padded
    same(handle.psum_num_recv_tokens_per_expert, whole(ends), "psum_num_recv_tokens_per_expert")
    same(handle.num_unaligned_recv_tokens_per_expert, whole(e.counts), "num_unaligned_recv_tokens_per_expert")
    from_rank = [int(batch.goes(r, batch.rank).sum()) for r in range(batch.size)]
    out, up = b.get_logical_domain_size()
    if out * up != batch.size:
        raise Wrong(f"domains of {out} x {up} with {batch.size} ranks")
    same(handle.psum_num_recv_tokens_per_scaleup_rank, whole([sum(sum(from_rank[i::up]) for i in range(r + 1)) for r in range(up)]),
         "psum_num_recv_tokens_per_scaleup_rank")
    if handle.num_recv_tokens_per_expert_list != (e.padded if exact else []):
        raise Wrong(f"num_recv_tokens_per_expert_list is {handle.num_recv_tokens_per_expert_list} instead of {e.padded}")
    if handle.num_recv_tokens != (e.received if exact else most * batch.size):
        raise Wrong(f"num_recv_tokens is {handle.num_recv_tokens}")
    same(handle.topk_idx, batch.idx, "topk_idx")
    facts = (handle.do_expand, handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank)
    if facts != (e.expand, batch.experts, e.alignment, most):
        raise Wrong(f"the handle says {facts}")
    metadata = handle.recv_src_metadata[:e.received]
    same(metadata[:, 0], e.source, "recv_src_metadata[:, 0]")
    slots = torch.full_like(e.index, -1)
    for at, (row, entry) in enumerate(zip(e.row_of, e.entry_of)):
        if row >= 0 and e.expand:
            slots[row, entry] = at
    same(metadata[:, 2:], slots.int(), "recv_src_metadata[:, 2:]")


def output(x, expert):
    """What an expert makes of rows."""
    return (x.float() * (1 + expert / 16)).to(torch.bfloat16)


def grouped_sums(batch, biases):
    """Sums of what the experts make of this rank's tokens, as rows grouped by expert come back."""
    nodes = sorted(set(batch.nodes), key=batch.nodes.index)
    acc = torch.zeros((batch.tokens[batch.rank], batch.hidden), device=batch.device)
    for bias in batch.bias[:biases]:
        acc = acc + bias.float()
    for node in nodes:
        part = acc if len(nodes) == 1 else torch.zeros_like(acc)
        for r in (r for r in range(batch.size) if batch.nodes[r] == node):
            local = torch.zeros_like(acc)
            for k in range(batch.topk):
                expert = batch.idx[:, k]
                here = torch.div(expert, batch.local, rounding_mode="floor") == r
                local = torch.where(here[:, None], local + output(batch.x, expert[:, None]).float(), local)
            part = torch.where(batch.goes(batch.rank, r)[:, None], part + local.to(torch.bfloat16).float(), part)
        acc = part if len(nodes) == 1 else acc + part.to(torch.bfloat16).float()
    return acc.to(torch.bfloat16)


def single_sums(batch, biases, expand, by_expert=output, by_rank=Batch.output):
    """The same rounded once: rows grouped by expert in the order of top-k, others ranks ascending."""
    acc = torch.zeros((batch.tokens[batch.rank], batch.hidden), device=batch.device)
    for bias in batch.bias[:biases]:
        acc = acc + bias.float()
    for k in range(batch.topk if expand else batch.size):
        expert = batch.idx[:, k] if expand else None
        goes, row = (expert >= 0, by_expert(batch.x, expert[:, None])) if expand else (batch.goes(batch.rank, k), by_rank(batch, batch.x, k))
        acc = torch.where(goes[:, None], acc + row.float(), acc)
    return acc.to(torch.bfloat16)


def expert_rows(e, got):
    """What this rank's experts make of received rows."""
    batch = e.batch
    if not e.expand:
        return batch.output(got, batch.rank)
    experts = torch.cat([torch.full((n,), batch.rank * batch.local + i) for i, n in enumerate(e.padded)]).to(batch.device)
    y = torch.full_like(got, float("nan"))  # what lies between groups must not matter
    there = (e.grouped() >= 0).nonzero()[:, 0]
    y[there] = output(got[there], experts[there][:, None])
    return y


def returned(b, batch, e, got, weights, handle, order, biases):
    """A combine, compared."""
    bias = (None, batch.bias[0], batch.bias)[biases]
    scaled = None if weights is None else weights * (batch.rank + 1)
    sums, summed, event = b.combine(x=expert_rows(e, got), handle=handle, topk_weights=scaled, bias=bias, **ordered(order, b))
    wait(event, order)
    same(sums, grouped_sums(batch, biases) if e.expand else batch.sums(biases), "sums")
    if weights is not None:
        same(summed, batch.sums_of_weights(), "sums of weights")
    elif summed is not None:
        raise Wrong("sums of weights without weights")
    b.allow_multiple_reduction = False
    sums, summed, event = b.combine(x=expert_rows(e, got), handle=handle, topk_weights=scaled, bias=bias, **ordered(order, b))
    b.allow_multiple_reduction = True
    wait(event, order)
    same(sums, single_sums(batch, biases, e.expand), "sums that are rounded once")
    if weights is not None:
        same(summed, batch.sums_of_weights(), "sums of weights beside them")


def one(rank, b, batch, what="", expand=False, exact=True, order="sync", alignment=1, zero=False, tma=False, weights=True, copy=True, biases=0, sms=0):
    """A dispatch, one along its handle, and a combine where rows are BF16."""
    form = {k: v for k, v in locals().items() if k not in ("rank", "b", "batch", "what")}
    most = max(batch.tokens) + MOST
    stats = torch.ones(batch.local, dtype=torch.int32, device=batch.device)

    def run():
        e = Expected(batch, alignment, expand, most)
        spoil(b, batch.size * max(batch.tokens) * batch.hidden)
        got, index, w, handle, event = b.dispatch(
            given(batch), topk_idx=batch.idx, topk_weights=batch.weights if weights else None, cumulative_local_expert_recv_stats=stats,
            num_experts=batch.experts, num_max_tokens_per_rank=most, expert_alignment=alignment, num_sms=sms, do_handle_copy=copy,
            do_cpu_sync=exact, do_expand=expand, do_zero_padding=zero, use_tma_aligned_col_major_sf=tma, **ordered(order, b))
        wait(event, order)
        check_data(e, got, zero, exact, tma)
        check_entries(e, index, w, weights)
        check_handle(e, handle, b, batch, most, exact)
        if copy == (handle.topk_idx.data_ptr() == batch.idx.data_ptr()) and batch.idx.numel():
            raise Wrong(f"do_handle_copy={copy}, and the handle has {'the same' if copy else 'another'} tensor")
        same(stats, 1 + handle.num_unaligned_recv_tokens_per_expert, "cumulative_local_expert_recv_stats")
        again, index, w2, same_handle, event = b.dispatch(given(batch), topk_weights=batch.weights if weights else None, handle=handle, num_sms=sms,
                                                          do_expand=expand, do_zero_padding=zero, use_tma_aligned_col_major_sf=tma, **ordered(order, b))
        wait(event, order)
        if same_handle is not handle:
            raise Wrong("a dispatch along a handle gave another one")
        check_data(e, again, zero, exact, tma)
        check_entries(e, index, w2, weights)
        if batch.kind == "bf16":
            returned(b, batch, e, got, w, handle, order, biases)
        return handle
    return named(rank, f"{what}{batch}, {form}", run)


def table(rank):
    """Both layouts, with and without the CPU waiting, types of rows, orders, alignments, biases."""
    b = buffer(rank, num_max_tokens_per_rank=310, hidden=2048, num_topk=8)
    done = 0
    for i in range(16 if rank.args.quick else 64):
        tokens = [[5, 0, 64, 129, 300][(i + r) % 5] for r in range(rank.size)]
        experts = rank.size * [8, 1, 33][i % 3]
        topk = min([1, 4, 8, 32][(i + i // 4) % 4], experts)
        kind = ("bf16", "bf16", "fp8", "fp32")[(i // 2) % 4]
        hidden = {"bf16": (8, 2048, 7168), "fp8": (2048, 7168, 512), "fp32": (4, 1024, 2048)}[kind][i % 3]
        batch = Batch(rank, tokens, hidden, experts, topk, seed=i, kind=kind, holes=(0.1, 0, 0.9)[i % 3])
        expand = i % 2 == 1
        one(rank, b, batch, expand=expand, exact=i % 4 < 2, order=ORDERS[(i // 2) % 4], alignment=(1, 16, 128)[i % 3], zero=expand and i % 8 > 3, tma=i % 3 == 1,
            weights=i % 5 != 4, copy=i % 7 != 6, biases=i % 3, sms=(0, 24, 8)[i % 3])
        done += 1
    b.destroy()
    return f"{done} shapes, each with a dispatch along its handle"


def random(rank):
    """Cases from seeds."""
    b = buffer(rank)
    for i in range(rank.args.cases):
        r = Random(rank.args.seed + i)
        topk, experts = r.randint(1, 16), rank.size * r.randint(1, 32)
        tokens = [r.choice([0, 1, 7, r.randint(0, 256)]) for _ in range(rank.size)]
        kind = r.choice(["bf16", "bf16", "fp8"])
        hidden = 8 * r.randint(1, 300) if kind == "bf16" else 128 * r.randint(1, 20)
        batch = Batch(rank, tokens, hidden, experts, min(topk, experts), seed=rank.args.seed + i, kind=kind, holes=r.choice([0, 0.2, 0.95]))
        expand = r.random() < 0.5
        one(rank, b, batch, what=f"seed {rank.args.seed + i}: ", expand=expand, exact=r.random() < 0.5, order=r.choice(ORDERS),
            alignment=r.choice([1, 3, 64]), zero=expand and r.random() < 0.5, tma=r.random() < 0.5, weights=r.random() < 0.8, biases=r.randint(0, 2))
    b.destroy()
    return f"{rank.args.cases} cases from seed {rank.args.seed}"


def large(rank):
    """Batches so large that rows are copied to their groups while others are on their way, in CUDA graphs, so that no CPU delays the copies; each replay brings other rows."""
    tokens, hidden, experts, topk = [2048] * rank.size, 7168, 64 * rank.size, 8
    replays = 4 if rank.args.quick else 20
    b = buffer(rank, num_max_tokens_per_rank=2048, hidden=hidden, num_topk=topk)
    first = Batch(rank, tokens, hidden, experts, topk, seed=1)
    x, idx, weights = first.x.clone(), first.idx.clone(), first.weights.clone()

    for sms in (24, 64):  # of them the second leaves too few multiprocessors for a copy beside it
        def step():
            rows, _, w, handle, _ = b.dispatch(x, topk_idx=idx, topk_weights=weights, num_experts=experts, num_sms=sms, do_expand=True, do_cpu_sync=False)
            x.neg_()  # along the handle other rows, too
            again, *_ = b.dispatch(x, handle=handle, do_expand=True)
            return rows, w, again
        step()
        rank.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows, w, again = step()
        rank.meet()
        for i in range(replays):
            batch = Batch(rank, tokens, hidden, experts, topk, seed=sms + i)
            x.copy_(batch.x), idx.copy_(batch.idx), weights.copy_(batch.weights)
            graph.replay()
            rank.sync()
            e = Expected(batch, 1, True, 2048)
            check_data(e, rows, False, False, False)
            check_entries(e, None, w, True)
            e.rows = -e.rows
            check_data(e, again, False, False, False)
        del graph
    b.destroy()
    return f"2 x {replays} replays, two dispatches in each"


def guesses(rank):
    """Grouped rows are copied before the CPU knows how many there are: where more rows come to a rank than it has guessed, and where so few that its outputs would be in
    vain."""
    from deep_ep import memory
    b, spare = buffer(rank), memory.SPARE_BYTES
    memory.SPARE_BYTES = 0
    # Of 40 tokens so many go to the first rank, so many to the last.
    for first, last, alignment in ((30, 10, 64), (20, 20, 1), (4, 4, 1), (20, 20, 64), (20, 20, 64)):
        batch = Batch(rank, [40] * rank.size, 512, 2 * rank.size, 1, seed=first, holes=0)
        for _, _, idx, _, _ in batch.all:
            token = torch.arange(40, device=batch.device)
            idx[:, 0] = torch.where(token < first, 0, 2 * rank.size - 2) + token % 2
            idx[first + last:] = -1
        if first == 4:
            got = b.dispatch(batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_experts=batch.experts, expert_alignment=alignment,
                             num_max_tokens_per_rank=50, do_expand=True)[0]
            if got.storage().nbytes() != got.numel() * got.element_size():
                raise Wrong(f"{got.storage().nbytes()} bytes of memory for {got.size(0)} rows")
        one(rank, b, batch, expand=True, alignment=alignment)
    memory.SPARE_BYTES = spare
    # Outputs that are not grouped become shorter, with and without scales, which may lie by column.
    for i, (kind, tma) in enumerate((("bf16", True), ("fp8", True), ("fp8", False))):
        for tokens in (40, 38):
            one(rank, b, Batch(rank, [tokens] * rank.size, 512, 2 * rank.size, 2, seed=90 + i, kind=kind, holes=0), tma=tma)
    b.destroy()
    return "11 routings"


def unwaited(rank):
    """Dispatches that the program does not let the CPU wait for: ranks map outputs that are new in those whose number is a power of two, all of them, and in no others."""
    b = buffer(rank)
    inner, on_gpu = b._buffer, rank.device.type == "cuda"
    made, mapped = [], inner._map_results
    if not on_gpu:  # nothing is mapped, and asked for until the end
        inner._results = SimpleNamespace(begin=lambda ht: None, empty=lambda *_: None, close=lambda: None)

    def note():
        made.append(inner._unwaited)
        if on_gpu:
            mapped()
    inner._map_results = note
    for call in range(1, 10):
        if call == 3 and not on_gpu and rank.rank == 0:
            alloc = inner._ht._dll.epf_ht_pool_alloc
            alloc.restype, alloc.argtypes = c_void_p, [c_size_t, c_int, c_void_p]
            inner._ht.want(alloc(4096, 0, None))
        one(rank, b, Batch(rank, [200 if call < 3 else 1000] * rank.size, 4096 if on_gpu else 64, 4 * rank.size, 2, seed=call), exact=False)
    want = [2, 4] if on_gpu else [4, 8]
    if made[:2] != want or not set(made) <= {1, 2, 4, 8}:
        raise Wrong(f"memory was mapped in calls {made}, not in {want}")
    if on_gpu and inner._ht.wanted():
        raise Wrong(f"{len(inner._ht.wanted())} segments are not mapped after call 8")
    inner._results = inner._results if on_gpu else None
    b.destroy()
    return f"9 calls, memory mapped in {made}"


def errors(rank):
    """One rank has no memory for what it receives: it says so, the others do not notice, and the calls that follow are right."""
    from deep_ep import expand
    b = buffer(rank)
    for i in range(3):
        batch = Batch(rank, [40 + i] * rank.size, 1024, 4 * rank.size, 3, seed=900 + i, kind="fp8")
        like_scales, failed, copied = expand.like_scales, False, 0
        spread = b._buffer._ht.spread

        def none(*_):
            raise MemoryError("none left")

        def count(*values):
            nonlocal copied
            copied += 1
            return spread(*values)
        b._buffer._ht.spread = count
        if i != 1 and rank.rank == rank.size - 1:
            expand.like_scales = none
        try:
            b.dispatch(given(batch), topk_idx=batch.idx, topk_weights=batch.weights, num_experts=batch.experts, num_max_tokens_per_rank=50, do_expand=True)
        except MemoryError:
            failed = True
        expand.like_scales, b._buffer._ht.spread = like_scales, spread
        if failed != (i != 1 and rank.rank == rank.size - 1):
            raise Wrong(f"call {i}: {'an error' if failed else 'no error'}")
        if failed and copied != 1:
            raise Wrong(f"call {i}: {copied} copies of rows; each dispatch needs one, else the next one copies rows before they arrive")
        one(rank, b, batch, what=f"after call {i}: ", expand=True)
    b.destroy()
    return "2 of 3 calls failed on one rank"


def kill(rank):
    """The last rank is killed in a dispatch of rows grouped by expert, when the others have its counts: they name it as lost."""
    b = buffer(rank)
    batch = Batch(rank, [64] * rank.size, 1024, 8 * rank.size, 4, seed=3)
    for _ in range(3):
        one(rank, b, batch, expand=True)
    rank.meet()
    if rank.rank == rank.size - 1:
        b._buffer._ht.dispatch = die
    return lost(rank, b._buffer, lambda: b.dispatch(batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_experts=batch.experts,
                                                    num_max_tokens_per_rank=64, do_expand=True))


def layers(rank):
    """Handles of many layers are held, and used in reverse order, as training does; barriers between them."""
    b = buffer(rank)
    held = []
    for i in range(6 if rank.args.quick else 40):
        batch = Batch(rank, [(i * 37 + 11 * r) % 100 for r in range(rank.size)], 512, 4 * rank.size, 3, seed=700 + i)
        e = Expected(batch, 1, i % 2 == 1, 150)
        got, _, w, handle, _ = b.dispatch(batch.x, batch.idx, batch.weights, None, batch.experts, 150, do_expand=e.expand)
        held.append((batch, e, got, w, handle))
    b.barrier(use_comm_stream=False)
    for i, (batch, e, got, w, handle) in enumerate(reversed(held)):
        named(rank, str(batch), returned, b, batch, e, got, w, handle, ORDERS[i % 3], 0)
        again, *_ = b.dispatch(batch.x, handle=handle, num_sms=handle.num_sms, do_cpu_sync=False, do_expand=e.expand)
        named(rank, str(batch), check_data, e, again, False, True, False)
        if i % 3 == 0:
            b.barrier(with_cpu_sync=True)
    b.destroy()
    return f"{len(held)} layers held, used in reverse order"


def graphs(rank):
    """A dispatch without the CPU waiting, and its combine, in a CUDA graph, in both layouts, replayed with other inputs; memory that grows moves meanwhile."""
    tokens, hidden, experts, topk, most = [64] * rank.size, 2048, 8 * rank.size, 4, 64
    b = buffer(rank, num_max_tokens_per_rank=most, hidden=hidden, num_topk=topk)
    first = Batch(rank, tokens, hidden, experts, topk, seed=1)
    x, idx, weights = first.x.clone(), first.idx.clone(), first.weights.clone()
    for expand in (False, True):
        def step():
            rows, index, w, handle, _ = b.dispatch(x, topk_idx=idx, topk_weights=weights, num_experts=experts, do_expand=expand, do_cpu_sync=False)
            b.allow_multiple_reduction = True
            b.combine(rows, handle)
            b.allow_multiple_reduction = False
            sums, _, _ = b.combine(rows, handle)
            b.allow_multiple_reduction = True
            return rows, index, w, handle.psum_num_recv_tokens_per_expert, handle.psum_num_recv_tokens_per_scaleup_rank, sums
        step()
        rank.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows, index, w, ends, ranks, sums = step()
        rank.meet()
        for i in range(min(rank.args.steps, 100)):
            batch = Batch(rank, tokens, hidden, experts, topk, seed=2 + i)
            x.copy_(batch.x), idx.copy_(batch.idx), weights.copy_(batch.weights)
            graph.replay()
            rank.sync()
            e = Expected(batch, 1, expand, most)
            check_data(e, rows, False, False, False)
            check_entries(e, index, w, True)
            same(ends, torch.tensor(e.counts, device=rank.device).cumsum(0).int(), f"replay {i}, psum_num_recv_tokens_per_expert")
            if int(ranks[-1]) != e.received:
                raise Wrong(f"replay {i}: {int(ranks[-1])} rows instead of {e.received}")
            same(sums, single_sums(batch, 0, expand, lambda x, _: x, lambda _, x, r: x), f"replay {i}, sums")
            if i % 10 == 3:
                one(rank, b, batch, what=f"eager, after replay {i}: ", expand=expand, exact=i % 20 == 3)
            if i == 3:
                grow(rank, b._buffer, lambda n: one(rank, b, Batch(rank, [n] * rank.size, hidden, experts, topk, seed=n), what=f"eager, {n} tokens: ", expand=expand))
        del graph
    b.destroy()
    return f"2 x {min(rank.args.steps, 100)} replays with changing inputs, eager calls between them, memory moved after the fourth"


def callers(rank):
    """The calls of torchtitan 0.3.0, vLLM and SGLang with their arguments, by keyword and by position."""
    import deep_ep
    n, group, device = rank.size, rank.group, {"device": rank.device}  # device: ours; programs on GPUs have no need of it
    batch = Batch(rank, [50 + 3 * r for r in range(n)], 1024, 8 * n, 4, seed=21)
    most = max(batch.tokens)

    # torchtitan: a buffer by its hint, never destroyed; training: compact, gradients along the handle; inference: grouped, for a graph.
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint(group, most, batch.hidden, num_topk=batch.topk, use_fp8_dispatch=False)
    t = deep_ep.ElasticBuffer(group, num_bytes=hint, num_max_tokens_per_rank=most, hidden=batch.hidden, num_topk=batch.topk, use_fp8_dispatch=False,
                              deterministic=torch.are_deterministic_algorithms_enabled(), explicitly_destroy=True, **device)
    if t.group is not group or t.num_bytes < hint or t.num_max_tokens_per_rank != most:
        raise Wrong("the buffer's group and sizes are not those given")
    sms = t.get_theoretical_num_sms(batch.experts, batch.topk)
    e = Expected(batch, 1, False, most)
    rows, index, scores, handle, _ = t.dispatch(batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_experts=batch.experts,
                                                num_max_tokens_per_rank=most, num_sms=sms, do_expand=False, do_cpu_sync=True)
    check_data(e, rows, False, True, False)
    check_entries(e, index, scores, True)
    if torch.tensor(handle.num_recv_tokens_per_expert_list, dtype=torch.int32).tolist() != e.counts or handle.num_sms != sms:
        raise Wrong(f"counts are {handle.num_recv_tokens_per_expert_list} instead of {e.counts}")
    y, _, event = t.combine(batch.output(rows, rank.rank), handle=handle, topk_weights=None, async_with_compute_stream=True)
    event.current_stream_wait()
    same(y, batch.sums(0), "torchtitan's combine")
    grad, *_ = t.dispatch(batch.x, handle=handle, num_sms=handle.num_sms, do_cpu_sync=False)
    check_data(e, grad, False, True, False)
    grad, grad_scores, _ = t.combine(batch.output(grad, rank.rank), handle=handle, topk_weights=scores.float() * (rank.rank + 1))
    same(grad, batch.sums(0), "torchtitan's gradient")
    same(grad_scores, batch.sums_of_weights(), "torchtitan's gradient of the scores")
    rows, index, scores, handle, _ = t.dispatch(batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_experts=batch.experts,
                                                num_max_tokens_per_rank=most, num_sms=sms, do_expand=True, do_cpu_sync=False)
    ends = handle.psum_num_recv_tokens_per_expert
    same(torch.diff(ends, prepend=ends.new_zeros(1)).to(torch.int32), torch.tensor(e.counts, dtype=torch.int32, device=rank.device), "torchtitan's counts")
    if scores.reshape(rows.size(0), -1).sum(dim=-1, keepdim=True).shape != (rows.size(0), 1):
        raise Wrong("torchtitan's scores are not one for each row")
    returned(t, batch, Expected(batch, 1, True, most), rows, None, handle, "sync", 0)

    # vLLM: prefill grouped, decode compact without the CPU waiting, for a batch that is smaller than the buffer; a combine beside shared experts.
    v = deep_ep.ElasticBuffer(**dict(group=group, num_max_tokens_per_rank=256, hidden=batch.hidden, num_topk=batch.topk, use_fp8_dispatch=True,
                                     allow_hybrid_mode=True, allow_multiple_reduction=False, prefer_overlap_with_compute=False, explicitly_destroy=True), **device)
    fp8 = Batch(rank, batch.tokens, 1024, batch.experts, 4, seed=22, kind="fp8")
    for data in (batch, fp8):
        for decode in (False, True):
            bound = 1 << max(most - 1, 0).bit_length() if decode else None
            e = Expected(data, 1, not decode, bound or 256)
            got, index, w, handle, event = v.dispatch(x=given(data), topk_idx=data.idx, topk_weights=data.weights, num_experts=data.experts,
                                                      num_max_tokens_per_rank=bound, do_expand=not decode, do_cpu_sync=not decode,
                                                      async_with_compute_stream=False)
            if event.event is not None:
                raise Wrong("an event without async_with_compute_stream")
            check_data(e, got, False, not decode, False)
            check_entries(e, index, w, True)
            check_handle(e, handle, v, data, bound or 256, not decode)
            if data is batch:
                y = expert_rows(e, got)
                sums, _, event = v.combine(x=y, handle=handle, topk_weights=None, async_with_compute_stream=True, allocate_on_comm_stream=True)
                event.current_stream_wait()
                same(sums, single_sums(data, 0, e.expand), "vLLM's combine")
    v.destroy()

    # SGLang: prefill compact with aligned lists and column-major scales, decode grouped; a rank without tokens pads one.
    s = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=128, hidden=batch.hidden, num_topk=batch.topk, use_fp8_dispatch=True, allow_hybrid_mode=True,
                              sl_idx=0, prefer_overlap_with_compute=False, **device)
    sms = s.get_theoretical_num_sms(batch.experts, batch.topk)
    for data in (batch, fp8):
        for decode in (False, True):
            e = Expected(data, 128, decode, 128)
            got, index, w, handle, event = s.dispatch(
                given(data), topk_idx=data.idx, topk_weights=data.weights, num_experts=data.experts, num_max_tokens_per_rank=128, expert_alignment=128,
                num_sms=sms, num_qps=s.get_theoretical_num_qps(sms), use_tma_aligned_col_major_sf=True, do_cpu_sync=not decode, do_expand=decode)
            if int(handle.psum_num_recv_tokens_per_scaleup_rank[-1].item()) != e.received:
                raise Wrong("SGLang's number of rows")
            check_data(e, got, False, not decode, True)
            check_entries(e, index, w, True)
            check_handle(e, handle, s, data, 128, not decode)
            if data is batch:
                y, _, event = s.combine(expert_rows(e, got), handle=handle, topk_weights=w, num_sms=sms, num_qps=s.get_theoretical_num_qps(sms))
                same(y, grouped_sums(data, 0) if decode else data.sums(0), "SGLang's combine")
    s.destroy()
    return "torchtitan, vLLM, SGLang; torchtitan's buffer is never destroyed"
