#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of docs/examples/transformers_ep.py next to the same model without expert parallelism: logits, loss and every gradient, twice.

    torchrun --nproc-per-node 2 transformers_rank.py qwen3_moe|deepseek_v3 [NAME=NUMBER...]     sizes of the configuration, e.g. hidden_size=2048

Both models are BF16. What BF16 itself costs is measured with a third, in FP32: spreading the experts may be off by half as much again, not more. Routers
choose in the FP32 model, and the others repeat its choices: a token whose two best experts are almost equal would flip between them with the last bit.
"""
import os
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/examples"))

import deep_ep  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers_ep import spread  # noqa: E402

SHAPE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 512,
         "num_key_value_heads": 4, "num_experts_per_tok": 4}
OWN = {"qwen3_moe": {"num_experts": 16},
       "deepseek_v3": {"n_routed_experts": 16, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "q_lora_rank": 64, "kv_lora_rank": 64,
                       "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}}
MORE = 1.5  # of BF16's own error


class Choices:
    """Records which indices torch.topk chose, then makes it choose them again in the same order."""

    def __init__(self):
        self._topk, self._made, self._next = torch.topk, [], None

    def __enter__(self):
        torch.topk = self._choose
        return self

    def __exit__(self, *_):
        torch.topk = self._topk
        self._next = iter(self._made)

    def _choose(self, x, k, dim=-1, **named):
        if self._next is None:
            self._made.append(self._topk(x, k, dim=dim, **named).indices)
            return torch.return_types.topk((x.gather(dim, self._made[-1]), self._made[-1]))
        chosen = next(self._next)
        return torch.return_types.topk((x.gather(dim, chosen), chosen))


def step(model, tokens):
    """Returns the logits, the loss and the gradients by parameter, in FP32; an expert's with what all ranks contributed."""
    out = model(tokens, labels=tokens)
    out.loss.backward()
    return out.logits.float(), out.loss.item(), {name.replace("experts.mine.", "experts."): p.grad.float() for name, p in model.named_parameters()}


def experts_of(gradients, rank, ranks):
    """Of a model that has all experts: adds what all ranks' tokens contributed, and keeps the experts of this rank."""
    for name, g in gradients.items():
        if ".experts." in name:
            dist.all_reduce(g)
            gradients[name] = g.chunk(ranks)[rank]
    return gradients


def off(gradients, exact):
    """Returns the relative error of two groups of gradients: of experts, and of everything else."""
    groups = {"experts": [0.0, 0.0], "others": [0.0, 0.0]}
    for name, g in exact.items():
        one = groups["experts" if ".experts." in name else "others"]
        one[0] += (gradients[name] - g).norm().item() ** 2
        one[1] += g.norm().item() ** 2
    return {name: (far / all_of_it) ** 0.5 for name, (far, all_of_it) in groups.items()}


def main(kind, *sizes):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shape = {**SHAPE, **OWN[kind], **{name: int(number) for name, number in (size.split("=") for size in sizes)}}
    buffer = deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True)
    tokens = torch.randint(0, shape["vocab_size"], (2, 64), generator=torch.Generator().manual_seed(rank)).to(device)
    results, choices = {}, Choices()
    for name in ("exact", "alone", "spread"):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape), dtype=torch.bfloat16).to(device)
        if name == "exact":
            model = model.float()
        if name == "spread":
            spread(model, buffer)
        with choices:
            logits, loss, gradients = step(model, tokens)
        if name != "spread":
            gradients = experts_of(gradients, rank, ranks)
        results[name] = logits, loss, gradients
    exact = results["exact"]
    errors = {name: {"logits": ((logits - exact[0]).norm() / exact[0].norm()).item(), **off(gradients, exact[2])}
              for name, (logits, _, gradients) in results.items() if name != "exact"}
    wrong = any(errors["spread"][what] > MORE * error for what, error in errors["alone"].items())
    print(f"# {kind}, rank {rank} of {ranks}, {device.type}: loss {results['alone'][1]:.6f} alone, {results['spread'][1]:.6f} spread, {exact[1]:.6f} in FP32; off from FP32, "
          "alone and spread: " + ", ".join(f"{what} {error:.1e} {errors['spread'][what]:.1e}" for what, error in errors["alone"].items()) + (" WRONG" if wrong else ""))
    dist.barrier()
    buffer.destroy()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
