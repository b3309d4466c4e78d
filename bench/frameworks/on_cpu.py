# SPDX-License-Identifier: Apache-2.0
"""Lets Megatron-core run on CPU tensors, unmodified, on a machine without a GPU: what it asks torch.cuda and Triton for at import and in a step.

Import before megatron.core, which it imports. Nothing here touches deep_ep or how rows travel.
"""
import importlib.machinery
import importlib.util
import sys
import types

import torch


class _Names(types.ModuleType):
    """A module whose every name is a decorator that changes nothing: kernels are defined at import and never launched."""

    def __init__(self, name):
        super().__init__(name)
        self.__spec__, self.__path__, self.__version__ = importlib.machinery.ModuleSpec(name, None), [], "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda first=None, *_, **__: first if callable(first) else lambda f: f


torch.compile = lambda model=None, **_: model if callable(model) else lambda f: f  # without importing the compiler, which takes seconds
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
torch.cuda.manual_seed = torch.manual_seed
_zeros = torch.zeros
torch.zeros = lambda *size, device=None, **options: _zeros(*size, device=None if device == "cuda" else device, **options)
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self

if importlib.util.find_spec("triton") is None:
    sys.modules["triton"] = _Names("triton")
    sys.modules["triton.language"] = sys.modules["triton"].language = _Names("triton.language")
    import megatron.core.models.gpt  # noqa: F401,E402
    del sys.modules["triton"], sys.modules["triton.language"]  # PyTorch looks whether it is there
