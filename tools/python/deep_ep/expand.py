# SPDX-License-Identifier: Apache-2.0
"""Rows grouped by expert: a dispatch that leaves its rows in the window, the kernel beside it that copies them to their groups as they arrive, and the sums on
the way back. Graphs can capture all of it where the sizes are known beforehand."""
from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Tuple

from epf import throughput
from epf.lib import EpfError

from .ephandle import expanded
from .handle import RoutingHandle
from .memory import a_little_more, spare_rows
from .routing import Routing
from .throughput import Moved
from .utils.math import column_stride

_NONE = (0, 0)
# A dispatch that takes at most one of so many multiprocessors is copied from while it runs, by half of them: a quarter is left for whatever other ranks wait for.
BESIDE = 4
WHOLE = 1 << 16  # multiprocessors: all

Layout = Tuple[bool, bool]  # padding rows are zeros; scales are column-major
Outputs = Tuple[Any, Any, Any, Any, Any]  # slots, source, rows, scales, weights


class Groups:
    """Where the groups of this rank's experts lie, from the counts of the last exchange. Each begins at a multiple of `alignment`.

    Within a group, entries keep the order of the received rows.

    Attributes: counts: int32 [local], entries of each expert; ends: int32 [local], one past the last entry of each group; aligned: int32 [local], one past its
    last row; at: their addresses, after that of int32 [ranks, local], the first grouped row of each rank's entries; numbers: the memory of all of them.
    """

    def __init__(self, ht: throughput.Throughput, stream: Optional[int], like: Any, ranks: int, local: int, alignment: int) -> None:
        """like: an int32 tensor on the device."""
        self.numbers = like.new_empty((ranks + 3, local))
        first = self.numbers.data_ptr()
        self.at = first, *(first + 4 * local * (ranks + i) for i in range(3))
        # In the order of struct epf_ht_groups.
        throughput.check(ht.groups(stream, local, alignment, *self.at))

    @property
    def counts(self) -> Any:
        return self.numbers[-3]

    @property
    def ends(self) -> Any:
        return self.numbers[-2]

    @property
    def aligned(self) -> Any:
        return self.numbers[-1]


