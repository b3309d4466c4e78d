# SPDX-License-Identifier: Apache-2.0
"""Timing calls on a GPU: by events around them, and kernel by kernel with PyTorch's profiler."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple, Union

FLUSH_BYTES = 256 << 20  # more than any GPU's second-level cache


def _flush(torch: Any) -> None:
    torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda").zero_()


def bench(fn: Callable[[], Any], num_warmups: int = 50, num_tests: int = 50, post_fn: Optional[Callable[[], Any]] = None,
          flush_l2: bool = True) -> Tuple[float, float, float]:
    """Seconds of a call, by events: mean, least and most of num_tests calls but the first."""
    import torch
    for _ in range(num_warmups):
        fn()
    torch.cuda.synchronize()
    marks = []
    for _ in range(num_tests):
        if flush_l2:
            _flush(torch)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        fn()
        end.record()
        marks.append((begin, end))
        if post_fn is not None:
            post_fn()
    torch.cuda.synchronize()
    seconds = [begin.elapsed_time(end) / 1e3 for begin, end in marks][1:]
    return sum(seconds) / len(seconds), min(seconds), max(seconds)


def bench_kineto(fn: Callable[[], Any], kernel_names: Union[str, Tuple[str, ...]], num_tests: int = 30,
                 suppress_kineto_output: bool = False, trace_path: Optional[str] = None, flush_l2: bool = True,
                 barrier_comm_profiling: bool = False, num_kernels_per_period: int = 1,
                 barrier: Optional[Callable[[], Any]] = None) -> Any:
    """Seconds of a call spent in kernels whose names contain a text, one number for each text.

    With num_kernels_per_period > 1 a list for each text: the kernels of a call, in order, in so many parts of the same number (the halves of
    a call with a hook). barrier_comm_profiling: the ranks meet on the GPU before each call. suppress_kineto_output has no effect: nothing is printed.
    """
    import torch
    import torch.distributed as dist
    fn()
    meeting = torch.ones(1, dtype=torch.float32, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_tests):
            if flush_l2:
                _flush(torch)
            if barrier_comm_profiling:
                torch.cuda._sleep(20_000_000)  # about 10 ms, so that the launches of all ranks lie behind it
                (barrier or (lambda: dist.all_reduce(meeting)))()
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    kernels = sorted((e.time_range.start, e.time_range.elapsed_us() / 1e6, e.name) for e in profiler.events()
                     if e.device_type == torch.autograd.DeviceType.CUDA)

    def seconds(text: str) -> Union[float, List[float]]:
        mine = [took for _, took, name in kernels if text in name]
        if num_kernels_per_period == 1:
            return sum(mine) / num_tests
        each, left = divmod(len(mine), num_tests * num_kernels_per_period)
        if each == 0 or left:
            raise RuntimeError(f"{len(mine)} kernels named like {text!r} in {num_tests} calls do not make {num_kernels_per_period} parts each")
        parts = [0.0] * num_kernels_per_period
        for i, took in enumerate(mine):
            parts[i // each % num_kernels_per_period] += took / num_tests
        return parts

    return seconds(kernel_names) if isinstance(kernel_names, str) else [seconds(text) for text in kernel_names]
