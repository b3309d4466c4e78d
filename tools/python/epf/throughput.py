# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls of libepf-ll by ctypes, with plain addresses and sizes, as kernels/epf_ht.h describes them."""
from __future__ import annotations

import ctypes
import functools
import threading
from ctypes import POINTER, byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, List, Optional, Sequence, Tuple

from . import call, lib, lowlat
from .lowlat import check

TOPK_MAX = 32
LOCAL_MAX = 4096
NUMBER_PARTS = 128
SIGNALS_PER_RANK = 6
HOST_WORDS = 6
GROWN, FITS = 1, 2  # bits of the last of them
IF_IT_FITS, GROUPED, NUMBERED = 1, 2, 4
ZERO = 8
FOLD_PARTS = 16
NO_LAYOUT, WITH_DISPATCH = 1, 2


class Options(ctypes.Structure):
    """struct epf_ht_options."""
    _fields_ = [("size", c_size_t), ("control", c_void_p), ("peers", POINTER(c_void_p)), ("timeout_ns", c_uint64),
                ("first_signal", c_uint32), ("reserved", c_uint32)]


class Row(ctypes.Structure):
    """struct epf_ht_row."""
    _fields_ = [("bytes", c_uint32), ("scale_words", c_uint32), ("topk", c_uint32)]


class Routing(ctypes.Structure):
    """struct epf_ht_routing."""
    _fields_ = [("size", c_size_t), ("tokens", c_uint32), ("topk", c_uint32), ("experts", c_uint32), ("align", c_uint32),
                ("received", c_uint32), ("room", c_uint32), ("spare", c_uint32), ("flags", c_uint32), ("topk_idx", c_void_p), ("in_rank", c_void_p), ("per_rank", c_void_p), ("per_node", c_void_p), ("per_expert", c_void_p),
                ("place", c_void_p), ("matrix", c_void_p), ("plan", c_void_p), ("host", c_void_p)]


class Dispatch(ctypes.Structure):
    """struct epf_ht_dispatch."""
    _fields_ = [("size", c_size_t), ("row", Row), ("tokens", c_uint32), ("local", c_uint32), ("received", c_uint32), ("room", c_uint32),
                ("blocks", c_uint32), ("across", c_uint32), ("forwarded", c_uint32), ("flags", c_uint32), ("first_number", c_uint32),
                ("place", c_void_p), ("matrix", c_void_p), ("plan", c_void_p), ("links", c_void_p), ("x", c_void_p), ("scales", c_void_p),
                ("scale_stride", c_uint64 * 2), ("topk_idx", c_void_p), ("weights", c_void_p), ("numbers", c_void_p), ("out", c_void_p), ("out_scales", c_void_p),
                ("out_stride", c_uint64 * 2), ("out_numbers", c_void_p), ("out_index", c_void_p), ("out_weights", c_void_p)]


class Combine(ctypes.Structure):
    """struct epf_ht_combine."""
    _fields_ = [("size", c_size_t), ("row_bytes", c_uint32), ("topk", c_uint32), ("tokens", c_uint32), ("received", c_uint32),
                ("room", c_uint32), ("blocks", c_uint32), ("across", c_uint32), ("forwarded", c_uint32), ("place", c_void_p), ("matrix", c_void_p),
                ("plan", c_void_p), ("links", c_void_p), ("x", c_void_p), ("weights", c_void_p), ("folded", c_void_p),
                ("bias", c_void_p * 2), ("out", c_void_p), ("out_weights", c_void_p)]


class Number(ctypes.Structure):
    """struct epf_ht_number."""
    _fields_ = [("size", c_size_t), ("tokens", c_uint32), ("topk", c_uint32), ("experts", c_uint32), ("reserved", c_uint32), ("topk_idx", c_void_p),
                ("work", c_void_p), ("numbers", c_void_p)]


class Groups(ctypes.Structure):
    """struct epf_ht_groups."""
    _fields_ = [("size", c_size_t), ("experts", c_uint32), ("align", c_uint32), ("starts", c_void_p), ("counts", c_void_p), ("ends", c_void_p),
                ("aligned", c_void_p)]


class Spread(ctypes.Structure):
    """struct epf_ht_spread."""
    _fields_ = [("size", c_size_t), ("row", Row), ("local", c_uint32), ("room", c_uint32), ("tokens", c_uint32), ("rows", c_uint32), ("grouped", c_uint32),
                ("blocks", c_uint32), ("flags", c_uint32), ("first_number", c_uint32), ("reserved", c_uint32), ("place", c_void_p), ("matrix", c_void_p),
                ("x", c_void_p), ("scales", c_void_p), ("scale_stride", c_uint64 * 2), ("topk_idx", c_void_p), ("weights", c_void_p), ("numbers", c_void_p), ("starts", c_void_p), ("ends", c_void_p), ("aligned", c_void_p), ("slots", c_void_p),
                ("out", c_void_p), ("out_scales", c_void_p), ("out_stride", c_uint64 * 2), ("out_numbers", c_void_p), ("out_weights", c_void_p)]


