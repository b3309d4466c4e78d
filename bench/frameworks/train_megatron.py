#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small MoE GPT with Megatron-core, unmodified, and compares its token dispatchers: losses, gradient norms, time of a step.

    PYTHONPATH=tools/python:MEGATRON EPF_LIBRARY=... EPF_LL_LIBRARY=... bench/frameworks/train_megatron.py [--dispatchers flex+hybridep+allgather+alltoall]
        [--deepep DIR] [--shares] [--resume N] [--json FILE] [--hosts A,B [--rsh 'ssh -T']]

Experts are spread over all ranks. Weights and tokens depend on seeds alone, so losses of different dispatchers can be compared. Each round runs every
dispatcher once, in alternating order, in new processes; times are medians of the steps of all rounds after the first third of each, in which memory is still
allocated. `flex` is the dispatcher that calls deep_ep's Buffer, `hybridep` the one that calls its HybridEPBuffer, which orders rows by expert itself, `flex:8` the
first with 8 multiprocessors, and `deepep` `flex` over DeepEP itself, from --deepep, a folder with its package and compiled module.

`flex+allgather` trains one model for each dispatcher in the same processes, alternates between them after every step, and prints the ratios of neighbouring steps:
two runs of one dispatcher differ by more than two dispatchers do. `flex,allgather` runs one dispatcher after the other. Our package and DeepEP's have one name and
never share a process, and a process has one number of multiprocessors, so `allgather` runs beside each of them: `flex:24+allgather,flex:8+allgather`, and --deepep adds
`deepep+allgather`.

--shares runs each dispatcher once more and measures how much of a step its parts take: "moves" is what crosses ranks (token_dispatch, token_combine), "sorts" is
what orders rows before and after; forward and backward, on the GPU's clock and of the CPU thread. --resume N saves the first dispatcher's state after N steps
and continues in new processes: losses must be those of the run that was not interrupted, in every digit.

--hosts spreads the ranks over hosts in equal shares, started by the remote shell; the hosts have this tree, the packages and TMPDIR under the same paths. Variables of PASSED are theirs, too.

Without a GPU everything runs on CPU tensors: losses mean the same, times nothing; gloo has no `alltoall`. More ranks than GPUs share them: then set
PYTHONPATH=tests/gpu/onegpu:... and ONE_GPU=1, and times mean nothing. Exit status 1: a run failed, losses differ by more than 1 %, or a resumed run's losses
differ. With few experts a token and rank all digits agree; with many, dispatchers add a token's rows in other orders.
"""
import argparse
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

import megatron_rank

BAR = 40     # characters of the longest bar
PASSED = ("CUDA_", "EPF_", "GLOO_", "NCCL_", "OMP_", "PYTHON", "TORCH_")
DISPATCHERS = ("flex", "hybridep", "allgather", "alltoall")
SECRET = "EPF_SECRET"  # everybody on a host can read a command line


def placed(a, rank, command, environment):
    """Returns a rank's command on its host."""
    if not a.hosts:
        return command
    hosts = a.hosts.split(",")
    passed = [f"{name}={value}" for name, value in environment.items() if name.startswith(PASSED) and name != SECRET]
    return [*shlex.split(a.rsh), hosts[rank * len(hosts) // a.ranks], shlex.join(["env", *passed, *command])]


def begin(command, environment):
    """Starts a rank. Tests fork it instead, and give back what has communicate() and returncode, too."""
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def keys_of(a, name):
    """Returns what the results of one run are called, in the order of its dispatchers: those of the first run as the dispatchers themselves."""
    first, *others = name.split("+")
    return [first, *(one if name == a.dispatchers.split(",")[0] else f"{one} ({first})" for one in others)]


def run(a, name, *options):
    """Runs all ranks of one dispatcher, or of several joined by "+"; returns {dispatcher: result}, or None."""
    environment = dict(os.environ, CUDA_DEVICE_MAX_CONNECTIONS="1")
    if "deepep" in name:
        environment["PYTHONPATH"] = f"{a.deepep}:{environment.get('PYTHONPATH', '')}"
    sms = re.search(r":(\d+)", name)
    dispatcher = name.replace("deepep", "flex").replace(sms[0] if sms else ":", "")
    nodes = [{"EPF_NODE": node} for node in a.nodes.split(",")] if a.nodes else [{}] * a.ranks
    options = [*options, "--dispatcher", dispatcher, *(("--sms", sms[1]) if sms else ())]
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for r in range(a.ranks):
            command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], *options, "--rank", str(r), "--folder", folder]
            env = {**environment, **nodes[r]}
            ranks.append(begin(placed(a, r, command, env), env))
        texts = [p.communicate()[0] for p in ranks]
        if any(p.returncode for p in ranks):
            print(f"# {name}: a rank failed\n" + "\n".join(text[-1500:] for text in texts))
            return None
        with open(f"{folder}/result.json", encoding="ascii") as f:
            return dict(zip(keys_of(a, name), json.load(f).values()))


