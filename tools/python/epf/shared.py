# SPDX-License-Identifier: Apache-2.0
"""Communication memory that ranks of one node reach directly: GPU memory by the driver's inter-process handles (NVLink, xGMI), host memory by
shared pages. What cannot be reached stays None in `peers`, and the library then sends commands. The GPU half has run on H200 (CUDA); HIP has not.
"""
from __future__ import annotations

import ctypes
import mmap
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any, List, Optional, Tuple

from .lib import EpfError
from .meet import Group, agree, host_key


GPU_BLOCK = 2 << 20  # what a driver maps at once


def node_key() -> str:
    """The same for ranks that map each other's memory: those of one host, unless EPF_NODE gives them different names."""
    return f"{host_key()}/{os.environ.get('EPF_NODE', '')}"


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle and hipIpcMemHandle_t: 64 bytes, passed by value."""
    _fields_ = [("reserved", c_char * 64)]


def address_of(mapped: mmap.mmap) -> int:
    """Where a mapping begins. It stays there as long as the object lives."""
    return ctypes.addressof(c_char.from_buffer(mapped))


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class HostShared:
    """Pages of this rank that the other ranks of its host map too. Collective to make.

    A view made from `buffer` (the mmap) keeps the pages alive; addresses are valid until close().
    """

    def __init__(self, group: Group, size: int, name: str, share: bool = True) -> None:
        self._size, self._others = _pages(size), []
        path = f"/dev/shm/{name}-{group.rank}"
        fd, failed = -1, None
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(fd, 0, self._size)
            self.buffer = mmap.mmap(fd, self._size, mmap.MAP_SHARED)
        except OSError as error:
            failed = EpfError(error.errno or 12, f"{size} bytes of shared memory for communication in /dev/shm: {error.strerror}")
        try:
            agree(group, failed, "communication memory")
            self.address = address_of(self.buffer)
            everybody = group.all_gather((node_key(), path if share else None))
            self.peers = [self._open(where) if where and key == node_key() and rank != group.rank else None
                          for rank, (key, where) in enumerate(everybody)]
            group.all_gather(None)  # everybody has opened what is unlinked now
        finally:
            if fd >= 0:
                os.close(fd)
                os.unlink(path)

    def _open(self, path: str) -> Optional[int]:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None  # another /dev/shm on the same host
        try:
            self._others.append(mmap.mmap(fd, self._size, mmap.MAP_SHARED))
        finally:
            os.close(fd)
        return address_of(self._others[-1])

    def close(self) -> None:
        """After the fabric was closed."""
        self._others.clear()
        self.buffer = None


class Driver:
    """The few calls of a GPU's driver that memory between processes takes."""

    # vendor: library, then alloc, free, handle of memory, open, close
    NAMES = {
        "cuda": ("libcuda.so.1", "cuMemAlloc_v2", "cuMemFree_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"),
        "hip": ("libamdhip64.so", "hipMalloc", "hipFree", "hipIpcGetMemHandle", "hipIpcOpenMemHandle", "hipIpcCloseMemHandle"),
    }
    PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess, hipIpcMemLazyEnablePeerAccess

    def __init__(self, vendor: str) -> None:
        library, *names = self.NAMES[vendor]
        self.vendor = vendor
        try:
            dll = ctypes.CDLL(library)
        except OSError as error:
            raise EpfError(2, f"the GPU's driver library cannot be loaded: {error}") from None
        self._alloc, self._free, self._get, self._open, self._close = (getattr(dll, name) for name in names)
        for function, arguments in ((self._alloc, [POINTER(c_void_p), c_size_t]), (self._free, [c_void_p]),
                                    (self._get, [POINTER(IpcHandle), c_void_p]), (self._open, [POINTER(c_void_p), IpcHandle, c_uint]),
                                    (self._close, [c_void_p])):
            function.argtypes, function.restype = arguments, c_int
        self._explain = dll.hipGetErrorString if vendor == "hip" else dll.cuGetErrorString

    def _text(self, code: int) -> str:
        if self.vendor == "hip":
            self._explain.restype = c_char_p
            return (self._explain(code) or b"?").decode()
        text = c_char_p()
        self._explain(code, byref(text))
        return (text.value or b"?").decode()

    def alloc(self, size: int) -> int:
        at = c_void_p()
        code = self._alloc(byref(at), size)
        if code:
            raise EpfError(12, f"{size} bytes of GPU memory for communication: {self._text(code)}")
        return at.value

    def free(self, address: int) -> None:
        self._free(address)

    def handle(self, address: int) -> bytes:
        handle = IpcHandle()
        code = self._get(byref(handle), address)
        if code:
            raise EpfError(5, f"the GPU memory cannot be given to other processes: {self._text(code)}")
        return ctypes.string_at(byref(handle), ctypes.sizeof(handle))

    def open(self, handle: bytes) -> Optional[int]:
        """Address of another process's memory on the current GPU; None: that GPU cannot be reached from this one."""
        at = c_void_p()
        code = self._open(byref(at), IpcHandle.from_buffer_copy(handle), self.PEER_ACCESS)
        return at.value if code == 0 else None

    def close(self, address: int) -> None:
        self._close(address)


class GpuShared:
    """GPU memory of this rank, and where the other GPUs of its host have theirs. Collective to make, with the GPU current in this thread."""

    def __init__(self, group: Group, size: int, driver: Driver) -> None:
        self._driver = driver
        self.address, mine, failed = 0, b"", None
        try:
            # Smaller allocations may share a block with others, whose handle would then be of the whole block.
            self.address = driver.alloc(-(-size // GPU_BLOCK) * GPU_BLOCK)
            mine = driver.handle(self.address)
        except EpfError as error:
            failed = error
        try:
            agree(group, failed, "communication memory")
        except EpfError:
            self.close()
            raise
        everybody: List[Tuple[str, bytes]] = group.all_gather((node_key(), mine))
        self.peers: List[Optional[int]] = [driver.open(handle) if key == node_key() and rank != group.rank else None
                                           for rank, (key, handle) in enumerate(everybody)]

    def close(self) -> None:
        """Unmaps and frees. After the fabric was closed by all ranks of the host."""
        for at in getattr(self, "peers", []):
            if at:
                self._driver.close(at)
        self.peers = []
        if self.address:
            self._driver.free(self.address)
            self.address = 0


def gpu_vendor(torch: Any) -> str:
    """"hip" or "cuda", by what PyTorch was built for."""
    return "hip" if getattr(torch.version, "hip", None) else "cuda"
