#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of this project: alternating pairs of ep-bench runs, and the median of their ratios.

  builds.py BEFORE AFTER [--pairs N] [--only REGEX]

BEFORE and AFTER are ep-bench programs. A ratio above 1 says that AFTER is faster. Prints the load of the machine first: pairs measured beside
other work say nothing. Each pair runs both programs, in alternating order. Exit status 1: a run failed or reported a wrong result.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

# Name, arguments, path of the figure in the JSON, and whether more of it is better.
FORMS = (
    ("core", "core", ("engine_commands_per_second",), True),
    ("empty", "empty", ("posts", 0, "fabric_ns"), False),
    ("p2p latency, 8 bytes", "p2p --same-node -n 2000", ("sizes", 0, "typical_us"), False),
    ("p2p bandwidth, 64 KiB", "p2p --same-node --test bw --op put -s 65536 -n 5000", ("sizes", 0, "average_bytes_per_second"), True),
    ("moe dispatch", "moe --ranks 4 --nodes 2 --hidden 2048 --tokens 256 --topk 4 --experts 16 --dispatch fp8 --seed 1 --rounds 5",
     ("dispatch_us",), False),
    ("moe combine", "moe --ranks 4 --nodes 2 --hidden 2048 --tokens 256 --topk 4 --experts 16 --dispatch fp8 --seed 1 --rounds 5",
     ("combine_us",), False),
)


def figure(program, arguments, path):
    run = subprocess.run([program, *arguments.split(), "--json"], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{program} {arguments}: exit status {run.returncode}\n{run.stderr[-800:]}")
    value = json.loads(run.stdout)
    if value.get("wrong"):
        sys.exit(f"{program} {arguments}: {value['wrong']} wrong")
    for key in path:
        value = value[key]
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    print(f"# {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}, {args.pairs} pairs")
    print(f"#{'form':23} {'before':>14} {'after':>14} {'ratio':>7} {'quartiles':>15}")
    for name, arguments, path, more in FORMS:
        if not re.search(args.only, name):
            continue
        pairs = []
        for n in range(args.pairs):
            order = (args.before, args.after) if n % 2 == 0 else (args.after, args.before)
            got = {program: figure(program, arguments, path) for program in order}
            pairs.append((got[args.before], got[args.after]))
        ratios = [(b / a if more else a / b) for a, b in pairs]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        print(f"{name:24} {statistics.median(a for a, _ in pairs):14.1f} {statistics.median(b for _, b in pairs):14.1f} "
              f"{statistics.median(ratios):7.3f} {low:7.3f} {high:7.3f}", flush=True)


if __name__ == "__main__":
    main()
