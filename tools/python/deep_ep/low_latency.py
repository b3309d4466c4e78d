# SPDX-License-Identifier: Apache-2.0
"""The low-latency calls of Buffer: what decoding calls. docs/reference/python.md says what is served."""
from __future__ import annotations

import errno
import logging
from typing import Any, Callable, Iterator, List, Optional, Tuple

import epf
from epf import call, lowlat

from . import checks
from .checks import ArgumentError, NotThereYet, need
from .entry import outside_modes
from .event import EventHandle, EventOverlap

log = logging.getLogger("deep_ep")

# What a lost or late rank looks like; with enable_shrink the others go on.
LATE = (errno.ETIMEDOUT, errno.EPROTO, errno.ECONNRESET, errno.EPIPE)


class Handle(tuple):
    """What a dispatch gives and its combine takes: (src_info, layout_range, tokens at most, hidden, experts), as in DeepEP.

    The two tensors are made when somebody looks at them, which combines do not. Attributes: `shape`; `at`: addresses of the two; `slots`: where each row
    belongs; `rows`: where each entry's row lies, where sums are made at the sender, else None; `memory`: what all of them lie in.
    """
    shape: lowlat.Shape
    at: Tuple[int, int]
    slots: int
    rows: Optional[int]
    memory: Any
    _tensors: Optional[tuple] = None

    def _five(self) -> tuple:
        if self._tensors is None:
            self._tensors = (*self.look(), *tuple.__getitem__(self, slice(2, 5)))
        return self._tensors

    def __iter__(self) -> Iterator[Any]:
        return iter(self._five())

    def __getitem__(self, at: Any) -> Any:
        return self._five()[at]

    def __repr__(self) -> str:
        return repr(self._five())


class Outputs:
    """How the outputs of a dispatch are allocated, for one shape and format: rows, scales, counts, and one block of int32 for the handle.

    Arguments:
        empty: of epf.tensors.allocator().
        sums: whether combines may sum at the sender.
    """

    def __init__(self, torch: Any, empty: Callable[..., Any], ranks: int, shape: lowlat.Shape, use_fp8: bool, use_ue8m0: bool, sums: bool) -> None:
        local, rows = shape.experts // ranks, shape.tokens_max * ranks
        # PyTorch before 2.1 has no name for FP8; the codes are then bytes.
        self._x = ((local, rows, shape.hidden), (rows * shape.hidden, shape.hidden, 1),
                   getattr(torch, "float8_e4m3fn", torch.uint8) if use_fp8 else torch.bfloat16)
        blocks = shape.hidden // (4 * lowlat.BLOCK if use_ue8m0 else lowlat.BLOCK)
        # Column-major.
        self._scales = ((local, rows, blocks), (rows * blocks, 1, rows), torch.int32 if use_ue8m0 else torch.float32) if use_fp8 else None
        # src_info, slots, rows of entries, layout_range in 8 bytes each.
        n = local * rows
        entries = ranks * (shape.tokens_max * shape.topk + 1) if sums else 0
        ranges = 2 * n + entries + (entries & 1)
        self._shape, self._sums, self._long = shape, sums, torch.int64
        self._local, self._ranks, self._rows, self._ranges = local, ranks, rows, ranges
        self._empty, self._end = empty, ranges + 2 * local * ranks
        self._small, self._counts = ((self._end,), (1,), torch.int32), ((local,), (1,), torch.int32)

    def allocate(self) -> Tuple[Any, Any, Any, Handle]:
        """Returns rows, scales or None, counts, and the handle."""
        empty = self._empty
        x, scales, small = empty(*self._x), None if self._scales is None else empty(*self._scales), empty(*self._small)
        shape, at, n = self._shape, small.data_ptr(), 4 * self._local * self._rows
        handle = Handle((None, None, shape.tokens_max, shape.hidden, shape.experts))
        handle.shape, handle.at, handle.slots, handle.rows = shape, (at, at + 4 * self._ranges), at + n, at + 2 * n if self._sums else None
        handle.memory, handle.look = small, lambda: self._look(small)
        return x, scales, empty(*self._counts), handle

    def _look(self, small: Any) -> Tuple[Any, Any]:
        """The tensors of a handle: src_info and layout_range."""
        ranges = small[self._ranges:self._end].view(self._long).view(self._local, self._ranks)
        return small.as_strided((self._local, self._rows), (self._rows, 1)), ranges


