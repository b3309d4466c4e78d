# SPDX-License-Identifier: Apache-2.0
"""What surrounds the calls that programs make often."""
from __future__ import annotations

import functools
from typing import Any, Callable


def _none() -> int:
    return 0


class Modes:
    """PyTorch's function modes (torch.set_default_device() makes one), which see each attribute of a tensor that Python code reads.

    Attributes: active: how many there are now; without: a context in which they see nothing.
    """

    def __init__(self, torch: Any) -> None:
        inside = getattr(torch, "_C", None)
        self.without = getattr(inside, "DisableTorchFunction", None)
        self.active: Callable[[], int] = getattr(inside, "_len_torch_function_stack", _none) if self.without else _none


def outside_modes(call: Callable) -> Callable:
    """A method of a Buffer that function modes do not see into, as they do not into DeepEP's: a default device would cost it microseconds an attribute."""
    @functools.wraps(call)
    def plain(self: Any, *arguments: Any, **named: Any) -> Any:
        if not self._modes.active():
            return call(self, *arguments, **named)
        with self._modes.without():
            return call(self, *arguments, **named)
    return plain


def one_at_a_time(call: Callable) -> Callable:
    """The same, and two threads may use one Buffer, as micro-batches that overlap do: their calls do not mix."""
    @functools.wraps(call)
    def serial(self: Any, *arguments: Any, **named: Any) -> Any:
        with self._one:
            if not self._modes.active():
                return call(self, *arguments, **named)
            with self._modes.without():
                return call(self, *arguments, **named)
    return serial
