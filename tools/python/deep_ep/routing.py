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

    Attributes: handle: RoutingHandle; exchange(wait=False, guess=none): launches the exchange, for which the CPU will wait or not; used: tensors that must live
    until the call ends.
    """

    def __init__(self, buffer: Any, ht: throughput.Throughput, call: Any, topk_idx: Any, experts: int, worst: int) -> None:
        torch, ranks, device = buffer._torch, buffer.group_size, buffer.device
        tokens, topk = topk_idx.shape
        in_rank = torch.empty((tokens, ranks), dtype=torch.bool, device=device)
        per_expert, index = None, topk_idx  # on one node the exchange looks at topk_idx itself
        if ht.nodes > 1:
            counts = torch.empty((ranks + experts,), dtype=torch.int32, device=device)
            per_expert, index = counts[ranks:], None
            # In the order of struct epf_ht_routing.
            throughput.check(ht.layout(call.stream, tokens, topk, experts, 0, 0, 0, 0, 0, topk_idx, in_rank, counts, None, per_expert, 0, 0, 0, 0))
        self.handle: RoutingHandle = buffer._new_handle(ht, tokens, in_rank, worst)
        self.used = (per_expert, in_rank)
        self.exchange: Callable[..., None] = functools.partial(buffer._notify, ht, call, self.handle, experts // ranks, in_rank, None, per_expert, 1, topk_idx=index)
