# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls of Buffer: what training and prefill call. docs/reference/python.md says what is served."""
from __future__ import annotations

import functools
import struct
from typing import Any, Callable, List, Optional, Tuple, Union

from epf import call, throughput
from epf.lowlat import check

from . import checks
from .checks import need
from .config import NODE_RANKS, Config
from .entry import one_at_a_time
from .event import EventOverlap
from .handle import RoutingHandle
from .memory import NEVER, Memory, a_little_more, spare_rows
from .order import Order, begin
from .utils.math import column_stride

Rows = Union[Any, Tuple[Any, Any]]
Shape = Tuple[int, int, Any, int, int]  # rows, columns, dtype, bytes of an element, address
Moved = Tuple[Any, Any, Shape]  # rows, scales or None


# What a dispatch gives beside rows: the number of this rank's first token, where rows are to be numbered, and whether scales are column-major.
Form = Tuple[Optional[int], bool]
Guess = Tuple[int, int, int]  # rows of the outputs, room, spare rows

_NONE, _NO_BIAS = (0, 0), (None, None)
_PLAIN: Form = (None, False)
_NO_GUESS: Guess = (0, 0, 0)


@functools.lru_cache(maxsize=None)
def _numbers(count: int) -> Callable[[Any], Tuple[int, ...]]:
    """What reads so many int64 from a buffer, in a third of the time of an array of ctypes."""
    return struct.Struct(f"={count}q").unpack_from


def row_of(rows: Moved, topk_idx: Any, form: Form) -> Tuple[int, int, int]:
    """What a row takes in a window: bytes, scales and its number, entries."""
    _, scales, (_, hidden, _, width, _) = rows
    words = 0 if scales is None else scales.shape[1]
    return hidden * width, words if form[0] is None else words + 1, 0 if topk_idx is None else topk_idx.shape[1]


