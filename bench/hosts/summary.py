#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians and ratios of what run.sh measured: summary.py FIGURES, whose lines are "NAME UNIT VALUE [CORES-PER-GB/S]". A ratio is the median of the ratios of the rounds, since
what is compared ran side by side in each."""
import collections
import statistics
import sys

# what, over what, aim
RATIOS = (
    ("put-1MiB", "iperf3", "at least 0.9"),
    ("put-1MiB", "ucx-put-1MiB", "above 1"),
    ("put-1MiB-encrypted", "put-1MiB", "the price of wire-encryption"),
    ("put_signal-64B", "ucx-put-64B", "at least 4"),
    ("put_signal-64B-encrypted", "put_signal-64B", "the price of wire-encryption"),
    ("round-trip-polling", "bare-poll", "at most 1.2"),
    ("round-trip-sleeping", "bare-block", "two threads an end over one"),
)
MOE = ("moe-ll", "moe-ht", "moe-ll-bf16", "moe-ht-bf16")


def ratios(values):
    """RATIOS, and those of moe with each number of ranks on a host: to one iperf3 both ways, to as many as there are ranks, to what the CPUs allow."""
    yield from RATIOS
    for by in sorted({name[len(kind):] for kind in MOE for name in values if name == kind or name.startswith(kind + "-x")}):
        for kind in MOE:
            yield kind + by, "iperf3-both-ways", "at least 0.8"
            if by:
                yield kind + by, "iperf3-both-ways" + by, "as many iperf3 as ranks on a host"
            yield kind + by + "-bound", "iperf3-both-ways" + by, "what this machine's CPUs allow"


def main():
    values, cores, units = collections.defaultdict(list), collections.defaultdict(list), {}
    with open(sys.argv[1], encoding="ascii") as f:
        for line in f:
            name, unit, value, *more = line.split()
            units[name] = unit
            values[name].append(float(value))
            if more:
                cores[name].append(float(more[0]))
    print(f"\n{'':26} {'median':>10} {'least':>10} {'most':>10}  unit  cores per GB/s")
    for name, v in values.items():
        more = f"{statistics.median(cores[name]):.3f}" if cores[name] else ""
        print(f"{name:26} {statistics.median(v):10.4g} {min(v):10.4g} {max(v):10.4g}  {units[name]:5} {more}")
    print(f"\n{'ratio':58} {'median':>7} {'range':>15}  aim")
    for what, over, aim in ratios(values):
        r = [a / b for a, b in zip(values.get(what, []), values.get(over, [])) if b]
        if r:
            print(f"{what + ' / ' + over:58} {statistics.median(r):7.3f} {min(r):7.3f} {max(r):7.3f}  {aim}")


main()
