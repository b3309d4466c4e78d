# SPDX-License-Identifier: Apache-2.0
"""libepf by ctypes: where it is, what its functions take and give, and its errors as exceptions.

Nothing is loaded by importing this module: load() does it, once, so that the package can be imported on a machine that lacks the library,
and say why it cannot run there.
"""
from __future__ import annotations

import ctypes
import errno
import os
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Iterator, List, Optional

# What the loader knows the library as; the major version is the ABI's.
SONAME = "libepf.so.0"


class EpfError(RuntimeError):
    """A call of the library failed. `errno` is the positive number, the text is the library's own line with cause and remedy."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number


class Unavailable(EpfError):
    """The fabric cannot run here at all; the text says what is missing and where it was looked for."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ENOENT, text)


class Options(ctypes.Structure):
    """struct epf_options of epf.h."""
    _fields_ = [("size", c_size_t), ("config_file", c_char_p), ("settings", POINTER(c_char_p)),
                ("progress", c_void_p), ("progress_arg", c_void_p), ("now", c_void_p), ("now_arg", c_void_p)]


# name: (result, arguments), in the order of epf.h. Only what the package calls.
_OUT = POINTER(c_void_p)
PROTOTYPES = {
    "epf_options_init": (None, [POINTER(Options)]),
    "epf_open": (c_int, [POINTER(Options), _OUT]),
    "epf_mode": (c_char_p, [c_void_p]),
    "epf_close": (None, [c_void_p]),
    "epf_last_error": (c_char_p, []),
    "epf_join": (c_int, [c_void_p, c_void_p]),
    "epf_rank": (c_uint32, [c_void_p]),
    "epf_world": (c_uint32, [c_void_p]),
    "epf_node_of": (c_uint32, [c_void_p, c_uint32]),
    "epf_nodes": (c_uint32, [c_void_p]),
    "epf_barrier": (c_int, [c_void_p]),
    "epf_allgather": (c_int, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "epf_memory_alloc": (c_int, [c_void_p, c_uint64, _OUT]),
    "epf_memory_free": (None, [c_void_p, c_void_p]),
    "epf_region_register": (c_int, [c_void_p, c_void_p, c_uint64, c_uint, POINTER(c_uint32)]),
    "epf_exchange": (c_int, [c_void_p]),
    "epf_peer_state": (c_int, [c_void_p, c_uint32]),
    "epf_peer_mask": (c_int, [c_void_p, c_uint32]),
    "epf_peer_unmask": (c_int, [c_void_p, c_uint32]),
    "epf_abort": (None, [c_void_p]),
    "epf_counter": (c_int, [c_void_p, c_char_p, POINTER(c_uint64)]),
    "epf_stats_file": (c_char_p, [c_void_p]),
    "epf_version": (c_char_p, []),
}

_loaded: Optional[ctypes.CDLL] = None


def candidates() -> Iterator[str]:
    """Where the library is looked for, in this order: EPF_LIBRARY alone if it is set, the place it was installed to, the loader's paths."""
    named = os.environ.get("EPF_LIBRARY")
    if named:
        yield named
        return
    try:
        from ._installed import LIBDIR  # written by meson install
        yield os.path.join(LIBDIR, SONAME)
    except ImportError:
        pass
    yield SONAME


def load() -> ctypes.CDLL:
    """The library, with the types of its functions set. Raises Unavailable, with every place and reason, where it cannot be loaded."""
    global _loaded
    if _loaded is not None:
        return _loaded
    tried: List[str] = []
    for path in candidates():
        try:
            dll = ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error) if path in str(error) else f"{path}: {error}")
            continue
        declare(dll, PROTOTYPES, path)
        _loaded = dll
        return dll
    raise Unavailable("libepf cannot be loaded (" + "; ".join(tried) + "): install EP fabric, or set EPF_LIBRARY to the path of libepf.so")


def declare(dll: ctypes.CDLL, prototypes: dict, path: str) -> None:
    """Sets result and argument types of functions. Raises Unavailable where one is missing: another version of the library."""
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(dll, name)
        except AttributeError:
            raise Unavailable(f"{path} has no function {name}: it is older than this Python package, install both from one version") from None
        function.restype = result
        function.argtypes = arguments


def last_error() -> str:
    """The library's line on the last call of this thread that failed."""
    return (load().epf_last_error() or b"").decode(errors="replace")


def check(result: int, what: str = "") -> int:
    """A negative result becomes EpfError with the library's line; anything else is released."""
    if result >= 0:
        return result
    text = last_error() or os.strerror(-result)
    raise EpfError(-result, f"{what}: {text}" if what else text)