class LowLatency:
    """Base of Buffer: the calls, their masks, and what they have in common."""

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """Bytes of communication memory that low-latency calls of these sizes need, for any top-k up to 16."""
        where = "Buffer.get_low_latency_rdma_size_hint"
        need(isinstance(num_ranks, int) and num_ranks > 0, where, f"num_ranks is {num_ranks!r}; it must be a positive integer")
        checks.counts(where, num_ranks, num_max_dispatch_tokens_per_rank=num_max_dispatch_tokens_per_rank, hidden=hidden,
                      num_experts=num_experts)
        return lowlat.size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    # ------------------------------------------------------------------ what the calls share

    def _low_latency(self, where: str) -> epf.LowLatency:
        if self._ll is None or not self._ll_size:
            raise ArgumentError(f"{where}: this Buffer has no memory for low-latency calls: it is destroyed, or was made without low_latency_mode and has made "
                                "no low_latency_dispatch yet")
        return self._ll

    def _stream(self) -> Optional[int]:
        return self._raw_stream(self._index) if self._on_gpu else None

    def _tell(self, error: epf.EpfError) -> None:
        """With enable_shrink a lost rank is a warning, else an error."""
        if not (self.enable_shrink and error.errno in LATE):
            raise error
        log.warning("%s", error)

    def _begin(self, where: str, shape: lowlat.Shape) -> epf.LowLatency:
        """Reports what went wrong in earlier calls, and starts again if the shape is another one than theirs."""
        if shape is not self._shape or self._ll is None:
            return self._begin_shape(where, shape)
        try:
            self._ll.check()
        except epf.EpfError as error:
            self._tell(error)
        return self._ll

    def _begin_shape(self, where: str, shape: lowlat.Shape) -> epf.LowLatency:
        """The same, where the shape may be another one."""
        if not self.low_latency_mode and shape != self._shape:
            self._size_low_latency(where, shape)
        ll = self._low_latency(where)
        try:
            ll.check()
        except epf.EpfError as error:
            self._tell(error)
        if shape != self._shape:
            if self._shape is not None:
                need(self._halves_left == 0, where, f"the shape changes from {self._shape} to {shape} while a hook was not called yet")
                if self.device.type == "cuda" and self._torch.cuda.is_current_stream_capturing():
                    raise ArgumentError(f"{where}: the shape changes from {self._shape} to {shape} while a CUDA graph is captured; "
                                        "make one call of the new shape before")
                self._clean(ll)
            self._shape = shape
        return ll

    def _run(self, launch: Callable[..., None], packed: bytes, halves: int) -> None:
        """Launches halves of a call on the current stream."""
        try:
            launch(packed, halves, self._stream())
            if not self._on_gpu and halves & lowlat.RECV:
                self._ll.check()  # it has run: what went wrong is known
        except epf.EpfError as error:
            self._tell(error)

    def _launch(self, launch: Callable[..., None], packed: bytes, used: tuple, async_finish: bool, return_recv_hook: bool
                ) -> Tuple[EventOverlap, Optional[Callable[[], None]]]:
        """Runs both halves now, or the send half now and the other by the hook; gives event and hook. used: tensors of the call."""
        if return_recv_hook:
            self._run(launch, packed, lowlat.SEND)
            self._halves_left += 1
            waiting: List[tuple] = [used]  # keeps the tensors until the hook was called

            def hook() -> None:
                if not waiting:
                    raise ArgumentError("the hook of a low-latency call was called twice")
                self._run(launch, packed, lowlat.RECV)
                waiting.clear()
                self._halves_left -= 1
            return EventOverlap(None), hook
        if not async_finish or self._comm_stream is None:
            self._run(launch, packed, lowlat.BOTH)
            return EventOverlap(EventHandle() if async_finish else None, used if async_finish else None), None
        cuda, stream = self._torch.cuda, self._comm_stream
        stream.wait_stream(cuda.current_stream(self.device))
        with cuda.stream(stream):
            self._run(launch, packed, lowlat.BOTH)
            event = EventHandle(stream)
        return EventOverlap(event, used), None

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Collective over the ranks that are not masked: begins again, after masks were cleared. Nothing else makes it necessary.

        Waits for the current stream. A rank that does not come in time is masked: a warning names it with enable_shrink, else this raises.
        """
        where = "Buffer.clean_low_latency_buffer"
        checks.counts(where, self.group_size, num_max_dispatch_tokens_per_rank=num_max_dispatch_tokens_per_rank, hidden=hidden,
                      num_experts=num_experts)
        self._clean(self._low_latency(where))

    def _clean(self, ll: epf.LowLatency) -> None:
        ll.clean(self._stream())
        try:
            ll.check()  # it has run: who did not come is known
        except epf.EpfError as error:
            self._tell(error)

    # ------------------------------------------------------------------ dispatch and combine

    @outside_modes
    def low_latency_dispatch(self, x: Any, topk_idx: Any, num_max_dispatch_tokens_per_rank: int, num_experts: int,
                             cumulative_local_expert_recv_stats: Any = None, dispatch_wait_recv_cost_stats: Any = None,
                             use_fp8: bool = True, round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False, *, use_nvfp4: bool = False, x_global_scale: Any = None
                             ) -> Tuple[Any, Any, Handle, EventOverlap, Optional[Callable[[], None]]]:
        """Sends each token to its experts.

        Arguments:
            x: bfloat16 [tokens, hidden]; hidden a multiple of 128, with use_ue8m0 of 512.
            topk_idx: int64 [tokens, top-k]: an expert, each at most once a token, or -1; top-k up to 16.
            num_max_dispatch_tokens_per_rank, num_experts: the same at all ranks.
            cumulative_local_expert_recv_stats: int32 [local experts], or None: rows received are added.
            dispatch_wait_recv_cost_stats: int64 [ranks], or None: nanoseconds waited for each rank are added.
            use_fp8: E4M3 with a float scale per 128 channels; round_scale: powers of two; use_ue8m0: exponents, four an int32.
            async_finish: run on the communication stream, and give an event. return_recv_hook: send now, receive when the hook is called.
            use_nvfp4, x_global_scale: of a branch of DeepEP; not there yet.

        Returns: rows [local experts, ranks * tokens at most, hidden], with FP8 a pair with their scales (column-major: [.., .., hidden / 128]
        float, or [.., .., hidden / 512] int32); rows of each local expert, int32; the handle; the event; the hook or None.
        The tensors are new: nothing reuses them.
        """
        where, torch, device, ranks = "low_latency_dispatch", self._torch, self.device, self.group_size
        if use_nvfp4 or x_global_scale is not None:
            raise NotThereYet(f"{where}: rows in NVFP4 are not there yet; use FP8 or BF16 (vLLM: VLLM_DEEPEPLL_NVFP4_DISPATCH=0)")
        rows, entries = call.rows(x, torch.Tensor, device), call.rows(topk_idx, torch.Tensor, device)
        if rows is None or rows[2] != torch.bfloat16 or entries is None or entries[2] != torch.int64 or entries[0] != rows[0]:
            checks.tensor(torch, where, "x", x, torch.bfloat16, (-1, -1), device)
            checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (x.shape[0], -1), device, ("tokens",))
        tokens, hidden, _, _, x_at = rows
        topk, shape = entries[1], self._shape
        if shape != (num_max_dispatch_tokens_per_rank, hidden, num_experts, topk):
            shape = lowlat.Shape(num_max_dispatch_tokens_per_rank, hidden, num_experts, topk)
            checks.counts(where, ranks, num_max_dispatch_tokens_per_rank=num_max_dispatch_tokens_per_rank, hidden=hidden, num_experts=num_experts)
        self._check_call(where, tokens, topk, num_max_dispatch_tokens_per_rank, async_finish, return_recv_hook)
        if x_at & 15:
            checks.aligned(where, "x", x)
        if round_scale or use_ue8m0:
            need(use_fp8, where, "round_scale and use_ue8m0 are about FP8 scales, and use_fp8 is False")
            need(round_scale, where, "use_ue8m0 needs round_scale=True: only powers of two have an exponent alone")
            need(not use_ue8m0 or hidden % 512 == 0, where, "use_ue8m0 packs four scales, so hidden must be a multiple of 512, not {}", hidden)
        recv_stats, wait_stats = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        if recv_stats is not None or wait_stats is not None:
            checks.optional(torch, where, "cumulative_local_expert_recv_stats", recv_stats, torch.int32, (num_experts // ranks,), device, ("local experts",))
            checks.optional(torch, where, "dispatch_wait_recv_cost_stats", wait_stats, torch.int64, (ranks,), device, ("ranks",))
        ll = self._begin(where, shape)
        key = (shape, use_fp8, use_ue8m0, self._sums)
        outputs = self._outputs.get(key)
        if outputs is None:
            outputs = self._outputs[key] = Outputs(torch, self._empty, ranks, shape, use_fp8, use_ue8m0, self._sums != "off")
        out, scales, count, handle = outputs.allocate()
        # In the order of struct epf_ll_dispatch.
        packed = lowlat.pack_dispatch(
            *shape, tokens, use_fp8 * lowlat.FP8 | round_scale * lowlat.ROUND_SCALE | use_ue8m0 * lowlat.UE8M0, x_at, entries[4], out, scales, count,
            handle.at[0], handle.slots, handle.at[1], recv_stats, wait_stats, handle.rows)
        event, hook = self._launch(ll.dispatch, packed, (x, topk_idx, out, scales, count, handle, recv_stats, wait_stats), async_finish, return_recv_hook)
        return (out, scales) if use_fp8 else out, count, handle, event, hook

    def _sum_flags(self, handle: Handle, use_logfmt: bool) -> int:
        """Whether a combine sums at the sender: the same at all ranks, so from nothing but what all ranks do alike."""
        if handle.rows is None or use_logfmt:
            return 0
        return lowlat.SUM_AT_SENDER | (0 if self._sums == "always" else lowlat.SUM_IF_MANY)

    def _check_call(self, where: str, tokens: int, topk: int, tokens_max: int, async_finish: bool, return_recv_hook: bool) -> None:
        if tokens <= tokens_max and 1 <= topk <= lowlat.TOPK_MAX and not (async_finish and return_recv_hook):
            return
        need(tokens <= tokens_max, where, "there are {} tokens; num_max_dispatch_tokens_per_rank is {}", tokens, tokens_max)
        need(1 <= topk <= lowlat.TOPK_MAX, where, "top-k is {}; it must be 1 to {}", topk, lowlat.TOPK_MAX)
        raise ArgumentError(f"{where}: async_finish and return_recv_hook exclude each other: the hook is the wait")

    def _handle(self, where: str, handle: Any) -> Handle:
        need(isinstance(handle, Handle), where, "handle is a {}; it must be the one that low_latency_dispatch gave, "
             "which carries more than its five members", type(handle).__name__)
        return handle

    @outside_modes
    def low_latency_combine(self, x: Any, topk_idx: Any, topk_weights: Any, handle: Handle, use_logfmt: bool = False,
                            zero_copy: bool = False, async_finish: bool = False, return_recv_hook: bool = False, out: Any = None,
                            combine_wait_recv_cost_stats: Any = None, *, overlap: bool = False, packed_recv_count: Any = None,
                            comp_signal: Any = None, block_m: int = 64, threshold: int = 0, num_sms: int = 0, src_signals: Any = None,
                            src_signal_expect_value: int = 0) -> Tuple[Any, EventOverlap, Optional[Callable[[], None]]]:
        """Brings the experts' rows back to the tokens they came from, and adds them with their weights in FP32, in the order of top-k.

        Where this Buffer sums at the sender (never with use_logfmt) each rank adds so what it holds of a token, sends that in BF16, and these are
        added.

        Arguments:
            x: bfloat16 [local experts, ranks * tokens at most, hidden]: the experts' outputs, row for row as they were received.
            topk_idx, topk_weights: int64 and float32 [tokens, top-k], as in the dispatch.
            handle: of the dispatch.
            use_logfmt: rows travel in 10 bits a channel (kernels/ll/README.md), not with zero_copy. zero_copy: they were written to get_next_low_latency_combine_buffer(); x gives only the shape.
            out: bfloat16 [tokens, hidden] to write to; None: a new tensor.
            combine_wait_recv_cost_stats: int64 [ranks], or None: nanoseconds waited for each rank are added.
            overlap and what follows it: of a branch of DeepEP; not there yet.

        Returns: bfloat16 [tokens, hidden]; the event; the hook or None.
        """
        where, torch, device, ranks = "low_latency_combine", self._torch, self.device, self.group_size
        if overlap:
            raise NotThereYet(f"{where}: overlap with the experts' kernels by signals is not there yet "
                              "(SGLang: leave --enable-single-batch-overlap out)")
        shape = self._handle(where, handle).shape
        tokens_max, hidden, experts, topk = shape
        checks.tensor(torch, where, "x", x, torch.bfloat16, (experts // ranks, tokens_max * ranks, hidden), device,
                      ("local experts", "ranks * tokens at most", "hidden"))
        entries, weights = call.rows(topk_idx, torch.Tensor, device), call.rows(topk_weights, torch.Tensor, device)
        if entries is None or entries[1] != topk or entries[2] != torch.int64 or weights is None or weights[:2] != entries[:2] or weights[2] != torch.float32:
            checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (-1, topk), device, ("", "top-k of the dispatch"))
            checks.tensor(torch, where, "topk_weights", topk_weights, torch.float32, (topk_idx.shape[0], topk), device, ("tokens", "top-k"))
        tokens = entries[0]
        self._check_call(where, tokens, topk, tokens_max, async_finish, return_recv_hook)
        checks.aligned(where, "x", x)
        if out is None:
            out = self._empty((tokens, hidden), (hidden, 1), torch.bfloat16)
        else:
            checks.tensor(torch, where, "out", out, torch.bfloat16, (tokens, hidden), device, ("tokens", "hidden"))
            checks.aligned(where, "out", out)
        wait_stats = combine_wait_recv_cost_stats
        if wait_stats is not None:
            checks.tensor(torch, where, "combine_wait_recv_cost_stats", wait_stats, torch.int64, (ranks,), device, ("ranks",))
        if use_logfmt and zero_copy:
            raise ArgumentError(f"{where}: use_logfmt and zero_copy exclude each other: LogFMT makes the rows again")
        ll = self._begin(where, shape)
        sums = self._sum_flags(handle, use_logfmt)
        # In the order of struct epf_ll_combine.
        packed = lowlat.pack_combine(
            *shape, tokens, zero_copy * lowlat.ZERO_COPY | use_logfmt * lowlat.LOGFMT | sums, ll.next_combine_buffer(shape) if zero_copy else x,
            handle.at[0], handle.slots, handle.at[1], entries[4], weights[4], out, wait_stats, handle.rows if sums else None)
        event, hook = self._launch(ll.combine, packed, (x, topk_idx, topk_weights, handle, out, wait_stats), async_finish, return_recv_hook)
        return out, event, hook

    def get_next_low_latency_combine_buffer(self, handle: Handle) -> Any:
        """What the next combine with zero_copy sends: bfloat16 [local experts, ranks * tokens at most, hidden], in communication memory itself."""
        where = "Buffer.get_next_low_latency_combine_buffer"
        shape = self._handle(where, handle).shape
        sizes = (shape.experts // self.group_size, shape.tokens_max * self.group_size, shape.hidden)
        address = self._low_latency(where).next_combine_buffer(shape)
        return self._view(address, sizes[0] * sizes[1] * sizes[2], self._torch.bfloat16).view(sizes)

    # ------------------------------------------------------------------ masks

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank, or clears its mask, for this rank only. Where a mask was cleared, clean_low_latency_buffer() at all ranks follows."""
        where = "Buffer.low_latency_update_mask_buffer"
        need(isinstance(rank_to_mask, int) and 0 <= rank_to_mask < self.group_size, where,
             f"rank_to_mask is {rank_to_mask!r}; ranks are 0 to {self.group_size - 1}")
        need(rank_to_mask != self.rank or not mask, where, f"rank {self.rank} would mask itself")
        self._low_latency(where).mask_update(rank_to_mask, bool(mask), self._stream())

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes 1 for masked ranks, else 0, to int32 [ranks]."""
        where = "Buffer.low_latency_query_mask_buffer"
        checks.tensor(self._torch, where, "mask_status", mask_status, self._torch.int32, (self.group_size,), self.device, ("ranks",))
        self._low_latency(where).mask_query(mask_status.data_ptr(), self._stream())

    def low_latency_clean_mask_buffer(self) -> None:
        """Clears all masks of this rank. clean_low_latency_buffer() at all ranks follows."""
        self._low_latency("Buffer.low_latency_clean_mask_buffer").mask_clean(self._stream())
