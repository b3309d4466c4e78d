# SPDX-License-Identifier: Apache-2.0
"""Where the time of a Buffer's calls goes: why_slow(), and ranges for profilers. Nothing here runs in a call unless a profiler's ranges were asked for."""
from __future__ import annotations

import functools
import os
from typing import Any, Callable, Optional

from epf import why

from .checks import need

# Nsight Systems sets it in programs that it starts.
NSIGHT = "NVTX_INJECTION64_PATH"


class Slow:
    """Base of Buffer: the question, and its answer."""

    def why_slow(self, all_ranks: bool = False, since: Optional[why.Why] = None, quiet: bool = False) -> why.Why:
        """Says which ranks hold up the calls of this Buffer, and why: causes, the longest waits first, and time by kind of call; prints it as text.

        Reads what kernels have counted since the Buffer was made, or since an earlier answer; what runs at the moment is counted in part. Waits for no
        kernel, and disturbs no stream.

        Arguments:
            all_ranks: collective: all ranks' counts together. In low latency only they tell a late rank from a slow link.
            since: an earlier answer for the same ranks: only what happened after it counts.
            quiet: print nothing.

        Returns: epf.why.Why. Raises EpfError where the setting call-stats is off, ArgumentError before the first call.
        """
        where = "Buffer.why_slow"
        need(self._ll is not None, where, "no call was made yet, or this Buffer is destroyed: there is nothing to say")
        mine = why.read(self._ll, self.group_size)
        reports = self._ranks.all_gather(mine) if all_ranks else [mine]
        need(since is None or len(since.reports) == len(reports), where, "since is the answer for other ranks; give all_ranks as then")
        answer = why.explain(reports, None if since is None else since.reports)
        if not quiet:
            print(answer, end="")
        return answer


def show_ranges(buffer_class: Any, torch: Any) -> None:
    """Lets the calls of a class of Buffers show in PyTorch's profiler and in Nsight as ranges, with the names that why_slow() uses. Stays so."""
    if getattr(buffer_class, "_has_ranges", False):
        return
    buffer_class._has_ranges = True
    for method, name in (("get_dispatch_layout", "ht.layout"), ("dispatch", "ht.dispatch"), ("combine", "ht.combine"),
                         ("low_latency_dispatch", "ll.dispatch"), ("low_latency_combine", "ll.combine")):
        setattr(buffer_class, method, _in_range(torch, getattr(buffer_class, method), name))


def show_ranges_if_profiled(buffer_class: Any, torch: Any) -> None:
    """The same where Nsight Systems has started the program."""
    if NSIGHT in os.environ:
        show_ranges(buffer_class, torch)


def _ranged(torch: Any, name: str, call: Callable, *arguments: Any, **named: Any) -> Any:
    cuda = torch.cuda.is_available()
    with torch.profiler.record_function(name):
        if cuda:
            torch.cuda.nvtx.range_push(name)
        try:
            return call(*arguments, **named)
        finally:
            if cuda:
                torch.cuda.nvtx.range_pop()


def _in_range(torch: Any, call: Callable, name: str) -> Callable:
    """A call within a range, and the hook that it returns, which receives, within another."""
    @functools.wraps(call)
    def ranged(*arguments: Any, **named: Any) -> Any:
        answer = _ranged(torch, name, call, *arguments, **named)
        if not name.startswith("ll.") or answer[-1] is None:
            return answer
        return (*answer[:-1], functools.partial(_ranged, torch, name + ".recv", answer[-1]))
    return ranged
