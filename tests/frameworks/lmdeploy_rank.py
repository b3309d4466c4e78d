#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of layers that LMDeploy's token dispatchers serve: its token_dispatcher.py for CUDA, unmodified, with the three modules it stands on.

    torchrun --nproc-per-node 2 lmdeploy_rank.py [tokens=N] [hidden=N] [experts=N] [topk=N]

Each layer is one dispatch, the experts' work, and one combine: prefill by the normal dispatchers, also asynchronous as two batches overlap, decoding by low latency in
both of its forms; BF16 and FP8, a rank without tokens. All share one Buffer, with low latency cleaned after prefill as LMDeploy cleans it.
"""
import os
import sys

import deep_ep
import torch

from server_layer import ALIGNMENT, LONGEST, Layer, expert, floats, load, quantized

REAL = ["pytorch.envs", "pytorch.backends.token_dispatcher", "pytorch.backends.default.token_dispatcher", "pytorch.backends.cuda.token_dispatcher"]


def prefill(layer, dispatcher, form, tokens, asynchronous):
    layer.draw(tokens)
    x = quantized(layer.x, 128) if form == "fp8" else layer.x
    event = None
    if asynchronous:
        event = dispatcher.get_buffer().capture()
        got, ids, weights, counts, handle, event = dispatcher.dispatch_normal_async(x, layer.ids, layer.weights, previous_event=event)
        event.current_stream_wait()
    else:
        got, ids, weights, counts = dispatcher.dispatch(x, layer.ids, layer.weights)
    rows = layer.weighted(floats(*got) if form == "fp8" else got.float(), ids, weights)
    if asynchronous:
        sums, event = dispatcher.combine_normal_async(rows, handle, previous_event=dispatcher.get_buffer().capture())
        event.current_stream_wait()
    else:
        sums = dispatcher.combine(rows)
    dispatcher.release()
    layer.check(f"prefill{', asynchronous' if asynchronous else ''}", form, sums, counts, ALIGNMENT)


def permuted(layer, dispatcher, tokens):
    """The older dispatcher, which sorts rows by experts by itself."""
    layer.draw(tokens)
    rows, ids, _, counts = dispatcher.dispatch(layer.x, layer.ids, layer.weights)
    made, first = torch.empty_like(rows), 0
    for e, number in enumerate(counts.tolist()):
        made[first:first + number] = expert(rows[first:first + number].cpu(), layer.rank * layer.here + e).to(layer.device, torch.bfloat16)
        first += number
    layer.check("prefill, sorted by LMDeploy", "bf16", dispatcher.combine(made), counts.tolist())
    dispatcher.release()


def decoding(layer, dispatcher, tokens, asynchronous):
    layer.draw(tokens)
    if asynchronous:
        got, counts, handle, event, hook = dispatcher.dispatch_async(layer.x, layer.ids, async_finish=asynchronous == "event")
        hook() if hook else event.current_stream_wait()
    else:
        got, _, _, counts, _ = dispatcher.dispatch(layer.x, layer.ids, layer.weights, layer.sizes["experts"])
    rows = layer.batched(*(tensor.value for tensor in got), counts)
    for tensor in got:
        tensor.dispose()
    if asynchronous:
        sums, event, hook = dispatcher.combine_async(rows, layer.ids, layer.weights, handle, asynchronous == "event")
        hook() if hook else event.current_stream_wait()
    else:
        sums = dispatcher.combine(rows, layer.ids, layer.weights)
    layer.check(f"decoding{', asynchronous: ' + asynchronous if asynchronous else ''}", "fp8", sums, counts.tolist())


def main():
    os.environ["DEEPEP_BUFFER_NUM_SMS"] = "12"
    layer = Layer("LMDeploy", dict(one.split("=") for one in sys.argv[1:]))
    *_, dispatchers = load("lmdeploy", REAL, {})
    buffers, mode = dispatchers.DeepEPBuffer, dispatchers.DeepEPMode
    some, fewer = layer.sizes["tokens"] + layer.rank, 0 if layer.rank else layer.sizes["tokens"]
    common = {"group": layer.group, "num_experts": layer.sizes["experts"], "num_local_experts": layer.here, "hidden_size": layer.sizes["hidden"],
              "params_dtype": torch.bfloat16, "num_max_dispatch_tokens_per_rank": LONGEST}
    normal = dispatchers.DeepEPTokenDispatcherNormal(**common)
    low = {hooks: dispatchers.DeepEPTokenDispatcherLowLatency(**common, return_recv_hook=hooks) for hooks in (False, True)}
    older = dispatchers.TokenDispatcherBuilder.build(*list(common.values())[:5])
    for tokens in (some, fewer):
        buffers.set_deepep_mode(mode.NORMAL)
        for form in ("bf16", "fp8"):
            for asynchronous in (False, True):
                prefill(layer, normal, form, tokens, asynchronous)
        permuted(layer, older, some)
        buffers.set_deepep_mode(mode.LOW_LATENCY)
        for hooks, dispatcher in low.items():
            decoding(layer, dispatcher, tokens, "")
        for asynchronous in ("event", "hook"):
            decoding(layer, low[True], tokens, asynchronous)
    assert deep_ep.Buffer.num_sms == 12, "DEEPEP_BUFFER_NUM_SMS has no effect"
    layer.end([type(buffers._buffer_common)], [deep_ep.Buffer])


main()
