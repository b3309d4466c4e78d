#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""UCCL's benchmarks on our endpoint: their programs from a tree of theirs, unchanged, with `uccl.p2p` replaced by epf.p2p.

    bench/uccl/run.py --uccl TREE --libepf FILE [--device cpu|gpu] [--iters N] [--sizes BYTES,...] [--only REGEX]

Runs p2p/benchmarks/benchmark_uccl.py in two processes for each mode: write and read, 1 and 16 blocks, synchronous and asynchronous, and the same between
processes of one machine (write-ipc, read-ipc); then p2p/benchmarks/benchmark_ray_p2p.py, which transfers descriptors (transfer). Prints their rates, the best of each mode, and the load. Needs PyTorch and NumPy. On CPU memory,
torch.cuda.set_device() does nothing, and buffers that the _ipc modes take from a GPU are the host's.

Exit 0: every mode ran; 1: one did not; 77: PyTorch or NumPy is not here.
"""
import argparse
import importlib.util
import os
import re
import socket
import subprocess
import sys
import types

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CALLS, DESCRIPTORS = "benchmark_uccl.py", "benchmark_ray_p2p.py"
MODES = [(f"{kind}{'-async' if is_async else ''}-{count}", CALLS, ["--float-type", "none"] + options + (["--async-api"] if is_async else []) + ["--num-iovs", str(count)])
         for kind, options in (("write", ["--mode", "write"]), ("read", ["--mode", "read"]), ("write-ipc", ["--write-ipc"]), ("read-ipc", ["--read-ipc"]))
         for is_async in (False, True) for count in (1, 16)]
MODES += [(f"transfer-{count}", DESCRIPTORS, ["--num-iovs", str(count)]) for count in (1, 16)]
SECONDS = 120


def rank(tree, program, device, arguments):
    """One of the two processes: their main() on our module."""
    sys.path.insert(0, os.path.join(ROOT, "tools/python"))
    import torch
    from epf import p2p
    uccl = types.ModuleType("uccl")
    uccl.p2p = p2p
    sys.modules["uccl"], sys.modules["uccl.p2p"] = uccl, p2p
    path = os.path.join(tree, "p2p/benchmarks", program)
    spec = importlib.util.spec_from_file_location(program[:-3], path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    if device == "cpu":
        torch.cuda.set_device = lambda device: None
        make = theirs._make_buffer
        theirs._make_buffer = lambda size, device, *more: make(size, "cpu", *more)
    sys.argv = [path, "--device", device, *arguments]
    theirs.main()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(args, name, program, options):
    """Runs both processes of a mode. Returns their lines with rates, or None after saying what went wrong."""
    port = str(free_port())
    command = [sys.executable, os.path.abspath(__file__), "--rank", program, "--uccl", args.uccl, "--device", args.device, "--", *options, "--iters", str(args.iters),
               "--sizes", args.sizes]
    both = [subprocess.Popen(command + ([] if args.device == "cpu" or "ipc" in name else ["--local-gpu-idx", str(r)]), text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, env={**os.environ, "EPF_LIBRARY": os.path.abspath(args.libepf), "PYTHONUNBUFFERED": "1",
                                                            "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            for r in (0, 1)]
    texts = []
    for process in both:
        try:
            texts.append(process.communicate(timeout=SECONDS)[0])
        except subprocess.TimeoutExpired:
            for other in both:
                other.kill()
            texts.append(process.communicate()[0] + f"\nno end after {SECONDS} s")
    rows = re.findall(r"^\[Client(/\w+)?\] +(.*?) : +[\d.]+ Gbps \| +([\d.]+) GB/s +\| +([\d.]+) us", "\n".join(texts), re.M)
    if any(p.returncode for p in both) or len(rows) != len(args.sizes.split(",")) * (2 if program == DESCRIPTORS else 1):
        print(f"{name}: DID NOT RUN, status {[p.returncode for p in both]}\n" + "\n".join(line for text in texts for line in text.splitlines()[-8:]))
        return None
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uccl", required=True)
    parser.add_argument("--libepf")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--sizes", default="8,4096,65536,1048576,16777216")
    parser.add_argument("--only", default=".")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return rank(args.uccl, args.rank, args.device, args.rest)
    if not args.libepf:
        parser.error("--libepf: the libepf.so.0 of a build")
    missing = [name for name in ("torch", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{' and '.join(missing)} not here: UCCL's benchmark needs both")
        return 77
    failed = 0
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; {args.device} memory, {args.iters} rounds; microseconds a call and GB/s")
    for name, program, options in MODES:
        if re.search(args.only, name):
            rows = run(args, name, program, options)
            failed += rows is None
            print(f"{name:18s} " + (", ".join(f"{size}{phase.lower()} {us} us {rate}" for phase, size, rate, us in rows) if rows else "DID NOT RUN"), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}; {'every mode ran' if not failed else f'{failed} modes did not run'}")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
