# SPDX-License-Identifier: Apache-2.0
"""Calls of the C libraries that cost Python little: structures packed from numbers and tensors, functions called without Python's lock, tensors compared.

By a small extension (_call.c) where it can be loaded, else by ctypes: with the same results and the same errors. EPF_PYTHON_EXTENSION=off: ctypes.
"""
from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import struct
import sys
from typing import Any, Callable, Optional, Sequence, Tuple

FILE = "_call.abi3.so"
LETTERS = {ctypes.c_uint32: "I", ctypes.c_uint64: "Q", ctypes.c_size_t: "Q", ctypes.c_void_p: "Q"}


def _value(v: Any) -> int:
    """A number, 0 of None, else the address of a tensor."""
    return v if isinstance(v, int) else 0 if v is None else v.data_ptr()


def _pack(form: bytes, *values: Any) -> bytes:
    """The bytes of a structure whose first field is its own size; form: I or Q for each other field."""
    layout = "=Q" + form.decode()
    if len(values) != len(form):
        raise TypeError(f"pack: {len(values)} values for {len(form)} fields; at most 40")
    try:
        return struct.pack(layout, struct.calcsize(layout), *map(_value, values))
    except struct.error as error:
        raise OverflowError(f"pack: {error}") from None


def _fits(t: Any, kind: type, dtype: Any, sizes: Sequence[int], device: Any) -> bool:
    """Whether t is a contiguous tensor of that kind; -1 among the sizes: any."""
    if not isinstance(t, kind) or t.dtype != dtype:
        return False
    shape = t.shape
    return (len(shape) == len(sizes) and all(want in (-1, have) for want, have in zip(sizes, shape)) and t.device == device
            and t.is_contiguous() is True)


def _rows(t: Any, kind: type, device: Any) -> Optional[Tuple[int, int, Any, int, int]]:
    """(rows, columns, dtype, bytes of an element, address) of a contiguous tensor of that kind with two dimensions; None: it is none."""
    if not isinstance(t, kind) or t.device != device or t.is_contiguous() is not True or len(t.shape) != 2:
        return None
    return (*t.shape, t.dtype, t.element_size(), t.data_ptr())


def _bind(function: Any) -> Callable[..., int]:
    return function


def _launcher(check: Any, function: Any, at: int, declared: type) -> Callable[..., int]:
    """A function f(stream, *values) that packs a structure and calls function(at, packed, stream), unless check(at) returns less than 0; check may be None."""
    form = form_of(declared)

    def launch(stream: Optional[int], *values: Any) -> int:
        packed = pack(form, *values)
        result = 0 if check is None else check(at)
        return result if result < 0 else function(at, packed, stream)
    return launch


pack, fits, rows, bind, launcher = _pack, _fits, _rows, _bind, _launcher


def _address(function: Any) -> int:
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _bound(run: Callable, function: Any) -> Callable[..., int]:
    """A function of a library for run(): f(object[, packed or address[, halves], stream])."""
    return functools.partial(run, _address(function))


def _quick_launcher(launch: Callable, check: Any, function: Any, at: int, declared: type) -> Callable[..., int]:
    """What _launcher() says, by launch()."""
    return functools.partial(launch, _address(check), _address(function), at, form_of(declared))


def load(library: str) -> bool:
    """Loads the extension, from beside this file, beside a library, or the build tree that library is in. Returns whether it serves."""
    global pack, fits, rows, bind, launcher
    if pack is not _pack:
        return True
    if sys.version_info < (3, 10) or os.environ.get("EPF_PYTHON_EXTENSION") == "off":
        return False
    beside = os.path.dirname(os.path.abspath(library)) if os.path.dirname(library) else ""
    for folder in (os.path.dirname(os.path.abspath(__file__)), beside, os.path.join(beside, "../tools/python")):
        path = os.path.join(folder, FILE)
        if not os.path.exists(path):
            continue
        try:
            loader = importlib.machinery.ExtensionFileLoader("epf._call", path)
            module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("epf._call", path, loader=loader))
            loader.exec_module(module)
        except ImportError:  # of another machine, or broken: ctypes does as well
            continue
        pack, fits, rows, bind = module.pack, module.fits, module.rows, functools.partial(_bound, module.run)
        launcher = functools.partial(_quick_launcher, module.launch)
        return True
    return False


def form_of(declared: type) -> bytes:
    """What pack() takes for a ctypes.Structure whose first field is its size: I or Q for each other number in it."""
    def letters(kind: Any) -> str:
        if hasattr(kind, "_fields_"):
            return "".join(letters(field[1]) for field in kind._fields_)
        if hasattr(kind, "_length_"):
            return letters(kind._type_) * kind._length_
        return LETTERS[kind]
    form = letters(declared)[1:]
    assert struct.calcsize("=Q" + form) == ctypes.sizeof(declared), f"{declared.__name__} has holes"
    return form.encode()


def packer(declared: type) -> Callable[..., bytes]:
    """A function that packs the fields of a structure, in their order, without its size."""
    form = form_of(declared)

    def packed(*values: Any) -> bytes:
        return pack(form, *values)
    return packed
