#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed, unmodified, trains a model of transformers on CPU tensors with its experts spread over our ElasticBuffer: losses and gradient norms equal those of its
own all-to-all, in every bit where both round alike.

Usage: test_deepspeed.py libepf.so libepf-ll.so. Skipped without the packages (FRAMEWORKS, SOURCES).
"""
import os
import sys

from packages import HERE, environment, preloaded, ranks, run, skip

ENVIRONMENT = {**environment(sys.argv[1:3]), "DS_ACCELERATOR": "cpu"}
SECONDS = 600


def trains(nodes, *sizes):
    said = ranks(nodes, f"{HERE}/deepspeed_rank.py", sizes, ENVIRONMENT, SECONDS)
    assert said.count(": equal") == 3 * len(nodes) and said.count(": near") == len(nodes) and "WRONG" not in said, said


def two_ranks_of_one_node():
    trains("00")


def four_ranks_on_two_nodes_with_partitioned_gradients():
    trains("0011", "stage=2", "steps=3")


if __name__ == "__main__":
    if not os.path.isdir(f"{os.environ.get('SOURCES')}/deepspeed"):
        skip("no DeepSpeed here: tools/frameworks/fetch.py sources FOLDER, SOURCES=FOLDER")
    preloaded(ENVIRONMENT, "torch", "transformers", "deepspeed", "deepspeed.module_inject.auto_ep_layer", "deep_ep")
    run([two_ranks_of_one_node, four_ranks_on_two_nodes_with_partitioned_gradients])
