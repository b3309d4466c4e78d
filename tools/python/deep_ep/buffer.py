# SPDX-License-Identifier: Apache-2.0
"""Buffer: communication memory of one rank. Its calls, as vLLM and SGLang make them, are in low_latency.py and throughput.py.

docs/reference/python.md says what is served.
"""
from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Any, Callable, Dict, List, Optional

import epf
from epf import lowlat, throughput
from epf.fabric import as_group
from epf.meet import agree
from epf.shared import Driver, GpuShared, HostShared, gpu_vendor
from epf.tensors import allocator, view

from . import checks
from .checks import ArgumentError, NotThereYet, need
from .config import Config
from .entry import Modes
from .event import EventHandle, EventOverlap
from .low_latency import LowLatency, Outputs
from .slow import Slow, show_ranges, show_ranges_if_profiled
from .throughput import HighThroughput

log = logging.getLogger("deep_ep")

# How long a kernel waits for a rank unless EPF_GPU_TIMEOUT says it: long enough for ranks that still compile, as programs expect it.
TIMEOUT_NS = 100 * 10**9
# When combines sum at the sender (docs/reference/python.md), and what is done where neither Buffer(sum_at_sender=) nor EPF_LL_SENDER_SUMS says it. auto: where
# tokens are many; always: few tokens, too.
SUMS = ("off", "auto", "always")
SUMS_DEFAULT = "auto"


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise epf.Unavailable(f"deep_ep.Buffer works on tensors, and PyTorch is not installed for this Python ({error})") from None
    return torch


def _raw_stream(torch: Any) -> Callable[[int], int]:
    """What gives the current stream of a GPU as a number: PyTorch's own short way, which compiled programs use, or the public one, 20 times slower."""
    short = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return short or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def _current_stream(torch: Any, device: Any) -> Callable[[], Any]:
    """What gives the current stream of a GPU. The object is kept while the stream stays the same: to make one takes several microseconds."""
    short = getattr(getattr(torch, "_C", None), "_cuda_getCurrentStream", None)
    if short is None or device.type != "cuda":
        return lambda: torch.cuda.current_stream(device)
    last: List[Any] = [None, None]

    def current() -> Any:
        at = short(device.index)
        if at != last[0]:
            last[:] = at, torch.cuda.current_stream(device)
        return last[1]
    return current


def _capturing(torch: Any, device: Any) -> Callable[[], bool]:
    """What says whether a graph captures the current stream."""
    if device.type != "cuda":
        return bool  # bool() is False
    return getattr(getattr(torch, "_C", None), "_cuda_isCurrentStreamCapturing", None) or torch.cuda.is_current_stream_capturing


def _chosen_sums(wanted: Optional[str]) -> str:
    said = wanted if wanted is not None else os.environ.get("EPF_LL_SENDER_SUMS") or SUMS_DEFAULT
    need(said in SUMS, "Buffer", f"sum_at_sender, or EPF_LL_SENDER_SUMS, is {said!r}; it must be one of {', '.join(SUMS)}")
    return said


