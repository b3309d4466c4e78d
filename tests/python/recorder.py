# SPDX-License-Identifier: Apache-2.0
"""Buffers that record their calls into the C library, and tensors for them: rank 0 of two, without a library or a GPU.

The package and the stand-in for PyTorch (standin/) must be in sys.path.
"""
import contextlib

import torch  # the stand-in

import deep_ep
import epf
from epf import lowlat

RANKS, TOKENS, HIDDEN, EXPERTS, TOPK = 2, 8, 1024, 6, 4
LOCAL, ROWS = EXPERTS // RANKS, RANKS * TOKENS


class TwoRanks(epf.fabric.Group):
    """Rank 0 of two; the other one gives the same answers."""
    rank, size = 0, RANKS

    def all_gather(self, mine):
        return [mine, mine]


class Recorder:
    """Replaces epf.LowLatency: records its calls."""

    def __init__(self):
        self.calls, self.reports = [], []
        self.buffer = torch.empty(LOCAL * ROWS * HIDDEN, dtype=torch.bfloat16)

    def check(self):
        if self.reports:
            raise self.reports.pop(0)

    def dispatch(self, call, halves, stream=None):
        self.calls.append(("dispatch", lowlat.Dispatch.from_buffer_copy(call), halves))
        torch.cuda.log.append(("launch", halves, stream))

    def combine(self, call, halves, stream=None):
        self.calls.append(("combine", lowlat.Combine.from_buffer_copy(call), halves))

    def next_combine_buffer(self, shape):
        return self.buffer.data_ptr()

    def clean(self, stream=None):
        self.calls.append(("clean",))

    def mask_update(self, rank, masked, stream=None):
        self.calls.append(("mask", rank, masked))

    def mask_query(self, out, stream=None):
        self.calls.append(("query", out))

    def mask_clean(self, stream=None):
        self.calls.append(("mask clean",))

    def close(self):
        self.calls.append(("close",))


@contextlib.contextmanager
def recording():
    """Buffers made inside record their calls in buffer._ll.calls."""
    real, deep_ep.Buffer._open = deep_ep.Buffer._open, lambda self, size, direct: setattr(self, "_ll", Recorder())
    try:
        yield
    finally:
        deep_ep.Buffer._open = real


def buffer(**named):
    """A Buffer that records."""
    with recording():
        return deep_ep.Buffer(TwoRanks(), num_rdma_bytes=1 << 20, low_latency_mode=True, explicitly_destroy=True, **named)


def x(tokens=5, hidden=HIDDEN, **named):
    return torch.empty((tokens, hidden), **{"dtype": torch.bfloat16, **named})


def index(tokens=5, topk=TOPK, **named):
    return torch.empty((tokens, topk), **{"dtype": torch.int64, **named})


def dispatched(b, **named):
    return b.low_latency_dispatch(x(), index(), TOKENS, EXPERTS, **named)


def outputs(**named):
    return torch.empty((LOCAL, ROWS, HIDDEN), **{"dtype": torch.bfloat16, **named})


def weights(tokens=5, topk=TOPK, **named):
    return torch.empty((tokens, topk), **{"dtype": torch.float32, **named})
