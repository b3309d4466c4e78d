# SPDX-License-Identifier: Apache-2.0
"""EPHandle: the handle that ElasticBuffer.dispatch returns, with the attributes that programs read."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

from .handle import RoutingHandle
from .utils.math import align


def expanded(counts: Optional[List[int]], alignment: int, received: int, topk: int, local: int) -> int:
    """Rows grouped by expert. counts: entries of each of the `local` experts; None: not known, and as many rows as can be."""
    if counts is None:
        return align(received * min(topk, local) + (alignment - 1) * local, alignment)
    return sum(counts) if alignment == 1 else sum(align(c, alignment) for c in counts)


class EPHandle:
    """The routing of one dispatch, for any number of combines and further dispatches in any order.

    Attributes, as in DeepEP V2:
        do_expand: rows are grouped by expert, one per entry.
        num_experts, expert_alignment, num_max_tokens_per_rank, num_sms: arguments of the call.
        topk_idx: int64 [tokens, top-k]: a copy, or the caller's own with do_handle_copy=False.
        num_recv_tokens: rows received; without CPU sync the maximum. num_expanded_tokens: the same for rows grouped by expert.
        num_recv_tokens_per_expert_list: entries of each local expert, rounded up to expert_alignment; empty without CPU sync.
        psum_num_recv_tokens_per_scaleup_rank: int32 [scale-up ranks], inclusive prefix sum of rows received.
        psum_num_recv_tokens_per_expert: int32 [local experts]: the prefix sum of the list; with do_expand, where the entries of each group end.
        num_unaligned_recv_tokens_per_expert: int32 [local experts], entries of each.
        recv_src_metadata: int32 [rows, 2 + top-k]: source rank * num_max_tokens_per_rank + token; the row's number; the grouped rows of its
            entries, or -1.
        dst_buffer_slot_idx: int32 [tokens, ranks], the place of a token among this rank's rows for a rank, or -1. DeepEP's has other columns.
        token_metadata_at_forward, channel_linked_list: None; forwarding needs neither.
    """

    token_metadata_at_forward: Any = None
    channel_linked_list: Any = None

    def __init__(self, routing: RoutingHandle, do_expand: bool, num_experts: int, expert_alignment: int, num_max_tokens_per_rank: int, num_sms: int,
                 topk_idx: Any, counts: Optional[List[int]], scaleup: int, grouped: Optional[int] = None) -> None:
        """counts: entries of each local expert, or None without CPU sync. scaleup: ranks of the scale-up domain. grouped: num_expanded_tokens, if it is known."""
        self.do_expand, self.num_experts, self.expert_alignment = do_expand, num_experts, expert_alignment
        self.num_max_tokens_per_rank, self.num_sms, self.topk_idx = num_max_tokens_per_rank, num_sms, topk_idx
        self.num_recv_tokens_per_expert_list = list(counts or ()) if expert_alignment == 1 else [
            -(-c // expert_alignment) * expert_alignment for c in counts or ()]
        self.num_recv_tokens = routing.received
        self._grouped = grouped
        self.routing = routing
        self.groups: Any = None  # expand.Groups
        self.slots: Any = None  # int32 [rows, top-k]: the grouped row of each entry, or -1
        self.source: Any = None  # int32 [rows]: where each came from
        self.drops = False  # grouped rows beyond num_expanded_tokens are dropped
        self._scaleup = scaleup
        self._counts = counts
        self._known: dict = {}

    # What follows is built on first use, for the caller waits for the call while the GPU may have nothing to do. Those that a replayed graph must recompute are built by the call itself.

    def keep(self, groups: Any, capturing: bool) -> None:
        """Stores what was counted on the device. groups: expand.Groups. capturing: by a graph."""
        self.groups = groups
        if capturing:
            self._known["ranks"] = self._ranks()

    def arrays(self) -> Tuple[Any, ...]:
        """Tensors of the handle beside those of its routing."""
        return (self.slots, self.source, None if self.groups is None else self.groups.numbers, *self._known.values())

    @property
    def counted(self) -> bool:
        """Whether the CPU has waited for its counts."""
        return self._counts is not None

    @property
    def num_expanded_tokens(self) -> int:
        if self._grouped is None:
            routing = self.routing
            self._grouped = expanded(self._counts, self.expert_alignment, routing.received, self.topk_idx.size(1), self.num_experts // routing.ranks)
        return self._grouped

    @property
    def dst_buffer_slot_idx(self) -> Any:
        return self.routing.place

    def _ranks(self) -> Any:
        rows = self.routing.matrix[:, self.routing.rank]
        ranks = rows.size(0)
        if self._scaleup < ranks:
            each = rows.diff(prepend=rows.new_zeros(1))
            rows = each.view(ranks // self._scaleup, self._scaleup).sum(0).cumsum(0)
        return rows.int().contiguous()

    @property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> Any:
        if "ranks" not in self._known:
            self._known["ranks"] = self._ranks()
        return self._known["ranks"]

    def _numbers(self, name: str, counted: str, values: Callable[[], Optional[List[int]]]) -> Any:
        """counted: the name of the same among the groups."""
        if name not in self._known:
            self._known[name] = self.topk_idx.new_tensor(values()).int() if self.groups is None else getattr(self.groups, counted)
        return self._known[name]

    @property
    def num_unaligned_recv_tokens_per_expert(self) -> Any:
        return self._numbers("counts", "counts", lambda: self._counts)

    @property
    def psum_num_recv_tokens_per_expert(self) -> Any:
        def sums() -> List[int]:
            total, out = 0, []
            for rows in self.num_recv_tokens_per_expert_list:
                total += rows
                out.append(total)
            return out
        return self._numbers("ends", "ends" if self.do_expand else "aligned", sums)

    @property
    def recv_src_metadata(self) -> Any:
        if "metadata" not in self._known:
            source, topk = self.source, self.topk_idx.size(1)
            out = source.new_full((source.size(0), 2 + topk), -1)
            out[:, 0] = source
            out[:, 1] = source.new_ones(source.size(0)).cumsum(0) - 1
            if self.slots is not None:
                out[:, 2:] = self.slots
            self._known["metadata"] = out
        return self._known["metadata"]

    @recv_src_metadata.setter
    def recv_src_metadata(self, value: Any) -> None:
        self._known["metadata"] = value
