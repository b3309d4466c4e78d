# SPDX-License-Identifier: Apache-2.0
"""One rank of test_slow.py, on CPU tensors: makes the calls of a case and prints what why_slow() and the tools say, a JSON object in a line.

Usage: slow_rank.py CASE RANK RANKS RENDEZVOUS-FILE EP-FABRIC
"""
import json
import subprocess
import sys
import time

import torch
import torch.distributed as dist

import deep_ep

CASE, RANK, RANKS, FILE, EP_FABRIC = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
EXPERTS, HIDDEN, TOPK = 4 * RANKS, 256, 2
TOKENS = 48 * (2 if CASE == "load" and RANK == 1 else 1)


def why_of_tool():
    """What ep-fabric why says, from the statistics files of all ranks."""
    return json.loads(subprocess.run([EP_FABRIC, "why", "--json", "--least-ms=1"], stdout=subprocess.PIPE, check=True).stdout)


def until_others_wait():
    """Waits until kernels of all other ranks have reported that they wait for this one."""
    waiting = set()
    while len(waiting) < RANKS - 1:
        waiting = {w["rank"] for job in why_of_tool()["jobs"] for w in job["waits"]
                   if w["who"] == "rank" and w["kernel"] and w["peer"] == RANK and w["reason"] == "signal-missing"}
        time.sleep(0.05)


def routing():
    """Tokens go to all experts alike."""
    first = torch.arange(TOKENS) % EXPERTS
    return torch.stack([first, (first + EXPERTS // 2) % EXPERTS], dim=1)


def step(buffer, late=False):
    """A layer: layout, dispatch, combine. late: this rank begins its dispatch when all others wait."""
    x = torch.ones(TOKENS, HIDDEN, dtype=torch.bfloat16)
    idx = routing()
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, EXPERTS)
    begun = time.monotonic()
    if late:
        until_others_wait()
        time.sleep(2 * (time.monotonic() - START))  # longer than all that came before
    rows, _, _, _, handle, _ = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                                               topk_idx=idx, topk_weights=torch.ones(TOKENS, TOPK))
    buffer.combine(rows, handle)
    return time.monotonic() - begun


def low_latency(buffer, hook=False):
    x = torch.ones(TOKENS, HIDDEN, dtype=torch.bfloat16)
    idx = routing()
    rows, _, handle, _, receive = buffer.low_latency_dispatch(x, idx, 2 * 48, EXPERTS, use_fp8=False, return_recv_hook=hook)
    if hook:
        receive()
    buffer.low_latency_combine(rows, idx, torch.ones(TOKENS, TOPK), handle)


def facts(answer):
    return {"causes": [vars(c) for c in answer.causes], "calls": {k: vars(c) for k, c in answer.calls.items()}, "ranks": answer.ranks, "text": str(answer)}


def published(calls):
    """What the tool says once the statistics files have caught up with these calls of all ranks."""
    while True:
        found = [j for j in why_of_tool()["slow"] if {k: c["calls"] for k, c in j["calls"].items()} == {k: c["calls"] for k, c in calls.items()}]
        if found:
            return found[0]
        time.sleep(0.2)


def main():
    said = {"rank": RANK}
    dist.init_process_group("gloo", init_method=f"file://{FILE}", rank=RANK, world_size=RANKS)
    buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, explicitly_destroy=True,
                            num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(96, HIDDEN, RANKS, EXPERTS))
    global START
    START = time.monotonic()
    step(buffer)
    first = buffer.why_slow(quiet=True)
    if CASE == "ranges":
        deep_ep.Buffer.show_ranges()
        with torch.profiler.profile() as profile:
            step(buffer)
            low_latency(buffer, hook=True)
        said["ranges"] = sorted({e.key for e in profile.key_averages() if e.key.startswith(("ht.", "ll."))})
    elif CASE == "late":
        said["seconds"] = step(buffer, late=RANK == 1)
    else:
        low_latency(buffer)
    said["alone"] = facts(buffer.why_slow(since=first, quiet=RANK != 0))
    said["all"] = facts(buffer.why_slow(all_ranks=True, quiet=True))
    dist.barrier()
    if RANK == 0 and CASE != "ranges":
        said["tool"] = published(said["all"]["calls"])
    dist.barrier()
    buffer.destroy()
    print("SAID " + json.dumps(said))


main()
