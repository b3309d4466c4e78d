#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of layers that SGLang's token dispatchers serve: its deepep.py and deepep_v2.py, unmodified, with the three modules they stand on.

    torchrun --nproc-per-node 2 sglang_rank.py [tokens=N] [hidden=N] [experts=N] [topk=N] [config=FILE]

Each layer is one dispatch, the experts' work as SGLang's runner for DeepGEMM lays it out, and one combine: prefill and decoding in turns, BF16 and FP8, asynchronous with
hooks and not, with a rank without tokens; on the one Buffer of both modes (DeepEPDispatcher, mode auto) and on the ElasticBuffer (DeepEPv2Dispatcher).
config: what --deepep-config takes, a file of JSON.
"""
import json
import os
import sys
import types

import deep_ep
import torch

from server_layer import ALIGNMENT, LONGEST, Layer, floats, load, quantized

NS = types.SimpleNamespace


class Recorder:
    """What SGLang's balancer of experts hears of a dispatch."""

    def __init__(self):
        self.counts = None

    def on_deepep_dispatch_normal(self, counts, **named):
        assert set(named) == {"num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert"}, named
        self.counts = counts

    def on_deepep_dispatch_low_latency(self, counts):
        self.counts = counts.tolist()


def load_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


RECORDER, STATE = Recorder(), NS(prefill=True)
CONTEXT = {"parallel": NS(attn_dp_size=1, attn_cp_size=1, tp_size=0, tp_group=None), "resources": NS(buffers={}), "flags": NS(moe=NS(deepep_config="", tbo_enabled=False)),
           "exec": NS(moe=NS(deepep_v2_mode="hybrid", deepep_dispatcher_output_dtype="auto")), "server_args": NS()}
REAL = ["srt.environ", "srt.layers.moe.utils", "srt.layers.moe.token_dispatcher.base", "srt.layers.moe.token_dispatcher.deepep", "srt.layers.moe.token_dispatcher.deepep_v2"]
SUBSTITUTES = {
    "sglang.srt.eplb.expert_distribution.get_global_expert_distribution_recorder": lambda: RECORDER,
    "sglang.srt.layers.dp_attention.get_is_extend_in_batch": lambda: STATE.prefill,
    "sglang.srt.layers.deep_gemm_wrapper": NS(ENABLE_JIT_DEEPGEMM=True, DEEPGEMM_BLACKWELL=False, DEEPGEMM_SCALE_UE8M0=False, DEEPGEMM_NEED_TMA_ALIGNED_SCALES=False),
    "sglang.kernels.ops.quantization.fp8_kernel.sglang_per_token_group_quant_fp8": quantized,
    "sglang.srt.utils.get_bool_env_var": lambda name, default="false": os.environ.get(name, default).lower() in ("true", "1"),
    "sglang.srt.utils.get_cuda_version": lambda: (13, 0),
    "sglang.srt.utils.is_cuda": lambda: True,
    "sglang.srt.utils.load_json_config": load_json,
    **{f"sglang.srt.utils.{name}": lambda: False for name in ("is_blackwell", "is_flashinfer_available", "is_hip", "is_npu")},
    **{f"sglang.srt.runtime_context.get_{name}": lambda value=value: value for name, value in CONTEXT.items()},
}


def both_modes(layer, dispatcher, form, tokens):
    """Prefill by high throughput, decoding by low latency."""
    layer.draw(tokens)
    dispatcher.set_quant_config({"dispatcher_output_dtype": form})
    got = dispatcher.dispatch(layer.x, NS(topk_weights=layer.weights, topk_ids=layer.ids.int()))  # SGLang's router gives 32 bits
    given = got.topk_ids, got.topk_weights
    if STATE.prefill:
        rows = layer.weighted(floats(got.hidden_states, got.hidden_states_scale), *given)
        for tensor in (got.hidden_states, got.hidden_states_scale):
            if tensor is not None:
                tensor.set_(tensor.new_empty(0))  # as SGLang disposes of them
    else:
        rows = layer.batched(got.hidden_states, got.hidden_states_scale, got.masked_m)
    layer.check("prefill" if STATE.prefill else "decoding", form, dispatcher.combine((rows, *given)), RECORDER.counts, ALIGNMENT if STATE.prefill else 1)


def elastic(layer, dispatcher, combine_input, form, tokens):
    """The same by the ElasticBuffer."""
    layer.draw(tokens)
    got = dispatcher.dispatch(layer.x, NS(topk_weights=layer.weights, topk_ids=layer.ids.int()))
    rows = floats(got.hidden_states, got.hidden_states_scale)
    if got.is_expanded:
        given = combine_input(layer.grouped(rows, got.psum_num_recv_tokens_per_expert, got.topk_weights), None)
    else:
        given = combine_input(layer.weighted(rows, got.topk_ids, got.topk_weights), got.topk_weights)
    layer.check(f"ElasticBuffer, {'prefill' if STATE.prefill else 'decoding'}, {'grouped' if got.is_expanded else 'compact'}", form, dispatcher.combine(given))


def main():
    words = dict(one.split("=") for one in sys.argv[1:])
    CONTEXT["flags"].moe.deepep_config = words.pop("config", "")
    os.environ.update(SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=str(LONGEST), SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK=str(LONGEST))
    layer = Layer("SGLang", words)
    _, utils, _, deepep, deepep_v2 = load("sglang", REAL, SUBSTITUTES)
    some, fewer = layer.sizes["tokens"] + layer.rank, 0 if layer.rank else layer.sizes["tokens"]
    common = {"group": layer.group, "router_topk": layer.sizes["topk"], "num_experts": layer.sizes["experts"], "num_local_experts": layer.here,
              "hidden_size": layer.sizes["hidden"], "params_dtype": torch.bfloat16}
    for hooks in (True, False):
        dispatcher = deepep.DeepEPDispatcher(**common, permute_fusion=True, deepep_mode=utils.DeepEPMode.AUTO, async_finish=hooks, return_recv_hook=hooks)
        for form in ("bf16", "fp8"):
            for STATE.prefill, tokens in ((True, some), (False, some), (False, some), (True, some), (True, fewer), (False, fewer)):
                both_modes(layer, dispatcher, form, tokens)
    for expand in ("1", "0"):
        os.environ["SGLANG_DEEPEP_V2_ENABLE_PREFILL_EXPAND"] = expand
        for form in ("bf16", "fp8"):
            dispatcher = deepep_v2.DeepEPv2Dispatcher(**common, use_fp8_dispatch=form == "fp8")
            dispatcher.prebuild()
            for STATE.prefill, tokens in ((True, some), (False, some), (True, some), (True, fewer)):
                elastic(layer, dispatcher, deepep_v2.DeepEPv2CombineInput, form, tokens)
    layer.end([type(state.buffer) for state in CONTEXT["resources"].buffers.values()], [deep_ep.Buffer, deep_ep.ElasticBuffer])


main()
