#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/examples/transformers_ep.py: runs as it stands, and its models are as exact as the same models on one rank; on CPU tensors.

Usage: test_transformers.py libepf.so libepf-ll.so. Skipped without the packages (FRAMEWORKS). Each rank is a node, so rows cross the software NIC.
"""
import sys

from packages import HERE, PYTHON, ROOT, environment, output, run

ENVIRONMENT = environment(sys.argv[1:3])
SECONDS = 600


def ranks(number, program, *arguments, wrapper=()):
    status, said = output([PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}", *wrapper, program, *arguments], ENVIRONMENT, SECONDS)
    assert status == 0, status
    return said


def compared(kind, number):
    # A shell between, in which each rank becomes a node of its own.
    said = ranks(number, "/bin/sh", "-c", 'EPF_NODE=$RANK exec "$0" "$@"', PYTHON, f"{HERE}/transformers_rank.py", kind, wrapper=["--no-python"])
    assert said.count(f"# {kind}, rank ") == number and "WRONG" not in said, said


def the_example_runs():
    said = ranks(2, f"{ROOT}/docs/examples/transformers_ep.py")
    assert said.count(": loss ") == 2, said


def qwen3_moe_on_two_ranks():
    compared("qwen3_moe", 2)


def deepseek_v3_on_two_ranks():
    compared("deepseek_v3", 2)


def qwen3_moe_on_four_ranks():
    compared("qwen3_moe", 4)


run([the_example_runs, qwen3_moe_on_two_ranks, deepseek_v3_on_two_ranks, qwen3_moe_on_four_ranks])
