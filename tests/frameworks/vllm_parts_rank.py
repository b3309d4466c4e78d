#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of layers that vLLM's classes for DeepEP serve: its all-to-all managers and its prepare and finalize classes, unmodified, with the modules they stand on.

    torchrun --nproc-per-node 2 vllm_parts_rank.py [tokens=N] [experts=N] [topk=N]

Each layer is one preparation, the experts' work, and one finalization, asynchronous and not, BF16 and FP8, with a rank without tokens: deepep_high_throughput,
deepep_low_latency (with redundant experts' numbers, and cleaned as fault tolerance cleans it) and deepep_v2 in both of its layouts. vLLM weights and sums by itself.
Not covered: overlap of two batches, which needs a GPU's streams.
"""
import logging
import os
import sys
import types

import deep_ep
import torch
import torch.distributed as dist

from server_layer import ON_GPU, Layer, floats, load, quantized

NS = types.SimpleNamespace
HIDDEN = 2048  # the smallest row that vLLM takes for low latency
LONGEST = 32
MOE = "model_executor.layers.fused_moe"
REAL = ["envs", "utils.math_utils", "v1.worker.ubatching", "distributed.device_communicators.base_device_communicator", f"{MOE}.activation", f"{MOE}.modular_kernel",
        f"{MOE}.topk_weight_and_reduce", "distributed.device_communicators.all2all", *(f"{MOE}.prepare_finalize.deepep_{kind}" for kind in ("ht", "ll", "v2"))]
TOKENS = NS(dp_metadata=NS(num_tokens_across_dp_cpu=None))


class Log(logging.Logger):
    """vLLM's logger has these besides."""

    def info_once(self, *what):
        pass

    warning_once = debug_once = info_once


def quantize(x, scale, quant_dtype=None, per_act_token_quant=False, block_shape=None, **layout):
    assert scale is None and not per_act_token_quant and not any(layout.values())
    return (x, None) if quant_dtype is None else quantized(x, block_shape[1])


def globalize(ids, ends, first, experts):
    """What vLLM's Triton kernel does, in PyTorch: numbers of all experts in place of this rank's, and none behind the rows that have come."""
    ids += torch.where(ids >= 0, first, 0)
    ids[int(ends[-1]):] = -1
    assert int(ids.max()) < experts
    return ids


def substitutes(layer):
    group = NS(rank_in_group=layer.rank, world_size=layer.ranks)
    return {
        "vllm.logger.init_logger": Log,
        "vllm.config.get_current_vllm_config": lambda: NS(parallel_config=NS(enable_fault_tolerance=True)),
        "vllm.distributed.get_dp_group": lambda: group,
        "vllm.distributed.parallel_state.get_dp_group": lambda: group,
        "vllm.distributed.parallel_state.get_tp_group": lambda: NS(rank_in_group=0, world_size=1),
        "vllm.distributed.parallel_state.in_the_same_node_as": lambda group, source_rank: [node == layer.nodes[0] for node in layer.nodes],
        "vllm.forward_context.get_forward_context": lambda: TOKENS,
        f"vllm.{MOE}.utils.moe_kernel_quantize_input": quantize,
        "vllm._custom_ops.moe_sum": lambda rows, out: out.copy_(rows.float().sum(1)),
        "vllm.platforms.current_platform": NS(is_rocm=lambda: False),
        "vllm.triton_utils.triton": NS(jit=lambda function: function),
        "vllm.triton_utils.tl": NS(constexpr=int),
        "vllm.utils.torch_utils.PIN_MEMORY": False,
        **{f"vllm.utils.flashinfer.has_flashinfer_nvlink_{sided}_sided": lambda: False for sided in ("one", "two")},
        **{f"vllm.utils.import_utils.{name}": lambda: True for name in ("has_deep_ep", "has_deep_ep_v2")},
    }


def quant_config(form):
    blocks = form == "fp8"
    return NS(quant_dtype=torch.float8_e4m3fn if blocks else None, block_shape=[128, 128] if blocks else None, is_block_quantized=blocks, per_act_token_quant=False,
              a1_scale=None, a2_scale=None, a1_gscale=None, is_scale_swizzled=False, mx_alignment=0)


def exchange(layer, kind, parts, reduce, form, asynchronous, physical=None):
    """One layer. kind: ht, ll or v2. physical: the place of each expert, by number, or None."""
    ids = layer.ids if physical is None else physical.argsort()[layer.ids]
    given = layer.x, layer.weights, ids, layer.sizes["experts"], None, False, quant_config(form)
    if not asynchronous:
        got = parts.prepare(*given)
    elif kind == "ll":
        hook, receive = parts.prepare_async(*given)
        hook()
        got = receive()
    else:
        got = parts.prepare_async(*given)()
    rows, scales, meta, routed, weights = got
    counts = None if meta is None or meta.expert_num_tokens is None else meta.expert_num_tokens.tolist() or None  # none where the CPU does not wait for them
    if kind == "ll":
        made, routed, weights = layer.batched(rows, scales, meta.expert_num_tokens), ids, layer.weights
    else:
        routed = routed if routed.dim() == 2 else routed[:, None]
        made = layer.apart(floats(rows, scales), routed)
    out = torch.full(layer.x.shape, float("nan"), dtype=torch.bfloat16, device=layer.device)
    finalized = (parts.finalize_async if asynchronous else parts.finalize)(out, made, weights, routed, False, reduce())
    for then in finalized if isinstance(finalized, tuple) else (finalized,):
        if then is not None:
            then()
    return out, counts


def check(layer, kind, what, *others, masked=True, **named):
    some, fewer = layer.sizes["tokens"] + layer.rank, 0 if layer.rank else layer.sizes["tokens"]
    for tokens in (some, fewer):
        TOKENS.dp_metadata.num_tokens_across_dp_cpu = torch.tensor([layer.sizes["tokens"] + layer.ranks] * layer.ranks)
        layer.draw(tokens, masked)
        out, counts = exchange(layer, kind, *others, **named)
        layer.check(what + (", asynchronous" if named["asynchronous"] else ""), named["form"], out, counts)


def main():
    layer = Layer("vLLM", {"hidden": HIDDEN, "tokens": 12, **dict(one.split("=") for one in sys.argv[1:])})
    layer.nodes = [None] * layer.ranks
    dist.all_gather_object(layer.nodes, os.environ.get("EPF_NODE", "0"))
    *_, reductions, managers, ht, ll, v2 = load("vllm", REAL, substitutes(layer))
    reduce = reductions.TopKWeightAndReduceDelegate
    manager = {kind: getattr(managers, f"DeepEP{kind.upper()}All2AllManager")(layer.group) for kind in ("ht", "ll", "v2")}
    manager["v2"]._gin_checked = True  # by NCCL's communicator, of which our buffer has none
    if not ON_GPU:
        torch.accelerator.synchronize = lambda: None
        managers.DeepEPLLAll2AllManager._mask = torch.zeros(layer.ranks, dtype=torch.int32)
    experts, shared = layer.sizes["experts"], {"num_dispatchers": layer.ranks}
    placed = {**shared, "dp_size": layer.ranks, "rank_expert_offset": layer.rank * layer.here}
    buffers = [manager["ht"].get_handle({})]
    for form in ("bf16", "fp8"):
        parts = ht.DeepEPHTPrepareAndFinalize(buffers[0], **placed)
        for asynchronous in (True, False):
            check(layer, "ht", "high throughput", parts, reduce, form=form, asynchronous=asynchronous)
    buffers.append(manager["ll"].get_handle({"max_num_tokens_per_dp_rank": LONGEST, "token_hidden_size": HIDDEN, "num_ep_ranks": layer.ranks, "num_global_experts": experts,
                                             "num_local_experts": layer.here}))
    physical = torch.randperm(experts, generator=torch.Generator().manual_seed(3)).to(layer.device)
    for form in ("bf16", "fp8"):
        for places in (None, physical):
            parts = ll.DeepEPLLPrepareAndFinalize(buffers[1], LONGEST, use_fp8_dispatch=form == "fp8", global_to_physical=places, **shared)
            for asynchronous in (True, False):
                check(layer, "ll", "low latency" + (", experts elsewhere" if places is not None else ""), parts, reduce, form=form, asynchronous=asynchronous,
                      physical=places, masked=places is None)
        if not hasattr(manager["ll"], "query_fault"):  # before 0.25
            continue
        if bool(manager["ll"].query_fault()):
            layer.failed.append("a fault")
        dist.barrier()
        manager["ll"].clean_buffers()
        dist.barrier()
    v2._globalize_recv_topk_idx = globalize
    for form in ("bf16", "fp8"):
        buffer = manager["v2"].get_handle({"num_max_tokens_per_rank": LONGEST, "hidden": HIDDEN, "num_topk": layer.sizes["topk"], "num_experts": experts,
                                           "use_fp8_dispatch": form == "fp8"})
        for graphs in (True, False):
            parts = v2.DeepEPV2PrepareAndFinalize(buffer, num_experts=experts, num_topk=layer.sizes["topk"], use_fp8_dispatch=form == "fp8", use_cudagraph=graphs, **placed)
            for asynchronous in (True, False):
                check(layer, "v2", f"ElasticBuffer, {'compact' if graphs else 'grouped'}", parts, reduce, form=form, asynchronous=asynchronous)
    kinds = [type(one) for one in buffers + [buffer]]
    for one in manager.values():
        one.destroy()
    layer.end(kinds, [deep_ep.Buffer, deep_ep.Buffer, deep_ep.ElasticBuffer])


main()