class Fold(ctypes.Structure):
    """struct epf_ht_fold."""
    _fields_ = [("size", c_size_t), ("row_bytes", c_uint32), ("topk", c_uint32), ("rows", c_uint32), ("grouped", c_uint32), ("blocks", c_uint32),
                ("room", c_uint32), ("matrix", c_void_p), ("slots", c_void_p), ("x", c_void_p), ("weights", c_void_p), ("folded", c_void_p), ("out", c_void_p),
                ("out_weights", c_void_p)]


PROTOTYPES = {
    "epf_ht_control_bytes": (c_uint64, [c_uint32]),
    "epf_ht_window_bytes": (c_uint64, [POINTER(Row), c_uint32]),
    "epf_ht_plan_bytes": (c_uint64, [c_void_p, c_uint32]),
    "epf_ht_nodes": (c_uint32, [c_void_p]),
    "epf_ht_node_max": (c_uint32, [c_void_p]),
    "epf_ht_lacks": (c_uint64, [c_void_p, POINTER(Row), c_uint32]),
    "epf_ht_reserve": (c_int, [c_void_p, POINTER(Row), c_uint32]),
    "epf_ht_open": (c_int, [c_void_p, POINTER(Options), POINTER(c_void_p)]),
    "epf_ht_close": (None, [c_void_p]),
    "epf_ht_set_window": (c_int, [c_void_p, c_void_p, c_uint64, POINTER(c_void_p)]),
    "epf_ht_want": (None, [c_void_p, c_void_p]),
    "epf_ht_wanted": (c_uint32, [c_void_p, c_uint32, POINTER(c_void_p), POINTER(c_uint64)]),
    "epf_ht_map": (c_int, [c_void_p, c_void_p, c_uint64, POINTER(c_void_p)]),
    "epf_ht_layout": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_notify": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_wait_counts": (c_int, [c_void_p, c_void_p]),
    "epf_ht_dispatch": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_combine": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_number": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_groups": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_spread": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_fold": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_order": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_event": (c_int, [c_void_p, POINTER(c_void_p)]),
    "epf_ht_record": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_wait": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ht_check": (c_int, [c_void_p]),
}


def load() -> ctypes.CDLL:
    dll = lowlat.load()
    if not hasattr(dll, "epf_ht_declared"):
        lib.declare(dll, PROTOTYPES, lowlat.SONAME)
        dll.epf_ht_declared = True
    return dll


def control_bytes(ranks: int) -> int:
    """Bytes of control memory of a rank."""
    return load().epf_ht_control_bytes(ranks)


def window_bytes(row: Row, rows: int) -> int:
    """Bytes of a window that holds so many rows."""
    return load().epf_ht_window_bytes(byref(row), rows)


def _no_wait(event: int, stream: int) -> int:
    return 0


def _pointers(addresses: Sequence[Optional[int]]) -> Any:
    return (c_void_p * len(addresses))(*addresses)


