# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls of Buffer: what training and prefill call. docs/reference/python.md says what is served."""
from __future__ import annotations

import ctypes
import functools
import logging
import os
from typing import Any, Callable, List, Optional, Tuple, Union

import epf
from epf import throughput
from epf.results import Results
from epf.shared import Driver, GpuShared, HostShared, gpu_vendor
from epf.tensors import view

from . import checks
from .checks import need
from .config import NODE_RANKS, Config
from .entry import one_at_a_time
from .event import EventHandle, EventOverlap

log = logging.getLogger("deep_ep")

Rows = Union[Any, Tuple[Any, Any]]


class RoutingHandle(tuple):
    """What a dispatch gives, for combines and further dispatches of the same routing, in any number and order.

    As a tuple what programs look into: entry 0 is int32 [ranks, ranks], rows that ranks 0..i send to r; with more than 8 ranks or several nodes it has
    10 entries, as in DeepEP, and the fourth from the end is int32 [ranks], rows received from ranks 0..i.

    Attributes: matrix: entry 0; place: int32 [tokens, ranks], the place of each token's row among those for a rank, or -1; plan: where rows lie on their
    way; links: which ranks of this node the rows go to that it forwards, int32 [rows forwarded, ranks], None on one node; received: rows; room: rows
    that a window holds; across: rows that cross between nodes; forwarded: rows of links; tokens; rank; at: addresses of place, matrix and plan.
    """
    matrix: Any
    place: Any
    plan: Any
    links: Any = None
    received: int
    room: int
    across: int
    forwarded: int
    tokens: int
    rank: int
    at: Tuple[int, int, int]

    @classmethod
    def make(cls, rank: int, several: bool, in_rank: Any, **values: Any) -> "RoutingHandle":
        matrix, place = values["matrix"], values["place"]
        handle = cls((matrix, place, None, None, None, in_rank, matrix[:, rank], None, None, None) if several else
                     (matrix, place, None, None, values["tokens"], in_rank))
        handle.__dict__.update(values, rank=rank)
        handle.at = (place.data_ptr(), matrix.data_ptr(), values["plan"].data_ptr())
        return handle


class _Call:
    """One call: the stream it runs on, what it waits for, where its outputs are allocated, and the event it gives. A synchronous call runs on the current
    stream, so that nothing has to order two streams; others, and those of a graph that is captured, run on the communication stream. Calls follow each
    other on the device whichever streams they use. On CPU tensors a call has run when it returns, and nothing of this happens.

    Arguments:
        whole: PyTorch operations between begin and end are part of the call: its stream is the current one until end(), and outputs are allocated
            there.
    """

    def __init__(self, buffer: Any, where: str, previous: Optional[EventOverlap], async_finish: bool, on_comm_stream: bool, whole: bool = False) -> None:
        need(whole or not on_comm_stream or (previous is not None and async_finish), where,
             "allocate_on_comm_stream needs previous_event and async_finish: nothing else orders the communication stream behind the caller's work")
        self._cuda = buffer._torch.cuda if buffer.device.type == "cuda" else None
        self._async, self._on_comm = async_finish, on_comm_stream
        self.capturing = False
        if self._cuda is None:
            self.stream = None
            return
        event = previous.event.event if previous is not None and previous.event is not None else None
        self.capturing = capturing = self._cuda.is_current_stream_capturing()
        comm = buffer._comm_stream
        self._current = None
        if async_finish or event is not None or capturing or on_comm_stream:
            self._on_comm = on_comm_stream or whole
            self._current, self._comm = self._cuda.current_stream(buffer.device), comm
            comm.wait_stream(self._current) if event is None else comm.wait_event(event)
            self.stream = comm.cuda_stream
        else:
            self.stream = buffer._stream()
        before, buffer._last_stream = buffer._last_stream, self.stream
        # What is captured cannot wait for what is not: who replays a graph orders that.
        if before is not None and before != self.stream and not capturing:
            after = comm if self._current is not None else self._cuda.current_stream(buffer.device)
            after.wait_stream(comm if before == comm.cuda_stream else self._cuda.ExternalStream(before, buffer.device))
        if self._on_comm:
            self._cuda.set_stream(comm)

    def end(self, reads: tuple, writes: tuple) -> EventOverlap:
        """Ends the call. reads, writes: tensors that its kernels read, and its outputs; None among them: there is none."""
        if self._cuda is None:
            return EventOverlap(EventHandle() if self._async else None)
        if self._on_comm:
            self._cuda.set_stream(self._current)
        if not self._async and self._current is not None:
            self._current.wait_stream(self._comm)
        for t in reads + writes if self._async else ():
            if t is not None:
                t.record_stream(self._comm)
        # Outputs of the communication stream's own memory are used on the caller's stream.
        for t in reads + writes if self._on_comm else ():
            if t is not None:
                t.record_stream(self._current)
        return EventOverlap(EventHandle(self._comm) if self._async else None)

    def give_up(self) -> None:
        if self._cuda is not None and self._on_comm:
            self._cuda.set_stream(self._current)