class Grouped:
    """One dispatch of rows grouped by expert. Its kernels run on the call's stream and on one beside it, which waits for the call's where that is needed, and
    the call's for it at the end; on the call's alone, one after the other, if the dispatch leaves too few multiprocessors.

    Arguments:
        buffer: Buffer. call: the call on whose stream it runs.
        rows, topk_idx, topk_weights, local, blocks: of a dispatch. first: the number of this rank's first row.
        epilogue: what the outputs wait for, beside the call; may be None.

    Attributes: handle: the RoutingHandle along which rows move; groups: Groups; kept: what `keep` gave that first() was given.
    """

    handle: RoutingHandle
    groups: Groups
    kept: Any = None
    _alignment = 1  # of groups
    _moves = False  # rows move to the window, and have to be copied from there
    _guessed = False  # whether they do, the counts will say
    _longest = (-1, -1)  # rows and grouped rows that the spread launched meanwhile is enough for
    _numbers: Any = None
    _room = 0  # that the window was laid out for

    def __init__(self, buffer: Any, ht: throughput.Throughput, call: Any, where: str, rows: Moved, topk_idx: Any, topk_weights: Any, local: int, blocks: int,
                 first: int, epilogue: Any) -> None:
        self._buffer, self._ht, self._call, self._stream, self._where = buffer, ht, call, call.stream, where
        self._rows, self._topk_idx, self._topk_weights, self._local, self._blocks, self._first = rows, topk_idx, topk_weights, local, blocks, first
        self._epilogue = epilogue
        self._beside = buffer._stream_beside() if BESIDE * blocks <= buffer._multiprocessors else None
        self._at = self._stream if self._beside is None else self._beside.cuda_stream
        buffer._keep_window()

    def _row(self) -> Tuple[int, int, int]:
        """What a row takes in a window."""
        _, scales, (_, hidden, _, width, _) = self._rows
        topk = self._topk_idx.size(1)
        return hidden * width, (0 if scales is None else scales.size(1)) + (0 if self._numbers is None else 1 + topk), topk

    def _fork(self) -> None:
        """What is launched beside the call waits for what was launched for it."""
        if self._beside is not None:
            throughput.check(self._ht.order(self._stream, self._at))

    def _join(self) -> None:
        """The reverse."""
        if self._beside is not None:
            throughput.check(self._ht.order(self._at, self._stream))

    def first(self, experts: int, alignment: int, worst: int, layout: Layout, keep: Callable[[], Any], count: Optional[int] = None
              ) -> Tuple[Optional[List[int]], Outputs]:
        """The first dispatch of a routing: numbers entries, exchanges counts, moves rows, finds the groups and copies the rows to them.

        Arguments:
            worst: rows that can arrive at most, where the CPU does not wait for counts, or 0. layout: of the outputs. keep: called behind the dispatch, so that
            what it launches delays nothing: the copies take longer. count: grouped rows, where the CPU does not wait, if not as many as can come: those behind are dropped.

        Returns: the entries of each expert, where it waits; what spread() returns.
        """
        index = self._topk_idx
        self._fork()  # numbers are made while counts travel
        self._numbers, work = (index.new_empty(sizes, dtype=self._buffer._torch.int32)
                               for sizes in (index.shape, (throughput.NUMBER_PARTS, min(experts, throughput.LOCAL_MAX))))
        routing = Routing(self._buffer, self._ht, self._call, index, experts, worst)
        # In the order of struct epf_ht_number.
        number = functools.partial(self._ht.number, self._at, *index.shape, experts, 0, index, work, self._numbers)
        self.handle, self._alignment = routing.handle, alignment
        if worst:
            throughput.check(number())
            self.move(routing.handle, False, False, routing.exchange)
            self.kept = keep()
            self._find_groups()
            return None, self._spread_new(None, layout, count)
        # The window is laid out before the counts are known, as long as all ranks say; outputs are as long as this one guesses.
        guess, room, _ = self._buffer._guess(self._ht, self._row())
        routing.exchange(True, (room, room, room))
        throughput.check(number())
        return self._move_as_counted(routing.handle, guess, room, layout, keep)

    def move(self, handle: RoutingHandle, cached: bool, guessed: bool = False, last: Optional[Callable[[], Any]] = None) -> None:
        """Launches the dispatch. guessed: it moves rows only if the exchange of counts says that they fit. last: called once all memory is allocated."""
        ht, topk_idx = self._ht, self._topk_idx
        self.handle, self._room = handle, handle.room
        _, scales, (tokens, hidden, _, width, at) = self._rows
        self._buffer._need_memory(self._where, self._row(), handle)
        if not cached and ht.nodes > 1:
            handle.links = handle.memory.new_empty((handle.forwarded, ht.node_max))
        links = None if cached else handle.links
        if last is not None:
            last()
        self._join()  # the numbers are there
        self._fork()  # and what copies the rows begins when they begin to move
        # In the order of struct epf_ht_dispatch.
        throughput.check(ht.dispatch(
            self._stream, hidden * width, 0 if scales is None else scales.size(1), topk_idx.size(1), tokens, self._local, 0, handle.room, self._blocks,
            handle.across, 0 if links is None else handle.forwarded, throughput.GROUPED | (0 if cached else throughput.NUMBERED) | (throughput.IF_IT_FITS if guessed else 0), self._first,
            *handle.at, links, at, scales, *(_NONE if scales is None else scales.stride()), topk_idx, self._topk_weights, self._numbers,
            None, None, *_NONE, None, None, None))
        self._moves, self._guessed = not guessed, guessed

    def _move_as_counted(self, handle: RoutingHandle, guess: int, room: int, layout: Layout, keep: Callable[[], Any]) -> Tuple[List[int], Outputs]:
        """As Buffer._move_as_counted(). guess, room: rows that will have arrived here, and at the rank that receives most; or 0."""
        outputs: Optional[Outputs] = None
        if room:
            handle.received, handle.room = guess, room
            self.move(handle, False, True)
            self.kept = keep()
            self._find_groups()
            last = self._buffer._last_grouped
            if last:
                outputs = self.spread(*self._places(), a_little_more(last, last, spare_rows(self._row()[0])), layout, True)
        counts, count, did_move = self._wait_counts()
        if did_move and not self._moves and outputs is not None:
            return counts, self._cut(outputs, count, layout[1])
        if not did_move:
            self.move(handle, False)
            self.kept = keep()
            self._find_groups()
        return counts, self._spread_new(counts, layout)

    def _wait_counts(self) -> Tuple[List[int], int, bool]:
        """Waits for the counts, which say what was done of what was launched before. Returns the entries of each expert; grouped rows; whether rows move."""
        guessed, (rows, count) = self._guessed, self._longest
        self._guessed = False
        counts = self._buffer._read_counts(self._ht, self.handle, self._local)
        n = self._buffer._last_grouped = self._expanded(counts)
        did_move = guessed and self._buffer._did_fit
        self._moves = did_move and (self.handle.received > rows or n > count)
        return counts, n, did_move

    def _expanded(self, counts: Optional[List[int]]) -> int:
        return expanded(counts, self._alignment, self.handle.received, self._topk_idx.size(1), self._local)

    def _find_groups(self) -> None:
        """Where the groups lie, beside the call."""
        self.groups = Groups(self._ht, self._at, self._numbers, self._buffer.group_size, self._local, self._alignment)

    def _places(self) -> Tuple[Groups, Any, Any]:
        """The groups, and memory for what spread() finds of the first dispatch of a routing."""
        rows, like = self.handle.received, self._numbers
        return self.groups, like.new_empty((rows, like.size(1))), like.new_empty((rows,))

    def _spread_new(self, counts: Optional[List[int]], layout: Layout, count: Optional[int] = None) -> Outputs:
        return self.spread(*self._places(), self._expanded(counts) if count is None else count, layout)

    def _cut(self, outputs: Outputs, count: int, column_major: bool) -> Outputs:
        """Outputs of guessed lengths without what nothing came to. They are copied where an eighth of the memory would be in vain."""
        slots, source, out, scales, weights = outputs
        rows, vain = self.handle.received, self._longest[1] - count
        slots.resize_(rows, slots.size(1))
        source.resize_(rows)
        if vain:
            if column_major and scales is not None:
                scales = scales[:count]
            elif scales is not None:
                scales.resize_(count, scales.size(1))
            if weights is not None:
                weights.resize_(count)
            if vain * 8 > count and vain > spare_rows(self._row()[0]):
                out = out[:count].clone()
            else:
                out.resize_(count, out.size(1))
        return slots, source, out, scales, weights

    def spread(self, groups: Groups, slots: Any, source: Any, count: int, layout: Layout, guessed: bool = False) -> Outputs:
        """Copies the rows to their groups as they arrive, beside the call.

        Arguments:
            slots: int32 [rows, top-k]: the grouped row of each entry, or -1; written, unless the routing is that of an earlier dispatch.
            source: int32 [rows], written likewise: the numbers of the rows.
            count: grouped rows. layout: whether padding rows are zeros, and otherwise undefined but for their weights, which are 0; whether the returned
            scales are column-major. guessed: only if the dispatch moves rows, and slots and count are enough for them.

        Returns: slots, source; [count, hidden]; [count, n] or None; float32 [count] or None.
        """
        data, scales, (tokens, hidden, _, width, at) = self._rows
        zero, column_major = layout
        out = data.new_empty((count, hidden))
        out_scales = None if scales is None else like_scales(scales, count, column_major)
        out_weights = None if self._topk_weights is None else self._topk_weights.new_empty(count)
        if self._epilogue is not None:
            if self._beside is None:
                self._epilogue.current_stream_wait()
            else:
                with self._buffer._torch.cuda.stream(self._beside):
                    self._epilogue.current_stream_wait()
        self._copy(self._at, (hidden * width, 0 if scales is None else scales.size(1), self._topk_idx.size(1)), self._local, self._room, tokens, slots.size(0),
                   count, WHOLE if self._beside is None else 0, (throughput.ZERO if zero else 0) | (throughput.IF_IT_FITS if guessed else 0), self._first, 0,
                   self.handle.at[0], self.handle.at[1], at, scales, *(_NONE if scales is None else scales.stride()), self._topk_idx, self._topk_weights,
                   self._numbers, None if self._numbers is None else groups.at[0], *groups.at[2:], slots, out, out_scales,
                   *(_NONE if scales is None else out_scales.stride()), None if self._numbers is None else source, out_weights)
        self._moves, self._longest = False, (slots.size(0), count)
        self._join()
        return slots, source, out, out_scales, out_weights

    def _copy(self, stream: Optional[int], row: Tuple[int, int, int], *values: Any) -> None:
        # In the order of struct epf_ht_spread.
        throughput.check(self._ht.spread(stream, *row, *values))

    def give_up(self) -> None:
        """After an error: what was launched beside the call ends before its memory is used again, and rows that move are copied nowhere, once they have arrived.
        The other ranks know nothing of the error, and count this dispatch."""
        self._join()
        if self._guessed:
            try:
                self._wait_counts()
            except EpfError:
                return  # a rank is lost: there is no next dispatch
        if self._moves:
            matrix = self.handle.at[1]  # whose words say nothing, where there are no grouped rows
            self._copy(self._stream, (16, 0, 0), 1, 0, 0, 0, 0, 1, 0, 0, 0, None, matrix, None, None, *_NONE, None, None, None, None, matrix, matrix,
                       None, None, None, *_NONE, None, None)


