# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM's wheel for CUDA run on CPU tensors, to check programs that serve with it; import before vLLM.

vLLM takes this platform for CUDA on Hopper, so that it chooses what it chooses there: its all-to-all managers, prepare and finalize classes, and Triton kernels,
which Triton's interpreter runs. Of its compiled operators those that a Qwen3-MoE model needs are here in PyTorch. Replaced besides: what moves rows with NCCL, and
the start of a worker. Not covered: CUDA graphs, streams, events, and everything that depends on time. Slow.
"""
import contextlib
import os
import types

os.environ["TRITON_INTERPRET"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM uses Triton although it has no driver
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import triton.language as tl  # noqa: E402
import vllm.platforms  # noqa: E402
from torch import library as operators  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402
from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402

HERE = __name__
MULTIPROCESSORS = 132
RANKS = 8
MEMORY = 8 << 30


class Platform(NonNvmlCudaPlatform):
    """CUDA on Hopper, on CPU tensors."""

    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id=0):
        return "NVIDIA H200"

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return MEMORY

    @classmethod
    def num_compute_units(cls, device_id=0):
        return MULTIPROCESSORS

    @classmethod
    def device_count(cls):
        return RANKS

    @classmethod
    def get_device_communicator_cls(cls):
        return f"{HERE}.Communicator"

    @classmethod
    def is_pin_memory_available(cls):
        return False

    @classmethod
    def check_and_update_config(cls, vllm_config):
        vllm_config.parallel_config.worker_cls = f"{HERE}.Worker"
        super().check_and_update_config(vllm_config)


vllm.platforms._current_platform = Platform()  # pylint: disable=protected-access

import vllm.utils.platform_utils  # noqa: E402
import vllm.utils.torch_utils  # noqa: E402

vllm.utils.platform_utils.is_pin_memory_available.cache_clear()
vllm.utils.torch_utils.PIN_MEMORY = False

from vllm.distributed.device_communicators import pynccl  # noqa: E402
from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator  # noqa: E402
from vllm.v1.worker import cpu_model_runner  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker as GpuWorker, init_worker_distributed_environment  # noqa: E402
from vllm.v1.worker.workspace import init_workspace_manager  # noqa: E402


class Communicator(CudaCommunicator):
    """vLLM's, with gloo where it calls NCCL."""

    def all_gatherv(self, input_, dim=0, sizes=None):
        if isinstance(input_, list):
            return [self.all_gatherv(one, dim, sizes) for one in input_]
        sizes = sizes or [input_.size(0)] * self.world_size
        everybody = [None] * self.world_size
        dist.all_gather_object(everybody, input_, group=self.cpu_group)
        assert [one.size(0) for one in everybody] == list(sizes)
        return torch.cat(everybody)

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        sizes = sizes or [input_.size(0) // self.world_size] * self.world_size
        everybody = [None] * self.world_size
        dist.all_gather_object(everybody, input_, group=self.cpu_group)
        return sum(one.float() for one in everybody).to(input_.dtype).split(list(sizes))[self.rank_in_group]


class Worker(GpuWorker):
    """vLLM's for GPUs; only starting differs."""

    def init_device(self):
        self.device = torch.device("cpu")
        self.init_snapshot = types.SimpleNamespace(free_memory=MEMORY, total_memory=MEMORY)
        self.requested_memory = MEMORY
        init_worker_distributed_environment(self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo")
        init_workspace_manager(self.device, 1)
        self.model_runner = cpu_model_runner.CPUModelRunner(self.vllm_config, self.device)


def dot_of_bfloat16(dot):
    """Triton's interpreter keeps bfloat16 as its bits and would multiply them as numbers."""
    def create_dot(self, a, b, *others):
        a, b = (TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return dot(self, a, b, *others)
    return create_dot


def rms_norm(result, x, weight, epsilon):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + epsilon)
    result.copy_(y if weight is None else (y.to(x.dtype) * weight))


def fused_add_rms_norm(x, residual, weight, epsilon):
    residual.add_(x)
    rms_norm(x, residual, weight, epsilon)


def silu_and_mul(result, x):
    gate, up = x.chunk(2, -1)
    result.copy_(torch.nn.functional.silu(gate.float()).to(x.dtype) * up)


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False):
    assert is_neox and not rope_dim_offset and not inverse
    cos, sin = (part[:, None].float() for part in cos_sin_cache[positions.flatten()].chunk(2, -1))
    for x in (query, key):
        heads = x.view(positions.numel(), -1, head_size)
        low, high = (half.float() for half in heads[..., :2 * cos.size(-1)].clone().chunk(2, -1))
        heads[..., :2 * cos.size(-1)] = torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


def topk_softmax(weights, indices, _rows, gates, renormalize, bias):
    assert bias is None
    best, index = gates.float().softmax(-1).topk(weights.size(-1))
    weights.copy_(best / best.sum(-1, keepdim=True) if renormalize else best)
    indices.copy_(index)


def moe_align_block_size(ids, experts, block, sorted_ids, expert_ids, padded, expert_map):
    """Orders rows by expert, each expert's padded to whole blocks with a number past the last row. Blocks of experts that are elsewhere have expert -1."""
    sorted_ids.fill_(ids.numel())
    expert_ids.fill_(-1)
    at, flat = 0, ids.flatten()
    for e in range(experts):
        rows = (flat == e).nonzero().flatten()
        blocks = -(-len(rows) // block)
        sorted_ids[at:at + len(rows)] = rows.int()
        expert_ids[at // block:at // block + blocks] = e if expert_map is None else int(expert_map[e])
        at += blocks * block
    padded.fill_(at)


def moe_sum(x, output):
    output.copy_(x.float().sum(1))


def install():
    """Registers the operators, and functions of PyTorch that need a GPU."""
    for space, functions in (("_C", (rms_norm, fused_add_rms_norm, silu_and_mul, rotary_embedding)), ("_moe_C", (topk_softmax, moe_align_block_size, moe_sum))):
        library = operators.Library(space, "IMPL", "CPU")
        libraries.append(library)
        for function in functions:
            library.impl(function.__name__, function)

    def nothing(*_arguments, **_named):
        return None

    class Stream:
        """Of a device without streams."""
        def __init__(self, *_arguments, **_named):
            self.wait_stream = self.synchronize = self.wait_event = self.record_event = nothing

    class Event(Stream):
        """Likewise."""
        record = wait = nothing

        def query(self):
            return True

    torch.cuda.Stream, torch.Stream, torch.cuda.Event, torch.Event = Stream, Stream, Event, Event
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: Stream()
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.set_stream = nothing
    torch.cuda.is_current_stream_capturing = lambda: False
    for name in ("synchronize", "empty_cache", "set_device_index", "reset_peak_memory_stats"):
        setattr(torch.accelerator, name, nothing)
    torch.accelerator.device_count = lambda: RANKS
    torch.accelerator.max_memory_allocated = torch.accelerator.memory_allocated = lambda *_: 0
    torch._C._accelerator_setAllocatorSettings = nothing  # pylint: disable=protected-access
    torch.cuda.mem_get_info = lambda *_: (MEMORY, MEMORY)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=MULTIPROCESSORS, total_memory=MEMORY, major=9, minor=0)


    InterpreterBuilder.create_dot = dot_of_bfloat16(InterpreterBuilder.create_dot)
    pynccl.PyNcclCommunicator = lambda **_: None
    cpu_model_runner._torch_cuda_wrapper = contextlib.nullcontext  # pylint: disable=protected-access


libraries = []
install()
