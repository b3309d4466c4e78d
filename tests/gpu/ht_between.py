# SPDX-License-Identifier: Apache-2.0
"""Time of high-throughput calls whose rows cross between nodes, and what the NIC's own copies take of it. A part of ll_cases.py, for ranks on several nodes.

Reads the engines' statistics files around each call, as ll_stages.py does, and leaves its lists of copies in the same folder: `ll_stages.py STATS_DIR`
measures them once nothing else uses the GPUs. A list has as few copies as the puts' largest size allows, so the NIC's own time is a lower bound. Figures are per
rank and call.
"""
import math
import os
import time

import torch

from ht_batch import Batch
from ht_speed import EXPERTS, HIDDEN, SMS, TOPK, Calls, Clock, slowest
from ll_stages import CORE, STAGES, Reading, program

PUT_BYTES = 256 << 10  # of a put between nodes, at most: kernels/ht/ht_open.c
CALLS = ("dispatch bf16", "dispatch fp8", "cached bf16", "combine")


def crossing(batch):
    """Returns how many rows this rank sends within its node, and how many tokens to other nodes. A token crosses once to each node."""
    mine, within, across = batch.nodes[batch.rank], 0, 0
    for node in set(batch.nodes):
        goes = torch.stack([batch.goes(batch.rank, r) for r in range(batch.size) if batch.nodes[r] == node])
        if node == mine:
            within = int(goes.sum())
        else:
            across += int(goes.any(0).sum())
    return within, across


def one(rank, name, tokens, call, times, read):
    """Measures a call; rank 0 prints it and adds its list. read: returns a Reading."""
    clock = Clock(rank)
    for _ in range(2):
        clock.once(call)
    rank.meet()
    time.sleep(0.1)
    before = read() if rank.rank == 0 else None
    rank.meet()
    us = slowest(rank, [clock.once(call) for _ in range(times)])
    rank.meet()
    time.sleep(0.1)
    if rank.rank:
        return
    r = read().since(before)
    each = {n: r.sums[n] / times / rank.size for n in CORE}
    sent = each["put_bytes_remote_node"]
    copies = max(math.ceil(sent / PUT_BYTES), 1)
    with open(os.path.join(os.environ["EPF_STATS_DIR"], "lists"), "a", encoding="ascii") as lists:
        print(f"{name.replace(' ', '-')}-{tokens}", us, copies, round(sent / copies), 0, file=lists)
    rank.say(f"  {tokens:5d} tokens {name:14s} {us:8.1f} us; {sent / 1e6:.2f} MB between nodes = {sent / us / 1e3:.1f} GB/s, {each['cmds_dequeued']:.0f} commands, "
             f"{each['doorbells']:.1f} doorbells, {each['cmds_deferred']:.0f} deferred; us, median: "
             + ", ".join(f"{label} {r.quantile(row, .5):.1f}" for label, row in STAGES))


def between(rank):
    from deep_ep import Config
    assert len(set(rank.nodes)) > 1, "--nodes: several"
    folder, stats = os.environ["EPF_STATS_DIR"], program("ep-fabric")
    b = rank.throughput_buffer()
    times = 10 if rank.args.quick else 30
    rank.say(f"# us a call, median of {times}, slowest rank; {rank.size} ranks on nodes {','.join(rank.nodes)}, hidden {HIDDEN}, top-{TOPK} of {EXPERTS}, {SMS[0]} SMs")
    for tokens in (4096, 128):
        batch = Batch(rank, [tokens] * rank.size, HIDDEN, EXPERTS, TOPK, seed=tokens, holes=0)
        within, across = crossing(batch)
        rank.say(f"# {tokens} tokens; of rank 0 {within} rows stay within the node, {across} tokens cross = {across * HIDDEN * 2 / 1e6:.1f} MB in bf16")
        calls = Calls(rank, b, batch, lambda _: Config(SMS[0])).calls()
        for name in CALLS:
            one(rank, name, tokens, calls[name], times, lambda: Reading(folder, stats))
    b.destroy()
    return "between nodes"
