#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/examples/transformers_ep.py: runs as it stands, and its models are as exact as the same models on one rank; on CPU tensors.

Usage: test_transformers.py libepf.so libepf-ll.so. Skipped without the packages (FRAMEWORKS). Each rank is a node, so rows cross the software NIC.
"""
import sys

from packages import HERE, PYTHON, ROOT, environment, output, preloaded, ranks, run

ENVIRONMENT = environment(sys.argv[1:3])
SECONDS = 600


def compared(kind, number):
    said = ranks([str(r) for r in range(number)], f"{HERE}/transformers_rank.py", [kind], ENVIRONMENT, SECONDS)
    assert said.count(f"# {kind}, rank ") == number and "WRONG" not in said, said


def the_example_runs():
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"{ROOT}/docs/examples/transformers_ep.py"]
    status, said = output(command, ENVIRONMENT, SECONDS)
    assert status == 0, status
    assert said.count(": loss ") == 2, said


def qwen3_moe_on_two_ranks():
    compared("qwen3_moe", 2)


def deepseek_v3_on_two_ranks():
    compared("deepseek_v3", 2)


def qwen3_moe_on_four_ranks():
    compared("qwen3_moe", 4)


if __name__ == "__main__":
    preloaded(ENVIRONMENT, "torch", "torch.distributed", "deep_ep", "transformers.models.qwen3_moe.modeling_qwen3_moe", "transformers.models.deepseek_v3.modeling_deepseek_v3")
    run([the_example_runs, qwen3_moe_on_two_ranks, deepseek_v3_on_two_ranks, qwen3_moe_on_four_ranks])
