# SPDX-License-Identifier: Apache-2.0
"""Which rank and which expert gets how many tokens, by plain tensor operations."""
from __future__ import annotations

from typing import Any, Optional, Tuple

from .config import NODE_RANKS


def dispatch_layout(torch: Any, topk_idx: Any, num_experts: int, num_ranks: int) -> Tuple[Any, Optional[Any], Any, Any]:
    """Counts of a dispatch, without waiting for the GPU.

    Returns: tokens for each rank, int32 [ranks]; for each group of 8 ranks (None with at most 8), int32 [ranks / 8]; for each expert,
    int32 [experts]; and whether a token goes to a rank, bool [tokens, ranks].
    """
    tokens, device = topk_idx.size(0), topk_idx.device
    chosen = topk_idx >= 0
    # Entries of -1 go to a place behind the last one, which is cut off.
    expert = torch.where(chosen, topk_idx, torch.full_like(topk_idx, num_experts)).flatten()
    per_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=device)
    per_expert.scatter_add_(0, expert, torch.ones_like(expert, dtype=torch.int32))

    def reached(span: int, places: int) -> Any:
        place = torch.where(chosen, torch.div(topk_idx, span, rounding_mode="floor"), torch.full_like(topk_idx, places))
        there = torch.zeros((tokens, places + 1), dtype=torch.bool, device=device)
        there.scatter_(1, place, torch.ones_like(place, dtype=torch.bool))
        return there[:, :places].contiguous()

    experts_of_rank = num_experts // num_ranks
    in_rank = reached(experts_of_rank, num_ranks)
    per_node = None
    if num_ranks > NODE_RANKS:
        per_node = reached(experts_of_rank * NODE_RANKS, num_ranks // NODE_RANKS).sum(0, dtype=torch.int32)
    return in_rank.sum(0, dtype=torch.int32), per_node, per_expert[:num_experts].contiguous(), in_rank
