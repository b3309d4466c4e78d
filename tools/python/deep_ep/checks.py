# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: each failure is one sentence that names the call, the argument, what it is and what it must be."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from epf import call


class ArgumentError(ValueError):
    """A call was given something it cannot work with; nothing was sent."""


class NotThereYet(NotImplementedError):
    """The interface has this call, EP fabric does not serve it yet."""


def need(holds: bool, where: str, sentence: str, *values: Any) -> None:
    """Raises ArgumentError with the sentence, its {} filled with the values, unless it holds."""
    if not holds:
        raise ArgumentError(f"{where}: {sentence.format(*values) if values else sentence}")


def _text(sizes: Sequence[int], says: Sequence[str]) -> str:
    says = (*says, *[""] * len(sizes))
    return "[" + ", ".join(f"{size} ({what})" if what else "any" if size < 0 else str(size) for size, what in zip(sizes, says)) + "]"


def tensor(torch: Any, where: str, name: str, t: Any, dtype: Any, sizes: Sequence[int], device: Any, says: Sequence[str] = ()) -> Any:
    """Checks a tensor and gives it back.

    Arguments:
        torch: the module.
        sizes: a tuple, of each dimension; -1: any. says: what these numbers are, for the text; "": nothing.
        device: torch.device of the Buffer.
    """
    if not call.fits(t, torch.Tensor, dtype, sizes, device):
        _refuse(torch, where, name, t, dtype, sizes, device, says)
    return t


def _refuse(torch: Any, where: str, name: str, t: Any, dtype: Any, sizes: Sequence[int], device: Any, says: Sequence[str]) -> None:
    """Says what does not hold."""
    if not isinstance(t, torch.Tensor):
        raise ArgumentError(f"{where}: {name} is a {type(t).__name__}; it must be a tensor")
    if t.dtype != dtype:
        raise ArgumentError(f"{where}: {name} has dtype {t.dtype}; it must be {dtype}")
    if t.dim() != len(sizes):
        raise ArgumentError(f"{where}: {name} has {t.dim()} dimensions; it must have {len(sizes)}, {_text(sizes, says)}")
    if any(want not in (-1, have) for want, have in zip(sizes, t.shape)):
        raise ArgumentError(f"{where}: {name} has shape {list(t.shape)}; it must have {_text(sizes, says)}")
    if t.device != device:
        raise ArgumentError(f"{where}: {name} is on {t.device}; this Buffer works on {device}")
    raise ArgumentError(f"{where}: {name} is not contiguous; give {name}.contiguous()")


def aligned(where: str, name: str, t: Any) -> None:
    """Rows are moved 16 bytes at a time."""
    if t.data_ptr() % 16:
        raise ArgumentError(f"{where}: {name} begins at an address that is no multiple of 16; give {name}.clone()")


def counts(where: str, ranks: int, **values: int) -> None:
    """Checks what every low-latency call is given: tokens at most, hidden, experts."""
    for name, value in values.items():
        need(isinstance(value, int) and value > 0, where, f"{name} is {value!r}; it must be a positive integer")
    hidden, experts = values.get("hidden"), values.get("num_experts")
    if hidden is not None:
        need(hidden % 128 == 0, where, f"hidden is {hidden}; it must be a multiple of 128, the channels that share a scale")
    if experts is not None:
        need(experts % ranks == 0, where, f"num_experts is {experts}; it must be a multiple of the {ranks} ranks, "
             "because each rank holds as many experts")


def optional(torch: Any, where: str, name: str, t: Optional[Any], dtype: Any, sizes: Sequence[int], device: Any, says: Sequence[str] = ()) -> Optional[Any]:
    """Checks a tensor that may be missing, and gives it back."""
    return None if t is None else tensor(torch, where, name, t, dtype, sizes, device, says)
