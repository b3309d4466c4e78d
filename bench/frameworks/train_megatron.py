#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small MoE GPT with Megatron-core, unmodified, and compares its token dispatchers: losses, gradient norms, time of a step.

    PYTHONPATH=tools/python:MEGATRON EPF_LIBRARY=... EPF_LL_LIBRARY=... bench/frameworks/train_megatron.py [--dispatchers flex,allgather,alltoall] [--deepep DIR]

Experts are spread over all ranks. Weights and tokens depend on seeds alone, so losses of different dispatchers can be compared. Each round runs every
dispatcher once, in alternating order, in new processes; times are medians of the steps of all rounds after the first two of each. `flex` is the dispatcher that calls
deep_ep; --deepep adds `flex` over DeepEP itself, from a folder with its package and compiled module.

More ranks than GPUs share them: then set PYTHONPATH=tests/gpu/onegpu:... and ONE_GPU=1, and times mean nothing. Exit status 1: a run failed, or losses
differ by more than 1 %. With few experts a token and rank all digits agree; with many, dispatchers add a token's rows in other orders.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

SIZES = {"ranks": 2, "layers": 2, "hidden": 1024, "ffn": 1024, "experts": 8, "topk": 2, "seq": 512, "batch": 2, "vocab": 1024, "sms": 20, "steps": 10, "rounds": 1}


def model_of(a, dispatcher):
    """The model, with weights from the names of its parameters."""
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    flex = {"moe_flex_dispatcher_backend": "deepep", "moe_flex_dispatcher_num_sms": a.sms} if dispatcher == "flex" else {}
    config = TransformerConfig(
        num_layers=a.layers, hidden_size=a.hidden, num_attention_heads=max(a.hidden // 128, 1), ffn_hidden_size=a.ffn, num_moe_experts=a.experts,
        moe_ffn_hidden_size=a.ffn, moe_router_topk=a.topk, moe_router_dtype="fp32", moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
        moe_grouped_gemm=False, moe_permute_fusion=False, moe_token_dispatcher_type=dispatcher, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, bf16=True,
        params_dtype=torch.bfloat16, gradient_accumulation_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, expert_model_parallel_size=a.ranks, **flex)
    model = GPTModel(config, get_gpt_layer_local_spec(num_experts=a.experts, moe_grouped_gemm=False), a.vocab, a.seq).cuda().bfloat16()
    for name, p in sorted(model.named_parameters()):
        own = 0 if getattr(p, "allreduce", True) else 1000 * a.rank  # experts differ from rank to rank
        g = torch.Generator(device="cuda").manual_seed(zlib.crc32(name.encode()) % 100003 + own)
        with torch.no_grad():
            p.copy_(torch.ones_like(p) if p.dim() < 2 else torch.randn(p.shape, generator=g, device="cuda") * 0.02)
    return model


def train(a):
    """One rank's run: losses, gradient norms of what all ranks share, milliseconds of each step."""
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(a.rank % torch.cuda.device_count())
    dist.init_process_group("gloo" if torch.cuda.device_count() < a.ranks else "nccl", init_method=f"file://{a.folder}/meet", rank=a.rank, world_size=a.ranks)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    parallel_state.initialize_model_parallel(expert_model_parallel_size=a.ranks)
    model_parallel_cuda_manual_seed(7)
    model = model_of(a, a.dispatcher.split("@")[0])
    shared = [p for p in model.parameters() if getattr(p, "allreduce", True)]
    optimizer = torch.optim.SGD(model.parameters(), lr=a.lr)
    position = torch.arange(a.seq, device="cuda").unsqueeze(0).expand(a.batch, -1).contiguous()
    mask = torch.ones((1, 1, a.seq, a.seq), dtype=torch.bool, device="cuda").triu(1)
    result = {"losses": [], "norms": [], "ms": []}
    for step in range(a.steps):
        g = torch.Generator(device="cuda").manual_seed(1000 * step + a.rank)
        tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1), generator=g, device="cuda")
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        loss = model(tokens[:, :-1].contiguous(), position, mask, labels=tokens[:, 1:].contiguous()).float().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for p in shared:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= a.ranks
        norm = sum((p.grad.float() ** 2).sum() for p in shared if p.grad is not None).sqrt()
        optimizer.step()
        torch.cuda.synchronize()
        result["ms"].append((time.perf_counter() - began) * 1e3)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        result["losses"].append(round(mean.item() / a.ranks, 6))
        result["norms"].append(round(norm.item(), 5))
    if a.rank == 0:
        with open(f"{a.folder}/result.json", "w", encoding="ascii") as f:
            json.dump(result, f)
    dist.barrier()
    dist.destroy_process_group()


def run(a, dispatcher):
    """All ranks of one run; its result, or None."""
    environment = dict(os.environ, CUDA_DEVICE_MAX_CONNECTIONS="1")
    if dispatcher.endswith("@deepep"):
        environment["PYTHONPATH"] = f"{a.deepep}:{environment.get('PYTHONPATH', '')}"
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--rank", str(r), "--dispatcher", dispatcher, "--folder", folder],
                                  env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in range(a.ranks)]
        texts = [p.communicate()[0] for p in ranks]
        if any(p.returncode for p in ranks):
            print(f"# {dispatcher}: a rank failed\n" + "\n".join(text[-1500:] for text in texts))
            return None
        with open(f"{folder}/result.json", encoding="ascii") as f:
            return json.load(f)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatchers", default="flex,allgather,alltoall")
    parser.add_argument("--deepep", help="folder of DeepEP's package")
    for name, value in SIZES.items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--lr", type=float, default=0.05)
    for name in ("dispatcher", "folder"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.dispatcher:
        train(a)
        return 0
    names = a.dispatchers.split(",") + (["flex@deepep"] if a.deepep else [])
    print(f"# {a.ranks} ranks, {a.layers} layers, hidden {a.hidden}, {a.experts} experts of {a.ffn}, top-{a.topk}, {a.batch * a.seq} tokens a rank; "
          f"{a.steps} steps, load {os.getloadavg()[0]:.2f}")
    results = {}
    for r in range(a.rounds):
        for name in names if r % 2 == 0 else reversed(names):
            one = run(a, name)
            if one is None:
                return 1
            one["ms"] = one["ms"][2:] + results.get(name, {"ms": []})["ms"]
            results[name] = one
    print(f"{'dispatcher':12} {'ms a step':>10} {'tokens/s':>10}  losses; gradient norms")
    for name, got in results.items():
        ms = statistics.median(got["ms"]) if got["ms"] else float("nan")
        print(f"{name:12} {ms:10.1f} {a.ranks * a.batch * a.seq / ms * 1e3:10.0f}  {' '.join(f'{v:.6f}' for v in got['losses'][:4])} ... "
              f"{got['losses'][-1]:.6f}; {' '.join(f'{v:.5f}' for v in got['norms'][:2])}")
    first = results[names[0]]["losses"]
    apart = max(abs(x / y - 1) for got in results.values() for x, y in zip(got["losses"], first))
    print(f"# losses of all dispatchers agree within {apart:.1e}" if apart < 0.01 else f"# WRONG: losses differ by {apart:.1e}")
    return apart >= 0.01


if __name__ == "__main__":
    sys.exit(main())
