#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves a small random Qwen3-MoE model with vLLM, unmodified: two data-parallel ranks with their experts spread, one table for all of its backends.

    PYTHONPATH=tools/python:VLLM EPF_LIBRARY=... EPF_LL_LIBRARY=... bench/frameworks/serve_vllm.py [--backends A,B,...] [--kernel-only] [--json FILE]

Each backend runs in new processes with the same weights and prompts, without a tokenizer. The greedy tokens of each must be those of the first, up to a
position where the two likeliest tokens of both are closer than --tie; after that a request counts no more. Then prefill (prompts of 1,024 tokens, one new
token) and decoding (64 sequences a rank) are measured: medians of some rounds, tokens of all ranks by the slower rank's time.

Backends are vLLM's: allgather_reducescatter, deepep_high_throughput, deepep_low_latency; NAME+graphs runs decode steps in CUDA graphs, the others run eager.
--kernel-only leaves the engine out: vLLM's modular kernel with its layer, prepare and finalize classes, next to a reference in float32, and microseconds a layer.

Whatever fails, the last lines of each rank follow. Exit status 1: a run failed or was late, or results differ.
--cpu, with small sizes: CPU tensors stand in for the GPU and Triton interprets its kernels; it checks all but the GPU.
"""
import argparse
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import vllm_rank  # noqa: E402

BACKENDS = "allgather_reducescatter,deepep_high_throughput,deepep_low_latency"
LAST_LINES = 60
MEAN = 0.1  # of --tie: most difference on average. Other kernels round otherwise, and so a token near the edge between two experts changes experts
KERNEL_ERROR = 0.02  # relative, of bf16 kernels with a reference in float32
CPU_SIZES = {"layers": 1, "ffn": 64, "experts": 8, "topk": 2, "heads": 4, "vocab": 64, "requests": 2, "new": 4, "prompts": 2, "prompt": 24, "sequences": 4, "decode": 3,
             "chunk": 16, "ll_chunk": 16, "rounds": 1, "calls": 1}


def child(a, name, rank, folder, port, barrier):
    """A rank's process: writes its output to a separate file; never returns."""
    os.setsid()  # what vLLM starts ends with it
    log = os.open(f"{folder}/{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        vllm_rank.environment(rank, a.ranks, port)
        result = (vllm_rank.kernel if a.kernel_only else vllm_rank.serve)(a, name, rank, folder, barrier.wait)
        with open(f"{folder}/{rank}.json", "w", encoding="ascii") as f:
            json.dump(result, f)
        vllm_rank.say("done")
        status = 0
    except BaseException:  # the parent prints it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Follower:
    """Prints the lines of the ranks' logs that say where they are, as they come."""

    def __init__(self, folder, ranks):
        self._files = [f"{folder}/{r}.log" for r in range(ranks)]
        self._read = [0] * ranks

    def text(self, rank):
        try:
            with open(self._files[rank], encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def show(self):
        for rank in range(len(self._files)):
            lines = self.text(rank).splitlines(keepends=True)
            for line in lines[self._read[rank]:]:
                if not line.endswith("\n"):
                    break
                self._read[rank] += 1
                if "@ " in line:
                    print(f"  rank {rank} {line[line.index('@ '):].rstrip()}", flush=True)

    def last(self):
        for rank in range(len(self._files)):
            lines = [line[:300] for line in self.text(rank).splitlines()]
            first = next((i for i, line in enumerate(lines) if "Traceback" in line), len(lines))
            if first < len(lines) - LAST_LINES:  # an engine reports what its parts report: the cause is far up
                print(f"--- rank {rank}, first traceback\n" + "\n".join(lines[max(first - 3, 0):first + LAST_LINES]))
            print(f"--- rank {rank}, last lines\n" + "\n".join(lines[-LAST_LINES:]), flush=True)


def run(a, name):
    """Runs all ranks with one backend; returns their results, or None."""
    print(f"# {name}: at most {a.limit} s", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")  # vLLM has been imported
        barrier = context.Barrier(a.ranks, timeout=a.limit)
        port = free_port()
        ranks = [context.Process(target=child, args=(a, name, r, folder, port, barrier)) for r in range(a.ranks)]
        for p in ranks:
            p.start()
        follow = Follower(folder, a.ranks)
        while any(p.is_alive() for p in ranks) and time.monotonic() - began < a.limit and not any(p.exitcode for p in ranks):
            time.sleep(0.2)
            follow.show()
        late = [r for r, p in enumerate(ranks) if p.exitcode is None]
        failed = [r for r, p in enumerate(ranks) if p.exitcode]
        for p in ranks:
            if failed and p.is_alive():
                p.join(5)  # it may know why
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.join()
        follow.show()
        print(f"# {name}: {time.monotonic() - began:.0f} s", flush=True)
        if failed or late:
            print(f"# {name}: FAILED: " + (f"rank {failed} ended in an error" if failed else f"rank {late} was not done after {a.limit} s"))
            follow.last()
            return None
        results = []
        for r in range(a.ranks):
            with open(f"{folder}/{r}.json", encoding="ascii") as f:
                results.append(json.load(f))
        return results


def same_tokens(a, name, results, first):
    """Compares greedy tokens with those of the first backend; returns a summary, and whether they are wrong."""
    equal = ties = tokens = 0
    apart, total, wrong = 0.0, 0.0, []
    for rank, (mine, theirs) in enumerate(zip(results, first)):
        for number, (x, y) in enumerate(zip(mine["requests"], theirs["requests"])):
            for place, (u, v) in enumerate(zip(x, y)):
                if u[0] != v[0]:
                    if max(u[2], v[2]) < a.tie:
                        ties += 1
                    else:
                        wrong.append(f"rank {rank}, request {number}, token {place}: {u[0]} and {v[0]}, which lead by {u[2]:.3f} and {v[2]:.3f}")
                    break
                tokens += 1
                apart, total = max(apart, abs(u[1] - v[1])), total + abs(u[1] - v[1])
            else:
                equal += 1
    text = f"{equal} requests equal, {ties} up to a tie; {tokens} tokens, log probabilities within {apart:.3f}, {total / max(tokens, 1):.4f} on average"
    for line in wrong[:5]:
        print(f"# {name}: WRONG: {line}")
    far = apart > a.tie or total > MEAN * a.tie * max(tokens, 1)
    if far:
        print(f"# {name}: WRONG: log probabilities are apart: {text}")
    return text, bool(wrong) or far


def show_served(a, results):
    """Prints the table; returns whether tokens differ."""
    wrong = False
    names = list(results)
    print(f"{'backend':32} {'chunk':>6} {'prefill tokens/s':>17} {'decode tokens/s':>16} {'ms a step':>10}  tokens")
    for name, got in results.items():
        prefill, decode = (max(one[what] for one in got) for what in ("prefill", "decode"))
        text, bad = same_tokens(a, name, got, results[names[0]]) if name != names[0] else (f"{sum(len(one['requests']) for one in got)} requests", False)
        wrong |= bad
        print(f"{name:32} {got[0]['chunk']:6} {a.ranks * a.prompts * a.prompt / prefill:17.0f} {a.ranks * a.sequences * a.decode / decode:16.0f} "
              f"{decode / a.decode * 1e3:10.2f}  {text}")
    return wrong


def show_kernels(results):
    """Prints the table of --kernel-only; returns whether a result is wrong."""
    wrong = False
    print(f"{'backend':32}  relative error by tokens a rank; us a layer")
    for name, got in results.items():
        errors = {tokens: max(one["errors"][tokens] for one in got) for tokens in got[0]["errors"]}
        times = {tokens: max(one["us"][tokens] for one in got) for tokens in got[0]["us"]}
        bad = not max(errors.values()) < KERNEL_ERROR
        wrong |= bad
        print(f"{name:32}  {' '.join(f'{n}: {e:.1e}' for n, e in errors.items())}{' WRONG' if bad else ''}; {' '.join(f'{n}: {t:.0f}' for n, t in times.items())}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=BACKENDS)
    parser.add_argument("--kernel-only", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", help="write results there")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit", type=int, default=120, help="seconds for each backend")
    parser.add_argument("--tie", type=float, default=0.25, help="difference of two log probabilities that counts as none; on average %s of it" % MEAN)
    parser.add_argument("--kv-bytes", type=int, default=4 << 30, help="memory of each rank for keys and values")
    sizes = {**vllm_rank.SIZES, **vllm_rank.WORK, **(CPU_SIZES if "--cpu" in sys.argv else {})}
    for name, value in sizes.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = parser.parse_args()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing here is worth compiling, and PyTorch reads it when it is imported
    if a.cpu:
        import vllm_on_cpu  # noqa: F401  pylint: disable=unused-import
    began = time.monotonic()
    import torch
    import deep_ep
    from vllm import LLM  # noqa: F401  pylint: disable=unused-import
    import vllm.v1.worker.gpu_worker  # noqa: F401  pylint: disable=unused-import
    print(f"# vLLM {vllm.__version__}, PyTorch {torch.__version__}, deep_ep {getattr(deep_ep, '__version__', 'without a version')} in {os.path.dirname(deep_ep.__file__)}, imported in "
          f"{time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.2f}")
    print(f"# {a.ranks} ranks, {a.layers} layers, hidden {a.hidden}, {a.experts} experts of {a.ffn}, top-{a.topk}", flush=True)
    assert not torch.cuda.is_initialized(), "ranks are forked"
    results, failed = {}, False
    for name in a.backends.split(","):
        got = run(a, name)
        if got is None:
            failed = True
            continue
        results[name] = got
    if results:
        failed |= show_kernels(results) if a.kernel_only else show_served(a, results)
    if a.json:
        with open(a.json, "w", encoding="ascii") as f:
            json.dump(results, f)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
