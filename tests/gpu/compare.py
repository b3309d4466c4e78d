#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares command rings with peers' programs, alternating, on one GPU.

    tests/gpu/compare.py --bench PATH [--rounds N] [--commands N] [--cores N] [--peer 'NAME;SHAPE;REGEX;COMMAND']...

Each round runs ep-bench once and every peer's COMMAND once. REGEX finds the figures in its output (one group; the best figure of a run counts),
and SHAPE selects our figure for the comparison:

    one     million commands a second, all warps as fast as they can, one consumer core on each side
    many    the same with --cores consumer cores for us, and the peer's default
    paced   one push per warp and microsecond, --cores cores
    trip    ns from a push until the kernel sees it dequeued
    fenced  the same after making a payload in GPU memory visible

NAME should contain the peer's commit. Prints medians over the rounds, and ratios. Run by hand and by run.sh; the peers' programs are built
separately. Exit 0: everything ran and our results were right; 77: no GPU. Speed is printed and never judged.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys

TIMEOUT_S = 120
# Shape: names of our rows, whether more is better, unit.
SHAPES = {
    "one": ({"private": r"^sum private, .* 1 core$", "shared": r"^sum shared, .* 1 core$"}, True, "M/s"),
    "many": ({"private": r"^sum private, .* {cores} cores$", "shared": r"^sum shared, .* {cores} cores$"}, True, "M/s"),
    "paced": ({"private": r"^raw private, paced, .* {cores} cores$", "shared": r"^raw shared, paced, .* {cores} cores$"}, True, "M/s"),
    "trip": ({"private": r"^round trip, private ring, engine, idle$", "shared": r"^round trip, shared ring, engine, idle$"}, False, "ns"),
    "fenced": ({"private": r"^round trip, payload \+ fence, 1 a batch, idle$"}, False, "ns"),
}


def run(command):
    """Returns exit status and output of a command: a list, or a line for the shell."""
    try:
        done = subprocess.run(command, shell=isinstance(command, str), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=TIMEOUT_S, text=True, errors="replace", check=False)
    except subprocess.TimeoutExpired:
        return 124, "did not end within %d s" % TIMEOUT_S
    return done.returncode, done.stdout


def run_ours(options, parts):
    """Runs ep-bench once; returns its rows (name to value) and the number of wrong results."""
    status, text = run([options.bench, "ring", "--gpu", "--json", "--gpu-backend", options.backend, "--commands", str(options.commands),
                        "--cores", str(options.cores), "--trips", str(options.trips), "--parts", parts])
    if status == 77:
        print(text.strip() or "no GPU")
        sys.exit(77)
    start = text.find("{")
    if start < 0:
        sys.exit("ep-bench ring --gpu: %s" % text.strip())
    report = json.loads(text[start:])
    return {row["name"]: row["value"] for row in report["rows"]}, report["wrong"]


def parse_peer(text):
    fields = text.split(";", 3)
    if len(fields) != 4 or fields[1] not in SHAPES:
        raise argparse.ArgumentTypeError("a peer is NAME;SHAPE;REGEX;COMMAND with SHAPE one of %s" % ", ".join(SHAPES))
    return {"name": fields[0], "shape": fields[1], "regex": re.compile(fields[2]), "command": fields[3], "values": []}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bench", required=True, help="ep-bench")
    parser.add_argument("--backend", default="auto", help="gpu-backend (auto); fake needs no GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commands", type=int, default=400000000, help="as of ep-bench ring --gpu")
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--trips", type=int, default=10000)
    parser.add_argument("--peer", type=parse_peer, action="append", default=[], metavar="NAME;SHAPE;REGEX;COMMAND")
    return parser.parse_args()


def measure(options):
    """Runs all rounds; returns our values by row, and how much was wrong."""
    ours, wrong = {}, 0
    for _ in range(options.rounds):
        rows, bad = run_ours(options, "ptxr")
        wrong += bad
        for name, value in rows.items():
            ours.setdefault(name, []).append(value)
        for peer in options.peer:
            status, text = run(peer["command"])
            found = [float(v) for v in peer["regex"].findall(text)]
            if status or not found:
                print("# %s: exit %d, %d figures: %s" % (peer["name"], status, len(found), text.strip()[-200:]))
                wrong += 1
                continue
            best = max if SHAPES[peer["shape"]][1] else min
            peer["values"].append(best(found))
    return ours, wrong


def median_of(ours, pattern, cores):
    found = [v for name, values in ours.items() if re.search(pattern.replace("{cores}", str(cores)), name) for v in values]
    return statistics.median(found) if found else None


def report(options, ours):
    for name, values in ours.items():
        print("ours  %-52s %10.1f  (%s)" % (name, statistics.median(values), ", ".join("%.1f" % v for v in values)))
    print("# ratio: throughput ours/theirs, times theirs/ours: above 1 is ours")
    print("%-6s %-62s %10s %10s %7s %10s %7s" % ("shape", "peer", "theirs", "private", "ratio", "shared", "ratio"))
    for peer in options.peer:
        rows, more_is_better, unit = SHAPES[peer["shape"]]
        if not peer["values"]:
            continue
        theirs = statistics.median(peer["values"])
        line = "%-6s %-62s %10.1f" % (peer["shape"], peer["name"], theirs)
        for kind in ("private", "shared"):
            value = median_of(ours, rows[kind], options.cores) if kind in rows else None
            if value is None or not theirs or not value:
                line += " %10s %7s" % ("-", "-")
            else:
                line += " %10.1f %7.2f" % (value, value / theirs if more_is_better else theirs / value)
        print(line + "  " + unit)


def main():
    options = parse_options()
    ours, wrong = measure(options)
    report(options, ours)
    print("# wrong: %d" % wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
