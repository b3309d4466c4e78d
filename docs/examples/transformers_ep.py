#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Spreads the experts of a transformers model over ranks with deep_ep. Trains and infers; on GPUs, or on CPU tensors where there is none.

    torchrun --nproc-per-node 2 transformers_ep.py

docs/frameworks/transformers.md explains it; tests/frameworks compares it with the same model on one rank.
"""
import deep_ep
import torch
import torch.distributed as dist


class Dispatch(torch.autograd.Function):
    """Sends each token to the ranks of its experts. Backward: combine adds the gradients of rows and of weights at their token."""

    @staticmethod
    def forward(ctx, x, weights, idx, experts, buffer):
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
        rows, rows_idx, rows_weights, _, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=idx, topk_weights=weights)
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(rows_idx)
        return rows, rows_weights, rows_idx, handle

    @staticmethod
    def backward(ctx, rows, weights, *_):
        return *ctx.buffer.combine(rows.contiguous(), ctx.handle, topk_weights=weights.contiguous())[:2], None, None, None


class Combine(torch.autograd.Function):
    """Adds rows at their token. Backward: dispatch sends the gradients where the rows were."""

    @staticmethod
    def forward(ctx, rows, handle, buffer):
        ctx.buffer, ctx.handle = buffer, handle
        return buffer.combine(rows, handle)[0]

    @staticmethod
    def backward(ctx, grad):
        return ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle)[0], None, None


class SpreadExperts(torch.nn.Module):
    """Stands where a block's experts stood, and keeps those of this rank."""

    def __init__(self, experts, buffer):
        super().__init__()
        self.total, self.buffer, self.mine = experts.num_experts, buffer, experts
        experts.num_experts //= buffer.group_size
        for name, p in list(experts.named_parameters()):
            setattr(experts, name, torch.nn.Parameter(p.detach().chunk(buffer.group_size)[buffer.rank].clone()))

    def forward(self, x, idx, weights):
        rows, rows_weights, rows_idx, handle = Dispatch.apply(x, weights.float(), idx, self.total, self.buffer)
        row, choice = torch.where(rows_idx >= 0)  # each pair of a received token and one of its experts here
        y = self.mine(rows[row], rows_idx[row, choice, None], rows_weights[row, choice, None].to(x.dtype))
        return Combine.apply(torch.zeros_like(rows, dtype=torch.float32).index_add(0, row, y.float()).to(x.dtype), handle, self.buffer)


def spread(model, buffer):
    """Replaces the experts of every block: of Qwen3-MoE, DeepSeek-V3, and whatever else keeps them in a module `experts` with num_experts."""
    for block in list(model.modules()):
        if hasattr(getattr(block, "experts", None), "num_experts"):
            block.experts = SpreadExperts(block.experts, buffer)


if __name__ == "__main__":
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    dist.init_process_group("gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(1)  # the same random weights everywhere
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(hidden_size=256, moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=512,
                                               num_key_value_heads=4, num_experts=16, num_experts_per_tok=4)).to(device, torch.bfloat16)
    buffer = deep_ep.Buffer(dist.group.WORLD, explicitly_destroy=True)
    spread(model, buffer)
    tokens = torch.randint(0, 512, (2, 64), device=device)
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    print(f"rank {dist.get_rank()}: loss {loss.item():.4f}, {sum(p.numel() for p in model.parameters())} parameters here")
    buffer.destroy()
