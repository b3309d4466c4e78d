#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a small mixture of experts built from torchtitan's parts, unmodified: its experts and its token dispatchers, all-to-all and DeepEP.

    torchrun --nproc-per-node 2 torchtitan_rank.py [NAME=NUMBER...]       of SIZES; tokens=.. experts=.. steps=..

Each dispatcher trains the same model on the same tokens. torchtitan rounds scores and their gradients to BF16 on DeepEP's path only. So with scores that are exact in
BF16 and a router that does not learn, losses and gradients must be equal in every bit; with one that learns, within NEAR. Afterwards, without
gradients, DeepEP's grouped layout for graphs must give the same result as its compact one. Without a GPU this runs on CPU tensors: torchtitan registers its operators
for GPUs only, so they are registered for the CPU here, and a stand-in replaces Triton kernels that another dispatcher imports.
"""
import os
import sys
import types

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

ON_GPU = torch.cuda.is_available()
SIZES = {"tokens": 96, "dim": 64, "hidden": 128, "experts": 8, "topk": 2, "steps": 6}
LEARNING_RATE, NEAR = 0.05, 2e-2


class Kernels(types.ModuleType):
    """Stands in for Triton kernels that torchtitan imports and nothing here launches."""

    def __getattr__(self, name):
        return None


def on_the_cpu(deepep):
    """Registers torchtitan's operators for CPU tensors."""
    deepep._lib.impl("dispatch", deepep._dispatch_op_impl, "CPU")
    deepep._lib.impl("combine", deepep._combine_op_impl, "CPU")


class Model(torch.nn.Module):
    """A router, and the experts of this rank behind a dispatcher."""

    def __init__(self, sizes, dispatcher, mesh, rank, learns):
        from torchtitan.models.common.moe import GroupedExperts
        super().__init__()
        here = sizes["experts"] // mesh.size()
        made = torch.Generator().manual_seed(1)
        self.gate = torch.nn.Parameter(torch.randn(sizes["experts"], sizes["dim"], generator=made) / 8, requires_grad=learns)
        self.experts = GroupedExperts(GroupedExperts.Config(dim=sizes["dim"], hidden_dim=sizes["hidden"], num_experts=here))
        for weights in self.experts.parameters():  # drawn for all experts, so that they do not depend on the number of ranks
            every = torch.randn(sizes["experts"], *weights.shape[1:], generator=made) / 8
            weights.data = every[rank * here:(rank + 1) * here].clone()
        self.dispatcher, self.topk = dispatcher, sizes["topk"]
        dispatcher.wire_meshes(ep_mesh=mesh)

    def forward(self, x):
        scores, chosen = torch.sigmoid(x.float() @ self.gate.t()).topk(self.topk)
        scores = scores.bfloat16().float()
        scores = scores if self.gate.requires_grad else scores.detach()
        counts = torch.bincount(chosen.flatten(), minlength=self.gate.size(0))
        rows, each, state = self.dispatcher.dispatch(x, scores, chosen, counts)
        return self.dispatcher.combine(self.experts(rows, each), state, x)


def trained(sizes, dispatcher, mesh, device, learns):
    """Trains on this rank's tokens; returns losses and gradients of the first step, and the model."""
    rank = dist.get_rank()
    model = Model(sizes, dispatcher, mesh, rank, learns).to(device)
    made = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(sizes["tokens"], sizes["dim"], generator=made).to(device, torch.bfloat16).requires_grad_()
    want = torch.randn(sizes["tokens"], sizes["dim"], generator=made).to(device, torch.bfloat16)
    learner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], LEARNING_RATE)
    losses, first = [], None
    for _ in range(sizes["steps"]):
        loss = (model(x).float() - want.float()).square().mean()
        losses.append(loss.item())
        learner.zero_grad()
        x.grad = None
        loss.backward()
        if model.gate.grad is not None:
            dist.all_reduce(model.gate.grad)
        first = first or {"x": x.grad.clone(), **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}}
        learner.step()
    return losses, first, model, x.detach()


def compared(sizes, make, mesh, device, learns):
    """Trains with both; returns the losses, and what differs."""
    ours, mine, model, x = trained(sizes, make["deepep"](), mesh, device, learns)
    theirs, others, *_ = trained(sizes, make["alltoall"](), mesh, device, learns)
    wrong = [] if ours[0] != ours[1] else ["nothing was learned"]
    if set(mine) != set(others):
        wrong.append(f"gradients of {sorted(mine)} instead of {sorted(others)}")
    if not learns:
        wrong += [] if ours == theirs else [f"losses {ours} instead of {theirs}"]
        wrong += [f"the gradient of {name}" for name in others if not torch.equal(mine[name], others[name])]
    else:
        wrong += [f"loss {a} instead of {b}" for a, b in zip(ours, theirs) if abs(a - b) > NEAR * b]
        wrong += [f"the gradient of {name}" for name in others
                  if float((mine[name].float() - others[name].float()).norm()) > NEAR * float(others[name].float().norm())]
    return ours, wrong, model, x


def inference(model, x, graphs):
    """The grouped layout gives what the compact one gives."""
    with torch.no_grad():
        compact = model(x)
        model.dispatcher = graphs
        if not torch.equal(model(x), compact):
            return ["the grouped layout gives other sums than the compact one"]
    return []


def main():
    sizes = {**SIZES, **{name: int(number) for name, number in (one.split("=") for one in sys.argv[1:])}}
    if not ON_GPU:
        sys.modules["torchtitan.distributed.minimal_async_ep.kernels"] = Kernels("kernels")
    if not hasattr(torch.compiler, "_is_non_strict_tracing"):  # new after PyTorch 2.11
        torch.compiler._is_non_strict_tracing = lambda: False
    import deep_ep
    from torchtitan.distributed.deepep import deepep
    from torchtitan.distributed.utils import set_spmd_backend
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher, DeepEPTokenDispatcher
    set_spmd_backend("full_dtensor")  # device meshes of DTensor, not of torchtitan's type checker
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    else:
        on_the_cpu(deepep)
    mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("ep",))
    common = {"num_experts": sizes["experts"], "top_k": sizes["topk"]}

    def ours(graph):
        return DeepEPTokenDispatcher.Config(**common, num_max_tokens_per_rank=sizes["tokens"], hidden_dim=sizes["dim"], cudagraphable=graph).build()
    make = {"deepep": lambda: ours(False), "alltoall": lambda: AllToAllTokenDispatcher.Config(**common).build()}
    failed = []
    for learns in (False, True):
        losses, wrong, model, x = compared(sizes, make, mesh, device, learns)
        graphs = ours(True)
        graphs.wire_meshes(ep_mesh=mesh)
        failed += wrong + inference(model, x, graphs)
        print(f"# torchtitan, rank {rank} of {ranks}, {'a router that learns' if learns else 'a fixed router'}: "
              f"losses {' '.join(f'{loss:.7f}' for loss in losses)}; {'WRONG' if wrong else 'as near as BF16' if learns else 'equal'}", flush=True)
    if not isinstance(deepep._buffer, deep_ep.ElasticBuffer):
        failed.append("the buffer is not ours")
    for line in failed:
        print(f"WRONG: rank {rank}: {line}", flush=True)
    dist.barrier()
    os._exit(1 if failed else 0)  # torchtitan never destroys its buffer


main()
