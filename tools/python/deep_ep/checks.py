# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: each failure is one sentence that names the call, the argument, what it is and what it must be."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

Size = Union[int, Tuple[int, str]]


class ArgumentError(ValueError):
    """A call was given something it cannot work with; nothing was sent."""


class NotThereYet(NotImplementedError):
    """The interface has this call, EP fabric does not serve it yet."""


def need(holds: bool, where: str, sentence: str, *values: Any) -> None:
    """Raises ArgumentError with the sentence, its {} filled with the values, unless it holds."""
    if not holds:
        raise ArgumentError(f"{where}: {sentence.format(*values) if values else sentence}")


def _text(sizes: Sequence[Size]) -> str:
    return "[" + ", ".join(f"{s[0]} ({s[1]})" if isinstance(s, tuple) else "any" if s < 0 else str(s) for s in sizes) + "]"


def tensor(torch: Any, where: str, name: str, t: Any, dtype: Any, sizes: Sequence[Size], device: Any) -> Any:
    """Checks a tensor and gives it back.

    Arguments:
        torch: the module.
        sizes: of each dimension; -1: any, (number, text): the text says what the number is.
        device: torch.device of the Buffer.
    """
    if not isinstance(t, torch.Tensor):
        raise ArgumentError(f"{where}: {name} is a {type(t).__name__}; it must be a tensor")
    if t.dtype != dtype:
        raise ArgumentError(f"{where}: {name} has dtype {t.dtype}; it must be {dtype}")
    if t.dim() != len(sizes):
        raise ArgumentError(f"{where}: {name} has {t.dim()} dimensions; it must have {len(sizes)}, {_text(sizes)}")
    for index, size in enumerate(sizes):
        wanted = size[0] if isinstance(size, tuple) else size
        if wanted >= 0 and t.size(index) != wanted:
            raise ArgumentError(f"{where}: {name} has shape {list(t.shape)}; it must have {_text(sizes)}")
    if t.device != device:
        raise ArgumentError(f"{where}: {name} is on {t.device}; this Buffer works on {device}")
    if not t.is_contiguous():
        raise ArgumentError(f"{where}: {name} is not contiguous; give {name}.contiguous()")
    return t


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


def optional(torch: Any, where: str, name: str, t: Optional[Any], dtype: Any, sizes: Sequence[Size], device: Any) -> Optional[int]:
    """Address of a tensor that may be missing; None: missing."""
    return None if t is None else tensor(torch, where, name, t, dtype, sizes, device).data_ptr()
