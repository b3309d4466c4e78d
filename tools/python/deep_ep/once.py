# SPDX-License-Identifier: Apache-2.0
"""Sums that are rounded once (allow_multiple_reduction=False): no rank and no node adds before the rows are home, so each travels by itself, by a dispatch with the
ranks as experts, and is added there. More bytes cross than otherwise: top-k rows of a token in place of one for each rank, or for each node."""
from __future__ import annotations

import functools
from typing import Any, Sequence, Tuple

from epf import throughput

from .ephandle import EPHandle
from .routing import Routing
from .throughput import Moved

_NOTHING = (0, 0, 0)


class Once:
    """One combine.

    Arguments:
        buffer: Buffer. call: the combine, on whose stream PyTorch's operations run.
        handle: of the dispatch. x: bfloat16 [rows of the dispatch, hidden], shape: of Buffer._check_rows(). blocks: multiprocessors.
        weights: float32 [rows, top-k], for rows grouped by expert [rows], which travel as a row's scales do, or None.
        biases: bfloat16 [tokens, hidden] each, or None.

    Attributes: sums: bfloat16 [tokens, hidden]: +0, then the biases, then a token's rows, in FP32: for rows grouped by expert in the order of top-k, else ranks ascending;
    weights: float32 [tokens, top-k], what came, added likewise, or None; used: tensors that must live until the call ends.
    """

    def __init__(self, buffer: Any, ht: throughput.Throughput, call: Any, where: str, handle: EPHandle, x: Any, shape: Any, weights: Any, biases: Sequence[Any],
                 blocks: int) -> None:
        torch, routing = buffer._torch, handle.routing
        homes = _homes(torch, handle, x.size(0))
        places = _places_by_expert(torch, handle) if handle.do_expand else _places_by_rank(torch, routing.place)
        most = handle.num_max_tokens_per_rank * places.size(1)
        waits = handle.counted and not call.capturing
        back = Routing(buffer, ht, call, homes, buffer.group_size, 0 if waits else most)
        rows: Moved = (x, weights if weights is None or weights.dim() == 2 else weights[:, None], shape)
        last = buffer._last_room, buffer._last_received  # of dispatches, which guess by them
        if waits:
            back.exchange(True)
            _, moved = buffer._move_as_counted(where, ht, call, back.handle, rows, homes, None, 1, blocks, _NOTHING)
        else:
            moved = buffer._move(where, ht, call, back.handle, rows, homes, None, 1, blocks, False, functools.partial(buffer._exchange_unwaited, ht, call, back.exchange))
        buffer._last_room, buffer._last_received = last
        arrived, brought = moved[:2]
        sums = torch.zeros((routing.tokens, x.size(1)), dtype=torch.float32, device=x.device)
        self.weights = None if weights is None else sums.new_zeros(handle.topk_idx.shape)
        for bias in biases:
            if bias is not None:
                sums += bias
        for k in range(places.size(1) if arrived.size(0) else 0):
            at, missing = places[:, k].clamp(min=0), places[:, k, None] < 0
            sums += arrived.index_select(0, at).float().masked_fill_(missing, 0)
            if self.weights is not None:
                of_entries = self.weights[:, k:k + 1] if handle.do_expand else self.weights
                of_entries += brought.index_select(0, at).masked_fill_(missing, 0)
        self.sums = sums.to(torch.bfloat16)
        self.used: Tuple[Any, ...] = (homes, places, sums, back.handle.memory, back.handle.links, *back.used, *moved)


def _homes(torch: Any, handle: EPHandle, rows: int) -> Any:
    """int64 [rows, 1]: the rank that each row goes back to, or -1 for rows between groups and, where the CPU did not wait for counts, those that did not arrive."""
    home = (handle.source // handle.num_max_tokens_per_rank).long()
    came = torch.arange(home.size(0), device=home.device) < handle.routing.matrix[-1, handle.routing.rank]
    home = torch.where(came, home, -1)
    if not handle.do_expand:
        return home[:, None]
    slots = torch.where((handle.slots >= 0) & came[:, None], handle.slots, rows).long()
    out = home.new_full((rows + 1,), -1)
    out[slots.flatten()] = home[:, None].expand(slots.shape).flatten()
    return out[:rows, None].contiguous()


def _places_by_expert(torch: Any, handle: EPHandle) -> Any:
    """int64 [tokens, top-k]: where the row of each entry arrives, or -1. Ranks send it in the order of their experts, and for each in that of tokens."""
    index = handle.topk_idx
    key = torch.where(index < 0, handle.num_experts, index).flatten()
    order = torch.argsort(key, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    return torch.where(index < 0, -1, place.view(index.shape))


def _places_by_rank(torch: Any, place: Any) -> Any:
    """int64 [tokens, ranks]: where the row of each rank arrives, or -1. place: int32, its place among those of that rank."""
    counts = (place >= 0).sum(0)
    return torch.where(place < 0, -1, place + (counts.cumsum(0) - counts)).long()
