#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of DeepEP v1.2.1's test_low_latency.py, computed from its seeds: puts, bytes and adds of each rank.

  shim_routing.py RANKS TOKENS HIDDEN TOPK EXPERTS

Repeats the test's random draws on one GPU (it uses the GPU's generator); prints "rank R puts P bytes B adds A" for each. Without NVLink, every
token for an expert of another rank is one put, and every expert of another rank gets one add, in each direction.
"""
import random
import sys

import torch

# Calls in one run of test_main(): checks (a bf16 case is called twice, of fp8 every second one), the timed loop, twice the profiled one.
DISPATCH_BF16, DISPATCH_FP8, COMBINE = 8, 16 + 100 + 120, 32 + 100 + 120


def routing(rank, tokens, hidden, topk, experts):
    torch.manual_seed(1 + rank)
    random.seed(1 + rank)
    torch.randn((tokens, hidden), dtype=torch.bfloat16, device="cuda")
    scores = torch.randn((tokens, experts), dtype=torch.float32, device="cuda").abs() + 1
    index = torch.topk(scores, topk, dim=-1, largest=True, sorted=True)[1]
    torch.randn((tokens, topk), dtype=torch.float32, device="cuda")
    for _ in range(10):
        index[random.randint(0, tokens - 1), random.randint(0, topk - 1)] = -1
    return index


def main(ranks, tokens, hidden, topk, experts):
    torch.set_default_dtype(torch.bfloat16)
    local = experts // ranks
    sent = [[0] * ranks for _ in range(ranks)]
    for r in range(ranks):
        index = routing(r, tokens, hidden, topk, experts)
        for to in range(ranks):
            sent[r][to] = int(((index >= to * local) & (index < (to + 1) * local)).sum())
    for r in range(ranks):
        out = sum(sent[r]) - sent[r][r]
        back = sum(row[r] for row in sent) - sent[r][r]
        puts = out * (DISPATCH_BF16 + DISPATCH_FP8) + back * COMBINE
        data = out * (DISPATCH_BF16 * (2 * hidden + 16) + DISPATCH_FP8 * (hidden + hidden // 128 * 4 + 16)) + back * COMBINE * 2 * hidden
        adds = local * (ranks - 1) * (DISPATCH_BF16 + DISPATCH_FP8 + COMBINE)
        print(f"rank {r} puts {puts} bytes {data} adds {adds}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:6]))
