# SPDX-License-Identifier: Apache-2.0
"""Parts of ll_cases.py about HybridEPBuffer: dispatch by a map and by indices, rows and weights along a handle, combine, against a reference in PyTorch, bit for bit.

Every rank makes the inputs of all ranks from a seed (ht_batch.Batch).
"""
import torch

from elastic_cases import Expected, check_data, check_entries, expert_rows, grouped_sums
from ht_batch import Batch, named, same
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
    b = deep_ep.HybridEPBuffer(rank.group, hidden_dim=HIDDEN, max_num_of_tokens_per_rank=TOKENS, num_local_experts=experts // rank.size, device=rank.device)
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


def hybrid(rank):
    """Shapes, types, both forms of routing, alignments; what is refused."""
    import deep_ep
    n, done = rank.size, 0
    b = buffer(rank, 4 * n)
    for i in range(12):
        experts, topk = n * (4, 1, 33)[i % 3], (1, 2, 6, 8)[i % 4]
        tokens = [[5, 0, 64, 33, TOKENS][(i + r) % 5] for r in range(n)]
        batch = Sorted(rank, tokens, (HIDDEN, 256, 1024)[i % 3], experts, min(topk, experts), seed=i, kind=("bf16", "bf16", "fp8")[i // 4], holes=(0, 0.2, 0.9)[i % 3])
        b._maps.clear()  # as many as this batch has: else the first one's
        one(rank, b, batch, i % 2 == 0, (None, 16, 1)[i // 2 % 3], i % 5 != 3)
        done += 1
    # More tokens than the Buffer was made for, at all ranks.
    one(rank, b, Sorted(rank, [TOKENS + 20] * n, HIDDEN, 4 * n, 2, seed=50, holes=0), True, 16, True)
    few = Sorted(rank, [20] * n, HIDDEN, 5 * n, 1, seed=60, holes=0)
    one(rank, b, few, True, None, True)
    refused(rank, b, few, deep_ep)
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
            (deep_ep.NotThereYet, "unset", {**routing, "num_permuted_tokens": 64, "non_blocking": True}),
            (deep_ep.ArgumentError, "nothing says where rows go", {}),
            (deep_ep.ArgumentError, "num_of_experts is None", {"topk_idx": batch.idx}),
            (deep_ep.ArgumentError, "num_of_experts_per_rank is 3", {**routing, "num_of_experts_per_rank": 3}),
            (deep_ep.ArgumentError, "handle is a tuple", {"handle": (1, 2)}),
            (deep_ep.ArgumentError if batch.rank == 0 else None, "more than 1 experts", {**routing, "routing_map": more})):
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
