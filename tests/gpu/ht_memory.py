# SPDX-License-Identifier: Apache-2.0
"""GPU memory of one rank while results of many layers are held, as in training; beside DeepEP's. A part of ll_cases.py.

All layers have the same shape and different rows. Results are dropped in another order than they came, while new ones come; every row that is held is checked at
the end. Memory: what the driver says that the GPU gave out since the Buffer was to be made, so whatever holds it counts.
"""
from random import Random

import torch

from ht_batch import Batch, check_rows, named
from ll_speed import peer

HIDDEN, TOPK, EXPERTS, TOKENS = 7168, 8, 256, 4096
LAYERS = (1, 60)


def used(rank):
    """Returns bytes of the GPU that are given out, after what PyTorch only caches went back."""
    rank.sync()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(rank.device)
    return total - free


def layer(b, batch):
    """Returns what a layer keeps until its backward pass: rows and handle."""
    per_rank, per_node, per_expert, in_rank, _ = b.get_dispatch_layout(batch.idx, batch.experts)
    rows, _, weights, _, handle, _ = b.dispatch(batch.x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
                                                num_tokens_per_expert=per_expert, topk_idx=batch.idx, topk_weights=batch.weights)
    return rows, weights, handle


def held_layers(rank, b, batches, layers):
    """Holds the results of so many layers; drops half of them out of order, replaces them, checks all; returns bytes in use while all were held."""
    held = [layer(b, batches[i % len(batches)]) for i in range(layers)]
    peak = used(rank)
    order = list(range(layers))
    Random(layers).shuffle(order)
    for i in order[:layers // 2]:
        held[i] = None
        held[i] = layer(b, batches[i % len(batches)])
    for i, (rows, _, _) in enumerate(held):
        named(rank, f"{layers} layers held, layer {i}", check_rows, batches[i % len(batches)], rows)
    return peak


def memory(rank):
    """Ours, then DeepEP's where --deepep names it."""
    tokens = 512 if rank.args.quick else TOKENS
    batches = [Batch(rank, [tokens] * rank.size, HIDDEN, EXPERTS, TOPK, seed=700 + i, holes=0) for i in range(3)]
    rows = sum(int(batches[0].goes(r, rank.rank).sum()) for r in range(rank.size))
    rank.say(f"# {tokens} tokens, hidden {HIDDEN}, top-{TOPK} of {EXPERTS}; a layer's rows take {rows * HIDDEN * 2 / 2**20:.0f} MiB; MiB of GPU memory in use, "
             "of those beyond the rows themselves")
    module = peer(rank.args.deepep) if rank.args.deepep else None
    makers = [("ours", rank.throughput_buffer)]
    if module:
        makers.append(("DeepEP", lambda: module.Buffer(rank.group, 1 << 30, 0, explicitly_destroy=True)))
    for name, make in makers:
        before = used(rank)
        b = make()
        said = []
        for layers in LAYERS:
            more = held_layers(rank, b, batches, layers) - before
            said.append(f"{layers} held {more / 2**20:.0f}, {(more - layers * rows * HIDDEN * 2) / 2**20:.0f}")
        b.destroy()
        rank.made = [other for other in rank.made if other is not b]
        del b
        torch.distributed.barrier()  # nobody has it mapped any more
        rank.say(f"  {name:6s} {'; '.join(said)}; destroyed {(used(rank) - before) / 2**20:.0f}")
    return f"{LAYERS[-1]} layers held, dropped out of order, every row right"
