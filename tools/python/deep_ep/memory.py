# SPDX-License-Identifier: Apache-2.0
"""The memory of Buffer's high-throughput calls, which is made at the first call and grows."""
from __future__ import annotations

import ctypes
import logging
import os
from typing import Any, Dict, Optional, Sequence, Tuple

from epf import throughput
from epf.results import Results, Wanted
from epf.shared import Driver, GpuShared, HostShared, gpu_vendor
from epf.tensors import view

from .checks import need
from .event import offer
from .handle import RoutingHandle
from .order import Order

log = logging.getLogger("deep_ep")

# Memory that outputs may take in vain because they are allocated before the number of rows is known, where an eighth of the rows is less: 128 tokens of two ranks.
SPARE_BYTES = 4 << 20

NEVER = (-1, -1)  # an entry of _fits that is not there


def _rounded(rows: int) -> int:
    """The next power of two; 0 of 0."""
    return 1 << (rows - 1).bit_length() if rows else 0


def a_little_more(rows: int, most: int, spare: int) -> int:
    """Rows to allocate for, where the last dispatch needed `rows`, and the rank with the most of them `most`: a batch of the same size seldom differs by more
    than a sixteenth, a small one does, and has the next power of two, as far as no more than `spare` rows are in vain."""
    return max(rows + (rows >> 4), min(_rounded(most), spare))


def spare_rows(row_bytes: int) -> int:
    """Rows of an output that may be in vain."""
    return max(SPARE_BYTES // row_bytes, 1)


class Memory:
    """Base of HighThroughput: the kernels, and the memory that ranks share."""

    _ht: Optional[throughput.Throughput] = None
    _control: Any = None
    _window: Any = None
    _window_size = 0
    _has_window = False  # whether rows of this node arrive in one
    _beside: Any = None  # of _stream_beside()
    _multiprocessors = 0  # of the GPU
    _fits: Dict[Tuple[int, int, int], Tuple[int, int]]  # room and across that the memory was found to be enough for, by row
    _counts: Any = None
    _numbers: Any = None  # the same, as an array of ctypes
    _counts_at = 0  # its address
    _results: Optional[Results] = None  # memory for outputs that others map

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
        if self._on_gpu:
            offer(self)
        self._has_window = self._ht.node_max > 1
        self._multiprocessors = self._torch.cuda.get_device_properties(self.device).multi_processor_count if self._on_gpu else 0
        if self._on_gpu and self._ht.node_max > 1:
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
        room, across = self._fits.get(row, NEVER)
        if handle.room > room or handle.across > across:
            has = self._need_window(where, throughput.Row(*row), handle.room)
            self._need_across(where, throughput.Row(*row), handle.across)
            self._fits[row] = max(room, has), max(across, handle.across)

    def _need_across(self, where: str, row: throughput.Row, across: int) -> None:
        """Of rows that cross between nodes."""
        size = self._ht.lacks(row, across)
        if size:
            self._quiet(where, f"{across} rows between nodes need {size} bytes of communication memory")
            self._ht.reserve(row, across)

    def _keep_window(self) -> None:
        """From now on there is a window even where each rank is a node: for rows grouped by expert."""
        if not self._has_window:
            self._has_window, self._fits = True, {}

    def _stream_beside(self) -> Any:
        """A torch.cuda.Stream for what runs beside a call; None for CPU tensors."""
        if self._beside is None and self._on_gpu:
            self._beside = self._torch.cuda.Stream(self.device)
        return self._beside

    def _holds(self, row: throughput.Row, room: int) -> int:
        """Returns a little more than `room`, `room`, or -1: rows that the window is enough for."""
        for rows in (a_little_more(room, room, spare_rows(row.bytes)), room):
            if not self._has_window or throughput.window_bytes(row, rows) <= self._window_size:
                return rows
        return -1

    def _need_window(self, where: str, row: throughput.Row, room: int) -> int:
        """Makes the window hold `room` rows of this node. A window that does stays; a new one also holds what the next dispatch may guess. Returns rows it holds."""
        has = self._holds(row, room)
        if has >= room:
            return has
        more = a_little_more(room, room, spare_rows(row.bytes))
        size = throughput.window_bytes(row, more)
        self._quiet(where, f"{more} rows need {size} bytes of communication memory, there are {self._window_size}")
        size = max(size, 2 * self._window_size if self._window_size < 1 << 28 else size + (size >> 3))
        old, self._window, self._window_size = self._window, None, 0
        if old is not None:
            old.close()
        self._ranks.all_gather(None)  # all have unmapped it
        self._window = self._shared_memory(size, "window")
        self._ht.set_window(self._window.address, size, self._window.peers)
        self._window_size = size
        self._ranks.all_gather(None)
        return more

    def _map_results(self) -> None:
        """Maps the memory for outputs of all ranks, which know alike that it must be. Without it rows take one copy more."""
        if self._results is None:
            return
        with self._torch.cuda.device(self.device):
            if not self._results.map(self._ranks, self._ht, Driver(gpu_vendor(self._torch))):
                log.warning("the ranks cannot map each other's memory for outputs: rows take one copy more")
                self._results = None

    def _allocate(self, order: Order, wanted: Sequence[Wanted]) -> Sequence[Any]:
        """Memory for what arrives. What a graph captures comes from the graph's pool."""
        made = None if self._results is None or order.capturing else self._results.empty(wanted)
        return [None if one is None else self._empty(*one) for one in wanted] if made is None else made

    def _host_counts(self, count: int) -> int:
        """The address of pinned memory for so many numbers."""
        if self._counts is None or len(self._numbers) < count:
            self._counts = self._torch.zeros(max(count, 64), dtype=self._torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
            self._counts_at = self._counts.data_ptr()
            self._numbers = (ctypes.c_int64 * self._counts.numel()).from_address(self._counts_at)
        return self._counts_at

    def _release_memory(self) -> None:
        ht, self._ht = self._ht, None
        results, self._results = self._results, None
        if results is not None:
            results.close()
        if ht is not None:
            ht.close()
        for shared in (self._window, self._control):
            if shared is not None:
                shared.close()
        self._window = self._control = None
        self._window_size, self._fits = 0, {}
