# SPDX-License-Identifier: Apache-2.0
"""Tensors that look at memory which is not PyTorch's: nothing is copied, and writing to one writes there."""
from __future__ import annotations

import ctypes
from typing import Any, Optional

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
