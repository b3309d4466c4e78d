# SPDX-License-Identifier: Apache-2.0
"""Tensors that look at memory which is not PyTorch's: nothing is copied, and writing to one writes there."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Sequence

from .shared import HostShared


class _Foreign:
    """GPU memory as PyTorch takes it: bytes at an address."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2, "strides": None}


def view(torch: Any, address: int, count: int, dtype: Any, device: Any, owner: Optional[HostShared] = None) -> Any:
    """A tensor of `count` elements at `address`.

    The memory of a GPU, and host memory without `owner`, stays valid only as long as the Buffer; with `owner`, as long as the tensor.
    """
    size = count * torch.empty(0, dtype=dtype).element_size()
    if device.type == "cpu":
        if owner is not None:
            return torch.frombuffer(owner.buffer, dtype=dtype, count=count, offset=address - owner.address)
        return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=dtype, count=count)
    return torch.as_tensor(_Foreign(address, size), device=device).view(dtype)


def allocator(torch: Any, device: Any) -> Callable[[Sequence[int], Sequence[int], Any], Any]:
    """A function f(sizes, strides, dtype) that makes a tensor without values: by the short way of compiled programs, half the time of torch.empty(), where
    this PyTorch has it and the device is the current one."""
    short = getattr(getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "guards", None), f"_empty_strided_{device.type}", None)
    current = getattr(torch._C, "_cuda_getDevice", None) if short and device.type == "cuda" else None
    if short is not None and device.type == "cpu":
        return short

    def empty(sizes: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        if current is not None and current() == device.index:
            return short(sizes, strides, dtype)
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    return empty
