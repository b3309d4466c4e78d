# SPDX-License-Identifier: Apache-2.0
"""Rows grouped by expert: where each entry of the received rows goes, the copies, and the sums on the way back. Nothing here waits for the GPU, so that
graphs can capture it: sizes are known before."""
from __future__ import annotations

from typing import Any, Tuple


class Places:
    """Where the entries of received rows lie when they are grouped by expert, each group beginning at a multiple of `alignment`.

    Rows of a group stand in the order in which the rows were received.

    Arguments:
        index: int64 [rows, top-k]: the expert of each entry as this rank numbers them, or -1.
        local: experts of this rank.

    Attributes: slots: int64 [rows, top-k], the grouped row of an entry, or -1; counts: int32 [local], entries of each expert; ends: int32 [local], behind
    the last entry of each group; aligned: int32 [local], behind its last row.
    """

    def __init__(self, torch: Any, index: Any, local: int, alignment: int) -> None:
        flat = index.flatten()
        there = flat >= 0
        expert = flat.masked_fill(~there, local)  # entries of other ranks make a group of their own behind all
        entries = expert.new_zeros(local + 1).scatter_add_(0, expert, torch.ones_like(expert))
        rows = (entries + (alignment - 1)).div(alignment, rounding_mode="floor") * alignment
        behind = rows.cumsum(0)
        begin = behind - rows
        order = expert.argsort(stable=True)
        shift = begin - (entries.cumsum(0) - entries)
        slots = torch.empty_like(expert)
        slots.scatter_(0, order, torch.arange(expert.numel(), device=expert.device) + shift.gather(0, expert.gather(0, order)))
        self.slots = slots.masked_fill(~there, -1).view_as(index)
        self.counts = entries[:local].int()
        self.ends = (begin + entries)[:local].int()
        self.aligned = behind[:local].int()


def spread(torch: Any, slots: Any, count: int, zero: bool, *given: Any) -> Tuple[Any, ...]:
    """Copies received rows to where their entries lie.

    Arguments:
        slots: of Places.
        count: grouped rows. zero: rows between groups, and behind the last, are zeros; else they hold anything.
        given: tensors [rows, ...] that belong to whole rows, or None.

    Returns: tensors [count, ...], None for None.
    """
    rows, topk = slots.shape
    source = slots.new_zeros(count + 1)
    at = torch.where(slots < 0, count, slots).flatten()  # one more row takes what is not there
    source.scatter_(0, at, torch.arange(rows, device=slots.device).repeat_interleave(topk, output_size=rows * topk))
    source = source[:count]
    empty = (slots.new_ones(count + 1, dtype=torch.bool).scatter_(0, at, False))[:count] if zero else None
    out = []
    for t in given:
        if t is None:
            out.append(None)
            continue
        moved = _bytes(torch, t).index_select(0, source) if rows else _bytes(torch, t).new_zeros((count, *_bytes(torch, t).shape[1:]))
        if empty is not None:
            moved.masked_fill_(empty.view(-1, *[1] * (moved.dim() - 1)), 0)
        out.append(moved.view(t.dtype))
    return tuple(out)


def spread_entries(torch: Any, slots: Any, count: int, values: Any) -> Any:
    """float32 [count]: the value of each grouped row's entry, 0 where there is none. values: float32 [rows, top-k]."""
    out = values.new_zeros(count + 1)
    return out.scatter_(0, torch.where(slots < 0, count, slots).flatten(), values.flatten())[:count]


def gather_entries(torch: Any, slots: Any, values: Any) -> Any:
    """float32 [rows, top-k]: the reverse, 0 for entries of other ranks. values: float32 [grouped rows]."""
    if values.size(0) == 0:
        return values.new_zeros(slots.shape)
    return values[slots.clamp(min=0)].masked_fill_(slots < 0, 0)


def fold(torch: Any, slots: Any, x: Any) -> Any:
    """bfloat16 [rows, hidden]: for each row the sum of its entries' grouped rows: in FP32, from +0, in the order of top-k, rounded once."""
    rows, topk = slots.shape
    total = torch.zeros((rows, x.size(1)), dtype=torch.float32, device=x.device)
    if x.size(0):
        for k in range(topk):
            at = slots[:, k]
            total += x.index_select(0, at.clamp(min=0)).masked_fill_((at < 0)[:, None], 0).float()
    return total.to(x.dtype)


def _bytes(torch: Any, t: Any) -> Any:
    """The same memory as a type that PyTorch moves on every device."""
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
