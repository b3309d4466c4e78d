#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch with the software NIC in one process: tensors are regions, and calls that wait for the device return in time under traffic.

    torch_calls.py libepf.so [engine|kernel]

Two ranks; rank r uses GPU r modulo the number of GPUs. Rank 1 puts into a tensor of rank 0 without pause, so that rank 0's process copies;
rank 0 calls torch.cuda.synchronize() 1,000 times, frees memory of the device 1,000 times, and uses kernels of PyTorch for the first
time. Then the tensor is compared. First uses load and compile code, so their time without the NIC is measured first, the second of
two times. Exit 0: right, and no call took 50 ms (a first use: 50 ms more than the longest without the NIC); 77: no torch or no
GPU, with the reason. Run by tests/gpu/run.sh.
"""
import ctypes
import os
import socket
import subprocess
import sys
import time

BYTES = 16 << 20
MESSAGE = 7168
CALLS = 1000
LIMIT_MS = 50.0


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("config_file", ctypes.c_char_p),
                ("settings", ctypes.POINTER(ctypes.c_char_p)), ("progress", ctypes.c_void_p),
                ("progress_arg", ctypes.c_void_p), ("now", ctypes.c_void_p), ("now_arg", ctypes.c_void_p)]


u32, u64, ptr = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class Rank:
    """One rank with a tensor as its GPU region."""

    def __init__(self, torch, path, rank, copy):
        self.epf = ctypes.CDLL(path)
        self.epf.epf_last_error.restype = ctypes.c_char_p
        self.epf.epf_signal_value.restype = u64
        self.ep, self.ring, self.region = ptr(), ptr(), u32()
        torch.cuda.set_device(rank % torch.cuda.device_count())
        self.tensor = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        options = Options()
        self.epf.epf_options_init(ctypes.byref(options))
        settings = (ctypes.c_char_p * 5)(f"node={rank}".encode(), b"gpu-backend=cuda", b"core-idle=pause",
                                         f"emu-gpu-copy={copy}".encode(), None)
        options.settings = settings
        self.ok(self.epf.epf_open(ctypes.byref(options), ctypes.byref(self.ep)))
        self.ok(self.epf.epf_region_register_gpu(self.ep, ptr(self.tensor.data_ptr()), u64(BYTES), 3,
                                                 ctypes.byref(self.region)))
        self.ok(self.epf.epf_ring_open(self.ep, None, ctypes.byref(self.ring)))
        self.ok(self.epf.epf_join(self.ep, None))

    def ok(self, rc):
        if rc < 0:
            sys.exit(f"{rc}: {self.epf.epf_last_error().decode()}")

    def stop(self):
        self.ok(self.epf.epf_signal_send(self.ring, u32(1), u32(0), u64(1), 0))

    def stopped(self):
        return self.epf.epf_signal_value(self.ep, u32(0)) > 0

    def lap(self):
        """Puts the whole tensor in messages and flushes; returns the number of messages."""
        n = BYTES // MESSAGE
        for i in range(n):
            at = u64(i * MESSAGE)
            self.ok(self.epf.epf_put(self.ring, u32(0), self.region, at, self.region, at, u64(MESSAGE), 0))
        self.ok(self.epf.epf_flush(self.ring, 0, u64(0)))
        return n

    def barrier(self):
        self.ok(self.epf.epf_barrier(self.ep))


def timed(what, calls, limit=LIMIT_MS, where="under traffic"):
    """Runs the calls, prints the median and the longest; returns whether all were in time."""
    ms = []
    for call in calls:
        t = time.perf_counter()
        call()
        ms.append((time.perf_counter() - t) * 1e3)
    ms.sort()
    print(f"torch: {what}, {len(ms)} times {where}: median {ms[len(ms) // 2]:.3f} ms, at most {ms[-1]:.2f} ms",
          flush=True)
    return ms[-1] if limit is None else ms[-1] < limit


def first_uses(torch):
    """Calls of kernels that this process has not used yet."""
    names = ("sin cos tan sinh cosh asin atan exp2 expm1 log log2 log10 log1p sqrt rsqrt erf erfc lgamma digamma "
             "sigmoid tanh ceil floor round trunc frac sign reciprocal square logit sinc deg2rad rad2deg "
             "nan_to_num isnan isinf isfinite signbit cumsum cumprod sort argsort flip median").split()
    x = torch.rand(4096, device="cuda")

    def use(name):
        f = getattr(torch, name)
        if name.startswith("cum"):
            f(x, 0)
        elif name == "flip":
            f(x, (0,))
        else:
            f(x)
        torch.cuda.synchronize()

    return [lambda n=n: use(n) for n in names]


def free_once(torch):
    x = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    del x
    torch.cuda.empty_cache()


def rank_0(torch, r):
    time.sleep(0.5)  # traffic has begun
    good = timed("torch.cuda.synchronize()", [torch.cuda.synchronize] * CALLS)
    good &= timed("cudaFree (torch.cuda.empty_cache)", [lambda: free_once(torch)] * CALLS)
    good &= timed("first use of a kernel", first_uses(torch), LIMIT_MS + float(os.environ["EPF_TEST_FIRST_USE_MS"]))
    r.stop()
    r.barrier()
    used = BYTES // MESSAGE * MESSAGE
    want = (torch.arange(used, device="cuda", dtype=torch.int64) * 31 % 251).to(torch.uint8)
    same = torch.equal(r.tensor[:used], want)
    print(f"torch: {used} bytes of the tensor {'are right' if same else 'DIFFER'}", flush=True)
    return good and same


def rank_1(torch, r):
    n, t = 0, time.perf_counter()
    r.tensor.copy_((torch.arange(BYTES, device="cuda", dtype=torch.int64) * 31 % 251).to(torch.uint8))
    torch.cuda.synchronize()
    while not r.stopped():
        n += r.lap()
    print(f"torch: traffic beside it: {n / (time.perf_counter() - t) / 1e6:.3f} million puts a second", flush=True)
    r.barrier()
    return True


def run_rank(path, copy, rank):
    import torch
    r = Rank(torch, path, rank, copy)
    r.barrier()
    good = (rank_1 if rank else rank_0)(torch, r)
    r.epf.epf_close(r.ep)
    return 0 if good else 1


def alone():
    """Measures first uses without a NIC; prints the longest in ms last."""
    import torch
    torch.zeros(1, device="cuda")
    print(timed("first use of a kernel", first_uses(torch), None, "without the NIC"))
    return 0


def main():
    if sys.argv[1:] == ["alone"]:
        return alone()
    path, copy = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "engine"
    if len(sys.argv) > 3:
        return run_rank(path, copy, int(sys.argv[3]))
    probe = subprocess.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available(), 'torch sees no GPU'"],
                           capture_output=True, text=True, check=False)
    if probe.returncode:
        print("torch: skipped:", probe.stderr.strip().splitlines()[-1])
        return 77
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for _ in range(2):
        out = subprocess.run([sys.executable, __file__, "alone"], stdout=subprocess.PIPE, text=True, check=True).stdout
        print(out.splitlines()[-2])
    env = dict(os.environ, EPF_TEST_FIRST_USE_MS=out.splitlines()[-1], EPF_WORLD_SIZE="2", EPF_RENDEZVOUS=f"127.0.0.1:{port}")
    ranks = [subprocess.Popen([sys.executable, __file__, path, copy, str(i)], env=dict(env, EPF_RANK=str(i)))
             for i in range(2)]
    try:
        codes = [p.wait(timeout=170) for p in ranks]
    except subprocess.TimeoutExpired:
        for p in ranks:
            p.kill()
        print("torch: a rank did not end in 170 s")
        return 1
    return max(abs(c) for c in codes)


if __name__ == "__main__":
    sys.exit(main())
