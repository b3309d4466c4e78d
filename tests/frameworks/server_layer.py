# SPDX-License-Identifier: Apache-2.0
"""What programs share that run the token dispatchers of a server, unmodified, without the rest of it: the modules, and a layer of experts behind a dispatcher.

A server needs a GPU and hundreds of megabytes of kernels; its dispatchers need PyTorch and deep_ep. So a few of its modules are loaded as they are, and stand-ins
are found in place of all others; one that is used and has no substitute is an error. A layer draws tokens and routes, does the experts' work, and compares the sums
with those that each rank computes for its own tokens, and counts with the routes of all ranks. With a GPU, it runs on that.
"""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

import torch
import torch.distributed as dist

ON_GPU = torch.cuda.is_available()
BLOCK, ALIGNMENT = 128, 128  # columns that share a scale, and what servers round an expert's rows up to
NEAR = {"bf16": 1e-2, "fp8": 6e-2}  # distance of a token's sum, of its length
MULTIPROCESSORS = 132
SIZES = {"tokens": 40, "hidden": 256, "experts": 8, "topk": 4}
LONGEST = 64  # tokens of a rank in low latency


class Absent(type):
    """Something of a server that is imported and must not be used. It is a class, because type annotations and base classes may name it."""

    def __call__(cls, *arguments, **named):
        raise NotImplementedError(f"{cls.__name__} is used and has no substitute here")


class StandIn(types.ModuleType):
    """A module that is not loaded."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{self.__name__}.{name}"
        return self.substitutes[whole] if whole in self.substitutes else Absent(whole, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a package's real modules in the path, and stand-ins for all others; substitutes: what those have, by full name."""

    def __init__(self, package, real, substitutes):
        self.package, self.real, self.substitutes = package, {f"{package}.{name}" for name in real}, substitutes
        self.folder = next(path for path in sys.path if os.path.isdir(f"{path}/{package}"))

    def find_spec(self, name, path=None, target=None):
        if name in self.real:
            return importlib.util.spec_from_file_location(name, f"{self.folder}/{name.replace('.', '/')}.py")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == self.package else None

    def create_module(self, spec):
        module = StandIn(spec.name)
        module.substitutes = self.substitutes
        return module

    def exec_module(self, module):
        pass


def load(package, real, substitutes):
    """Loads the real modules of a package; returns them in that order."""
    sys.meta_path.insert(0, Finder(package, real, substitutes))
    return [importlib.import_module(f"{package}.{name}") for name in real]


