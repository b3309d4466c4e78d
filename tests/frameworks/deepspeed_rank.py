#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of DeepSpeed, unmodified, that trains a small Qwen3-MoE of transformers with AutoEP: its experts are spread, once over DeepSpeed's all-to-all
("comm_backend": "comm"), once over our ElasticBuffer ("deepep").

    torchrun --nproc-per-node 2 deepspeed_rank.py [NAME=NUMBER...]       of SIZES; stage=.. is ZeRO's

With top-1 a token's sum has one summand: losses and gradient norms must be equal in every bit. With top-2 the two add and round in other places, and are as near as
BF16; there activations are also recomputed, in both of PyTorch's ways, which must change no bit. Without a GPU this runs on CPU tensors, without DeepSpeed's operators,
which it would compile. Ranks that share a GPU talk by gloo, too (tests/gpu/onegpu), whose barriers know no device.
"""
import os
import sys

import deepspeed
import torch
import transformers

SIZES = {"layers": 2, "hidden": 128, "experts": 8, "batch": 2, "length": 32, "steps": 5, "stage": 0}
VOCABULARY, NEAR = 256, 3e-3
# Top-k, the way of recomputing.
CASES = ((1, None), (2, None), (2, "not reentrant"), (2, "reentrant"))


def begin():
    """Finds the GPU, and meets the other ranks."""
    gpus, plain = torch.cuda.device_count(), torch.distributed.barrier
    if gpus:
        os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % gpus)  # the GPU that DeepSpeed takes
    else:
        deepspeed.ops.__compatible_ops__.clear()
    if gpus < int(os.environ["WORLD_SIZE"]):
        torch.distributed.barrier = lambda group=None, async_op=False, device_ids=None: plain(group=group, async_op=async_op)
    deepspeed.init_distributed("nccl" if gpus else "gloo")


def trained(sizes, topk, backend, recompute):
    """Losses of this rank, and gradient norms."""
    torch.manual_seed(1)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        hidden_size=sizes["hidden"], intermediate_size=sizes["hidden"], moe_intermediate_size=sizes["hidden"] // 2, num_hidden_layers=sizes["layers"], num_attention_heads=4,
        num_key_value_heads=4, head_dim=sizes["hidden"] // 4, num_experts=sizes["experts"], num_experts_per_tok=topk, vocab_size=VOCABULARY, norm_topk_prob=True,
        use_cache=False)).to(torch.bfloat16)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": recompute == "reentrant"})
    spread = {"enabled": True, "autoep_size": deepspeed.comm.get_world_size(), "preset_model": "qwen3_moe", "comm_backend": backend}
    if backend == "deepep":
        spread["comm_max_tokens_per_rank"] = sizes["batch"] * sizes["length"]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": sizes["batch"], "bf16": {"enabled": True}, "zero_optimization": {"stage": sizes["stage"]}, "expert_parallel": spread,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}})
    made = torch.Generator().manual_seed(5 + deepspeed.comm.get_rank())
    losses, norms = [], []
    for _ in range(sizes["steps"]):
        ids = torch.randint(0, VOCABULARY, (sizes["batch"], sizes["length"]), generator=made).to(engine.device)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        norms.append(float(engine.get_global_grad_norm()))
    deepspeed.module_inject.auto_ep_comm.destroy_exchanges(engine.module)
    return losses, norms


def main():
    sizes = {**SIZES, **{name: int(number) for name, number in (one.split("=") for one in sys.argv[1:])}}
    begin()
    rank, ranks = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    failed, plain = False, {}
    for topk, recompute in CASES:
        ours = trained(sizes, topk, "deepep", recompute)
        theirs = plain[topk] if recompute else trained(sizes, topk, "comm", None)
        plain.setdefault(topk, ours)
        exact = topk == 1 or recompute
        right = ours[0][0] != ours[0][1] and all(a == b if exact else abs(a - b) <= NEAR * b for mine, other in zip(ours, theirs) for a, b in zip(mine, other))
        failed = failed or not right
        what = f"as without recomputing, {recompute}" if recompute else "as its all-to-all's"
        print(f"# DeepSpeed, rank {rank} of {ranks}, ZeRO {sizes['stage']}, top-{topk}: losses {' '.join(f'{loss:.6f}' for loss in ours[0])}, gradients "
              f"{' '.join(f'{norm:.5f}' for norm in ours[1][:2])}, {what}: {('equal' if exact else 'near') if right else f'WRONG: {theirs}'}", flush=True)
    deepspeed.comm.barrier()
    os._exit(int(failed))  # process groups and hooks of several engines


main()