class Fold:
    """The reverse: the sum of each row's entries in the order of top-k, in FP32, from +0, rounded once. On one node it runs beside the combine of these rows, on the
    multiprocessors that the combine leaves.

    Arguments:
        buffer: Buffer. call: the combine. handle: of the dispatch. slots: of Grouped.spread().
        x: bfloat16 [grouped rows, hidden]. weights: float32 [grouped rows], or None. blocks: multiprocessors of the combine. drops: rows may have lost all entries.

    Attributes: out: bfloat16 [rows, hidden]; weights: of the entries, 0 for those of other ranks, float32 [rows, top-k] or None; folded: for the combine: int64, or
    None where it comes behind. Rows that did not arrive are undefined.
    """

    def __init__(self, buffer: Any, ht: throughput.Throughput, call: Any, handle: RoutingHandle, slots: Any, x: Any, weights: Any, blocks: int,
                 drops: bool) -> None:
        (rows, topk), hidden = slots.shape, x.size(1)
        self.out = (x.new_zeros if drops else x.new_empty)((rows, hidden))
        self.weights = None if weights is None else weights.new_empty((rows, topk))
        self.folded = slots.new_zeros((throughput.FOLD_PARTS,), dtype=buffer._torch.int64) if ht.nodes == 1 else None
        beside = buffer._stream_beside() if ht.nodes == 1 else None
        self._ht, self._stream, self._at, most = ht, call.stream, call.stream, 0
        if beside is not None:
            self._at, every = beside.cuda_stream, buffer._multiprocessors
            most = max(every - blocks, every // BESIDE)
            throughput.check(ht.order(self._stream, self._at))
        # In the order of struct epf_ht_fold.
        throughput.check(ht.fold(self._at, 2 * hidden, topk, rows, x.size(0), most, handle.room, handle.at[1], slots, x, weights, self.folded, self.out, self.weights))

    def join(self) -> None:
        """What follows on the call's stream waits for it."""
        if self._at != self._stream:
            throughput.check(self._ht.order(self._at, self._stream))


def like_scales(scales: Any, rows: int, column_major: bool) -> Any:
    """Returns an empty tensor for the scales of `rows` rows. Column-major: each column begins at a multiple of 16 bytes."""
    words = scales.size(1)
    if not column_major:
        return scales.new_empty((rows, words))
    return scales.new_empty_strided((rows, words), (1, column_stride(rows)))
