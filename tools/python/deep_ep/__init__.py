# SPDX-License-Identifier: Apache-2.0
"""DeepEP's interfaces on EP fabric: Buffer, the second version's ElasticBuffer, and HybridEPBuffer of its branch hybrid-ep. docs/reference/python.md says what is served.

Importing needs neither PyTorch nor a GPU nor the library; making a Buffer does, and says what is missing.
"""
from __future__ import annotations

from typing import Any

from .buffer import Buffer
from .checks import ArgumentError, NotThereYet
from .config import Config
from .elastic import ElasticBuffer, get_logical_domain_size, get_physical_domain_size
from .ephandle import EPHandle
from .event import EventHandle, EventOverlap
from .hybrid_ep_buffer import HybridEPBuffer

__all__ = ["ArgumentError", "Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap", "HybridEPBuffer", "NotThereYet",
           "get_logical_domain_size", "get_physical_domain_size", "topk_idx_t"]

# The version of DeepEP whose interface this package follows.
__version__ = "2.1.0+epf"


def __getattr__(name: str) -> Any:
    """topk_idx_t: what indices of experts are, torch.int64. Looked up when asked for, so that importing needs no PyTorch."""
    if name != "topk_idx_t":
        raise AttributeError(f"module 'deep_ep' (EP fabric) has no attribute '{name}'")
    try:
        import torch
    except ImportError as error:
        raise AttributeError(f"deep_ep.topk_idx_t is torch.int64, and PyTorch is not installed for this Python ({error})") from None
    return torch.int64
