# SPDX-License-Identifier: Apache-2.0
"""ElasticBuffer: the interface of DeepEP's second version, on the high-throughput kernels. docs/reference/python.md says what is served."""
from __future__ import annotations

import functools
import math
from typing import Any, List, Optional, Tuple, Union

from epf import throughput
from epf.fabric import as_group
from epf.shared import node_key

from . import checks
from .buffer import Buffer
from .checks import NotThereYet, need
from .config import TOKEN_EXTRA
from .entry import one_at_a_time
from .ephandle import EPHandle
from .event import EventHandle, EventOverlap
from .expand import Fold, Grouped, Groups, like_scales
from .handle import RoutingHandle
from .once import Once
from .order import begin
from .routing import Routing
from .throughput import Rows, row_of
from .utils.math import align, column_stride

ALIGNMENT = 2 << 20  # of sizes of buffers, in bytes
# What one SM reads and writes, and what a Hopper GPU's NVLink carries, GB/s: bench/RESULTS.md.
SM_READ, SM_WRITE, NVLINK = 200.0, 45.0, 370.0
SPARE = 1.25
PREFERRED_SMS = 64  # when no computation overlaps

Event = Union[EventHandle, EventOverlap, None]


def _overlap(event: Event) -> Optional[EventOverlap]:
    return EventOverlap(event) if isinstance(event, EventHandle) else event


def _arrays(handle: RoutingHandle) -> Tuple[Any, ...]:
    return handle.memory, handle.links


