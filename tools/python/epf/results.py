# SPDX-License-Identifier: Apache-2.0
"""Memory for outputs that the ranks of a node map, so that other ranks write rows where they stay. It is a pool of PyTorch's allocator: its tensors live,
change streams and end as all others do. What the others have not mapped yet serves as well, by one copy more.
"""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import lowlat
from .lib import EpfError
from .meet import Group
from .shared import Driver, node_key
from .tensors import allocator
from .throughput import Throughput

_allocators: List[Any] = []  # outlives its tensors
Wanted = Optional[Tuple[Sequence[int], Sequence[int], Any]]  # sizes, strides and type of a tensor; None: no tensor


def _allocator(torch: Any) -> Any:
    if not _allocators:
        _allocators.append(torch.cuda.memory.CUDAPluggableAllocator(lowlat.load()._name, "epf_ht_pool_alloc", "epf_ht_pool_free"))
    return _allocators[0].allocator()


def _short_ways(torch: Any) -> Optional[List[Any]]:
    """What torch.cuda.use_mem_pool() calls, a tenth of its time; None: this PyTorch has other ways."""
    names = ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool")
    ways = [getattr(torch._C, name, None) for name in names]
    return None if None in ways else ways


class Results:
    """The pool of one Buffer.

    Arguments:
        first: bytes that are allocated at once, with the first tensor.
    """

    @classmethod
    def make(cls, torch: Any, device: Any, first: int) -> Optional["Results"]:
        """None: this PyTorch has no pools."""
        if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
            return None
        return cls(torch, device, first)

    def __init__(self, torch: Any, device: Any, first: int) -> None:
        self._torch, self._device, self._first = torch, device, first
        self._pool = torch.cuda.MemPool(_allocator(torch))
        self._opened: List[int] = []
        self._driver: Optional[Driver] = None
        self._new, self._ways = allocator(torch, device), _short_ways(torch)

    def begin(self, ht: Throughput) -> None:
        """Allocates the first segment, on the current stream, unless that is done."""
        size, self._first = self._first, 0
        if size:
            first = self.empty((((size,), (1,), self._torch.uint8),))
            if first is not None:
                ht.want(first[0].data_ptr())

    def _make(self, wanted: Sequence[Wanted]) -> List[Any]:
        new = self._new
        return [None if one is None else new(*one) for one in wanted]

    def empty(self, wanted: Sequence[Wanted]) -> Optional[List[Any]]:
        """Tensors, or None: there is no memory for a segment more."""
        try:
            if self._ways is None:
                with self._torch.cuda.use_mem_pool(self._pool, self._device):
                    return self._make(wanted)
            begin, end, release = self._ways
            index, pool = self._device.index, self._pool.id
            begin(index, pool)
            try:
                return self._make(wanted)
            finally:
                end(index, pool)
                release(index, pool)
        except self._torch.cuda.OutOfMemoryError:
            return None

    def map(self, group: Group, ht: Throughput, driver: Driver) -> bool:
        """Maps what was asked for; collective. False, at all ranks: that is not possible, and this object is of no use any more."""
        self._driver, mine, failed = driver, ht.wanted(), False
        handles: List[bytes] = []
        try:
            handles = [driver.handle(base) for base, _ in mine]
        except EpfError:
            failed = True
        everybody = group.all_gather((node_key(), handles))
        rounds = max(len(theirs) for _, theirs in everybody)
        peers = [[self._open(theirs[i]) if i < len(theirs) and key == node_key() and rank != group.rank else None
                  for rank, (key, theirs) in enumerate(everybody)] for i in range(rounds)]
        failed = failed or any(at == 0 for row in peers for at in row)
        if any(group.all_gather(failed)):
            return False
        for i, row in enumerate(peers):
            base, size = mine[i] if i < len(mine) else (None, 0)
            ht.map(base, size, row)
        return True

    def _open(self, handle: bytes) -> int:
        at = self._driver.open(handle) or 0
        if at:
            self._opened.append(at)
        return at

    def close(self) -> None:
        """Unmaps the memory of others. When no kernel writes to it any more."""
        for at in self._opened:
            self._driver.close(at)
        self._opened.clear()
