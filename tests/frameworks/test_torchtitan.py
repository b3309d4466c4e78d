#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's parts, unmodified, train on CPU tensors over our ElasticBuffer: losses equal those of torchtitan's all-to-all, bit for bit where both round alike.

Usage: test_torchtitan.py libepf.so libepf-ll.so. Skipped without the packages (FRAMEWORKS).
"""
import sys

from packages import HERE, environment, preloaded, ranks, run

ENVIRONMENT = environment(sys.argv[1:3])
SECONDS = 600


def trains(nodes, *sizes):
    said = ranks(nodes, f"{HERE}/torchtitan_rank.py", sizes, ENVIRONMENT, SECONDS)
    number = len(nodes)
    assert said.count("# torchtitan, rank ") == 2 * number and said.count("; equal") == number and "WRONG" not in said, said


def two_ranks_of_one_node():
    trains("00")


def four_ranks_on_two_nodes():
    trains("0011", "tokens=50", "experts=16")


if __name__ == "__main__":
    preloaded(ENVIRONMENT, "torch", "torch.distributed.device_mesh", "torch.distributed.tensor", "deep_ep")
    run([two_ranks_of_one_node, four_ranks_on_two_nodes])
