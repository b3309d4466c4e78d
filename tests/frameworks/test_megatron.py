#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core, unmodified, trains on CPU tensors over our deep_ep: losses and gradient norms are those of Megatron's all-gather, bit for bit.

Usage: test_megatron.py libepf.so libepf-ll.so ep-fabric. Skipped without the packages (FRAMEWORKS). Rows between nodes cross the software NIC.
"""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time

from packages import ROOT, environment, preloaded, run, start

sys.path.insert(0, f"{ROOT}/bench/frameworks")
import train_megatron  # noqa: E402

ENVIRONMENT = environment(sys.argv[1:3])
TRAIN = [train_megatron.__file__, "--hidden=128", "--ffn=64", "--seq=32", "--vocab=256", "--steps=5"]
FABRIC = sys.argv[3]
SECONDS = 600


class Rank:
    """A rank of train_megatron.py that is forked, as its Popen."""

    def __init__(self, command, variables):
        self._out = tempfile.NamedTemporaryFile("r", encoding="utf-8")  # pylint: disable=consider-using-with
        self._child = start(command[1], command[2:], variables, self._out.name)
        self._ends = time.monotonic() + SECONDS
        self.returncode = None

    def communicate(self):
        self._child.join(max(self._ends - time.monotonic(), 0))
        if self._child.exitcode is None:
            self._child.kill()
            self._child.join()
        self.returncode = self._child.exitcode
        return self._out.read(), None


def put_bytes(folder):
    """Returns the bytes that the engines of a job which has ended put through their NICs."""
    said = subprocess.run([FABRIC, "stats", "--dead", "--json", f"--stats-dir={folder}"], capture_output=True, text=True, check=True).stdout
    return sum((block["values"].get("put_bytes_remote_node") or 0) for one in json.loads(said)["instances"] for block in one["blocks"])


def train(*options):
    """Trains with flex and with allgather; returns what was said. Losses and gradient norms must agree in every bit, and rows must have crossed the NIC."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EPF_STATS_DIR"] = folder
        sys.argv[:] = [*TRAIN, "--dispatchers=flex,allgather", f"--json={folder}/results", *options]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = train_megatron.main()
        said = said.getvalue()
        print(said, end="", flush=True)
        assert status == 0, status
        with open(f"{folder}/results", encoding="ascii") as f:
            results = json.load(f)
        ours, theirs = results["flex"], results["allgather"]
        assert len(ours["losses"]) == 5 and ours["losses"][0] != ours["losses"][1], ours["losses"]
        assert ours["losses"] == theirs["losses"], (ours["losses"], theirs["losses"])
        assert ours["norms"] == theirs["norms"], (ours["norms"], theirs["norms"])
        if "hybridep" in results:
            assert [results["hybridep"][what] for what in ("losses", "norms")] == [theirs["losses"], theirs["norms"]], results["hybridep"]
        crossed = put_bytes(folder)
        print(f"# {crossed} bytes over the software NIC")
        assert crossed > 0
    return said


def two_ranks_on_two_nodes_and_resumed():
    said = train("--ranks=2", "--nodes=a,b", "--resume=3")
    assert "flex resumed after 3 of 5 steps: losses equal in every digit" in said


def four_ranks_on_two_nodes():
    said = train("--ranks=4", "--nodes=a,a,b,b", "--dispatchers=flex+hybridep+allgather")
    assert "flex / allgather, step by step: median" in said


if __name__ == "__main__":
    preloaded({**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{ROOT}/bench/frameworks"}, "on_cpu")
    train_megatron.begin = Rank
    run([two_ranks_on_two_nodes_and_resumed, four_ranks_on_two_nodes])
