#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's parts, unmodified, train on CPU tensors over our ElasticBuffer: losses equal those of torchtitan's all-to-all, bit for bit where both round alike.

Usage: test_torchtitan.py libepf.so libepf-ll.so. Skipped without the packages (FRAMEWORKS).
"""
import sys

from packages import HERE, PYTHON, environment, output, run

ENVIRONMENT = environment(sys.argv[1:3])
SECONDS = 600


def trains(number, node, *sizes):
    status, said = output([PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}", "--no-python", "/bin/sh", "-c",
                           f'EPF_NODE={node} exec "$0" "$@"', PYTHON, f"{HERE}/torchtitan_rank.py", *sizes], ENVIRONMENT, SECONDS)
    assert status == 0, status
    assert said.count("# torchtitan, rank ") == 2 * number and said.count("; equal") == number and "WRONG" not in said, said


def two_ranks_of_one_node():
    trains(2, "0")


def four_ranks_on_two_nodes():
    trains(4, "$((RANK / 2))", "tokens=50", "experts=16")


run([two_ranks_of_one_node, four_ranks_on_two_nodes])
