# SPDX-License-Identifier: Apache-2.0
"""The legacy DeepEP interface on EP fabric: what vLLM and SGLang call in a decode step. docs/reference/python.md says what is served.

Importing needs neither PyTorch nor a GPU nor the library; making a Buffer does, and says what is missing. ElasticBuffer is not there, so
that programs that ask for it by hasattr() do not find it.
"""
from __future__ import annotations

from typing import Any

from .buffer import Buffer
from .checks import ArgumentError, NotThereYet
from .config import Config
from .event import EventHandle, EventOverlap

__all__ = ["ArgumentError", "Buffer", "Config", "EventHandle", "EventOverlap", "NotThereYet", "topk_idx_t"]

# The interface this package follows, as DeepEP counts: the last one before ElasticBuffer, with the later legacy arguments.
__version__ = "1.2.1+epf"


def __getattr__(name: str) -> Any:
    """topk_idx_t: what indices of experts are, torch.int64. Looked up when asked for, so that importing needs no PyTorch."""
    if name != "topk_idx_t":
        raise AttributeError(f"module 'deep_ep' (EP fabric) has no attribute '{name}'")
    try:
        import torch
    except ImportError as error:
        raise AttributeError(f"deep_ep.topk_idx_t is torch.int64, and PyTorch is not installed for this Python ({error})") from None
    return torch.int64
