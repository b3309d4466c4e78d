# SPDX-License-Identifier: Apache-2.0
"""Runs programs for several GPUs on one: device n becomes n modulo the number of GPUs, and process groups use gloo, because NCCL refuses two ranks on
one GPU. Python imports this file from PYTHONPATH; without ONE_GPU=1 it changes nothing. Programs and modules under test stay unmodified.
ONE_GPU_RUNS=N: a program that seeds PyTorch for each of endless runs exits in order after N.
"""
import inspect
import os
import sys


def _torch():
    try:
        import torch
        import torch.distributed
    except ImportError:
        return None
    return torch


def _install(torch):
    """Replaces functions of PyTorch."""
    dist = torch.distributed
    set_device, init = torch.cuda.set_device, dist.init_process_group

    def set_device_modulo(device):
        index = device if isinstance(device, int) else torch.device(device).index or 0
        set_device(index % max(1, torch.cuda.device_count()))

    def init_by_gloo(backend=None, *args, **named):
        named.pop("device_id", None)
        return init("gloo" if backend in (None, "nccl") else backend, *args, **named)

    def all_gather_into_tensor(output, input, group=None, async_op=False):
        """Gloo's version requires the shape of the stacked inputs."""
        parts = [torch.empty_like(input) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, input.contiguous(), group=group)
        if output.numel():
            output.copy_(torch.stack(parts).view(output.shape))

    def reduce_scatter_tensor(output, input, op=None, group=None, async_op=False):
        """Gloo has none. Sums in FP32."""
        sums = input.float()
        dist.all_reduce(sums, group=group)
        output.copy_(sums.view(dist.get_world_size(group), -1)[dist.get_rank(group)].view(output.shape))

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
        """Gloo has none for GPUs: over the CPU, as bytes, because PyTorch pickles no FP8."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        parts = input.chunk(size) if input_split_sizes is None else input.split(list(input_split_sizes))
        places = output.chunk(size) if output_split_sizes is None else output.split(list(output_split_sizes))
        everybody = [None] * size
        dist.all_gather_object(everybody, [part.detach().contiguous().view(torch.uint8).cpu() for part in parts], group=group)
        for place, theirs in zip(places, everybody):
            place.copy_(theirs[rank].view(place.dtype))

    kept = [p for name, p in inspect.signature(init).parameters.items() if name != "device_id"]
    init_by_gloo.__signature__ = inspect.Signature(kept)
    torch.cuda.set_device = set_device_modulo
    dist.init_process_group = init_by_gloo
    dist.all_gather_into_tensor = all_gather_into_tensor
    dist.reduce_scatter_tensor = reduce_scatter_tensor
    dist.all_to_all_single = all_to_all_single


def _end_after(torch, runs):
    """At the next seed, destroys the caller's `buffer`, meets all ranks and exits, so that the shim prints its counts."""
    seed, done = torch.manual_seed, []

    def manual_seed(number):
        if len(done) == runs:
            sys._getframe(1).f_locals["buffer"].destroy()
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
            sys.exit(0)
        done.append(number)
        return seed(number)

    torch.manual_seed = manual_seed


if os.environ.get("ONE_GPU") == "1":
    found = _torch()
    if found is not None:
        _install(found)
        if "ONE_GPU_RUNS" in os.environ:
            _end_after(found, int(os.environ["ONE_GPU_RUNS"]))
