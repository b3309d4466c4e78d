#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls of deep_ep.Buffer on CPU tensors: the parts of tests/gpu/ht_cases.py that need no GPU, in real processes with PyTorch and gloo.

Usage: test_throughput.py PACKAGE-DIR libepf.so libepf-ll.so ep-fabric. Skipped without PyTorch.
"""
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "../gpu/ll_cases.py")
sys.path.insert(0, HERE)

from kit import preload, program, python_with, run, skip  # noqa: E402

if not python_with("torch"):
    skip("PyTorch is not installed: the high-throughput calls were not tested (Debian: python3-torch)")

ENVIRONMENT = dict(os.environ, PYTHONPATH=os.path.abspath(sys.argv[1]), EPF_LIBRARY=os.path.abspath(sys.argv[2]),
                   EPF_LL_LIBRARY=os.path.abspath(sys.argv[3]))
ENVIRONMENT.setdefault("EPF_GPU_TIMEOUT", "60s")
LIMIT = 150 * int(os.environ.get("LIMIT_TIMES", "1"))  # against hanging


def cases(*arguments, **environment):
    status = program(CASES, [*arguments, "--device", "cpu", "--quick", "--limit", str(LIMIT)], {**ENVIRONMENT, **environment}, LIMIT + 50)
    assert status == 0, f"{arguments}: exit status {status}"


def types_orders_and_sizes():
    cases("ht-table,ht-sizes,ht-numbers", "--ranks", "2")


def random_cases_each_twice():
    cases("ht-random", "--ranks", "3", "--cases", "12")


def one_rank_alone():
    cases("ht-table,ht-random", "--ranks", "1", "--cases", "5")


def layers_held_both_modes_and_the_calls_of_frameworks():
    cases("ht-layers,ht-mixed,ht-threads,ht-callers", "--ranks", "2")


def between_nodes():
    cases("ht-table,ht-random,ht-crossing,ht-mixed,ht-callers", "--ranks", "3", "--nodes", "a,b,a", "--cases", "10")


def with_a_daemon():
    with tempfile.TemporaryDirectory() as folder:
        daemon = subprocess.Popen([sys.argv[4], "run", "--instance=n", f"--runtime-dir={folder}", f"--stats-dir={folder}"], stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(f"{folder}/n.sock"):
                assert daemon.poll() is None, "the daemon ended"
                time.sleep(0.02)
            cases("ht-layers,ht-mixed", "--ranks", "2", EPF_SERVICE=f"{folder}/n.sock")
            cases("ht-layers,ht-mixed", "--ranks", "2", "--nodes", "a,b", EPF_SERVICE=f"{folder}/n.sock")
            cases("ht-kill-rows", "--ranks", "3", EPF_SERVICE=f"{folder}/n.sock")
            cases("kill", "--ranks", "3", EPF_SERVICE=f"{folder}/n.sock")
        finally:
            daemon.terminate()
            daemon.wait(60)


def a_late_rank_is_shown():
    with tempfile.TemporaryDirectory() as folder:
        go = os.path.join(folder, "go")
        why = [sys.argv[4], "why", f"--stats-dir={folder}"]
        child = subprocess.Popen([sys.executable, CASES, "ht-late", "--ranks", "2", "--device", "cpu", "--limit", str(LIMIT)], text=True,
                                 env={**ENVIRONMENT, "HT_LATE_FILE": go, "EPF_STATS_DIR": folder}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            text, until = "", time.time() + LIMIT
            while "waits for kernels of rank 1" not in text and child.poll() is None and time.time() < until:
                text = subprocess.run(why, capture_output=True, text=True, check=False).stdout
                time.sleep(0.2)
            with open(go, "w", encoding="ascii"):
                pass
            said = child.communicate(timeout=LIMIT)[0]
        finally:
            child.kill()
        print(text + said, end="")
        assert "a kernel of rank 0 waits for kernels of rank 1" in text, text
        assert child.returncode == 0, child.returncode


def a_killed_rank_is_named():
    for part in ("ht-kill", "ht-kill-rows", "ht-kill-sums", "elastic-kill"):
        for nodes in ("a,a,a", "a,a,b", "b,a,a"):
            cases(part, "--ranks", "3", "--nodes", nodes)


if __name__ == "__main__":
    preload("torch")
    run([types_orders_and_sizes, random_cases_each_twice, one_rank_alone, layers_held_both_modes_and_the_calls_of_frameworks, between_nodes, with_a_daemon,
         a_late_rank_is_shown, a_killed_rank_is_named])
