# SPDX-License-Identifier: Apache-2.0
"""Routing: the counts of one batch, computed and exchanged in one call."""
from __future__ import annotations

import functools
from typing import Any, Callable

from epf import throughput

from .handle import RoutingHandle


class Routing:
    """Layout and exchange of counts, for a call that has no layout call in front of it.

    Arguments:
        buffer: Buffer. call: the call on whose stream it runs.
        topk_idx: int64 [tokens, top-k]. experts: on all ranks.
        worst: rows that can arrive at most; 0: the CPU will wait for their number.

    Attributes: handle: RoutingHandle; exchange(wait=False, guess=0): launches the exchange, for which the CPU will wait or not; used: tensors that must live
    until the call ends.
    """

    def __init__(self, buffer: Any, ht: throughput.Throughput, call: Any, topk_idx: Any, experts: int, worst: int) -> None:
        torch, ranks, device = buffer._torch, buffer.group_size, buffer.device
        tokens, topk = topk_idx.shape
        counts = torch.empty((ranks + experts,), dtype=torch.int32, device=device)
        in_rank = torch.empty((tokens, ranks), dtype=torch.bool, device=device)
        self._per_expert = counts[ranks:]
        # In the order of struct epf_ht_routing.
        throughput.check(ht.layout(call.stream, tokens, topk, experts, 0, 0, 0, topk_idx, in_rank, counts, None, self._per_expert, 0, 0, 0, 0))
        self.handle: RoutingHandle = buffer._new_handle(ht, tokens, in_rank, worst)
        self.used = (counts, in_rank)
        self.exchange: Callable[..., None] = functools.partial(buffer._notify, ht, call, self.handle, experts // ranks, in_rank, self._per_expert, 1)