def nodes_of(keys: List[str]) -> Tuple[int, int]:
    """Nodes and ranks per node, from the node name of each rank; (ranks, 1) if nodes differ in size or their ranks are not consecutive."""
    ranks, first = len(keys), keys.count(keys[0])
    even = ranks % first == 0 and all(keys[r] == keys[r - r % first] for r in range(ranks)) and len(set(keys)) == ranks // first
    return (ranks // first, first) if even else (ranks, 1)


def logical(domain: Tuple[int, int], hybrid: bool) -> Tuple[int, int]:
    nodes, each = domain
    return (nodes, each) if hybrid and each > 1 else (1, nodes * each)


def get_physical_domain_size(group: Any) -> Tuple[int, int]:
    """Nodes and ranks per node; (ranks, 1) if nodes differ in size or their ranks are not consecutive. Collective."""
    return nodes_of(as_group(group).all_gather(node_key()))


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> Tuple[int, int]:
    """Scale-out and scale-up ranks: the same, or (1, ranks) with allow_hybrid_mode=False. Collective."""
    return logical(get_physical_domain_size(group), allow_hybrid_mode)


def _unserved(name: str, what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotThereYet(f"ElasticBuffer.{name}: {what} is not there; EP fabric serves dispatch and combine. {_INSTEAD[what]}")
    refuse.__name__ = name
    refuse.__doc__ = f"Not there yet: {what}."
    return refuse


_INSTEAD = {
    "Engram": "Keep the table in GPU memory, or use DeepEP itself",
    "send and receive between pipeline stages": "Use torch.distributed, or epf.p2p",
    "all-gather and reduce-scatter": "Use torch.distributed",
}


class ElasticBuffer:
    """One rank's communication memory, engine and kernels. Construction and destruction are collective.

    Attributes: group, allow_hybrid_mode, allow_multiple_reduction, prefer_overlap_with_compute, deterministic, num_max_tokens_per_rank,
    explicitly_destroy as given; rank_idx, num_ranks; num_bytes; num_allocated_qps; num_scaleout_ranks, num_scaleup_ranks, scaleout_rank_idx,
    scaleup_rank_idx; num_rdma_ranks, num_nvlink_ranks; device: torch.device its tensors are on.
    """

    def __init__(self, group: Any, num_bytes: Optional[int] = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0, hidden: int = 0,
                 num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False, allow_hybrid_mode: bool = True,
                 allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True, sl_idx: int = 3, num_allocated_qps: int = 0,
                 num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False, *, device: Any = None) -> None:
        """Connects the ranks of a group and allocates the memory of each.

        Arguments:
            group: torch.distributed.ProcessGroup of the ranks, of any back end: NCCL is not used.
            num_bytes: bytes of the buffer; None: get_buffer_size_hint() of the arguments below. Memory grows when a call needs more.
            num_cpu_bytes: for Engram, which is not there: 0.
            num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch: of the largest call; its memory is allocated now, so that a graph may capture it.
            deterministic: no effect; rows always arrive in the same order.
            allow_hybrid_mode: whether get_logical_domain_size() reports nodes. Rows cross between nodes once in either case.
            allow_multiple_reduction: False: combine() rounds each sum once. Rows grouped by expert, and rows between nodes, then return one by one, not as partial sums.
            prefer_overlap_with_compute: False: get_theoretical_num_sms() gives more.
            sl_idx, num_allocated_qps: no effect; the engine's NIC has its own settings. num_cpu_timeout_secs: no effect; num_gpu_timeout_secs covers both.
            num_gpu_timeout_secs: how long a kernel, or the CPU, waits for another rank. EPF_GPU_TIMEOUT overrides it.
            explicitly_destroy: destroy() will be called. It may be called in either case, and should be.
            device: torch.device of the tensors; None: the current GPU, or the CPU where PyTorch has no GPU.
        """
        where = "ElasticBuffer"
        if num_cpu_bytes:
            raise NotThereYet(f"{where}: num_cpu_bytes is for Engram, which is not there. {_INSTEAD['Engram']}")
        for name, value in (("num_bytes", num_bytes or 0), ("num_max_tokens_per_rank", num_max_tokens_per_rank), ("hidden", hidden), ("num_topk", num_topk),
                            ("num_allocated_qps", num_allocated_qps)):
            need(isinstance(value, int) and value >= 0, where, f"{name} is {value!r}; it must be a number, not negative")
        need(num_gpu_timeout_secs > 0, where, f"num_gpu_timeout_secs is {num_gpu_timeout_secs}; it must be positive")
        self._buffer = b = Buffer(group, explicitly_destroy=explicitly_destroy, device=device)
        b._timeout = int(num_gpu_timeout_secs * 10**9)
        self._one, self._modes, self._torch = b._one, b._modes, b._torch
        self.group, self.device, self.rank_idx, self.num_ranks = group, b.device, b.rank, b.group_size
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute, self.deterministic = prefer_overlap_with_compute, deterministic
        self.explicitly_destroy, self.num_max_tokens_per_rank = explicitly_destroy, num_max_tokens_per_rank
        self.num_allocated_qps = num_allocated_qps or 1
        self.num_bytes = num_bytes if num_bytes is not None else self.get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
        try:
            ht = b._open_throughput(where)
            if num_max_tokens_per_rank and hidden:
                self._reserve(where, num_max_tokens_per_rank, hidden, min(num_topk or throughput.TOPK_MAX, throughput.TOPK_MAX))
            mates = tuple(r for r in range(self.num_ranks) if r == self.rank_idx or b._control.peers[r] is not None)
            self._physical = nodes_of([str(m) for m in b._ranks.all_gather(mates)])
        except BaseException:
            b._release()
            raise
        self._nodes = ht.nodes
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)

    def _reserve(self, where: str, tokens: int, hidden: int, topk: int) -> None:
        """Allocates memory for the largest call of BF16 rows; FP8 rows with their scales are smaller."""
        self._buffer._keep_window()
        rows, row = tokens * self.num_ranks, throughput.Row(align(2 * hidden, 16), 1 + topk, topk)
        self._buffer._need_window(where, row, rows)
        self._buffer._need_across(where, row, rows)

    def destroy(self) -> None:
        """Releases everything. Collective: waits for this rank's kernels and for the other ranks. A second call does nothing."""
        self._buffer.destroy()

    # ------------------------------------------------------------------ sizes and numbers

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0, use_fp8_dispatch: bool = False,
                             allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True) -> int:
        """Bytes of the rows that a rank can receive at most, a multiple of 2 MiB. Monotonic in each number."""
        for name, value in (("num_max_tokens_per_rank", num_max_tokens_per_rank), ("hidden", hidden), ("num_topk", num_topk)):
            need(isinstance(value, int) and value >= 0, "ElasticBuffer.get_buffer_size_hint", f"{name} is {value!r}; it must be a number, not negative")
        return align(as_group(group).size * num_max_tokens_per_rank * (2 * hidden + TOKEN_EXTRA), ALIGNMENT)

    get_engram_storage_size_hint = staticmethod(_unserved("get_engram_storage_size_hint", "Engram"))
    get_pp_buffer_size_hint = staticmethod(_unserved("get_pp_buffer_size_hint", "send and receive between pipeline stages"))
    get_agrs_num_max_session_bytes = staticmethod(_unserved("get_agrs_num_max_session_bytes", "all-gather and reduce-scatter"))
    get_agrs_buffer_size_hint = staticmethod(_unserved("get_agrs_buffer_size_hint", "all-gather and reduce-scatter"))

    def get_physical_domain_size(self) -> Tuple[int, int]:
        """Nodes and ranks per node; (ranks, 1) if nodes differ in size or their ranks are not consecutive."""
        return self._physical

    def get_logical_domain_size(self) -> Tuple[int, int]:
        """Scale-out and scale-up ranks: the same, but (1, ranks) with allow_hybrid_mode=False, or if nodes differ."""
        return logical(self._physical, self.allow_hybrid_mode)

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0, rdma_gbs: float = 0, nvlink_gbs: float = 0,
                                sm_read_gbs: float = SM_READ, sm_write_gbs: float = SM_WRITE) -> int:
        """Multiprocessors that keep NVLink busy with evenly spread tokens: an even number, at least 4. The NIC needs none: the engine feeds it.

        The model: a row is read once and written once per destination rank, all but this rank's own copy over NVLink.
        """
        where, ranks = "ElasticBuffer.get_theoretical_num_sms", self.num_ranks
        need(num_scaleout_topk == 0, where, f"num_scaleout_topk is {num_scaleout_topk}; groups of nodes are not modelled: it must be 0")
        need(num_experts > 0 and num_experts % ranks == 0 and 0 < num_topk <= num_experts, where,
             f"{num_experts} experts with top-{num_topk} do not spread over {ranks} ranks")
        goes = ranks * (1 - math.comb(num_experts - num_experts // ranks, num_topk) / math.comb(num_experts, num_topk))
        device = self._torch.cuda.get_device_properties(self.device).multi_processor_count if self.device.type == "cuda" else 1 << 10
        across = (self.num_nvlink_ranks - 1) / ranks
        if across <= 0:
            return Buffer.num_sms
        rows = (nvlink_gbs or NVLINK) / across  # written, GB/s
        sms = align(max(4, math.ceil(SPARE * max(rows / goes / sm_read_gbs, rows / sm_write_gbs))), 2)
        return min(sms if self.prefer_overlap_with_compute else max(sms, PREFERRED_SMS), device)

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs: num_allocated_qps, which has no effect: the ranks share the engine's."""
        return self.num_allocated_qps

    # ------------------------------------------------------------------ streams

    @staticmethod
    def capture() -> EventHandle:
        """An event behind everything that is queued on the current stream."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        """torch.cuda.Stream that asynchronous calls run on."""
        return self._buffer.get_comm_stream()

    @one_at_a_time
    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Launches a kernel that ends once the kernels of all ranks have begun: an exchange of counts without tokens. sequential has no effect.

        Arguments:
            use_comm_stream: run on the communication stream, which waits for the current one, and the current one for it.
            with_cpu_sync: the CPU waits for this GPU before and after.
        """
        where, b, torch = "ElasticBuffer.barrier", self._buffer, self._torch
        sync = functools.partial(torch.cuda.synchronize, self.device) if with_cpu_sync and self.device.type == "cuda" else lambda: None
        sync()
        ht = b._open_throughput(where)
        call = begin(b, where, None, False, use_comm_stream, whole=True)
        try:
            routing = Routing(b, ht, call, torch.empty((0, 1), dtype=torch.int64, device=self.device), self.num_ranks, 1)
            routing.exchange()
        except BaseException:
            call.give_up()
            raise
        call.end((), (*_arrays(routing.handle), *routing.used))
        sync()
        b._finish_on_cpu(ht)

    # ------------------------------------------------------------------ dispatch

    @one_at_a_time
    def dispatch(self, x: Rows, topk_idx: Any = None, topk_weights: Any = None, cumulative_local_expert_recv_stats: Any = None,
                 num_experts: Optional[int] = None, num_max_tokens_per_rank: Optional[int] = None, expert_alignment: Optional[int] = None,
                 num_sms: int = 0, num_qps: int = 0, previous_event: Event = None, previous_event_before_epilogue: Event = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: Optional[EPHandle] = None,
                 do_handle_copy: bool = True, do_cpu_sync: Optional[bool] = None, do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False, *, num_expanded_tokens: Optional[int] = None
                 ) -> Tuple[Rows, Optional[Any], Optional[Any], EPHandle, EventOverlap]:
        """Sends each token's row once to every rank that holds one of its experts.

        Arguments:
            x: [tokens, hidden] of any type whose rows are a multiple of 16 bytes, or a pair of it and scales, [tokens, n] of 4-byte elements with any strides.
            topk_idx, topk_weights: int64 and float32 [tokens, top-k]; an expert, or -1. Weights may be None.
            cumulative_local_expert_recv_stats: int32 [local experts], or None: the entries received per expert are added to it.
            num_experts, num_max_tokens_per_rank: the same at all ranks; None: the handle's, and the constructor's.
            expert_alignment: group sizes and counts are rounded up to a multiple of it.
            num_sms: multiprocessors; 0: get_theoretical_num_sms(). num_qps: no effect.
            previous_event: what to wait for instead of the current stream. previous_event_before_epilogue: before outputs are written.
            async_with_compute_stream: return an event instead of letting the current stream wait.
            allocate_on_comm_stream: the call runs on the communication stream, and its outputs belong to it.
            handle: of an earlier dispatch, whose routing is used again. topk_idx must then be None; topk_weights may be given.
            do_handle_copy: the handle keeps a copy of topk_idx.
            do_cpu_sync: the CPU waits for counts, and outputs have exactly the rows that arrive; False: outputs have as many rows as can arrive, and the CPU
            waits in the first, second, fourth, eighth such call without do_expand and so on only, for ranks to map each other's memory.
            do_expand: one row per entry, grouped by expert; else one per token and rank. do_zero_padding: padding rows are zeros.
            use_tma_aligned_col_major_sf: received scales are column-major, and each column begins at a multiple of 16 bytes.
            num_expanded_tokens: rows that outputs have with do_expand and do_cpu_sync=False, in place of as many as can arrive; entries beyond are dropped.

        Returns: received rows, ordered by source rank, then token, as a pair if x was one; their experts in local numbers, -1 for those
        of other ranks, None with do_expand; their weights, one per row with do_expand; the handle; the event.
        """
        where, b, torch = "ElasticBuffer.dispatch", self._buffer, self._torch
        data, scales, shape = b._rows(where, x)
        cached = handle is not None
        if cached:
            need(isinstance(handle, EPHandle), where, "handle is a {}; it must be the one that dispatch gave", type(handle).__name__)
            need(topk_idx is None, where, "with a handle topk_idx must be None: the rows go where they went")
            need(not do_cpu_sync, where, "do_cpu_sync is set and a handle is given: the handle has the counts")
            need(do_expand == handle.do_expand, where, "do_expand is {}; the handle is of a dispatch with {}", do_expand, handle.do_expand)
            topk_idx = handle.topk_idx
            for name, given in (("num_experts", num_experts), ("num_max_tokens_per_rank", num_max_tokens_per_rank), ("expert_alignment", expert_alignment)):
                need(given is None or given == getattr(handle, name), where, "{} is {}; the handle is of a dispatch with {}", name, given,
                     getattr(handle, name))
            num_experts, alignment, most = handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank
        else:
            alignment = 1 if expert_alignment is None else expert_alignment
            most = self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank
        need(do_expand or not do_zero_padding, where, "do_zero_padding is set and do_expand is not: only groups of rows have rows between them")
        local, sync = self._check_dispatch(where, data, topk_idx, topk_weights, cumulative_local_expert_recv_stats, num_experts, most, alignment,
                                           do_cpu_sync, cached)
        need(num_expanded_tokens is None or (do_expand and not sync and not cached and num_expanded_tokens > 0), where,
             "num_expanded_tokens is {}; it must be positive, and is for do_expand and do_cpu_sync=False without a handle", num_expanded_tokens)
        sms = num_sms or (handle.num_sms if cached else self.get_theoretical_num_sms(num_experts, topk_idx.size(1)))
        ht = b._open_throughput(where)
        call = begin(b, where, _overlap(previous_event), async_with_compute_stream, allocate_on_comm_stream, whole=True)
        used: Tuple[Any, ...] = ()
        rows, epilogue = (data, scales, shape), previous_event_before_epilogue
        # A row's number says where it comes from: source rank * num_max_tokens_per_rank + token.
        form = (None if cached else self.rank_idx * most, use_tma_aligned_col_major_sf)
        grouped = Grouped(b, ht, call, where, rows, topk_idx, topk_weights, local, sms, self.rank_idx * most, epilogue) if do_expand else None
        moved: Tuple[Any, ...] = ()
        keep = topk_idx.clone if do_handle_copy else lambda: topk_idx
        try:
            if grouped is not None:
                index, layout = None, (do_zero_padding, use_tma_aligned_col_major_sf)
                if cached:
                    grouped.move(handle.routing, True)
                    _, _, out, out_scales, weights = grouped.spread(handle.groups, handle.slots, handle.source, handle.num_expanded_tokens, layout)
                else:
                    worst = 0 if sync else most * self.num_ranks
                    counts, (slots, source, out, out_scales, weights) = grouped.first(num_experts, alignment, worst, layout, keep, num_expanded_tokens)
                    handle = EPHandle(grouped.handle, True, num_experts, alignment, most, sms, grouped.kept, counts, self.num_scaleup_ranks, out.size(0))
                    handle.slots, handle.source, handle.drops = slots, source, num_expanded_tokens is not None
                    handle.keep(grouped.groups, call.capturing)
            elif cached:
                if epilogue is not None:
                    epilogue.current_stream_wait()
                moved = b._move(where, ht, call, handle.routing, rows, topk_idx, topk_weights, local, sms, True, form=form)
            else:
                routing = Routing(b, ht, call, topk_idx, num_experts, 0 if sync else most * self.num_ranks)
                used, counts = routing.used, None
                if sync:
                    guess = b._guess(ht, row_of(rows, topk_idx, form))
                    routing.exchange(True, guess, epilogue is None)  # else counts travel while rows wait
                kept = keep()
                if epilogue is not None:
                    epilogue.current_stream_wait()
                if sync:
                    counts, moved = b._move_as_counted(where, ht, call, routing.handle, rows, topk_idx, topk_weights, local, sms, guess, form)
                else:
                    moved = b._move(where, ht, call, routing.handle, rows, topk_idx, topk_weights, local, sms, False,
                                    functools.partial(b._exchange_unwaited, ht, call, routing.exchange), form=form)
                handle = EPHandle(routing.handle, False, num_experts, alignment, most, sms, kept, counts, self.num_scaleup_ranks)
                if not sync:
                    handle.keep(Groups(ht, call.stream, handle.routing.matrix, self.num_ranks, local, alignment), call.capturing)
            if grouped is None:
                out, out_scales, index, weights, source = moved
                if not cached:
                    handle.source = source
            if cumulative_local_expert_recv_stats is not None:
                cumulative_local_expert_recv_stats.add_(handle.num_unaligned_recv_tokens_per_expert)
            if form[1] and out_scales is not None and out_scales.stride(1) != column_stride(out.size(0)):  # fewer rows came than were allocated
                out_scales = like_scales(out_scales, out.size(0), True).copy_(out_scales)
        except BaseException:
            call.give_up()
            if grouped is not None:
                grouped.give_up()
            raise
        arrays = (*_arrays(handle.routing), *handle.arrays())
        event = call.end((data, scales, topk_idx, topk_weights, cumulative_local_expert_recv_stats, *arrays),
                         (*used, *moved, out, out_scales, index, weights, *arrays))
        b._finish_on_cpu(ht)
        return out if scales is None else (out, out_scales), index, weights, handle, event

    def _check_dispatch(self, where: str, data: Any, topk_idx: Any, weights: Any, stats: Any, experts: Any, most: int, alignment: int, sync: Optional[bool],
                        cached: bool) -> Tuple[int, bool]:
        """Checks what a dispatch is given; returns the experts of a rank, and whether the CPU waits for counts."""
        torch, device, tokens = self._torch, self.device, data.size(0)
        need(topk_idx is not None, where, "neither topk_idx nor handle is given: nothing says where rows go")
        checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (tokens, -1), device, ("tokens",))
        checks.optional(torch, where, "topk_weights", weights, torch.float32, tuple(topk_idx.shape), device, ("tokens", "top-k"))
        need(experts is not None, where, "num_experts is None; without a handle it must be the number of all experts")
        self._buffer._check_experts(where, experts, topk_idx.size(1))
        local = experts // self.num_ranks
        checks.optional(torch, where, "cumulative_local_expert_recv_stats", stats, torch.int32, (local,), device, ("local experts",))
        need(isinstance(alignment, int) and alignment > 0, where, f"expert_alignment is {alignment!r}; it must be positive")
        need(isinstance(most, int) and most > 0, where, f"num_max_tokens_per_rank is {most!r}; it must be positive, here or in the constructor")
        need(tokens <= most, where, "there are {} tokens; num_max_tokens_per_rank is {}", tokens, most)
        return local, not cached and sync is not False

    # ------------------------------------------------------------------ combine

    @one_at_a_time
    def combine(self, x: Any, handle: EPHandle, topk_weights: Any = None, bias: Any = None, num_sms: int = 0, num_qps: int = 0,
                previous_event: Event = None, previous_event_before_epilogue: Event = None, async_with_compute_stream: bool = False,
                allocate_on_comm_stream: bool = False) -> Tuple[Any, Optional[Any], EventOverlap]:
        """Returns the rows of a dispatch to their tokens and adds them: in FP32, biases first, then ranks ascending, rounded to bfloat16 once. Before that,
        rows grouped by expert are added at their rank, in FP32, in the order of top-k, and rounded; with several nodes, so is each node's sum. Without
        allow_multiple_reduction neither is: rows grouped by expert are added at home in the order of top-k, others ranks ascending.

        Arguments:
            x: bfloat16 [rows, hidden], in the layout of the dispatch. Weights are not applied.
            handle: of the dispatch.
            topk_weights: float32 [rows, top-k], for rows grouped by expert [rows]; returned to their tokens. Or None.
            bias: None, bfloat16 [tokens, hidden], or a pair of them.
            num_sms: multiprocessors; 0: the handle's. The rest as in dispatch().

        Returns: bfloat16 [tokens, hidden]; float32 [tokens, top-k] or None; the event.
        """
        where, b, torch, device = "ElasticBuffer.combine", self._buffer, self._torch, self.device
        need(isinstance(handle, EPHandle), where, "handle is a {}; it must be the one that dispatch gave", type(handle).__name__)
        expanded = handle.do_expand
        once = not self.allow_multiple_reduction and (expanded or self._nodes > 1)
        need(not (once and handle.drops), where, "the handle is of a dispatch with num_expanded_tokens, which allow_multiple_reduction=False does not serve")
        rows = handle.num_expanded_tokens if expanded else handle.num_recv_tokens
        checks.tensor(torch, where, "x", x, torch.bfloat16, (rows, -1), device, ("rows of the dispatch",))
        shape = b._check_rows(where, x)
        sizes = (rows,) if expanded else (rows, handle.topk_idx.size(1))
        checks.optional(torch, where, "topk_weights", topk_weights, torch.float32, sizes, device, ("rows of the dispatch", "top-k"))
        biases = b._biases(where, bias, handle.routing.tokens, x.size(1))
        ht = b._open_throughput(where)
        call = begin(b, where, _overlap(previous_event), async_with_compute_stream, allocate_on_comm_stream, whole=True)
        folded: Optional[Fold] = None
        used: Tuple[Any, ...] = ()
        outputs: Tuple[Any, Any]
        try:
            if previous_event_before_epilogue is not None:
                previous_event_before_epilogue.current_stream_wait()
            sms = num_sms or handle.num_sms
            if once:
                home = Once(b, ht, call, where, handle, x, shape, topk_weights, biases, sms)
                used, outputs = home.used, (home.sums, home.weights)
            elif expanded:
                folded = Fold(b, ht, call, handle.routing, handle.slots, x, topk_weights, sms, handle.drops)
                shape = b._check_rows(where, folded.out)
                used = folded.out, folded.weights, folded.folded
                outputs = b._return(where, ht, call, handle.routing, shape, folded.weights, biases, sms, folded.folded)
                folded.join()
            else:
                outputs = b._return(where, ht, call, handle.routing, shape, topk_weights, biases, sms)
        except BaseException:
            call.give_up()
            if folded is not None:
                folded.join()
            raise
        event = call.end((x, topk_weights, *biases, *_arrays(handle.routing), *handle.arrays()), (*used, *outputs))
        b._finish_on_cpu(ht)
        return (*outputs, event)

    # ------------------------------------------------------------------ what is not there

    engram_write = _unserved("engram_write", "Engram")
    engram_fetch = _unserved("engram_fetch", "Engram")
    pp_set_config = _unserved("pp_set_config", "send and receive between pipeline stages")
    pp_send = _unserved("pp_send", "send and receive between pipeline stages")
    pp_recv = _unserved("pp_recv", "send and receive between pipeline stages")
    create_agrs_session = _unserved("create_agrs_session", "all-gather and reduce-scatter")
    destroy_agrs_session = _unserved("destroy_agrs_session", "all-gather and reduce-scatter")
    agrs_new_session = _unserved("agrs_new_session", "all-gather and reduce-scatter")
    agrs_set_config = _unserved("agrs_set_config", "all-gather and reduce-scatter")
    agrs_get_inplace_tensor = _unserved("agrs_get_inplace_tensor", "all-gather and reduce-scatter")
    all_gather = _unserved("all_gather", "all-gather and reduce-scatter")
