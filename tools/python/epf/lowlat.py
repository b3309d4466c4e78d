# SPDX-License-Identifier: Apache-2.0
"""libepf-ll by ctypes: low-latency dispatch and combine with plain addresses and sizes, as kernels/epf_ll.h describes them."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import call, lib
from .fabric import Fabric

SONAME = "libepf-ll.so.0"
CPU = -1
SEND, RECV, BOTH = 1, 2, 3
FP8, ROUND_SCALE, UE8M0 = 1, 2, 4
ZERO_COPY, LOGFMT, SUM_AT_SENDER, SUM_IF_MANY = 1, 2, 4, 8
BLOCK = 128  # channels that share a scale
TOPK_MAX = 16
SIGNALS_PER_RANK = 8


class Shape(NamedTuple):
    """What all ranks agree on in a call: struct epf_ll_shape."""
    tokens_max: int
    hidden: int
    experts: int
    topk: int


class CShape(ctypes.Structure):
    """struct epf_ll_shape."""
    _fields_ = [("tokens_max", c_uint32), ("hidden", c_uint32), ("experts", c_uint32), ("topk", c_uint32)]


class Options(ctypes.Structure):
    """struct epf_ll_options."""
    _fields_ = [("size", c_size_t), ("device", c_int32), ("first_signal", c_uint32), ("bytes", c_uint64), ("memory", c_void_p),
                ("timeout_ns", c_uint64), ("blocks", c_uint32), ("reserved", c_uint32), ("peers", POINTER(c_void_p)),
                ("progress", c_void_p), ("progress_arg", c_void_p)]


class Dispatch(ctypes.Structure):
    """struct epf_ll_dispatch."""
    _fields_ = [("size", c_size_t), ("shape", CShape), ("tokens", c_uint32), ("flags", c_uint32), ("x", c_void_p), ("topk_idx", c_void_p),
                ("recv_x", c_void_p), ("recv_scales", c_void_p), ("recv_count", c_void_p), ("src_info", c_void_p), ("src_slot", c_void_p),
                ("layout_range", c_void_p), ("recv_stats", c_void_p), ("wait_stats", c_void_p), ("src_row", c_void_p)]


class Combine(ctypes.Structure):
    """struct epf_ll_combine."""
    _fields_ = [("size", c_size_t), ("shape", CShape), ("tokens", c_uint32), ("flags", c_uint32), ("x", c_void_p), ("src_info", c_void_p),
                ("src_slot", c_void_p), ("layout_range", c_void_p), ("topk_idx", c_void_p), ("topk_weights", c_void_p), ("out", c_void_p),
                ("wait_stats", c_void_p), ("src_row", c_void_p)]


# Bytes of a call from the fields in their order, those of the shape one by one: numbers, tensors, or None.
pack_dispatch = call.packer(Dispatch)
pack_combine = call.packer(Combine)

PROTOTYPES = {
    "epf_ll_options_init": (None, [POINTER(Options)]),
    "epf_ll_size_hint": (c_uint64, [c_uint32] * 4),
    "epf_ll_head_bytes": (c_uint64, [c_uint32]),
    "epf_ll_open": (c_int, [c_void_p, POINTER(Options), POINTER(c_void_p)]),
    "epf_ll_close": (None, [c_void_p]),
    "epf_ll_dispatch": (c_int, [c_void_p, c_void_p, c_uint, c_void_p]),
    "epf_ll_combine": (c_int, [c_void_p, c_void_p, c_uint, c_void_p]),
    "epf_ll_next_combine_buffer": (c_int, [c_void_p, POINTER(CShape), POINTER(c_void_p)]),
    "epf_ll_clean": (c_int, [c_void_p, c_void_p]),
    "epf_ll_mask_update": (c_int, [c_void_p, c_uint32, c_int, c_void_p]),
    "epf_ll_mask_query": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epf_ll_mask_clean": (c_int, [c_void_p, c_void_p]),
    "epf_ll_check": (c_int, [c_void_p]),
    "epf_ll_memory": (c_void_p, [c_void_p, POINTER(c_uint64)]),
    "epf_ll_error": (c_char_p, []),
}

_loaded: Optional[ctypes.CDLL] = None


def _candidates() -> Iterator[str]:
    named = os.environ.get("EPF_LL_LIBRARY")
    if named:
        yield named
        return
    for path in lib.candidates():
        yield os.path.join(os.path.dirname(path), SONAME) if os.path.dirname(path) else SONAME


def load() -> ctypes.CDLL:
    """The library of the kernels, after libepf. Raises Unavailable with every place and reason."""
    global _loaded
    if _loaded is not None:
        return _loaded
    lib.load()
    tried: List[str] = []
    for path in _candidates():
        try:
            dll = ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error) if path in str(error) else f"{path}: {error}")
            continue
        lib.declare(dll, PROTOTYPES, path)
        call.load(path)
        _loaded = dll
        return dll
    raise lib.Unavailable("libepf-ll, the low-latency kernels, cannot be loaded (" + "; ".join(tried) + "): "
                          "install it beside libepf, or set EPF_LL_LIBRARY to its path")


def check(result: int) -> int:
    """A negative result becomes EpfError with the library's line."""
    if result >= 0:
        return result
    text = (load().epf_ll_error() or b"").decode(errors="replace")
    raise lib.EpfError(-result, text or os.strerror(-result))


