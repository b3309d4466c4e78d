#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What SGLang, LMDeploy and vLLM call DeepEP with, unmodified, on CPU tensors over our deep_ep: every sum and every count that the servers' kernels would get is right.

Usage: test_servers.py libepf.so libepf-ll.so. Skipped without the packages (FRAMEWORKS); without the sources (SOURCES) vLLM is left out.
"""
import json
import os
import sys
import tempfile

from packages import HERE, environment, preloaded, ranks, run

ENVIRONMENT = environment(sys.argv[1:3])
SECONDS = 600
# What --deepep-config takes.
CONFIG = {kind: {"num_sms": 12, "num_max_nvl_chunked_send_tokens": 6, "num_max_nvl_chunked_recv_tokens": 256, "num_max_rdma_chunked_send_tokens": 6,
                 "num_max_rdma_chunked_recv_tokens": 128} for kind in ("normal_dispatch", "normal_combine")}


def serves(server, layers, nodes, *sizes):
    """layers: how many each rank runs."""
    said = ranks(nodes, f"{HERE}/{server}_rank.py", sizes, ENVIRONMENT, SECONDS)
    assert said.count(": right") == layers * len(nodes) and "WRONG" not in said, said


def sglang_on_one_node():
    serves("sglang", 40, "00")


def sglang_on_two_nodes_with_a_configuration():
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)
        serves("sglang", 40, "0011", "tokens=20", "experts=12", "topk=6", f"config={f.name}")


def lmdeploy_on_one_node():
    serves("lmdeploy", 18, "00")


def lmdeploy_on_two_nodes():
    serves("lmdeploy", 18, "0011", "tokens=20", "experts=12", "topk=6")


def vllm_on_one_node():
    serves("vllm_parts", 40, "00")


def vllm_on_two_nodes():
    serves("vllm_parts", 40, "0011", "tokens=6", "experts=12", "topk=6")


if __name__ == "__main__":
    preloaded(ENVIRONMENT, "torch", "deep_ep")
    if not os.environ.get("SOURCES"):
        print("# vLLM is left out: tools/frameworks/fetch.py sources FOLDER, SOURCES=FOLDER", flush=True)
    run([sglang_on_one_node, sglang_on_two_nodes_with_a_configuration, lmdeploy_on_one_node, lmdeploy_on_two_nodes,
         *([vllm_on_one_node, vllm_on_two_nodes] if os.environ.get("SOURCES") else [])])
