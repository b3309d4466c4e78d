#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python itself costs in a call of deep_ep.Buffer, without a GPU: CPU tensors in the place of a GPU's, and functions that return at once in the place
of the libraries and of torch.cuda.

Usage: EPF_LIBRARY=... EPF_LL_LIBRARY=... call_python.py PACKAGE[,PACKAGE] [--rounds 7] [--calls 2000] [--profile CALL]

PACKAGE: a folder with the packages epf and deep_ep; of two, the second divided by the first is printed, from alternating runs. The extension is used if it
lies beside epf/call.py or in the build of EPF_LL_LIBRARY. Needs PyTorch. us of this thread's CPU time per call, smallest of the rounds. Nothing is judged.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import time

RANKS, EXPERTS, TOPK, HIDDEN, TOKENS, RECEIVED = 2, 256, 8, 64, 128, 200  # rows so small that the allocator makes no system call
AT_ONCE = ctypes.CDLL(None).pthread_mutexattr_destroy  # returns 0 and does nothing


class Stream:
    """Of torch.cuda: nothing waits for it."""

    def __init__(self, number):
        self.cuda_stream = number

    def at_once(self, *_):
        return self
    wait = wait_stream = wait_event = record_event = at_once


class Library:
    """The functions of a library."""

    def __init__(self, real):
        self.epf_ht_window_bytes = real.epf_ht_window_bytes

    def __getattr__(self, name):
        return (lambda *_: 0) if name in ("epf_ht_lacks", "epf_ht_plan_bytes") else AT_ONCE


def make_buffer(torch):
    """Returns a Buffer whose calls reach no library, and believe that they are on a GPU."""
    import deep_ep
    import epf
    from epf import lowlat, throughput
    from epf.results import Results
    from epf.tensors import allocator

    class Two(epf.fabric.Group):
        rank, size = 0, RANKS

        def all_gather(self, mine):
            return [mine, mine]

    library = Library(throughput.load())
    deep_ep.Buffer._open = lambda self, size, direct: None
    b = deep_ep.Buffer(Two(), num_rdma_bytes=1 << 30, low_latency_mode=True, explicitly_destroy=True, device="cpu")
    b._on_gpu, b._index, b._raw_stream, b._window_size = True, 0, lambda index: 7, 1 << 40
    current, b._comm_stream, b._comm_number = Stream(7), Stream(9), 9
    b._current_stream = torch.cuda.current_stream = lambda *_: current
    torch.Tensor.record_stream = lambda tensor, stream: None
    b._ht = ht = throughput.Throughput.__new__(throughput.Throughput)
    ht._dll, ht._ht, ht._at, ht.nodes, ht.node_max = library, ctypes.c_void_p(8), 8, 1, RANKS
    ht._bind(library, 8)
    b._ll = ll = lowlat.LowLatency.__new__(lowlat.LowLatency)
    ll._dll, ll._ll, ll._at = library, ctypes.c_void_p(8), 8
    ll._dispatch, ll._combine, ll._check = (lowlat.call.bind(AT_ONCE) for _ in range(3))
    b._results = pool = Results.__new__(Results)
    pool._torch, pool._device, pool._first, pool._pool = torch, b.device, 0, type("Pool", (), {"id": (0, 1)})
    pool._new, pool._ways = allocator(torch, b.device), [lambda index, pool: None] * 3
    b._host_counts(256)
    b._numbers[1] = b._numbers[2] = RECEIVED
    b._numbers[5] = getattr(throughput, "FITS", 0)
    return b


def calls_of(b, torch):
    """Returns functions by the name of what they call."""
    x, idx = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16), torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(TOKENS)])
    weights, y = torch.rand(TOKENS, TOPK), torch.zeros((EXPERTS // RANKS, TOKENS * RANKS, 128), dtype=torch.bfloat16)

    def first():
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(idx, EXPERTS)
        return b.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=weights)
    rows, _, row_weights, _, handle, _ = first()

    def layer():
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(idx, EXPERTS)
        y, *_, handle, event = b.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx,
                                          topk_weights=weights, async_finish=True)
        event.current_stream_wait()
        *_, event = b.combine(y, handle, async_finish=True)
        event.current_stream_wait()
    wide = torch.zeros(TOKENS, 128, dtype=torch.bfloat16)

    def pair():
        _, _, at, _, _ = b.low_latency_dispatch(wide, idx, TOKENS, EXPERTS)
        b.low_latency_combine(y, idx, weights, at)
    b._shape = type(b.low_latency_dispatch(wide, idx, TOKENS, EXPERTS)[2].shape)(TOKENS, 128, EXPERTS, TOPK)
    return {"layout": lambda: b.get_dispatch_layout(idx, EXPERTS), "layout + dispatch": first, "dispatch, cached handle": lambda: b.dispatch(x, handle=handle),
            "combine": lambda: b.combine(rows, handle), "combine with weights": lambda: b.combine(rows, handle, topk_weights=row_weights),
            "low-latency pair": pair, "as vLLM calls it": layer}


def measure(a):
    import torch
    calls = calls_of(make_buffer(torch), torch)
    if a.profile:
        import cProfile
        import pstats
        profile = cProfile.Profile()
        profile.runcall(lambda: [calls[a.profile]() for _ in range(a.calls)])
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    for name, call in calls.items():
        took = []
        for _ in range(a.rounds):
            start = time.thread_time()
            for _ in range(a.calls):
                call()
            took.append((time.thread_time() - start) / a.calls * 1e6)
        print(f"{name:26} {min(took):8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages")
    for option, value in (("rounds", 7), ("calls", 2000)):
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--profile")
    a = parser.parse_args()
    packages = a.packages.split(",")
    if len(packages) == 1:
        sys.path.insert(0, packages[0])
        measure(a)
        return
    best = [{}, {}]
    for _ in range(3):
        for package, known in zip(packages, best):
            text = subprocess.run([sys.executable, __file__, package, f"--rounds={a.rounds}", f"--calls={a.calls}"], check=True, capture_output=True, text=True).stdout
            for line in text.splitlines():
                known[line[:26]] = min(float(line[26:]), known.get(line[:26], 1e9))
    print(f"# load {os.getloadavg()[0]:.1f}\n# {'call':24}    first   second    ratio")
    for name, first in best[0].items():
        print(f"{name:26} {first:8.2f} {best[1][name]:8.2f} {best[1][name] / first:8.2f}")


if __name__ == "__main__":
    main()