_NONE = (0, 0)


class HighThroughput:
    """Base of Buffer: the calls, and the memory they need, which is made at the first call and grows."""

    _ht: Optional[throughput.Throughput] = None
    _control: Any = None
    _window: Any = None
    _window_size = 0
    _fits: Any = None  # what the memory was last found to be enough for
    _counts: Any = None
    _numbers: Any = None  # the same, as an array of ctypes
    _results: Optional[Results] = None  # memory for outputs that others map
    _last_stream: Optional[int] = None  # of the last call

    # ------------------------------------------------------------------ memory

    def _shared_memory(self, size: int, what: str) -> Any:
        """Memory of this rank that all ranks map. Collective."""
        if self.device.type == "cpu":
            name = f"epf-{what}-" + self._ranks.all_gather(os.urandom(8).hex())[0]
            return HostShared(self._ranks, size, name)
        with self._torch.cuda.device(self.device):
            return GpuShared(self._ranks, size, Driver(gpu_vendor(self._torch)))

    def _open_throughput(self, where: str) -> throughput.Throughput:
        """The kernels, made at the first call. Collective then."""
        if self._ht is not None:
            return self._ht
        need(not self._destroyed, where, "this Buffer is destroyed")
        self._open_fabric()
        size = throughput.control_bytes(self.group_size)
        self._control = self._shared_memory(size, "control")
        self._view_shared(self._control, size).zero_()
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)
        self._ht = throughput.Throughput(self._ll, self._control.address, self._control.peers, self._timeout_ns())
        if self.device.type == "cuda" and self._ht.node_max > 1:
            self._results = Results.make(self._torch, self.device, self.num_nvl_bytes)
        return self._ht

    def _view_shared(self, shared: Any, size: int) -> Any:
        return view(self._torch, shared.address, size, self._torch.uint8, self.device, shared if isinstance(shared, HostShared) else None)

    def _quiet(self, where: str, why: str) -> None:
        """Waits until no kernel of any rank runs. why: what makes it necessary."""
        if self.device.type == "cuda":
            need(not self._torch.cuda.is_current_stream_capturing(), where, f"{why}, and a CUDA graph is captured; make one call of this size before")
            self._torch.cuda.synchronize(self.device)
        self._ranks.all_gather(None)

    def _need_memory(self, where: str, row: Tuple[int, int, int], handle: RoutingHandle) -> None:
        """Makes the memory larger that rows of other ranks arrive in, if this call needs it: all ranks know the same sizes, so all do it together."""
        needs = (row, handle.room, handle.across)
        if needs != self._fits:
            self._need_window(where, throughput.Row(*row), handle.room)
            self._need_across(where, throughput.Row(*row), handle.across)
            self._fits = needs

    def _need_across(self, where: str, row: throughput.Row, across: int) -> None:
        """Of rows that cross between nodes."""
        size = self._ht.lacks(row, across)
        if size:
            self._quiet(where, f"{across} rows between nodes need {size} bytes of communication memory")
            self._ht.reserve(row, across)

    def _need_window(self, where: str, row: throughput.Row, room: int) -> None:
        """Of rows of this node."""
        size = throughput.window_bytes(row, room)
        if size <= self._window_size or self._ht.node_max == 1:
            return
        self._quiet(where, f"{room} rows need {size} bytes of communication memory, there are {self._window_size}")
        size = max(size, 2 * self._window_size if self._window_size < 1 << 28 else size + (size >> 3))
        old, self._window, self._window_size = self._window, None, 0
        if old is not None:
            old.close()
        self._ranks.all_gather(None)  # all have unmapped it
        self._window = self._shared_memory(size, "window")
        self._ht.set_window(self._window.address, size, self._window.peers)
        self._window_size = size
        self._ranks.all_gather(None)

    def _map_results(self) -> None:
        """Maps the memory for outputs of all ranks, which know alike that it must be. Without it rows take one copy more."""
        if self._results is None:
            return
        with self._torch.cuda.device(self.device):
            if not self._results.map(self._ranks, self._ht, Driver(gpu_vendor(self._torch))):
                log.warning("the ranks cannot map each other's memory for outputs: rows take one copy more")
                self._results = None

    def _output(self, call: _Call, like: Any, *sizes: int) -> Any:
        """Memory for rows that arrive. What a graph captures comes from the graph's pool."""
        if self._results is None or call.capturing:
            return like.new_empty(sizes)
        out = self._results.empty(like.dtype, *sizes)
        return like.new_empty(sizes) if out is None else out

    def _host_counts(self, count: int) -> Any:
        if self._counts is None or len(self._numbers) < count:
            self._counts = self._torch.zeros(max(count, 64), dtype=self._torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
            self._numbers = (ctypes.c_int64 * self._counts.numel()).from_address(self._counts.data_ptr())
        return self._counts

    def _release_throughput(self) -> None:
        ht, self._ht = self._ht, None
        results, self._results = self._results, None
        if results is not None:
            results.close()
        if ht is not None:
            ht.close()
        for shared in (self._window, self._control):
            if shared is not None:
                shared.close()
        self._window = self._control = self._fits = self._last_stream = None
        self._window_size = 0

    # ------------------------------------------------------------------ layout

    @one_at_a_time
    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, previous_event: Optional[EventOverlap] = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False
                            ) -> Tuple[Any, Optional[Any], Any, Any, EventOverlap]:
        """Counts tokens for each rank, node and expert. Collective the first time it is called.

        Arguments:
            topk_idx: int64 [tokens, top-k]: an expert, or -1.

        Returns: int32 [ranks]; int32 [ranks / 8], None with at most 8 ranks; int32 [experts]; bool [tokens, ranks]; the event.
        """
        where, torch, ranks = "Buffer.get_dispatch_layout", self._torch, self.group_size
        checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (-1, -1), self.device)
        self._check_experts(where, num_experts, topk_idx.size(1))
        need(ranks <= NODE_RANKS or ranks % NODE_RANKS == 0, where, "there are {} ranks; more than {} must be a multiple of it", ranks, NODE_RANKS)
        ht = self._open_throughput(where)
        call = _Call(self, where, previous_event, async_finish, allocate_on_comm_stream)
        try:
            tokens, topk = topk_idx.shape
            nodes = ranks // NODE_RANKS if ranks > NODE_RANKS else 0
            counts = torch.empty((ranks + nodes + num_experts,), dtype=torch.int32, device=self.device)
            per_rank, per_expert = counts.as_strided((ranks,), (1,), 0), counts.as_strided((num_experts,), (1,), ranks + nodes)
            per_node = counts.as_strided((nodes,), (1,), ranks) if nodes else None
            in_rank = torch.empty((tokens, ranks), dtype=torch.bool, device=self.device)
            # In the order of struct epf_ht_routing.
            ht.layout(throughput.pack_routing(tokens, topk, num_experts, 0, topk_idx, in_rank, per_rank, per_node, per_expert, 0, 0, 0, 0), call.stream)
        except BaseException:
            call.give_up()
            raise
        return per_rank, per_node, per_expert, in_rank, call.end((topk_idx,), (counts, in_rank))

    def _check_experts(self, where: str, experts: int, topk: int) -> None:
        need(isinstance(experts, int) and experts > 0 and experts % self.group_size == 0, where,
             "there are {!r} experts; it must be a positive multiple of the {} ranks, because each rank holds as many", experts, self.group_size)
        need(experts // self.group_size <= throughput.LOCAL_MAX, where,
             "a rank holds {} experts; at most {} are possible", experts // self.group_size, throughput.LOCAL_MAX)
        need(topk <= throughput.TOPK_MAX, where, "top-k is {}; at most {} is possible", topk, throughput.TOPK_MAX)

    # ------------------------------------------------------------------ dispatch

    def _rows(self, where: str, x: Rows) -> Tuple[Any, Optional[Any]]:
        """Checks rows, which may be a pair with their scales."""
        torch = self._torch
        data, scales = x if isinstance(x, tuple) else (x, None)
        checks.tensor(torch, where, "x", data, getattr(data, "dtype", None), (-1, -1), self.device)
        self._check_rows(where, data)
        if scales is not None:
            need(isinstance(scales, torch.Tensor) and scales.dim() == 2 and scales.size(0) == data.size(0) and scales.element_size() == 4
                 and scales.device == data.device, where, "the scales of x must be a tensor [tokens, scales] of 4-byte elements on the same device")
        return data, scales

    def _check_rows(self, where: str, data: Any) -> None:
        size = data.size(1) * data.element_size()
        if size <= 0 or size % 16:
            need(False, where, "a row has {} bytes; it must be a positive multiple of 16", size)
        checks.aligned(where, "x", data)

    @one_at_a_time
    def dispatch(self, x: Rows, handle: Optional[RoutingHandle] = None, num_tokens_per_rank: Any = None,
                 num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None,
                 topk_weights: Any = None, expert_alignment: int = 1, num_worst_tokens: int = 0, config: Optional[Config] = None,
                 previous_event: Optional[EventOverlap] = None, async_finish: bool = False, allocate_on_comm_stream: bool = False
                 ) -> Tuple[Rows, Optional[Any], Optional[Any], Optional[List[int]], Optional[RoutingHandle], EventOverlap]:
        """Sends each token's row once to every rank that holds one of its experts.

        Arguments:
            x: [tokens, hidden] of any type whose rows are a multiple of 16 bytes, or a pair with scales [tokens, n] of 4-byte elements, any strides.
            handle: of an earlier dispatch: the same routing again, without an exchange of counts; topk_idx and topk_weights must then be None.
            num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert: of get_dispatch_layout().
            topk_idx, topk_weights: int64 and float32 [tokens, top-k], or None.
            expert_alignment: counts of experts are rounded up to a multiple of it.
            num_worst_tokens: not 0: the outputs have so many rows, and the CPU waits for nothing. Needs topk_idx.
            config: its num_sms is used; None: Buffer.num_sms.
            previous_event: what to wait for instead of the current stream. async_finish: give an event instead of letting the current stream wait.
            allocate_on_comm_stream: outputs belong to the communication stream.

        Returns: received rows, source rank ascending, then token ascending, a pair if x was one; their experts as this rank numbers them, int64
        [rows, top-k], -1 for those of other ranks; their weights; entries of each local expert, a list; the handle; the event. With a handle
        everything but the rows and the event is None.
        """
        where, torch, ranks = "Buffer.dispatch", self._torch, self.group_size
        data, scales = self._rows(where, x)
        tokens = data.size(0)
        ht = self._open_throughput(where)
        ht.check()
        cached = handle is not None
        if cached:
            need(topk_idx is None and topk_weights is None, where, "with a handle topk_idx and topk_weights must be None: the rows go where they went")
            self._check_handle(where, handle, tokens)
            local = 0
        else:
            local = self._check_routing(where, tokens, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights,
                                        expert_alignment, num_worst_tokens)
        call = _Call(self, where, previous_event, async_finish, allocate_on_comm_stream)
        try:
            counts: Optional[List[int]] = None
            last: Optional[Callable[[], Any]] = None
            if not cached:
                handle = self._new_handle(ht, tokens, is_token_in_rank, num_worst_tokens)
                counts = []
                exchange = functools.partial(self._exchange_counts, ht, call, handle, local, is_token_in_rank, num_tokens_per_expert, expert_alignment)
                if num_worst_tokens:
                    last = functools.partial(exchange, wait=False)
                else:
                    counts = exchange()
            outputs = self._move(where, ht, call, handle, (data, scales, topk_idx, topk_weights), local, self._blocks(config), cached, last)
        except BaseException:
            call.give_up()
            raise
        event = call.end((data, scales, topk_idx, topk_weights, is_token_in_rank, num_tokens_per_expert, handle.place, handle.matrix, handle.plan, handle.links),
                         outputs)
        out, out_scales, out_index, out_weights = outputs
        self._finish_on_cpu(ht)
        rows = out if scales is None else (out, out_scales)
        return (rows, None, None, None, None, event) if cached else (rows, out_index, out_weights, counts, handle, event)

    def _move(self, where: str, ht: throughput.Throughput, call: _Call, handle: RoutingHandle, given: Tuple[Any, Any, Any, Any], local: int, blocks: int,
              cached: bool, last: Optional[Callable[[], Any]] = None) -> Tuple[Any, Any, Any, Any]:
        """Moves rows along a handle. given: rows, scales, topk_idx, topk_weights; all but rows may be None. last: called once all memory is allocated.
        Returns what arrives, in the same order."""
        data, scales, topk_idx, topk_weights = given
        topk, received = 0 if topk_idx is None else topk_idx.size(1), handle.received
        row = (data.size(1) * data.element_size(), 0 if scales is None else scales.size(1), topk)
        self._need_memory(where, row, handle)
        out = self._output(call, data, received, data.size(1))
        out_scales = None if scales is None else scales.new_empty((received, scales.size(1)))
        out_index = None if topk_idx is None else topk_idx.new_empty((received, topk))
        out_weights = None if topk_weights is None else topk_weights.new_empty((received, topk))

        if not cached and ht.nodes > 1:
            handle.links = handle.place.new_empty((handle.forwarded, ht.node_max))
        links = None if cached else handle.links
        if last is not None:
            last()  # nothing is allocated after it: the driver's allocation could wait for the kernel that waits for counts

        # In the order of struct epf_ht_dispatch.
        ht.dispatch(throughput.pack_dispatch(
            *row, data.size(0), local, received, handle.room, blocks, handle.across, 0 if links is None else handle.forwarded, *handle.at, links,
            data, scales, *(_NONE if scales is None else scales.stride()), topk_idx, topk_weights, out, out_scales, out_index, out_weights), call.stream)
        return out, out_scales, out_index, out_weights

    def _finish_on_cpu(self, ht: throughput.Throughput) -> None:
        if self.device.type == "cpu":
            ht.check()  # it has run: what went wrong is known

    def _blocks(self, config: Optional[Config]) -> int:
        return config.num_sms if config is not None else type(self).num_sms

    def _check_handle(self, where: str, handle: Any, tokens: int) -> None:
        need(isinstance(handle, RoutingHandle), where, "handle is a {}; it must be the one that dispatch gave", type(handle).__name__)
        need(handle.tokens == tokens, where, "there are {} tokens; the handle is of {}", tokens, handle.tokens)

    def _check_routing(self, where: str, tokens: int, per_rank: Any, in_rank: Any, per_expert: Any, topk_idx: Any, topk_weights: Any,
                       alignment: int, worst: int) -> int:
        """Checks what a dispatch without a handle is given; returns the experts of a rank."""
        torch, ranks, device = self._torch, self.group_size, self.device
        for name, t in (("num_tokens_per_rank", per_rank), ("is_token_in_rank", in_rank), ("num_tokens_per_expert", per_expert)):
            need(t is not None, where, f"{name} is None; without a handle it must be what get_dispatch_layout gave")
        checks.tensor(torch, where, "num_tokens_per_rank", per_rank, torch.int32, (ranks,), device, ("ranks",))
        checks.tensor(torch, where, "is_token_in_rank", in_rank, torch.bool, (tokens, ranks), device, ("tokens", "ranks"))
        checks.tensor(torch, where, "num_tokens_per_expert", per_expert, torch.int32, (-1,), device)
        topk = 0
        if topk_idx is not None:
            checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (tokens, -1), device, ("tokens",))
            topk = topk_idx.size(1)
            checks.optional(torch, where, "topk_weights", topk_weights, torch.float32, (tokens, topk), device, ("tokens", "top-k"))
        need(topk_idx is not None or topk_weights is None, where, "topk_weights is given and topk_idx is None")
        self._check_experts(where, per_expert.numel(), topk)
        need(isinstance(alignment, int) and alignment > 0, where, f"expert_alignment is {alignment!r}; it must be positive")
        need(worst >= 0, where, f"num_worst_tokens is {worst}; it cannot be negative")
        need(worst == 0 or topk_idx is not None, where, "num_worst_tokens needs topk_idx: without it nothing says which rows were received")
        return per_expert.numel() // ranks

    def _new_handle(self, ht: throughput.Throughput, tokens: int, in_rank: Any, worst: int) -> RoutingHandle:
        """A handle whose arrays are not written yet. Its sizes are known with num_worst_tokens only."""
        def empty(*sizes: int) -> Any:
            return self._torch.empty(sizes, dtype=self._torch.int32, device=self.device)
        ranks = self.group_size
        return RoutingHandle.make(self.rank, ht.nodes > 1 or ranks > NODE_RANKS, in_rank, matrix=empty(ranks, ranks), place=empty(tokens, ranks),
                                  plan=empty(ht.plan_bytes(tokens) // 4), received=worst, room=worst, across=worst, forwarded=worst, tokens=tokens)

    def _exchange_counts(self, ht: throughput.Throughput, call: _Call, handle: RoutingHandle, local: int, in_rank: Any, per_expert: Any,
                         alignment: int, wait: bool = True) -> List[int]:
        """Exchanges counts. wait: the CPU waits for them, without Python's lock, for the handle's sizes and for the entries of each expert."""
        words = throughput.HOST_WORDS
        if wait and self._results is not None:
            self._results.begin(ht)
        host = self._host_counts(words + local) if wait else None
        # In the order of struct epf_ht_routing.
        ht.notify(throughput.pack_routing(handle.tokens, 0, local * self.group_size, alignment, 0, in_rank, 0, 0, per_expert, handle.place, handle.matrix,
                                          handle.plan, host), call.stream)
        if host is None:
            return []
        ht.wait_counts(host.data_ptr())
        numbers = self._numbers[:words + local]
        handle.received, handle.room, handle.across, handle.forwarded, grown = numbers[1:words]
        if grown:
            self._map_results()
        return numbers[words:]

    # ------------------------------------------------------------------ combine

    @one_at_a_time
    def combine(self, x: Any, handle: RoutingHandle, topk_weights: Any = None, bias: Any = None, config: Optional[Config] = None,
                previous_event: Optional[EventOverlap] = None, async_finish: bool = False, allocate_on_comm_stream: bool = False
                ) -> Tuple[Any, Optional[Any], EventOverlap]:
        """Brings the rows of a dispatch back and adds them: in FP32, biases first, then ranks ascending, rounded to bfloat16 once.

        Arguments:
            x: bfloat16 [rows received, hidden], in the order of the dispatch. Weights are not applied.
            handle: of the dispatch.
            topk_weights: float32 [rows received, top-k], or None: they are summed over ranks likewise.
            bias: None, bfloat16 [tokens, hidden], or a pair of them.

        Returns: bfloat16 [tokens, hidden]; float32 [tokens, top-k] or None; the event.
        """
        where, torch, device = "Buffer.combine", self._torch, self.device
        need(isinstance(handle, RoutingHandle), where, "handle is a {}; it must be the one that dispatch gave", type(handle).__name__)
        checks.tensor(torch, where, "x", x, torch.bfloat16, (handle.received, -1), device, ("rows received",))
        self._check_rows(where, x)
        checks.optional(torch, where, "topk_weights", topk_weights, torch.float32, (handle.received, -1), device, ("rows received",))
        biases = self._biases(where, bias, handle.tokens, x.size(1))
        ht = self._open_throughput(where)
        ht.check()
        call = _Call(self, where, previous_event, async_finish, allocate_on_comm_stream)
        try:
            out, out_weights = self._return(where, ht, call, handle, x, topk_weights, biases, self._blocks(config))
        except BaseException:
            call.give_up()
            raise
        event = call.end((x, topk_weights, *biases, handle.place, handle.matrix, handle.plan, handle.links), (out, out_weights))
        self._finish_on_cpu(ht)
        return out, out_weights, event

    def _biases(self, where: str, bias: Any, tokens: int, hidden: int) -> Tuple[Any, Any]:
        """Checks biases; returns two, or None for each that is missing."""
        first, second = ((bias if isinstance(bias, tuple) else (bias,)) + (None, None))[:2]
        for b in (first, second):
            if b is not None:
                checks.tensor(self._torch, where, "bias", b, self._torch.bfloat16, (tokens, hidden), self.device, ("tokens", "hidden"))
                checks.aligned(where, "bias", b)
        return first, second

    def _return(self, where: str, ht: throughput.Throughput, call: _Call, handle: RoutingHandle, x: Any, topk_weights: Any, biases: Tuple[Any, Any],
                blocks: int) -> Tuple[Any, Any]:
        """Returns rows along a handle and adds them. Returns the sums, and the sums of the weights or None."""
        hidden, topk = x.size(1), 0 if topk_weights is None else topk_weights.size(1)
        self._need_memory(where, (2 * hidden, 0, topk), handle)
        out = x.new_empty((handle.tokens, hidden))
        out_weights = topk_weights.new_empty((handle.tokens, topk)) if topk else None
        links = handle.links
        # In the order of struct epf_ht_combine.
        ht.combine(throughput.pack_combine(
            2 * hidden, topk, handle.tokens, handle.received, handle.room, blocks, handle.across, 0 if links is None else handle.forwarded,
            *handle.at, links, x, topk_weights, *biases, out, out_weights), call.stream)
        return out, out_weights

    def internode_dispatch(self, x: Rows, handle: Any = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
                           is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None, topk_weights: Any = None,
                           expert_alignment: int = 1, config: Any = None, previous_event: Any = None, async_finish: bool = False,
                           allocate_on_comm_stream: bool = False) -> Any:
        """As dispatch(): how rows travel is not the caller's to say."""
        return self.dispatch(x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert, topk_idx,
                             topk_weights, expert_alignment, 0, config, previous_event, async_finish, allocate_on_comm_stream)

    def internode_combine(self, x: Any, handle: Any, topk_weights: Any = None, bias: Any = None, config: Any = None,
                          previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """As combine()."""
        return self.combine(x, handle, topk_weights, bias, config, previous_event, async_finish, allocate_on_comm_stream)
