# SPDX-License-Identifier: Apache-2.0
"""Parts of ll_cases.py about HybridEPBuffer: dispatch by a map and by indices, rows and weights along a handle, combine, against a reference in PyTorch, bit for bit.

Every rank makes the inputs of all ranks from a seed (ht_batch.Batch).
"""
from copy import copy

import torch

from elastic_cases import Expected, check_data, check_entries, expert_rows, grouped_sums
from ht_batch import Batch, named, same, spoil
from ll_reference import Wrong

HIDDEN, TOKENS = 512, 96  # of the Buffer


class Sorted(Batch):
    """Entries of a token by expert, as a map has them; -1 behind them."""

    def _inputs(self, r, seed, holes):
        x, scales, idx, weights, bias = super()._inputs(r, seed, holes)
        order = idx.masked_fill(idx < 0, self.experts).argsort(dim=1, stable=True)
        return x, scales, idx.gather(1, order), weights.gather(1, order), bias


def buffer(rank, experts):
    import deep_ep
    b = deep_ep.HybridEPBuffer(rank.group, hidden_dim=HIDDEN, max_num_of_tokens_per_rank=TOKENS if rank.rank == 0 else 8, num_local_experts=experts // rank.size, device=rank.device)
    rank.made.append(b._elastic._buffer)
    return b


def routing_of(batch, by_map, weights):
    """The arguments that say where rows go."""
    from deep_ep.hybrid_ep_buffer import indices_to_map
    if not by_map:
        return {"topk_idx": batch.idx, "topk_weights": batch.weights if weights else None, "num_of_experts": batch.experts}
    chosen, probs = indices_to_map(batch.idx, batch.weights if weights else None, batch.idx.size(0), batch.experts)
    return {"routing_map": chosen, "probs": probs, "num_of_experts_per_rank": batch.local}


def dense(batch):
    """What a rank gets back of weights that every rank has multiplied by its number plus one."""
    out = torch.zeros((batch.idx.size(0), batch.experts), device=batch.device)
    for k in range(batch.topk):
        expert = batch.idx[:, k:k + 1]
        scaled = batch.weights[:, k:k + 1] * (torch.div(expert, batch.local, rounding_mode="floor") + 1)
        out.scatter_(1, expert.clamp(min=0), torch.where(expert >= 0, scaled, out.gather(1, expert.clamp(min=0))))
    return out


def one(rank, b, batch, by_map, align, weights):
    """A dispatch, a combine, another dispatch along the handle, compared."""
    def run():
        e = Expected(batch, align or 1, True, TOKENS)
        pad = {} if align is None else {"pad_multiple": align}
        scales = {} if batch.scales is None else {"scaling_factor": batch.scales}
        rows, w, got_scales, sizes, handle = b.dispatch_with_permute(hidden=batch.x, **routing_of(batch, by_map, weights), **scales, **pad)
        check_data(e, rows if batch.scales is None else (rows, got_scales), align not in (None, 1), True, False)
        check_entries(e, None, w, weights)
        if sizes.tolist() != e.padded or sizes.device.type != "cpu" or sizes.dtype != torch.int64:
            raise Wrong(f"sizes of groups are {sizes} instead of {e.padded}")
        if int(handle[-1]) != 0:
            raise Wrong("rows are said to have been dropped")
        x, none, got_scales, nobody, same_handle = b.dispatch_with_permute(hidden=batch.x, handle=handle, num_permuted_tokens=torch.tensor(rows.size(0)), **scales, **pad)
        check_data(e, x if batch.scales is None else (x, got_scales), align not in (None, 1), True, False)
        if none is not None or nobody is not None or same_handle is not handle:
            raise Wrong("a dispatch along a handle gave weights, sizes or another handle")
        if batch.kind != "bf16":
            return
        sums, summed = b.combine_with_unpermute(hidden=expert_rows(e, rows), probs=None if w is None else w * (batch.rank + 1), handle=handle, **pad)
        same(sums, grouped_sums(batch, 0), "sums")
        if w is None and summed is not None:
            raise Wrong("weights came back, and none were given")
        if w is not None:
            same(summed, dense(batch), "weights that came back")
    named(rank, f"{batch}, by {'map' if by_map else 'indices'}, aligned to {align}, {'with' if weights else 'without'} weights", run)


def without_dropped(batch, align, count_of):
    """The batch of this rank without the entries that ranks drop. count_of: rows of a rank's outputs, from those that come."""
    left = copy(batch)
    left.idx = batch.idx.clone()
    for r in range(batch.size):
        there = copy(batch)
        there.rank = r
        e = Expected(there, align, True, TOKENS)
        count = count_of(sum(e.padded))
        for row, entry in zip(e.row_of[count:], e.entry_of[count:]):
            source, token = divmod(int(e.source[row]), TOKENS) if row >= 0 else (-1, 0)
            if source == batch.rank:
                left.idx[token, entry] = -1
    left.all = [(x, scales, left.idx if r == batch.rank else idx, w, bias) for r, (x, scales, idx, w, bias) in enumerate(batch.all)]
    return left


def sized(rank, b, batch, align, count_of, waits):
    """A dispatch whose outputs have so many rows, whatever comes, and its combine."""
    e = Expected(batch, align, True, TOKENS)
    total = sum(e.padded)
    count = count_of(total)
    ends = [min(sum(e.padded[:i + 1]), count) for i in range(batch.local)]

    def run():
        spoil(b._elastic, batch.size * TOKENS * batch.hidden)
        rows, w, _, sizes, handle = b.dispatch_with_permute(hidden=batch.x, **routing_of(batch, True, True), pad_multiple=align, num_permuted_tokens=count,
                                                            non_blocking=not waits)
        if rows.size(0) != count or int(handle[-1] != 0) != (total > count):
            raise Wrong(f"{rows.size(0)} rows, overflow {handle[-1]}, with {total} entries")
        if sizes.tolist() != [end - begin for begin, end in zip([0] + ends, ends)] or sizes.device != (batch.device if not waits else torch.device("cpu")):
            raise Wrong(f"sizes of groups are {sizes} instead of those that end at {ends}")
        e.row_of, e.entry_of = e.row_of[:count], e.entry_of[:count]
        check_data(e, rows, align > 1, False, False)
        check_entries(e, None, w, True)
        y = torch.full_like(rows, float("nan"))
        whole = expert_rows(Expected(batch, align, True, TOKENS), torch.cat([rows, rows.new_zeros((max(total - count, 0), batch.hidden))])[:max(total, count)])
        y[:min(total, count)] = whole[:min(total, count)]
        left = without_dropped(batch, align, count_of)
        spoil(b._elastic, batch.size * TOKENS * batch.hidden)
        sums, summed = b.combine_with_unpermute(hidden=y, probs=w * (batch.rank + 1), handle=handle)
        same(sums, grouped_sums(left, 0), "sums")
        same(summed, dense(left), "weights that came back")
        again, *_ = b.dispatch_with_permute(hidden=batch.x, handle=handle, num_permuted_tokens=count)
        check_data(e, again, align > 1, False, False)
        b._elastic.allow_multiple_reduction = False
        try:
            b.combine_with_unpermute(hidden=y, handle=handle)
            raise Wrong("entries that were dropped would be missed where each is rounded at home")
        except ValueError as error:
            if "allow_multiple_reduction=False does not serve" not in str(error):
                raise
        finally:
            b._elastic.allow_multiple_reduction = True
    named(rank, f"{batch}, aligned to {align}, {count} rows", run)


def hybrid(rank):
    """Shapes, types, both forms of routing, alignments; what is refused."""
    import deep_ep
    n, done = rank.size, 0
    b = buffer(rank, 4 * n)
    for i in range(12):
        experts, topk = n * (4, 1, 33)[i % 3], (1, 2, 6, 8)[i % 4]
        tokens = [[5, 0, 64, 33, TOKENS][(i + r) % 5] for r in range(n)]
        batch = Sorted(rank, tokens, (HIDDEN, 256, 1024)[i % 3], experts, min(topk, experts), seed=i, kind=("bf16", "bf16", "fp8")[i // 4], holes=(0, 0.2, 0.9)[i % 3])
        b._maps.clear()  # a token has as many experts as in this batch: else as in the first one
        one(rank, b, batch, i % 2 == 0, (None, 16, 1)[i // 2 % 3], i % 5 != 3)
        done += 1
    # More tokens than the Buffer was made for, at one rank.
    more = Sorted(rank, [TOKENS + 20 if r == 0 else 9 for r in range(n)], HIDDEN, 4 * n, 2, seed=50, holes=0)
    one(rank, b, more, True, 16, True)
    if rank.rank == 0:
        try:
            b.dispatch_with_permute(hidden=more.x, **routing_of(more, False, True), num_permuted_tokens=1000)
            raise Wrong("more tokens than ranks have agreed on were not refused")
        except deep_ep.ArgumentError as error:
            if "the Buffer was made for" not in str(error):
                raise
    # Outputs of a given size: as long as what comes, longer, shorter.
    for i, (experts, topk, align) in enumerate(((4 * n, 2, 1), (4 * n, 2, 16), (n, 1, 1))):
        batch = Sorted(rank, [[40, 64, 7][(i + r) % 3] for r in range(n)], HIDDEN, experts, topk, seed=80 + i, holes=0.1)
        for count_of in (lambda total: max(total, 1), lambda total: total + 37, lambda total: total // 2 + 1):
            sized(rank, b, batch, align, count_of, i == 1)
            done += 1
    few = Sorted(rank, [20] * n, HIDDEN, 5 * n, 1, seed=60, holes=0)
    one(rank, b, few, True, None, True)
    more = routing_of(few, True, True)
    more["routing_map"] = more["routing_map"].clone()
    more["routing_map"][3] = True
    *_, handle = b.dispatch_with_permute(hidden=few.x, **more, num_permuted_tokens=1000, non_blocking=True)
    if int(handle[-1]) == 0:
        raise Wrong("a token has more experts than were sent, and nothing says so")
    rank.sync()
    try:
        b.dispatch_with_permute(hidden=few.x, **routing_of(few, True, True), num_permuted_tokens=1000, non_blocking=True)
        raise Wrong("the call behind it was not refused")
    except deep_ep.ArgumentError as error:
        if "more experts than any had" not in str(error):
            raise
    refused(rank, b, few, deep_ep)
    b._maps.clear()
    one(rank, b, Sorted(rank, [20] * n, HIDDEN, n, n, seed=70, holes=0), True, None, True)  # no token can have more experts
    one(rank, b, few, True, None, True)
    b._elastic.destroy()
    return f"{done + 4} batches"


def refused(rank, b, batch, deep_ep):
    """What is refused, and that it harms nobody."""
    routing = routing_of(batch, True, True)
    more = routing["routing_map"].clone()
    if batch.rank == 0:
        more[3] = True
    for error, says, options in (
            (deep_ep.ArgumentError, "nothing says how many rows", {**routing, "non_blocking": True}),
            (deep_ep.ArgumentError, "nothing says where rows go", {}),
            (deep_ep.ArgumentError, "num_of_experts is None", {"topk_idx": batch.idx}),
            (deep_ep.ArgumentError, "num_of_experts_per_rank is 3", {**routing, "num_of_experts_per_rank": 3}),
            (deep_ep.ArgumentError, "handle is a tuple", {"handle": (1, 2)}),
            (deep_ep.ArgumentError if batch.rank == 0 else None, "more experts than any had", {**routing, "routing_map": more})):
        try:
            b.dispatch_with_permute(hidden=batch.x, **options)
        except (deep_ep.ArgumentError, deep_ep.NotThereYet) as found:
            if error is None or not isinstance(found, error) or says not in str(found):
                raise Wrong(f"instead of {error} with '{says}': {found!r}") from None
        else:
            if error is not None:
                raise Wrong(f"not refused: {says}")
    for call, arguments in ((b.dispatch, {"hidden": batch.x}), (b.combine, {"hidden": batch.x}), (b.combine_with_unpermute, {"hidden": batch.x})):
        try:
            call(**arguments)
        except (deep_ep.NotThereYet, deep_ep.ArgumentError):
            continue
        raise Wrong(f"{call.__name__} was not refused")
