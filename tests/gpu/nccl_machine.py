# SPDX-License-Identifier: Apache-2.0
"""Prints what decides whether NCCL's one-sided operations work on this machine; loads NCCL as PyTorch does. Used by nccl_clients.sh.

Exit 1 if a requirement is missing: NCCL 2.30.7, GPU memory of cuMemCreate that NICs may reach (without it NCCL has no GIN), descriptors of it, nvcc.
"""
import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys

ATTRIBUTES = {"vmm": 102, "posix-fd": 103, "rdma": 116, "rdma-vmm": 110, "dma-buf": 124, "fabric": 128}
NEEDED = ("vmm", "posix-fd", "rdma-vmm")
NCCL = 23007


def main():
    missing = []
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        values = {}
        for name, number in ATTRIBUTES.items():
            value = ctypes.c_int(-1)
            rc = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            values[name] = value.value if rc == 0 else f"error {rc}"
        print(f"# GPU {device}: " + ", ".join(f"{k} {v}" for k, v in values.items()))
        missing += [f"GPU {device} {name}" for name in NEEDED if values[name] != 1]
    import torch  # pylint: disable=import-outside-toplevel
    nccl, version = ctypes.CDLL("libnccl.so.2"), ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    with open("/proc/self/maps", encoding="ascii") as f:
        paths = sorted({line.split()[-1] for line in f if "libnccl.so" in line})
    print(f"# torch {torch.__version__}, NCCL {version.value} from {paths}, python {sys.version.split()[0]}")
    if version.value != NCCL or len(paths) != 1:
        missing.append(f"NCCL {NCCL}, once")
    for name in ("numpy", "packaging", "cuda.bindings", "cuda.core", "nccl.core", "nccl.ep"):
        try:
            found = importlib.util.find_spec(name)
        except ImportError as error:
            found = error
        print(f"# {name}: {found.origin if hasattr(found, 'origin') else found}")
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for program in ("nvcc", "cuobjdump"):
        path = shutil.which(program) or f"{home}/bin/{program}"
        if not os.path.exists(path):
            missing.append(program)
    print("# " + subprocess.run([shutil.which("nvcc") or f"{home}/bin/nvcc", "--version"], capture_output=True, text=True, check=False).stdout.splitlines()[-1]
          + f", CUDA home {home}")
    for path in ("/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/kernel/osrelease"):
        if os.path.exists(path):
            with open(path, encoding="ascii") as f:
                print(f"# {path}: {f.read().strip()}")
    print("# missing: " + (", ".join(missing) or "nothing"))
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