class Throughput:
    """One rank's high-throughput kernels. Collective to make.

    Arguments:
        ll: LowLatency of the same ranks; must outlive this.
        control: address of control_bytes() of zeroed memory, which stays the caller's.
        peers: for each rank the address of its control memory in this process or on this GPU; None: it is of another node. The own entry is not read.
        timeout_ns: of each wait for another rank; 0: configured.

    Attributes:
        nodes: how many there are. node_max: ranks of the largest one.
        layout, notify, dispatch, combine, number, groups, spread, fold: functions f(stream, value...) that launch kernels; the values are the fields of struct
            epf_ht_routing (layout and notify), epf_ht_dispatch and so on, in their order and without the size, those of a row and of arrays one by one: numbers,
            tensors, or None. Each returns a result for check(). notify, dispatch and combine launch
            nothing, and return the error, where earlier kernels have failed.
        order(first, then): lets a stream wait for what another one has to do so far; wait(event, stream): lets a stream wait for an event of record(). Streams
            are their numbers. Each returns a result for check().
        free: events that nobody needs any more, for the next record().
    """

    layout: Callable[..., int]
    notify: Callable[..., int]
    dispatch: Callable[..., int]
    combine: Callable[..., int]
    number: Callable[..., int]
    groups: Callable[..., int]
    spread: Callable[..., int]
    fold: Callable[..., int]
    order: Callable[[int, int], int]
    wait: Callable[[int, int], int]
    free: List[int]
    _ht: Optional[c_void_p] = None
    _at: Optional[int] = None
    _plan = (-1, 0)  # the last answer of plan_bytes()

    def __init__(self, ll: lowlat.LowLatency, control: int, peers: Sequence[Optional[int]], timeout_ns: int = 0) -> None:
        dll = load()
        options = Options(ctypes.sizeof(Options), control, _pointers(peers), timeout_ns, lowlat.SIGNALS_PER_RANK * len(peers))
        ht = c_void_p()
        check(dll.epf_ht_open(ll.handle, byref(options), byref(ht)))
        self._ht = ht
        self._bind(dll, ht.value)
        self.nodes, self.node_max = dll.epf_ht_nodes(ht), dll.epf_ht_node_max(ht)

    def _bind(self, dll: Any, at: int) -> None:
        """Binds the functions that calls use. at: address of the object."""
        self._dll, self._at = dll, at
        self.free, self._one = [], threading.Lock()
        self._check, self._wait_counts = call.bind(dll.epf_ht_check), call.bind(dll.epf_ht_wait_counts)
        for name, declared, checks in (("layout", Routing, False), ("notify", Routing, True), ("dispatch", Dispatch, True), ("combine", Combine, True),
                                       ("number", Number, False), ("groups", Groups, False), ("spread", Spread, False), ("fold", Fold, False)):
            setattr(self, name, call.launcher(dll.epf_ht_check if checks else None, getattr(dll, "epf_ht_" + name), at, declared))
        self.order, self.wait, self._record = (
            functools.partial(call.bind(f), at) for f in (dll.epf_ht_order, dll.epf_ht_wait, dll.epf_ht_record))

    def record(self, stream: int) -> int:
        """An event: what a stream has to do so far. For wait(), until close(); the caller puts it into `free` when it needs it no longer."""
        try:
            event = self.free.pop()
        except IndexError:
            event = self._make_event()
        check(self._record(event, stream))
        return event

    def _make_event(self) -> int:
        event = c_void_p()
        with self._one:
            check(self._dll.epf_ht_event(self._ht, byref(event)))
        return event.value or 0

    def plan_bytes(self, tokens: int) -> int:
        """Bytes of the plan of a batch."""
        if self._plan[0] != tokens:
            self._plan = tokens, self._dll.epf_ht_plan_bytes(self._ht, tokens)
        return self._plan[1]

    def lacks(self, row: Row, across: int) -> int:
        """Bytes of memory between nodes that reserve() would make; 0: there is enough."""
        return self._dll.epf_ht_lacks(self._ht, byref(row), across)

    def reserve(self, row: Row, across: int) -> None:
        """Makes it. Collective; no kernel of any rank may move rows meanwhile."""
        check(self._dll.epf_ht_reserve(self._ht, byref(row), across))

    def set_window(self, address: int, size: int, peers: Sequence[Optional[int]]) -> None:
        """Gives a new window; no kernel of any rank may use one meanwhile."""
        check(self._dll.epf_ht_set_window(self._ht, address, size, _pointers(peers)))

    def want(self, address: int) -> None:
        """Asks for the segment of the pool that holds an address to be mapped."""
        self._dll.epf_ht_want(self._ht, address)

    def wanted(self) -> List[Tuple[int, int]]:
        """Address and bytes of the segments that were asked for, in the order in which map() takes them."""
        found: List[Tuple[int, int]] = []
        base, size = c_void_p(), c_uint64()
        while len(found) < self._dll.epf_ht_wanted(self._ht, len(found), byref(base), byref(size)):
            found.append((base.value or 0, size.value))
        return found

    def map(self, base: Optional[int], size: int, peers: Sequence[Optional[int]]) -> None:
        """Maps one segment of each rank, or none of this one. Collective within the node."""
        check(self._dll.epf_ht_map(self._ht, base, size, _pointers(peers)))

    def wait_counts(self, host: int) -> None:
        """Waits on the CPU for the last notify; other Python threads run meanwhile."""
        check(self._wait_counts(self._at, host))

    def check(self) -> None:
        """Raises what kernels reported since the last check. Waits for nothing."""
        check(self._check(self._at))

    def close(self) -> None:
        """When no kernel of it runs any more, so that events have nothing left to wait for. A second call does nothing."""
        ht, self._ht, self._at = self._ht, None, None
        self.wait = _no_wait
        if ht is not None:
            self._dll.epf_ht_close(ht)