class HighThroughput(Memory):
    """Base of Buffer: the calls."""

    _last_stream: Optional[int] = None  # of the last call
    _comm_number = 0  # of the communication stream
    _calls = 0  # begun
    _behind: Tuple[int, Optional[int]] = (0, None)  # a call, and a stream that waits for its end
    _last_room = 0  # rows of the rank that received most, in the last dispatch that the CPU waited for
    _last_received = 0  # rows that this rank received in it
    _last_grouped = 0  # rows grouped by expert of the last dispatch of such that the CPU waited for
    _did_fit = False  # whether it was as guessed
    _unwaited = 0  # dispatches that the program does not let the CPU wait for
    _laid: Optional[Tuple[Any, ...]] = None  # of the last layout, until a dispatch: tokens for each rank, in ranks, for each expert, topk_idx, its sizes, a rank's experts

    def _release_throughput(self) -> None:
        self._release_memory()
        self._last_stream = self._laid = None
        self._last_room = self._last_received = self._last_grouped = 0

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
        where, torch, ranks, empty = "Buffer.get_dispatch_layout", self._torch, self.group_size, self._empty
        checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (-1, -1), self.device)
        tokens, topk = topk_idx.shape
        self._check_experts(where, num_experts, topk)
        need(ranks <= NODE_RANKS or ranks % NODE_RANKS == 0, where, "there are {} ranks; more than {} must be a multiple of it", ranks, NODE_RANKS)
        ht = self._open_throughput(where)
        order = begin(self, where, previous_event, async_finish, allocate_on_comm_stream)
        try:
            # Views of one tensor would take longer to make than tensors.
            per_rank, per_expert = empty((ranks,), (1,), torch.int32), empty((num_experts,), (1,), torch.int32)
            per_node = empty((ranks // NODE_RANKS,), (1,), torch.int32) if ranks > NODE_RANKS else None
            in_rank = empty((tokens, ranks), (ranks, 1), torch.bool)
            # In the order of struct epf_ht_routing.
            check(ht.layout(order.stream, tokens, topk, num_experts, 0, 0, 0, 0, 0, topk_idx, in_rank, per_rank, per_node, per_expert, 0, 0, 0, 0))
            self._laid = per_rank, in_rank, per_expert, topk_idx, tokens, topk, num_experts // ranks
        except BaseException:
            order.give_up()
            raise
        return per_rank, per_node, per_expert, in_rank, order.end((topk_idx,), (per_rank, per_node, per_expert, in_rank))

    def _check_experts(self, where: str, experts: int, topk: int) -> None:
        if isinstance(experts, int) and 0 < experts <= throughput.LOCAL_MAX * self.group_size and experts % self.group_size == 0 and topk <= throughput.TOPK_MAX:
            return
        need(isinstance(experts, int) and experts > 0 and experts % self.group_size == 0, where,
             "there are {!r} experts; it must be a positive multiple of the {} ranks, because each rank holds as many", experts, self.group_size)
        need(experts // self.group_size <= throughput.LOCAL_MAX, where,
             "a rank holds {} experts; at most {} are possible", experts // self.group_size, throughput.LOCAL_MAX)
        need(topk <= throughput.TOPK_MAX, where, "top-k is {}; at most {} is possible", topk, throughput.TOPK_MAX)

    # ------------------------------------------------------------------ dispatch

    def _rows(self, where: str, x: Rows) -> Moved:
        """Checks rows, which may be a pair with their scales."""
        torch = self._torch
        data, scales = x if isinstance(x, tuple) else (x, None)
        shape = self._check_rows(where, data)
        if scales is not None:
            need(isinstance(scales, torch.Tensor) and scales.dim() == 2 and scales.shape[0] == shape[0] and scales.element_size() == 4
                 and scales.device == data.device, where, "the scales of x must be a tensor [tokens, scales] of 4-byte elements on the same device")
        return data, scales, shape

    def _check_rows(self, where: str, data: Any) -> Shape:
        """Checks rows without scales; returns (rows, columns, dtype, bytes of an element, address)."""
        shape = call.rows(data, self._torch.Tensor, self.device)
        if shape is None:
            checks.tensor(self._torch, where, "x", data, getattr(data, "dtype", None), (-1, -1), self.device)
        self._check_sizes(where, data, shape)
        return shape

    def _check_sizes(self, where: str, data: Any, shape: Shape) -> None:
        size = shape[1] * shape[3]
        if size <= 0 or size & 15:
            need(False, where, "a row has {} bytes; it must be a positive multiple of 16", size)
        if shape[4] & 15:
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
            num_worst_tokens: not 0: the outputs have so many rows, and the CPU waits for counts in the first, second, fourth, eighth such
                call and so on only, to map memory that is new. Needs topk_idx.
            config: its num_sms is used; None: Buffer.num_sms.
            previous_event: what to wait for instead of the current stream. async_finish: give an event instead of letting the current stream wait.
            allocate_on_comm_stream: outputs belong to the communication stream.

        Returns: received rows, source rank ascending, then token ascending, a pair if x was one; their experts as this rank numbers them, int64
        [rows, top-k], -1 for those of other ranks; their weights; entries of each local expert, a list; the handle; the event. With a handle
        everything but the rows and the event is None.
        """
        where = "Buffer.dispatch"
        rows = data, scales, shape = self._rows(where, x)
        tokens = shape[0]
        ht = self._ht or self._open_throughput(where)
        cached = handle is not None
        if cached:
            if topk_idx is not None or topk_weights is not None or type(handle) is not RoutingHandle or handle.tokens != tokens:
                self._refuse_handle(where, handle, tokens, topk_idx, topk_weights)
            local = 0
        else:
            local = self._check_routing(where, tokens, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights,
                                        expert_alignment, num_worst_tokens)
        reads = (data, scales, topk_idx, topk_weights, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)
        order = begin(self, where, previous_event, async_finish, allocate_on_comm_stream)
        try:
            counts: Optional[List[int]] = None
            last: Optional[Callable[[], Any]] = None
            outputs: Optional[Tuple[Any, Any, Any, Any]] = None
            blocks = self._blocks(config)
            if not cached:
                handle = self._new_handle(ht, tokens, is_token_in_rank, num_worst_tokens)
                exchange = functools.partial(self._notify, ht, order, handle, local, is_token_in_rank, num_tokens_per_rank, num_tokens_per_expert, expert_alignment)
                if num_worst_tokens:
                    counts, last = [], functools.partial(self._exchange_unwaited, ht, order, exchange)
                else:
                    guess = self._guess(ht, row_of(rows, topk_idx, _PLAIN))
                    exchange(True, guess, True)
                    counts, outputs = self._move_as_counted(where, ht, order, handle, rows, topk_idx, topk_weights, local, blocks, guess, reads=reads)
            if outputs is None:
                outputs = self._move(where, ht, order, handle, rows, topk_idx, topk_weights, local, blocks, cached, last)
        except BaseException:
            order.give_up()
            raise
        own = (handle.memory, handle.links)
        event = order.ended or (order.end((*reads, *own), outputs) if cached else order.end(reads, (*own, *outputs)))
        if async_finish:
            handle.recorded = self._comm_stream
        self._finish_on_cpu(ht)
        out, out_scales, out_index, out_weights, _ = outputs
        received = out if scales is None else (out, out_scales)
        return (received, None, None, None, None, event) if cached else (received, out_index, out_weights, counts, handle, event)

    def _move(self, where: str, ht: throughput.Throughput, order: Order, handle: RoutingHandle, rows: Moved, topk_idx: Any, topk_weights: Any, local: int,
              blocks: int, cached: bool, last: Optional[Callable[[], Any]] = None, guessed: bool = False, form: Form = _PLAIN
              ) -> Tuple[Any, Any, Any, Any, Any]:
        """Moves rows along a handle. topk_idx, topk_weights: may be None. last: called once all memory is allocated. guessed: only if what the handle says
        fits. form: of the outputs. Returns rows, scales, topk_idx and topk_weights that arrive, and their numbers, None what was not given."""
        _, scales, (tokens, hidden, dtype, width, at) = rows
        received, torch = handle.received, self._torch
        words, topk = 0 if scales is None else scales.shape[1], 0 if topk_idx is None else topk_idx.shape[1]
        first, column = form
        self._need_memory(where, row_of(rows, topk_idx, form), handle)
        strides = (1, column_stride(received)) if column else (words, 1)
        out, out_scales, out_numbers, out_index, out_weights = self._allocate(order, (
            ((received, hidden), (hidden, 1), dtype), None if scales is None else ((received, words), strides, scales.dtype),
            None if first is None else ((received,), (1,), torch.int32), None if topk_idx is None else ((received, topk), (topk, 1), topk_idx.dtype),
            None if topk_weights is None else ((received, topk), (topk, 1), topk_weights.dtype)))
        if not cached and ht.nodes > 1:
            handle.links = handle.memory.new_empty((handle.forwarded, ht.node_max))
        links = None if cached else handle.links
        if last is not None:
            last()  # nothing is allocated after it: the driver's allocation could wait for the kernel that waits for counts

        # In the order of struct epf_ht_dispatch.
        check(ht.dispatch(
            order.stream, hidden * width, words, topk, tokens, local, received, handle.room, blocks, handle.across, 0 if links is None else handle.forwarded,
            (throughput.IF_IT_FITS if guessed else 0) | (0 if first is None else throughput.NUMBERED), first or 0, *handle.at, links, at, scales,
            *(_NONE if scales is None else scales.stride()), topk_idx, topk_weights, None, out, out_scales, *strides, out_numbers, out_index, out_weights))
        return out, out_scales, out_index, out_weights, out_numbers

    def _move_as_counted(self, where: str, ht: throughput.Throughput, order: Order, handle: RoutingHandle, rows: Moved, topk_idx: Any, topk_weights: Any,
                         local: int, blocks: int, guess: Guess, form: Form = _PLAIN, reads: Optional[tuple] = None
                         ) -> Tuple[List[int], Tuple[Any, Any, Any, Any, Any]]:
        """Moves rows once an exchange of counts, which was launched to be waited for, says how many there are. guess: of _guess(). reads: what the call reads, if
        it ends with this. What can be done before the counts are there is done then: the caller waits for all that comes after. Returns the entries of each
        expert, and what _move() does."""
        outputs: Optional[Tuple[Any, ...]] = None
        by_column = form[1]
        if guess[0]:
            handle.received, handle.room, _ = guess
            outputs = self._move(where, ht, order, handle, rows, topk_idx, topk_weights, local, blocks, False, None, True, form)
            if reads is not None:
                order.end(reads, (handle.memory, handle.links, *outputs))
            if not by_column:
                self._cut(outputs, self._last_received, False)  # often enough as many arrive as did last time
        counts = self._read_counts(ht, handle, local)
        if outputs is not None and self._did_fit:
            return counts, self._cut(outputs, handle.received, by_column)
        if order.ended is not None:
            order.go_on()
        return counts, self._move(where, ht, order, handle, rows, topk_idx, topk_weights, local, blocks, False, form=form)

    def _finish_on_cpu(self, ht: throughput.Throughput) -> None:
        if not self._on_gpu:
            ht.check()  # it has run: what went wrong is known

    def _blocks(self, config: Optional[Config]) -> int:
        return config.num_sms if config is not None else type(self).num_sms

    def _refuse_handle(self, where: str, handle: Any, tokens: int, topk_idx: Any, topk_weights: Any) -> None:
        """Says what does not hold."""
        need(topk_idx is None and topk_weights is None, where, "with a handle topk_idx and topk_weights must be None: the rows go where they went")
        need(isinstance(handle, RoutingHandle), where, "handle is a {}; it must be the one that dispatch gave", type(handle).__name__)
        need(handle.tokens == tokens, where, "there are {} tokens; the handle is of {}", tokens, handle.tokens)

    def _check_routing(self, where: str, tokens: int, per_rank: Any, in_rank: Any, per_expert: Any, topk_idx: Any, topk_weights: Any,
                       alignment: int, worst: int) -> int:
        """Checks what a dispatch without a handle is given; returns the experts of a rank."""
        laid, self._laid = self._laid, None
        # What the last layout took and gave was checked there, or made.
        if (laid is not None and laid[0] is per_rank and laid[1] is in_rank and laid[2] is per_expert and laid[3] is topk_idx and laid[4] == tokens):
            _, _, _, _, _, topk, local = laid
        else:
            topk, local = self._check_layout(where, tokens, per_rank, in_rank, per_expert, topk_idx)
        if topk_weights is not None:
            need(topk_idx is not None, where, "topk_weights is given and topk_idx is None")
            checks.tensor(self._torch, where, "topk_weights", topk_weights, self._torch.float32, (tokens, topk), self.device, ("tokens", "top-k"))
        need(isinstance(alignment, int) and alignment > 0, where, "expert_alignment is {!r}; it must be positive", alignment)
        need(worst >= 0, where, "num_worst_tokens is {}; it cannot be negative", worst)
        need(worst == 0 or topk_idx is not None, where, "num_worst_tokens needs topk_idx: without it nothing says which rows were received")
        return local

    def _check_layout(self, where: str, tokens: int, per_rank: Any, in_rank: Any, per_expert: Any, topk_idx: Any) -> Tuple[int, int]:
        """Checks what a layout gives and takes; returns top-k and the experts of a rank."""
        torch, ranks, device = self._torch, self.group_size, self.device
        if per_rank is None or in_rank is None or per_expert is None:
            name = "num_tokens_per_rank" if per_rank is None else "is_token_in_rank" if in_rank is None else "num_tokens_per_expert"
            need(False, where, "{} is None; without a handle it must be what get_dispatch_layout gave", name)
        checks.tensor(torch, where, "num_tokens_per_rank", per_rank, torch.int32, (ranks,), device, ("ranks",))
        checks.tensor(torch, where, "is_token_in_rank", in_rank, torch.bool, (tokens, ranks), device, ("tokens", "ranks"))
        checks.tensor(torch, where, "num_tokens_per_expert", per_expert, torch.int32, (-1,), device)
        topk = 0
        if topk_idx is not None:
            checks.tensor(torch, where, "topk_idx", topk_idx, torch.int64, (tokens, -1), device, ("tokens",))
            topk = topk_idx.shape[1]
        experts = per_expert.numel()
        self._check_experts(where, experts, topk)
        return topk, experts // ranks

    def _new_handle(self, ht: throughput.Throughput, tokens: int, in_rank: Any, worst: int) -> RoutingHandle:
        """A handle whose arrays are not written yet. Its sizes are known with num_worst_tokens only."""
        ranks, words = self.group_size, ht.plan_bytes(tokens) // 4
        memory = self._empty(RoutingHandle.sizes(words, ranks, tokens), (1,), self._torch.int32)
        return RoutingHandle.make(memory, words, self.rank, ranks, ht.nodes > 1 or ranks > NODE_RANKS, in_rank, tokens, worst)

    def _notify(self, ht: throughput.Throughput, order: Order, handle: RoutingHandle, local: int, in_rank: Any, per_rank: Any, per_expert: Any, alignment: int,
                wait: bool = False, guess: Guess = _NO_GUESS, with_dispatch: bool = False, topk_idx: Any = None) -> None:
        """Launches the exchange of counts. wait: the CPU will wait for them. guess: of _guess(). with_dispatch: the guessed
        dispatch, which must follow, exchanges them itself. topk_idx: on one node, without per_expert: no layout was called."""
        if wait and self._results is not None:
            self._results.begin(ht)
        host = self._host_counts(throughput.HOST_WORDS + local) if wait else None
        # In the order of struct epf_ht_routing.
        topk, flags = (0, 0) if topk_idx is None else (topk_idx.shape[1], throughput.NO_LAYOUT)
        if with_dispatch and guess[0]:
            flags |= throughput.WITH_DISPATCH
        check(ht.notify(order.stream, handle.tokens, topk, local * self.group_size, alignment, *guess, flags, topk_idx, in_rank, per_rank, 0, per_expert,
                        *handle.at, host))

    def _read_counts(self, ht: throughput.Throughput, handle: RoutingHandle, local: int) -> List[int]:
        """Waits for the counts; returns the entries of each expert, and sets the sizes of the handle."""
        words = throughput.HOST_WORDS
        read, counts = _numbers(words + local), self._numbers
        ht.wait_counts(self._counts_at)
        numbers = read(counts)
        handle.received, handle.room, handle.across, handle.forwarded, flags = numbers[1:words]
        self._last_room, self._last_received, self._did_fit = handle.room, handle.received, flags & throughput.FITS != 0
        if flags & throughput.GROWN:
            self._map_results()
        return list(numbers[words:])

    def _exchange_unwaited(self, ht: throughput.Throughput, order: Order, exchange: Callable[..., None]) -> None:
        """Launches the exchange of counts of a dispatch whose outputs hold all that can arrive. The first, second, fourth, eighth such dispatch and so on let the
        CPU wait nevertheless, if others map outputs: it is then that all ranks together map memory that is new. What a graph captures never waits."""
        if self._results is None or order.capturing:
            exchange()
            return
        self._unwaited = n = self._unwaited + 1
        if n & (n - 1):
            exchange()
            return
        exchange(True)
        ht.wait_counts(self._counts_at)
        if self._numbers[throughput.HOST_WORDS - 1] & throughput.GROWN:
            self._map_results()

    def _guess(self, ht: throughput.Throughput, row: Tuple[int, int, int]) -> Guess:
        """How many rows a dispatch allocates outputs for, before their number is known, from what the last one needed; for how many the windows are laid out,
        and how many may be in vain, the same at all ranks. None, if it is the first, the windows are too small for as many rows as last time, or there are
        several nodes. row: of row_of()."""
        most, room = self._last_room, self._fits.get(row, NEVER)[0]
        if ht.nodes > 1 or not most:
            return _NO_GUESS
        if room < most:
            room = self._holds(throughput.Row(*row), most)
            if room < most:
                return _NO_GUESS
        spare = spare_rows(row[0])
        return a_little_more(self._last_received, most, spare), min(a_little_more(most, most, spare), room), spare

    def _cut(self, outputs: Tuple[Any, ...], rows: int, by_column: bool) -> Tuple[Any, ...]:
        """Outputs of so many rows. Their length is changed where they are: nobody else has them, and that takes a fifth of a slice's time."""
        out, scales, index, weights, numbers = outputs
        if out.shape[0] == rows:
            return outputs
        out.resize_(rows, out.shape[1])
        if scales is not None and by_column:
            outputs = (out, scales[:rows], index, weights, numbers)
        elif scales is not None:
            scales.resize_(rows, scales.shape[1])
        if index is not None:
            index.resize_(rows, index.shape[1])
        if weights is not None:
            weights.resize_(rows, weights.shape[1])
        if numbers is not None:
            numbers.resize_(rows)
        return outputs

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
        if type(handle) is not RoutingHandle:
            need(False, where, "handle is a {}; it must be the one that dispatch gave", type(handle).__name__)
        shape = call.rows(x, torch.Tensor, device)
        if shape is None or shape[2] != torch.bfloat16 or shape[0] != handle.received:
            checks.tensor(torch, where, "x", x, torch.bfloat16, (handle.received, -1), device, ("rows received",))
        self._check_sizes(where, x, shape)
        checks.optional(torch, where, "topk_weights", topk_weights, torch.float32, (handle.received, -1), device, ("rows received",))
        biases = _NO_BIAS if bias is None else self._biases(where, bias, handle.tokens, shape[1])
        ht = self._ht or self._open_throughput(where)
        order = begin(self, where, previous_event, async_finish, allocate_on_comm_stream)
        try:
            out, out_weights = self._return(where, ht, order, handle, shape, topk_weights, biases, self._blocks(config))
        except BaseException:
            order.give_up()
            raise
        own = () if handle.recorded is self._comm_stream else (handle.memory, handle.links)
        event = order.end((x, topk_weights, *biases, *own), (out, out_weights))
        if async_finish:
            handle.recorded = self._comm_stream
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

    def _return(self, where: str, ht: throughput.Throughput, order: Order, handle: RoutingHandle, shape: Shape, topk_weights: Any,
                biases: Tuple[Any, Any], blocks: int, folded: Any = None) -> Tuple[Any, Any]:
        """Returns rows along a handle and adds them. shape: of _check_rows(). folded: of expand.Fold. Returns the sums, and the sums of the weights or None."""
        _, hidden, dtype, _, at = shape
        tokens, topk = handle.tokens, 0 if topk_weights is None else topk_weights.shape[1]
        self._need_memory(where, (2 * hidden, 0, topk), handle)
        out = self._empty((tokens, hidden), (hidden, 1), dtype)
        out_weights = self._empty((tokens, topk), (topk, 1), topk_weights.dtype) if topk else None
        links = handle.links
        # In the order of struct epf_ht_combine.
        check(ht.combine(
            order.stream, 2 * hidden, topk, tokens, handle.received, handle.room, blocks, handle.across, 0 if links is None else handle.forwarded,
            *handle.at, links, at, topk_weights, folded, *biases, out, out_weights))
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
