# SPDX-License-Identifier: Apache-2.0
"""Memory for p2p_cases.py and bench/nixl/xfer.py: of CUDA's driver by ctypes (as cudaMalloc gives it), of epf_gpu_alloc(), of the host, or of the fake GPU."""
import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p


class Cuda:
    """The driver with one primary context for each GPU."""

    def __init__(self):
        self.dll = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        self.count, self._contexts = count.value, {}

    def _call(self, name, *arguments):
        rc = getattr(self.dll, name)(*arguments)
        if rc:
            raise RuntimeError(f"{name}: CUDA error {rc}")

    def enter(self, device):
        if device not in self._contexts:
            handle, context = c_int(), c_void_p()
            self._call("cuDeviceGet", byref(handle), device)
            self._call("cuDevicePrimaryCtxRetain", byref(context), handle)
            self._contexts[device] = context
        self._call("cuCtxSetCurrent", self._contexts[device])
        return self._contexts[device]

    def alloc(self, device, size):
        at = c_uint64()
        self.enter(device)
        self._call("cuMemAlloc_v2", byref(at), c_size_t(size))
        return at.value

    def put(self, device, address, data):
        self.enter(device)
        self._call("cuMemcpyHtoD_v2", c_uint64(address), bytes(data), c_size_t(len(data)))
        self._call("cuCtxSynchronize")

    def get(self, device, address, size):
        out = ctypes.create_string_buffer(size)
        self.enter(device)
        self._call("cuMemcpyDtoH_v2", out, c_uint64(address), c_size_t(size))
        return out.raw

    def let_reach(self, device, peer):
        """Lets copies of one GPU use memory of another directly, where the machine can."""
        peer_context = self.enter(peer)
        self.enter(device)
        self.dll.cuCtxEnablePeerAccess(peer_context, 0)

    def copy_peer(self, to, to_device, source, device, size):
        """cuMemcpyPeer() (cudaMemcpyPeer's driver call), to its end."""
        there, here = self.enter(to_device), self.enter(device)
        self._call("cuMemcpyPeer", c_uint64(to), there, c_uint64(source), here, c_size_t(size))
        self._call("cuCtxSynchronize")


class CudaMemory:
    """Memory as cudaMalloc gives it: named to peers by CUDA IPC."""

    def __init__(self, cuda, device, size):
        self.cuda, self.device, self.size = cuda, device, size
        self.address = cuda.alloc(device, size)

    def put(self, data):
        self.cuda.put(self.device, self.address, data)

    def get(self):
        return self.cuda.get(self.device, self.address, self.size)


class EpfMemory:
    """Memory of epf_gpu_alloc(): named by a descriptor. backend: the setting gpu-backend."""

    def __init__(self, lib, dll, device, size, backend):
        self.dll, self.device, self.size, self.ep = dll, device, size, c_void_p()
        options, address = lib.Options(), c_void_p()
        dll.epf_options_init(byref(options))
        options.settings = (ctypes.c_char_p * 3)(b"nic=emu", f"gpu-backend={backend}".encode(), None)
        self._check(dll.epf_open(byref(options), byref(self.ep)))
        dll.epf_gpu_alloc.argtypes = [c_void_p, c_int, c_uint64, c_void_p]
        dll.epf_gpu_copy.argtypes = [c_void_p, c_void_p, c_void_p, c_uint64]
        self._check(dll.epf_gpu_alloc(self.ep, device, size, byref(address)))
        self.address = address.value

    @staticmethod
    def _check(rc):
        if rc:
            raise RuntimeError(f"epf: {rc}")

    def put(self, data):
        held = bytes(data)  # cast() alone would not keep it
        self._check(self.dll.epf_gpu_copy(self.ep, self.address, ctypes.cast(held, c_void_p), len(held)))

    def get(self):
        out = ctypes.create_string_buffer(self.size)
        self._check(self.dll.epf_gpu_copy(self.ep, ctypes.addressof(out), self.address, self.size))
        return out.raw


class HostMemory:
    """A bytearray."""

    device = -1

    def __init__(self, size):
        self.size, self.bytes = size, bytearray(size)
        self.address = ctypes.addressof((ctypes.c_char * size).from_buffer(self.bytes))

    def put(self, data):
        self.bytes[:len(data)] = data

    def get(self):
        return bytes(self.bytes)
