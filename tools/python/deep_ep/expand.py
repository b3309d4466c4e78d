# SPDX-License-Identifier: Apache-2.0
"""Rows grouped by expert: where each entry of the received rows goes, the copies, and the sums on the way back. Sizes are known beforehand and nothing here
waits for the GPU, so graphs can capture it."""
from __future__ import annotations

from typing import Any, Optional, Tuple

from epf import throughput

from .utils.math import column_stride

_NONE = (0, 0)


class Places:
    """Where the entries of received rows go when they are grouped by expert. Each group begins at a multiple of `alignment`.

    Within a group, entries keep the order of the received rows.

    Arguments:
        index: int64 [rows, top-k]: the expert of each entry, in local numbers, or -1.
        local: experts of this rank.
        number: whether entries are numbered.

    Attributes: slots: int32 [rows, top-k], the grouped row of an entry, or -1; None: they are not numbered; counts: int32 [local], entries of each expert; ends: int32 [local], one past
    the last entry of each group; aligned: int32 [local], one past its last row.
    """

    def __init__(self, torch: Any, ht: throughput.Throughput, stream: Optional[int], index: Any, local: int, alignment: int, number: bool) -> None:
        rows, topk = index.shape
        self.slots = index.new_empty((rows, topk), dtype=torch.int32) if number else None
        numbers, work = index.new_empty((3 + throughput.PLACE_PARTS, local), dtype=torch.int32).split((3, throughput.PLACE_PARTS))
        self.counts, self.ends, self.aligned = numbers = numbers.unbind()
        # In the order of struct epf_ht_places.
        throughput.check(ht.places(stream, rows, topk, local, alignment, index, work, self.slots, *numbers))


def spread(ht: throughput.Throughput, stream: Optional[int], slots: Any, count: int, zero: bool, column_major: bool, x: Any, scales: Any, weights: Any
           ) -> Tuple[Any, Any, Any]:
    """Copies received rows to the places of their entries.

    Arguments:
        slots: of Places. count: grouped rows.
        zero: padding rows are zeros; otherwise they are undefined. Their weights are 0.
        column_major: layout of the returned scales.
        x: [rows, hidden]. scales: [rows, n], any strides, or None. weights: float32 [rows, top-k], or None.

    Returns: [count, hidden]; [count, n] or None; float32 [count] or None.
    """
    (rows, topk), hidden = slots.shape, x.size(1)
    out = x.new_zeros((count, hidden)) if zero else x.new_empty((count, hidden))
    out_scales = None if scales is None else like_scales(scales, count, column_major)
    if zero and out_scales is not None:
        out_scales.zero_()
    out_weights = None if weights is None else weights.new_zeros(count)
    # In the order of struct epf_ht_group.
    throughput.check(ht.spread(
        stream, hidden * x.element_size(), 0 if scales is None else scales.size(1), topk, rows, count, 0, slots, x, scales,
        *(_NONE if scales is None else scales.stride()), *(_NONE if scales is None else out_scales.stride()), weights, out, out_scales, out_weights))
    return out, out_scales, out_weights


def fold(ht: throughput.Throughput, stream: Optional[int], slots: Any, x: Any, weights: Any) -> Tuple[Any, Any]:
    """The reverse: the sum of each row's entries in the order of top-k, in FP32, from +0, rounded once; and the entries' weights, 0 for those of other ranks.

    Arguments:
        x: bfloat16 [grouped rows, hidden]. weights: float32 [grouped rows], or None.

    Returns: bfloat16 [rows, hidden]; float32 [rows, top-k] or None. Rows that did not arrive are undefined.
    """
    (rows, topk), hidden = slots.shape, x.size(1)
    out = x.new_empty((rows, hidden))
    out_weights = None if weights is None else weights.new_empty((rows, topk))
    # In the order of struct epf_ht_group.
    throughput.check(ht.fold(stream, 2 * hidden, 0, topk, rows, x.size(0), 0, slots, x, None, *_NONE, *_NONE, weights, out, None, out_weights))
    return out, out_weights


def like_scales(scales: Any, rows: int, column_major: bool) -> Any:
    """Returns an empty tensor for the scales of `rows` rows. Column-major: each column begins at a multiple of 16 bytes."""
    words = scales.size(1)
    if not column_major:
        return scales.new_empty((rows, words))
    return scales.new_empty_strided((rows, words), (1, column_stride(rows)))