def size_hint(tokens_max: int, hidden: int, ranks: int, experts: int) -> int:
    """Bytes of communication memory a rank needs. Raises EpfError where no buffer can serve these numbers."""
    for name, value in (("tokens_max", tokens_max), ("hidden", hidden), ("ranks", ranks), ("experts", experts)):
        if not 0 < value < 1 << 32:
            raise lib.EpfError(22, f"{name} is {value}; it must be positive")
    size = load().epf_ll_size_hint(tokens_max, hidden, ranks, experts)
    if size == 0:
        check(-22)
    return size


def head_bytes(ranks: int) -> int:
    """Bytes at the head of communication memory that are the kernels' alone."""
    return load().epf_ll_head_bytes(ranks)


class LowLatency:
    """One rank's buffers and kernels. Collective to make, all ranks with the same arguments but memory and peers.

    Arguments:
        fabric: joined; one LowLatency a fabric.
        size: bytes of communication memory, at least size_hint() of every shape used.
        device: ordinal of the GPU, or CPU: then every address is host memory and calls are done when they return.
        memory: address of `size` bytes to use, page-aligned, the caller's until close() and the fabric's end; None: allocated.
        peers: for each rank the address of its memory in this process or on this GPU, or None; None: commands only.
        timeout_ns, blocks: 0: configured, chosen.
    """

    def __init__(self, fabric: Fabric, size: int, device: int = CPU, memory: Optional[int] = None,
                 peers: Optional[Sequence[Optional[int]]] = None, timeout_ns: int = 0, blocks: int = 0) -> None:
        self._dll = load()
        self._ll: Optional[c_void_p] = None
        options = Options()
        self._dll.epf_ll_options_init(byref(options))
        if options.size != ctypes.sizeof(Options):
            raise lib.Unavailable(f"struct epf_ll_options has {options.size} bytes in the library and {ctypes.sizeof(Options)} here: "
                                  "library and Python package are of different versions")
        options.device, options.bytes, options.memory = device, size, memory
        options.timeout_ns, options.blocks = timeout_ns, blocks
        self._peers = (c_void_p * len(peers))(*peers) if peers is not None else None
        if self._peers is not None:
            options.peers = ctypes.cast(self._peers, POINTER(c_void_p))
        ll = c_void_p()
        check(self._dll.epf_ll_open(fabric.handle, byref(options), byref(ll)))
        self._ll = ll
        self._dispatch, self._combine, self._check = (call.bind(function) for function in (
            self._dll.epf_ll_dispatch, self._dll.epf_ll_combine, self._dll.epf_ll_check))
        self._at: Optional[int] = ll.value

    @property
    def handle(self) -> c_void_p:
        if self._ll is None:
            raise lib.EpfError(9, "the buffer is destroyed")
        return self._ll

    def dispatch(self, packed: bytes, halves: int, stream: Optional[int] = None) -> None:
        """Launches halves of a dispatch, as pack_dispatch() made it; the memory it names must live until they have run."""
        check(self._dispatch(self._at or self.handle, packed, halves, stream))

    def combine(self, packed: bytes, halves: int, stream: Optional[int] = None) -> None:
        """Launches halves of a combine, as pack_combine() made it."""
        check(self._combine(self._at or self.handle, packed, halves, stream))

    def next_combine_buffer(self, shape: Shape) -> int:
        """Address of what the next combine's send half sends from without copying: BF16 [local experts][N][hidden]."""
        address = c_void_p()
        check(self._dll.epf_ll_next_combine_buffer(self.handle, byref(CShape(*shape)), byref(address)))
        return address.value

    def clean(self, stream: Optional[int] = None) -> None:
        """Collective over the ranks that are not masked: begins again, after masks were cleared or before another shape."""
        check(self._dll.epf_ll_clean(self.handle, stream))

    def mask_update(self, rank: int, masked: bool, stream: Optional[int] = None) -> None:
        check(self._dll.epf_ll_mask_update(self.handle, rank, int(masked), stream))

    def mask_query(self, out: int, stream: Optional[int] = None) -> None:
        """Writes int32 [ranks] to the address `out`: 1 for masked ranks."""
        check(self._dll.epf_ll_mask_query(self.handle, out, stream))

    def mask_clean(self, stream: Optional[int] = None) -> None:
        check(self._dll.epf_ll_mask_clean(self.handle, stream))

    def check(self) -> None:
        """Raises what kernels reported since the last call: ranks that did not come, and are masked now. Waits for nothing."""
        check(self._check(self._at or self.handle))

    def memory(self) -> Tuple[int, int]:
        """Address and bytes of the communication memory."""
        size = c_uint64()
        return self._dll.epf_ll_memory(self.handle, byref(size)), size.value

    def close(self) -> None:
        """When no kernel of it runs any more. A second call does nothing."""
        ll, self._ll, self._at = self._ll, None, None
        if ll is not None:
            self._dll.epf_ll_close(ll)
