# SPDX-License-Identifier: Apache-2.0
"""EP fabric from Python: thin, ctypes over the C libraries, tensors by their address; no compiled extension.

Importing loads nothing and needs neither PyTorch nor a GPU: why_not() says in one line what is missing here.
"""
from __future__ import annotations

from typing import Optional

from . import lowlat
from .fabric import Fabric
from .lib import EpfError, Unavailable, load
from .lowlat import LowLatency, Shape, size_hint

__all__ = ["EpfError", "Fabric", "LowLatency", "Shape", "Unavailable", "available", "load", "size_hint", "version", "why_not"]


def version() -> str:
    """Version of the library, "0.1.0". Raises Unavailable without it."""
    return load().epf_version().decode()


def why_not(device: str = "cuda") -> Optional[str]:
    """Why kernels cannot run here, in one line; None: they can. device: "cuda", or "cpu" for the form on CPU tensors."""
    try:
        lowlat.load()
    except Unavailable as error:
        return str(error)
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed for this Python ({error}): install it, any recent version"
    if device == "cpu":
        return None
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU (torch.cuda.is_available() is False): is the driver loaded, and is CUDA_VISIBLE_DEVICES not empty?"
    return None


def available(device: str = "cuda") -> bool:
    """Whether why_not() has nothing to say."""
    return why_not(device) is None