def measure(a, names):
    """Runs the rounds; returns {dispatcher: result} with the timed steps of all rounds, or None if a run failed."""
    results = {}
    for r in range(a.rounds):
        for name in names if r % 2 == 0 else reversed(names):
            ran = run(a, name)
            if ran is None:
                return None
            for one, result in ran.items():
                result["ms"] = result["ms"][a.steps // 3:] + results.get(one, {"ms": []})["ms"]
            results.update(ran)
    for name in names if a.shares else ():
        ran = run(a, name, "--measure-shares")
        if ran is None:
            return None
        for one, result in ran.items():
            results[one]["shares"] = shares_of(result, a.steps // 3)
    return results


def shares_of(one, dropped):
    """Returns {part: [percent of a step on the GPU's clock, or None, percent of the CPU thread's time]}, medians of the steps after those dropped."""
    steps = list(zip(one["ms"], one["shares"]))[dropped:]

    def percent(part, clock):
        return statistics.median(100 * s[part][clock] / ms for ms, s in steps)
    return {part: [None if steps[0][1][part][0] is None else percent(part, 0), percent(part, 1)] for part in steps[0][1]}


def show(a, names, results):
    """Prints the table and the bars."""
    middle = {name: statistics.median(got["ms"]) if got["ms"] else float("nan") for name, got in results.items()}
    width = max(map(len, results))
    print(f"{'dispatcher':{width}} {'ms a step':>10} {'tokens/s':>10}  losses; gradient norms")
    for name, got in results.items():
        print(f"{name:{width}} {middle[name]:10.1f} {a.ranks * a.batch * a.seq / middle[name] * 1e3:10.0f}  {' '.join(f'{v:.6f}' for v in got['losses'][:4])} ... "
              f"{got['losses'][-1]:.6f}; {' '.join(f'{v:.5f}' for v in got['norms'][:2])} ... {got['norms'][-1]:.5f}")
    for name in results:
        print(f"# {name:{width}} {middle[name]:8.1f} ms {'#' * round(BAR * middle[name] / max(middle.values()) if middle[name] == middle[name] else 0)}")
    for together in (keys_of(a, name) for name in names):
        for other in together[1:]:
            ratios = sorted(x / y for x, y in zip(results[together[0]]["ms"], results[other]["ms"]))
            if ratios:
                quarter = len(ratios) // 4
                print(f"# {together[0]} / {other}, step by step: median {statistics.median(ratios):.3f}, half of {len(ratios)} between {ratios[quarter]:.3f} and "
                      f"{ratios[-1 - quarter]:.3f}, {sum(r < 1 for r in ratios)} below 1")
    for name, got in results.items() if a.shares else ():
        print(f"# {name:{width}} of a step: " + "; ".join(f"{part} {'' if gpu is None else f'GPU {gpu:.1f} %, '}CPU {cpu:.1f} %" for part, (gpu, cpu) in got["shares"].items()))


def apart(x, y):
    """Returns the largest relative difference of two lists."""
    return max(abs(u / v - 1) for u, v in zip(x, y))


def compare(results):
    """Prints how far the losses of the dispatchers are apart; returns whether that is too far."""
    (first, one), *others = results.items()
    worst = 0.0
    for name, got in others:
        far = apart(got["losses"], one["losses"])
        worst = max(worst, far)
        print(f"# losses and gradient norms of {name} and {first}: " + ("equal in every digit" if (got["losses"], got["norms"]) == (one["losses"], one["norms"])
              else f"losses within {far:.1e}, norms within {apart(got['norms'], one['norms']):.1e}"))
    good = worst < 0.01 and math.isfinite(sum(sum(got["losses"]) for got in results.values()))
    if not good:
        print(f"# WRONG: losses differ by {worst:.1e}, or are no numbers")
    return not good


def resume(a, name, losses):
    """Runs a dispatcher in two halves; returns whether the second half's losses are wrong."""
    with tempfile.TemporaryDirectory() as folder:
        if not run(a, name, "--steps", str(a.resume), "--save", folder):
            return True
        again = run(a, name, "--first", str(a.resume), "--load", folder)
    same = again is not None and again[name]["losses"] == losses[a.resume:]
    print(f"# {name} resumed after {a.resume} of {a.steps} steps: " + ("losses equal in every digit" if same else "WRONG: losses differ"))
    return not same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatchers", default="flex+hybridep+allgather+alltoall")
    parser.add_argument("--deepep", help="folder of DeepEP's package")
    parser.add_argument("--nodes", metavar="A,A,B,B", help="each rank's node; rows cross between nodes over the command path")
    parser.add_argument("--hosts", metavar="A,B", help="hosts that the ranks run on")
    parser.add_argument("--rsh", default="ssh -T", help="remote shell for --hosts")
    parser.add_argument("--shares", action="store_true", help="measure the parts of the dispatchers, too")
    parser.add_argument("--resume", type=int, default=0, metavar="N", help="check that a run saved after N steps goes on alike")
    parser.add_argument("--json", help="write results there, with every digit")
    parser.add_argument("--rounds", type=int, default=1)
    for name, value in megatron_rank.SIZES.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=0.05)
    for name in ("dispatcher", "folder", "save", "load"):  # what run() passes to a rank
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    for name in ("rank", "first"):
        parser.add_argument("--" + name, type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--measure-shares", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.dispatcher:
        a.shares = a.measure_shares
        megatron_rank.train(a)
        return 0
    for name in a.dispatchers.split(","):
        if not re.fullmatch(r"NAME(:\d+)?(\+NAME)*".replace("NAME", f"({'|'.join(DISPATCHERS)})"), name) or len(set(name.split("+"))) <= name.count("+"):
            parser.error(f"--dispatchers: '{name}' is not NAME[:MULTIPROCESSORS][+NAME...], each of {', '.join(DISPATCHERS)} and once; --deepep DIR adds deepep")
    if a.deepep and not os.path.isdir(f"{a.deepep}/deep_ep"):
        parser.error(f"--deepep {a.deepep}: there is no package deep_ep, and ours would run in its place")
    names = a.dispatchers.split(",") + (["deepep+allgather"] if a.deepep else [])
    print(f"# {a.ranks} ranks, {a.layers} layers, hidden {a.hidden}, {a.experts} experts of {a.ffn}, top-{a.topk}, {a.batch * a.seq} tokens a rank; "
          f"{a.steps} steps, load {os.getloadavg()[0]:.2f}", flush=True)
    results = measure(a, names)
    if results is None:
        return 1
    show(a, names, results)
    wrong = compare(results)
    if a.resume:
        first = next(iter(results))
        wrong |= resume(a, first, results[first]["losses"])
    if a.json:
        with open(a.json, "w", encoding="ascii") as f:
            json.dump(results, f)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