class Buffer(LowLatency, HighThroughput, Slow):
    """One rank's communication memory, its engine and its kernels. Collective to make and to destroy.

    Attributes: rank, group_size, group, num_nvl_bytes, num_rdma_bytes, low_latency_mode, explicitly_destroy, enable_shrink as given;
    num_sms (of the class): for the high-throughput calls; device: torch.device its tensors are on.
    """

    num_sms: int = 20
    _timeout = TIMEOUT_NS

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None, *, use_fabric: bool = False,
                 device: Any = None, sum_at_sender: Optional[str] = None) -> None:
        """Makes the ranks of a group find each other and gives each its memory.

        Arguments:
            group: torch.distributed.ProcessGroup of the ranks; None: `comm`, an mpi4py communicator, is used instead.
            num_nvl_bytes: bytes for received rows that the first high-throughput dispatch allocates and maps. All memory of these calls grows with them.
            num_rdma_bytes: bytes of communication memory, at least get_low_latency_rdma_size_hint().
            low_latency_mode: without it nothing is opened before the first call. Low-latency calls then find their memory when they are first made.
            num_qps_per_rank: accepted; the fabric shares its queue pairs among ranks, and the number has no effect.
            allow_nvlink_for_low_latency_mode: False: every byte goes over the command path and the NIC, also to ranks of the same node.
            allow_mnnvl, use_fabric: accepted; NVLink between nodes is not used.
            explicitly_destroy: destroy() will be called. It may be called in either case, and should.
            enable_shrink: a rank that does not come in time is masked and the others go on; else the next call raises.
            device: torch.device of the tensors; None: the current GPU, or the CPU where PyTorch has no GPU.
            sum_at_sender: off, auto or always: when each rank adds its rows of a token before a combine sends them; the same at all ranks. Fewer
                bytes, other bits, and a send half that waits until all ranks have begun it. None: EPF_LL_SENDER_SUMS, else auto.
        """
        if group is None and comm is None:
            raise ArgumentError("Buffer: neither group nor comm is given; the ranks find each other through one of them")
        for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            need(isinstance(value, int) and value >= 0, "Buffer", f"{name} is {value!r}; it must be a number of bytes, not negative")
        need(num_qps_per_rank > 0, "Buffer", f"num_qps_per_rank is {num_qps_per_rank}; it must be positive")
        self._destroyed = False
        self._one = threading.RLock()
        self._fabric: Optional[epf.Fabric] = None
        self._ll: Optional[epf.LowLatency] = None
        self._shared: Any = None
        self._torch = torch = _torch()
        show_ranges_if_profiled(Buffer, torch)
        self._ranks = as_group(group, comm)
        self.group = group if group is not None else comm
        self.rank, self.group_size = self._ranks.rank, self._ranks.size
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self.device = self._choose_device(device)
        self._on_gpu, self._index = self.device.type == "cuda", self.device.index
        self._comm_stream: Any = None
        self._raw_stream = _raw_stream(torch)
        self._current_stream = _current_stream(torch, self.device)
        self._capturing = _capturing(torch, self.device)
        self._empty = allocator(torch, self.device)
        self._modes = Modes(torch)
        self._outputs: Dict[tuple, Outputs] = {}  # by shape and format
        self._fits = {}
        self._ll_size = 0  # bytes of memory for low-latency calls
        self._shape: Optional[lowlat.Shape] = None
        self._halves_left = 0  # hooks not called yet
        self._sums = _chosen_sums(sum_at_sender)
        if low_latency_mode:
            need(num_rdma_bytes > 0, "Buffer", "num_rdma_bytes is 0; low-latency mode needs get_low_latency_rdma_size_hint() bytes")
            try:
                self._open_fabric(num_rdma_bytes, allow_nvlink_for_low_latency_mode)
            except BaseException:
                self._release()
                raise
        if self.device.type == "cuda":
            self._comm_stream = torch.cuda.Stream(self.device)
            self._comm_number = self._comm_stream.cuda_stream

    def _choose_device(self, device: Any) -> Any:
        torch = self._torch
        if device is not None:
            device = torch.device(device)
        else:
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return device

    def _settings(self) -> dict:
        settings = {"signals": max(4096, (lowlat.SIGNALS_PER_RANK + throughput.SIGNALS_PER_RANK) * self.group_size)}
        if self.device.type == "cuda":
            settings["gpu-device"] = self.device.index
        return settings

    def _timeout_ns(self) -> int:
        return 0 if "EPF_GPU_TIMEOUT" in os.environ else self._timeout

    def _open_fabric(self, size: int = 0, direct: bool = True) -> None:
        """Joins the other ranks and makes the kernels, unless that is done. size: bytes for low-latency calls; 0: there will be none. Collective."""
        if self._ll is not None:
            return
        # The driver gives memory of the device that is current in this thread.
        with self._torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            self._open(size or lowlat.head_bytes(self.group_size), direct)
        self._ll_size = size

    def _size_low_latency(self, where: str, shape: lowlat.Shape) -> None:
        """Finds memory for low-latency calls of a Buffer that was made without: the ranks, which all make this call, leave and join again."""
        size = lowlat.size_hint(shape.tokens_max, shape.hidden, self.group_size, shape.experts)
        need(not self._destroyed, where, "this Buffer is destroyed")
        if size <= self._ll_size:
            return
        need(self._halves_left == 0, where, f"{shape} needs more memory, and a hook was not called yet")
        if self.device.type == "cuda":
            need(not self._torch.cuda.is_current_stream_capturing(), where,
                 f"{shape} needs {size} bytes of communication memory, there are {self._ll_size}, and a CUDA graph is captured; make one call of this "
                 "shape before, or pass low_latency_mode=True and num_rdma_bytes")
            self._torch.cuda.synchronize(self.device)
        self._ranks.all_gather(None)  # no kernel of any rank runs
        self._release()
        self._destroyed = False
        self._ranks.all_gather(None)
        self._open_fabric(size)
        self._shape = None

    def _open(self, size: int, direct: bool) -> None:
        failed: Optional[BaseException] = None
        try:
            lowlat.load()
        except epf.EpfError as error:
            failed = error
        agree(self._ranks, failed, "loading the kernels")
        said = self._ranks.all_gather(self._sums)
        need(len(set(said)) == 1, "Buffer", f"sums at the sender (sum_at_sender, EPF_LL_SENDER_SUMS) by rank: {said}; all ranks must say the same")
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            self._torch.cuda.synchronize(self.device)  # its context is there and current from here on
        self._fabric = epf.Fabric(self._ranks, settings=self._settings(), purpose="deep_ep")
        embedded = self._fabric.mode == "embedded"  # a daemon can only be given memory of its client library
        if embedded and not on_gpu:
            name = "epf-" + self._ranks.all_gather(os.urandom(8).hex())[0]
            self._shared = HostShared(self._ranks, size, name, share=direct)
        elif embedded and direct and self.group_size > 1:
            self._shared = GpuShared(self._ranks, size, Driver(gpu_vendor(self._torch)))
        if on_gpu and embedded:
            self._warn_of_lazy_code()
        self._ll = epf.LowLatency(
            self._fabric, size, self.device.index if on_gpu else lowlat.CPU,
            memory=self._shared.address if self._shared else None, peers=self._shared.peers if self._shared and direct else None,
            timeout_ns=self._timeout_ns())

    def _warn_of_lazy_code(self) -> None:
        """The software NIC copies by calls of the GPU's driver, which stall while another thread's call waits for a kernel that waits for rows."""
        by_nic = [r for r in range(self.group_size) if r != self.rank and not (self._shared and self._shared.peers[r])]
        if by_nic and os.environ.get("EPF_NIC", "auto") in ("auto", "emu") and os.environ.get("CUDA_MODULE_LOADING", "LAZY") != "EAGER":
            log.warning("the software NIC serves rank%s %s by copies of this process: code that is loaded at its first use while a kernel waits for them "
                        "ends that wait by its timeout only. Set CUDA_MODULE_LOADING=EAGER before the program starts, or use a daemon (EPF_SERVICE)",
                        "s" if len(by_nic) > 1 else "", ", ".join(map(str, by_nic)))

    # ------------------------------------------------------------------ the end

    def destroy(self) -> None:
        """Ends it: collective. Waits for this rank's kernels and for the other ranks, then leaves the job. A second call does nothing."""
        if self._ll is not None and self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)
        if self._fabric is not None:
            try:
                self._fabric.barrier()
            except epf.EpfError as error:
                log.info("destroy: the other ranks were not waited for: %s", error)
        self._release()

    def _release(self) -> None:
        self._destroyed = True
        self._release_throughput()
        ll, fabric, shared = self._ll, self._fabric, self._shared
        self._ll = self._fabric = self._shared = None
        for part in (ll, fabric, shared):
            if part is not None:
                part.close()

    def __del__(self) -> None:
        if getattr(self, "_ll", None) is not None and not self.explicitly_destroy:
            self._release()

    # ------------------------------------------------------------------ helpers

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether FP8 rows can be dispatched: always."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Multiprocessors that high-throughput calls are to use: an even number. Low-latency calls choose their own."""
        need(isinstance(new_num_sms, int) and new_num_sms > 0 and new_num_sms % 2 == 0, "Buffer.set_num_sms",
             f"{new_num_sms!r} multiprocessors; it must be a positive even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def show_ranges() -> None:
        """Lets the calls of all Buffers show in PyTorch's profiler and in Nsight, with the names that why_slow() uses. Nsight Systems needs no call."""
        show_ranges(Buffer, _torch())

    @staticmethod
    def capture() -> EventOverlap:
        """An event of what the current stream has to do so far."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Sizes for a high-throughput dispatch, for any number of ranks."""
        need(num_ranks > 0, "Buffer.get_dispatch_config", f"num_ranks is {num_ranks}; it must be positive")
        return Config(Buffer.num_sms, 8, 288, 32, 128)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Sizes for a high-throughput combine, for any number of ranks."""
        need(num_ranks > 0, "Buffer.get_combine_config", f"num_ranks is {num_ranks}; it must be positive")
        return Config(Buffer.num_sms, 4, 288, 12, 128)

    def get_comm_stream(self) -> Any:
        """torch.cuda.Stream that asynchronous calls run on."""
        if self._comm_stream is None:
            raise ArgumentError("Buffer.get_comm_stream: this Buffer works on CPU tensors, which have no streams")
        return self._comm_stream

    def get_local_buffer_tensor(self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False) -> Any:
        """The communication memory itself as a tensor, from element `offset` on; size: torch.Size to view it as.

        Its head, where ranks count what they have sent, is left out: programs fill the whole tensor with zeros to begin again, which is
        harmless between calls. It is the kernels' while calls are under way, and gone after destroy(). Without use_rdma_buffer: not there yet.
        """
        where = "Buffer.get_local_buffer_tensor"
        if not use_rdma_buffer:
            raise NotThereYet(f"{where}: high-throughput calls have no buffer that programs may look into; use_rdma_buffer=True gives that of low latency")
        address, size_bytes = self._low_latency(where).memory()
        head = lowlat.head_bytes(self.group_size)
        address, size_bytes = address + head, size_bytes - head
        width = self._torch.empty(0, dtype=dtype).element_size()
        count = size_bytes // width - offset
        need(offset >= 0 and count >= 0, where, f"offset is {offset}; the memory has {size_bytes // width} elements of {dtype}")
        if size is not None:
            need(size.numel() <= count, where, f"size {list(size)} has {size.numel()} elements; from offset {offset} there are {count}")
            count = size.numel()
        flat = self._view(address + offset * width, count, dtype)
        return flat if size is None else flat.view(size)

    def _view(self, address: int, count: int, dtype: Any) -> Any:
        owner = self._shared if isinstance(self._shared, HostShared) else None
        return view(self._torch, address, count, dtype, self.device, owner)