def quantized(x, block, column_major_scales=False, scale_tma_aligned=False, scale_ue8m0=False):
    """Rows in FP8 with a scale for each block, [rows, columns / block], in FP32: what servers' kernels do on Hopper."""
    assert not (column_major_scales or scale_tma_aligned or scale_ue8m0), "scales as Hopper's matrix products take them only"
    blocks = x.float().view(x.size(0), x.size(1) // block, block)
    scales = blocks.abs().amax(2).clamp(1e-4) / 448
    return (blocks / scales[:, :, None]).to(torch.float8_e4m3fn).view(x.shape), scales


def floats(rows, scales):
    """Rows as they came, in FP32."""
    return rows.float() if scales is None else (rows.float().view(rows.size(0), rows.size(1) // BLOCK, BLOCK) * scales.float()[:, :, None]).view(rows.shape)


def expert(rows, number):
    """What an expert makes of rows, exactly in FP32: for each another order of the columns and another power of two."""
    return rows.float().roll(int(number) + 1, -1) * 2.0 ** (int(number) % 4 - 2)


class Layer:
    """Experts spread over a group, the tokens of this rank, and what was found wrong."""

    def __init__(self, server, words):
        self.server, self.sizes = server, {**SIZES, **{name: int(number) for name, number in words.items()}}
        self.device = torch.device("cpu")
        if ON_GPU:
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        else:
            torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
        dist.init_process_group("gloo")
        self.group = dist.group.WORLD
        self.ranks, self.rank = self.group.size(), self.group.rank()
        self.here = self.sizes["experts"] // self.ranks
        self.made = torch.Generator().manual_seed(7 + self.rank)
        self.failed = []
        self.x = self.weights = self.ids = self.sums = None

    def draw(self, tokens, masked=True):
        """Draws tokens, the experts of each and their weights, a few entries masked or none."""
        topk = self.sizes["topk"]
        x = torch.randn(tokens, self.sizes["hidden"], generator=self.made).to(torch.bfloat16)
        ids = torch.rand(tokens, self.sizes["experts"], generator=self.made).argsort(1)[:, :topk].contiguous()
        if masked:
            ids[1::5, -1] = -1
        weights = torch.rand(tokens, topk, generator=self.made)
        self.sums = torch.zeros(x.shape)
        for t, entries in enumerate(ids.tolist()):
            for k, number in enumerate(entries):
                if number >= 0:
                    self.sums[t] += weights[t, k] * expert(x[t], number)
        self.x, self.ids, self.weights = x.to(self.device), ids.to(self.device), weights.to(self.device)

    def routed(self):
        """How many tokens of all ranks each expert of this rank gets."""
        every = [None] * self.ranks
        dist.all_gather_object(every, self.ids.tolist(), self.group)
        flat = [number for ids in every for entries in ids for number in entries]
        return [flat.count(self.rank * self.here + e) for e in range(self.here)]

    def weighted(self, rows, ids, weights):
        """A row's sum over the experts of this rank that it is for, as kernels gather it; rows in FP32, ids counted from this rank's first expert."""
        sums = torch.zeros(rows.shape)
        for r, entries in enumerate(ids.tolist()):
            for k, number in enumerate(entries):
                if number >= 0:
                    sums[r] += float(weights[r, k]) * expert(rows[r].cpu(), self.rank * self.here + number)
        return sums.to(self.device, torch.bfloat16)

    def apart(self, rows, ids):
        """What each expert makes of a row, [rows, entries, columns], zero for those of other ranks; rows in FP32, ids counted from the first of all experts."""
        out = torch.zeros(*ids.shape, rows.size(1))
        for r, entries in enumerate(ids.tolist()):
            for k, number in enumerate(entries):
                if number // self.here == self.rank:
                    out[r, k] = expert(rows[r].cpu(), number)
        return out.to(self.device, torch.bfloat16)

    def batched(self, rows, scales, counts):
        """Rows [experts, slots, columns], of which counts are filled: what the experts make of them, the other slots poisoned."""
        out = torch.full(rows.shape, float("nan"), dtype=torch.bfloat16, device=self.device)
        for e, number in enumerate(counts.tolist()):
            filled = floats(rows[e, :number], None if scales is None else scales[e, :number])
            out[e, :number] = expert(filled.cpu(), self.rank * self.here + e).to(self.device, torch.bfloat16)
        return out

    def grouped(self, rows, ends, weights):
        """Rows in the order of experts, each expert's from the next multiple of ALIGNMENT on, which end at ends: their weighted results, the gaps poisoned."""
        out = torch.full(rows.shape, float("nan"))
        first = 0
        for e, last in enumerate(ends.tolist()):
            out[first:last] = expert(rows[first:last].cpu(), self.rank * self.here + e) * weights[first:last, None].float().cpu()
            first = -(-last // ALIGNMENT) * ALIGNMENT
        return out.to(self.device, torch.bfloat16)

    def check(self, what, form, got, counts=None, alignment=1):
        """Compares sums, and where the server has counts, those."""
        wrong = []
        got = got.float().cpu()
        routed = self.routed()
        if got.shape != self.sums.shape:
            wrong.append(f"sums {tuple(got.shape)} instead of {tuple(self.sums.shape)}")
        elif not bool(((got - self.sums).norm(dim=1) <= NEAR[form] * self.sums.norm(dim=1)).all()):
            wrong.append(f"sums, by {((got - self.sums).norm(dim=1) / self.sums.norm(dim=1)).max():.4f} of their length")
        if counts is not None and list(counts) != [-(-number // alignment) * alignment for number in routed]:
            wrong.append(f"counts {list(counts)} of {routed} rows")
        print(f"# {self.server}, rank {self.rank} of {self.ranks}: {what}, {form}, {self.x.size(0)} tokens: {'WRONG: ' + '; '.join(wrong) if wrong else 'right'}", flush=True)
        self.failed += wrong

    def end(self, kinds, expected):
        """Ends the process: servers never destroy their buffers."""
        if kinds != expected:
            self.failed.append("buffers")
            print(f"WRONG: {self.server}, rank {self.rank}: buffers {kinds} instead of {expected}", flush=True)
        dist.barrier()
        os._exit(1 if self.failed else 0)
