# SPDX-License-Identifier: Apache-2.0
"""Why calls are slow: what libepf-ll's kernels count, and what follows from it, as kernels/epf_why.h describes it. By ctypes; nothing here runs in a call."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from . import lib, lowlat

CALLS, PHASES, REASONS = 8, 3, 3


class CCalls(ctypes.Structure):
    """struct epf_why_calls."""
    _fields_ = [("calls", c_uint64), ("ns", c_uint64 * PHASES)]


class CWait(ctypes.Structure):
    """struct epf_why_wait."""
    _fields_ = [("ns", c_uint64), ("times", c_uint64), ("most_ns", c_uint64)]


class CPeer(ctypes.Structure):
    """struct epf_why_peer."""
    _fields_ = [("wait", CWait * REASONS), ("rows_to", c_uint64), ("rows_from", c_uint64)]


class CReport(ctypes.Structure):
    """struct epf_why_report, without its peers."""
    _fields_ = [("bytes", c_uint32), ("rank", c_uint32), ("ranks", c_uint32), ("reserved", c_uint32), ("call", CCalls * CALLS)]


class CCause(ctypes.Structure):
    """struct epf_why_cause."""
    _fields_ = [("kind", c_uint32), ("rank", c_uint32), ("ns", c_uint64), ("times", c_uint64), ("most_ns", c_uint64), ("share", c_double),
                ("received", c_double), ("sent", c_double), ("call", c_uint32), ("reserved", c_uint32)]


PROTOTYPES = {
    "epf_why_call_name": (c_char_p, [c_uint32]),
    "epf_why_kind_name": (c_char_p, [c_uint32]),
    "epf_why_report_bytes": (c_uint64, [c_uint32]),
    "epf_why_read": (c_int, [c_void_p, c_void_p]),
    "epf_why_since": (None, [c_void_p, c_void_p]),
    "epf_why_explain": (c_uint32, [POINTER(c_void_p), c_uint32, POINTER(CCause), c_uint32]),
    "epf_why_text": (c_size_t, [POINTER(c_void_p), c_uint32, c_char_p, c_size_t]),
}


@dataclass(frozen=True)
class Cause:
    """One cause: a rank, and how it holds up the others.

    kind: "late", it begins its calls late; "link", it begins in time and its rows arrive late; "load", it sends or receives more rows than the others;
    "unknown", late or link, which all_ranks=True tells. ns: the other ranks of the report together waited so long for it, in `times` waits, most_ns at
    most; share: of the time of their calls. received, sent: its rows as a multiple of the mean of the others; 0.0: too few to say. call: the kind
    of call in which it was waited for longest.
    """
    kind: str
    rank: int
    ns: int
    times: int
    most_ns: int
    share: float
    received: float
    sent: float
    call: str


@dataclass(frozen=True)
class Call:
    """One kind of call: how many, and their time on the GPU: waiting for ranks, moving rows, copying; nanoseconds, all ranks of the report together."""
    calls: int
    wait_ns: int
    move_ns: int
    copy_ns: int


@dataclass(frozen=True)
class Why:
    """The answer of why_slow(). str() gives it as text. causes: the longest waits first; calls: by kind; ranks: whose reports it is made of."""
    causes: List[Cause]
    calls: Dict[str, Call]
    ranks: List[int]
    text: str
    reports: List[bytes] = field(repr=False)

    def __str__(self) -> str:
        return self.text


def load() -> ctypes.CDLL:
    dll = lowlat.load()
    if not hasattr(dll, "epf_why_declared"):
        lib.declare(dll, PROTOTYPES, lowlat.SONAME)
        dll.epf_why_declared = True
    return dll


def read(ll: lowlat.LowLatency, ranks: int) -> bytes:
    """The report of this rank, since its Buffer was made. Raises EpfError where the setting call-stats is off."""
    dll = load()
    report = ctypes.create_string_buffer(dll.epf_why_report_bytes(ranks))
    lowlat.check(dll.epf_why_read(ll.handle, report))
    return report.raw


def explain(reports: Sequence[bytes], since: Optional[Sequence[bytes]] = None) -> Why:
    """What follows from the reports of one or several ranks of a job. since: earlier ones of the same ranks; then only what happened in between counts."""
    dll = load()
    held = [ctypes.create_string_buffer(r, len(r)) for r in reports]
    for later, before in zip(held, since or ()):
        dll.epf_why_since(later, ctypes.create_string_buffer(before, len(before)))
    heads = [CReport.from_buffer(r) for r in held]
    given = (c_void_p * len(held))(*(ctypes.addressof(r) for r in held))
    causes = (CCause * (2 * heads[0].ranks))()
    found = dll.epf_why_explain(given, len(held), causes, len(causes))
    size = dll.epf_why_text(given, len(held), None, 0) + 1
    text = ctypes.create_string_buffer(size)
    dll.epf_why_text(given, len(held), text, size)
    calls: Dict[str, Call] = {}
    for k in range(CALLS):
        sums = [sum(h.call[k].calls for h in heads)] + [sum(h.call[k].ns[p] for h in heads) for p in range(PHASES)]
        if sums[0]:
            calls[dll.epf_why_call_name(k).decode()] = Call(*sums)
    return Why([_cause(dll, c) for c in causes[:found]], calls, [h.rank for h in heads], text.value.decode(), list(reports))


def _cause(dll: Any, c: CCause) -> Cause:
    return Cause(dll.epf_why_kind_name(c.kind).decode(), c.rank, c.ns, c.times, c.most_ns, c.share, c.received, c.sent,
                 dll.epf_why_call_name(c.call).decode())
