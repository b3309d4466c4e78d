#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Buffer.why_slow() and what the tools say of the same calls, on CPU tensors in real processes: a late rank, one with twice the tokens, ranges of profilers.

Usage: test_slow.py PACKAGE-DIR libepf.so libepf-ll.so ep-fabric. Skipped without PyTorch. Nothing here depends on time: the late rank goes on when
the others have reported that they wait.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from kit import python_with, run, skip  # noqa: E402

if not python_with("torch"):
    skip("PyTorch is not installed: why_slow() was not tested (Debian: python3-torch)")

RANKS = 2


def ranks(case, **environment):
    """What each rank says of a case."""
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, PYTHONPATH=os.path.abspath(sys.argv[1]), EPF_LIBRARY=os.path.abspath(sys.argv[2]),
                   EPF_LL_LIBRARY=os.path.abspath(sys.argv[3]), EPF_STATS_DIR=folder, EPF_GPU_TIMEOUT="600s", **environment)
        children = [subprocess.Popen([sys.executable, os.path.join(HERE, "slow_rank.py"), case, str(r), str(RANKS), f"{folder}/meet",
                                      os.path.abspath(sys.argv[4])], env=env, stdout=subprocess.PIPE, text=True) for r in range(RANKS)]
        try:
            texts = [child.communicate(timeout=300)[0] for child in children]
        finally:
            for child in children:
                child.kill()
        for r, child in enumerate(children):
            assert child.returncode == 0, f"rank {r} ended with {child.returncode}: {texts[r]}"
        print("".join(f"# {line}\n" for line in texts[0].splitlines() if not line.startswith("SAID")), end="")
        return [json.loads(next(line for line in t.splitlines() if line.startswith("SAID"))[5:]) for t in texts]


def cause(answer, kind, rank):
    found = [c for c in answer["causes"] if c["kind"] == kind and c["rank"] == rank]
    assert found, f"no cause {kind} of rank {rank}: {answer}"
    return found[0]


def a_late_rank():
    said = ranks("late")
    alone, everybody, tool = said[0]["alone"], said[0]["all"], said[0]["tool"]
    mine = cause(alone, "late", 1)
    assert alone["causes"][0] == mine and alone["ranks"] == [0], alone
    assert mine["call"] == "ht.dispatch" and mine["times"] >= 1, mine
    # What rank 0 waited is in its time (on a busy machine rank 1 may be late for the next calls, too), and no more than the call lasted.
    assert mine["ns"] <= sum(call["wait_ns"] for call in alone["calls"].values()), (mine, alone)
    assert alone["calls"]["ht.dispatch"]["wait_ns"] <= said[0]["seconds"] * 1e9, (alone, said[0]["seconds"])
    assert alone["calls"]["ht.dispatch"]["calls"] == 1, "since leaves out what was before"
    assert everybody["ranks"] == [0, 1] and everybody["calls"]["ht.dispatch"]["calls"] == 4, everybody
    assert cause(everybody, "late", 1)["ns"] >= mine["ns"]
    assert "rank 1 begins its calls late" in alone["text"]
    assert cause(tool, "late", 1)["ns"] == cause(everybody, "late", 1)["ns"], tool
    assert tool["calls"] == everybody["calls"] and tool["ranks_seen"] == tool["world"] == RANKS, tool


def twice_the_tokens():
    said = ranks("load")
    for answer in (said[0]["alone"], said[0]["all"], said[1]["alone"], said[0]["tool"]):
        load = cause(answer, "load", 1)
        assert 1.99 < load["sent"] < 2.01, load
    assert said[0]["all"]["calls"]["ll.dispatch.recv"]["calls"] == RANKS


def ranges_have_the_same_names():
    for one in ranks("ranges"):
        assert one["ranges"] == ["ht.combine", "ht.dispatch", "ht.layout", "ll.combine", "ll.dispatch", "ll.dispatch.recv"], one["ranges"]
        for name in one["ranges"]:
            assert any(call == name or call.startswith(name + ".") for call in one["all"]["calls"]), (name, one["all"]["calls"])


def turned_off():
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, PYTHONPATH=os.path.abspath(sys.argv[1]), EPF_LIBRARY=os.path.abspath(sys.argv[2]),
                   EPF_LL_LIBRARY=os.path.abspath(sys.argv[3]), EPF_STATS_DIR=folder, EPF_CALL_STATS="no")
        child = subprocess.run([sys.executable, os.path.join(HERE, "slow_rank.py"), "load", "0", "1", f"{folder}/meet", os.path.abspath(sys.argv[4])], env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
        assert child.returncode != 0 and "EPF_CALL_STATS" in child.stderr, child.stderr


run([a_late_rank, twice_the_tokens, ranges_have_the_same_names, turned_off])
