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


_OUTSIDE = """
def {name}({parameters}):
    if not self._modes.active():
        return call({arguments})
    with self._modes.without():
        return call({arguments})
"""
# Not `with`, which takes twice as long.
_ONE = """
def {name}({parameters}):
    one = self._one
    one.acquire()
    try:
        if not self._modes.active():
            return call({arguments})
        with self._modes.without():
            return call({arguments})
    finally:
        one.release()
"""


def _around(text: str, call: Callable) -> Callable:
    """A function of Python's text around a method, with the method's own parameters: *arguments and **named would cost as much as all else here."""
    code = call.__code__
    places = code.co_varnames[:code.co_argcount]
    words = code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
    names = {"call": call}
    exec(text.format(name=call.__name__, parameters=", ".join((*places, *(("*", *words) if words else ()))),  # nothing but names from this package
                     arguments=", ".join((*places, *(f"{word}={word}" for word in words)))), names)
    around = names[call.__name__]
    around.__defaults__, around.__kwdefaults__ = call.__defaults__, call.__kwdefaults__
    return functools.wraps(call)(around)


def outside_modes(call: Callable) -> Callable:
    """A method of a Buffer that function modes do not see into, as they do not into DeepEP's: a default device would cost it microseconds an attribute."""
    return _around(_OUTSIDE, call)


def one_at_a_time(call: Callable) -> Callable:
    """The same, and two threads may use one Buffer, as micro-batches that overlap do: their calls do not mix."""
    return _around(_ONE, call)
