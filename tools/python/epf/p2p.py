# SPDX-License-Identifier: Apache-2.0
"""Point to point (epf_p2p.h): an Endpoint with the names, arguments and results of UCCL's, so that a program of it changes one import.

Calls of UCCL's return (ok, ...) and raise nothing for what a peer or the network does; `last_error` is then the line with cause and remedy.
Memory is anything with an address: NumPy arrays, PyTorch tensors, the buffer protocol, DLPack; see `memory_of`.
"""
from __future__ import annotations

import ctypes
import enum
import os
import struct
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint32, c_uint64, c_uint8, c_void_p
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .lib import Unavailable, check, declare, last_error, load as _load_library
from .p2p_descs import Descriptors, XferDesc
from .p2p_local import Local

WRITE, READ = 1, 2  # rights of an export, and operations
HOST, AUTO = -1, -2
CONNECTED, LOST, NOTE, DONE = 1, 2, 3, 4
KEY_BYTES = 64
NOW = 2**64 - 1
PARSED_MOST = 4096

# Metadata by the address in it: a program of UCCL's connects by what parse_metadata() returns, and without the key of the metadata it could not.
_PARSED: Dict[Tuple[str, int], bytes] = {}


class FloatType(enum.IntEnum):
    """What the values of memory are: UCCL's names for enum epf_p2p_float."""
    kUndefined = 0
    kBFloat16 = 1
    kFloat16 = 2
    kFloat32 = 3
    kFloat8 = 4  # ours: of any layout
    kFloat8E4M3FN = kFloat8
    kFloat8E5M2 = kFloat8


class Options(ctypes.Structure):
    """struct epf_p2p_options."""
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("config_file", c_char_p), ("settings", POINTER(c_char_p)), ("key", c_void_p),
                ("key_bytes", c_size_t), ("listen", c_char_p), ("gpu", c_int)]


class Peer(ctypes.Structure):
    """struct epf_p2p_peer."""
    _fields_ = [("size", c_size_t), ("name", ctypes.c_char * 64), ("host", ctypes.c_char * 64), ("port", ctypes.c_uint16), ("gpu", c_int32),
                ("id", c_uint8 * 16), ("path", ctypes.c_char * 32), ("pid", c_int32), ("state", c_int32), ("bytes_read", c_uint64),
                ("bytes_written", c_uint64), ("transfers", c_uint64), ("under_way", c_uint64), ("compress", c_int32), ("reserved", c_int32), ("packed_from", c_uint64), ("packed_to", c_uint64)]


class Vector(ctypes.Structure):
    """struct epf_p2p_vector."""
    _fields_ = [("region", c_uint64), ("import_", c_uint64), ("blocks", c_void_p), ("count", c_size_t)]


class XferOptions(ctypes.Structure):
    """struct epf_p2p_xfer_options."""
    _fields_ = [("size", c_size_t), ("priority", c_int), ("deadline_ns", c_uint64), ("event", c_int), ("user", c_void_p)]


class Event(ctypes.Structure):
    """struct epf_p2p_event."""
    _fields_ = [("kind", c_uint32), ("status", c_int32), ("conn", c_uint64), ("user", c_void_p), ("data", c_void_p), ("bytes", c_size_t)]


_P, _U, _OUT = c_void_p, c_uint64, POINTER(c_uint64)
PROTOTYPES = {
    "epf_p2p_options_init": (None, [POINTER(Options)]),
    "epf_p2p_open": (c_int, [POINTER(Options), POINTER(_P)]),
    "epf_p2p_close": (None, [_P]),
    "epf_p2p_metadata": (c_int, [_P, _P, c_size_t]),
    "epf_p2p_describe": (c_int, [_P, c_size_t, POINTER(Peer)]),
    "epf_p2p_connect": (c_int, [_P, _P, c_size_t, _U, _OUT]),
    "epf_p2p_connect_to": (c_int, [_P, c_char_p, ctypes.c_uint16, _U, _OUT]),
    "epf_p2p_accept": (c_int, [_P, _U, _OUT]),
    "epf_p2p_disconnect": (c_int, [_P, _U, _U]),
    "epf_p2p_peer": (c_int, [_P, _U, POINTER(Peer)]),
    "epf_p2p_register": (c_int, [_P, _P, _U, c_int, _OUT]),
    "epf_p2p_set_float": (c_int, [_P, _U, c_int]),
    "epf_p2p_deregister": (c_int, [_P, _U, _U]),
    "epf_p2p_export": (c_int, [_P, _U, _U, _U, c_uint, _U, _U, _P]),
    "epf_p2p_withdraw": (c_int, [_P, _P, _U]),
    "epf_p2p_import": (c_int, [_P, _U, _P, _U, _OUT]),
    "epf_p2p_import_info": (c_int, [_P, _U, _OUT, _OUT, POINTER(c_uint)]),
    "epf_p2p_release": (None, [_P, _U]),
    "epf_p2p_prepare": (c_int, [_P, _U, c_int, POINTER(Vector), c_size_t, POINTER(XferOptions), POINTER(_P)]),
    "epf_p2p_post": (c_int, [_P, _P, c_size_t]),
    "epf_p2p_test": (c_int, [_P]),
    "epf_p2p_wait": (c_int, [_P, _U]),
    "epf_p2p_xfer_free": (None, [_P]),
    "epf_p2p_notify": (c_int, [_P, _U, _P, c_size_t, _U]),
    "epf_p2p_events": (c_int, [_P, POINTER(Event), c_size_t]),
    "epf_p2p_event_free": (None, [POINTER(Event)]),
    "epf_p2p_wait_event": (c_int, [_P, _U]),
    "epf_p2p_fd": (c_int, [_P]),
}

_loaded: Optional[ctypes.CDLL] = None


def load() -> ctypes.CDLL:
    """libepf with these functions. Raises Unavailable."""
    global _loaded
    if _loaded is None:
        dll = _load_library()
        declare(dll, PROTOTYPES, dll._name)
        _loaded = dll
    return _loaded


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", POINTER(ctypes.c_int64)), ("strides", POINTER(ctypes.c_int64)), ("byte_offset", c_uint64)]


def _dlpack_memory(array: Any) -> Tuple[int, int, int]:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    capsule = array.__dlpack__()
    t = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    items, dense = 1, 1
    for i in range(t.ndim - 1, -1, -1):
        if t.strides and t.shape[i] > 1 and t.strides[i] != dense:
            raise ValueError("memory of a tensor with gaps: make it contiguous")
        dense *= t.shape[i]
        items *= t.shape[i]
    if t.device_type not in (1, 2, 3, 10, 11):
        raise ValueError(f"memory of DLPack device type {t.device_type} is neither host nor GPU memory")
    device = t.device_id if t.device_type in (2, 10) else HOST
    return (t.data or 0) + t.byte_offset, items * ((t.bits * t.lanes + 7) // 8), device


def memory_of(array: Any) -> Tuple[int, int, int]:
    """(address, bytes, device) of a contiguous PyTorch tensor, NumPy array, buffer or DLPack object; device: HOST or the GPU's number."""
    if hasattr(array, "data_ptr") and hasattr(array, "element_size"):  # PyTorch, also where gradients forbid DLPack
        if not array.is_contiguous():
            raise ValueError("memory of a tensor with gaps: make it contiguous")
        device = array.device.index if getattr(array.device, "type", "cpu") != "cpu" else HOST
        return array.data_ptr(), array.numel() * array.element_size(), HOST if device is None else device
    if hasattr(array, "__array_interface__"):
        about = array.__array_interface__
        if about.get("strides") is not None and not array.flags["C_CONTIGUOUS"]:
            raise ValueError("memory of an array with gaps: make it contiguous")
        return about["data"][0], array.nbytes, HOST
    if hasattr(array, "__dlpack__"):
        return _dlpack_memory(array)
    view = memoryview(array)
    if not view.c_contiguous:
        raise ValueError("memory of a buffer with gaps: make it contiguous")
    if view.readonly:
        raise ValueError("memory of a read-only buffer: use a bytearray")
    return ctypes.addressof((ctypes.c_char * view.nbytes).from_buffer(view)), view.nbytes, HOST


def float_type_of(array: Any) -> FloatType:
    """What the values of a tensor or an array are, by its dtype; kUndefined: not known, or not floating point."""
    names = {"bfloat16": FloatType.kBFloat16, "float16": FloatType.kFloat16, "float32": FloatType.kFloat32,
             "float8_e4m3fn": FloatType.kFloat8, "float8_e5m2": FloatType.kFloat8}
    return names.get(str(getattr(array, "dtype", "")).rsplit(".", 1)[-1], FloatType.kUndefined)


def block(local: int, remote: int, size: int) -> bytes:
    """The 16 bytes of one block (struct epf_p2p_block)."""
    return struct.pack("<QQ", local | (size & 0xffff) << 48, remote | (size >> 16) << 48)


class _Posted:
    """A transfer under way."""

    def __init__(self, handle: c_void_p, holds: Any) -> None:
        self.handle, self.holds = handle, holds


class Endpoint(Local, Descriptors):
    """An endpoint. local_gpu_idx: the GPU that peers see, None or -1: none. The rest are keyword arguments of EP fabric alone.

    Without a key or secret, metadata is a capability: whoever has it may connect.
    """

    def __init__(self, local_gpu_idx: Optional[int] = None, num_cpus: int = 0, *, name: Optional[str] = None, key: Optional[bytes] = None,
                 listen: Optional[str] = None, settings: Sequence[str] = (), timeout: float = 30.0) -> None:
        super().__init__()
        del num_cpus  # UCCL's: its threads. Here the endpoint has one, and whoever waits helps.
        self._dll = load()
        self._timeout = int(timeout * 1e9)
        texts = (c_char_p * (len(settings) + 1))(*[s.encode() for s in settings], None)
        options = Options()
        self._dll.epf_p2p_options_init(byref(options))
        options.name = name.encode() if name else None
        options.settings = texts
        options.listen = listen.encode() if listen else None
        self._gpu = options.gpu = -1 if local_gpu_idx is None else local_gpu_idx
        if key:
            options.key, options.key_bytes = ctypes.cast(c_char_p(key), c_void_p), len(key)
        self._ep = c_void_p()
        check(self._dll.epf_p2p_open(byref(options), byref(self._ep)))
        self.last_error = ""
        self._regions: Dict[int, Tuple[int, int, Any]] = {}  # number: address, bytes, what keeps the memory
        self._imports: Dict[Tuple[int, bytes], Tuple[int, int]] = {}  # number, address at the peer
        self._posted: Dict[int, _Posted] = {}
        self._next = 1

    def close(self) -> None:
        """Closes the endpoint. UCCL has no such call: there, and here too, the end of the object is enough."""
        if getattr(self, "_ep", None):
            self._unpublish()
            self._dll.epf_p2p_close(self._ep)
            self._ep = None
            self._posted.clear()
            self._regions.clear()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _ok(self, result: int) -> bool:
        if result < 0:
            self.last_error = last_error() or os.strerror(-result)
        return result >= 0

    # Connections.

    def get_metadata(self) -> bytes:
        """What peers need to connect."""
        room = (ctypes.c_char * 512)()
        size = check(self._dll.epf_p2p_metadata(self._ep, room, len(room)))
        return room.raw[:size]

    @staticmethod
    def parse_metadata(metadata: bytes) -> Tuple[str, int, int]:
        """(address, port, GPU) of an endpoint."""
        peer = Peer(size=ctypes.sizeof(Peer))
        check(load().epf_p2p_describe(metadata, len(metadata), byref(peer)))
        address = peer.host.decode(), peer.port
        _PARSED.pop(address, None)
        _PARSED[address] = bytes(metadata)
        if len(_PARSED) > PARSED_MOST:
            del _PARSED[next(iter(_PARSED))]
        return (*address, peer.gpu)

    def add_remote_endpoint(self, metadata: bytes) -> Tuple[bool, int]:
        """Connects by metadata; the same connection again for a peer that is connected."""
        conn = c_uint64()
        ok = self._ok(self._dll.epf_p2p_connect(self._ep, metadata, len(metadata), self._timeout, byref(conn)))
        return ok, conn.value

    def connect(self, remote_ip_addr: Any, remote_gpu_idx: Optional[int] = None, remote_port: int = 0) -> Tuple[bool, int]:
        """connect(ip, gpu, port), or connect(metadata). An address that parse_metadata() has returned is as good as its metadata; another reaches this machine
        only, unless all endpoints share a key."""
        if isinstance(remote_ip_addr, (bytes, bytearray)):
            return self.add_remote_endpoint(bytes(remote_ip_addr))
        if remote_port <= 0:
            self.last_error = "connect: the peer's port is missing; take it from its metadata (parse_metadata)"
            return False, 0
        parsed = _PARSED.get((str(remote_ip_addr), remote_port))
        if parsed is not None:
            return self.add_remote_endpoint(parsed)
        conn = c_uint64()
        ok = self._ok(self._dll.epf_p2p_connect_to(self._ep, str(remote_ip_addr).encode(), remote_port, self._timeout, byref(conn)))
        return ok, conn.value

    def compression(self, conn_id: int) -> Tuple[int, int, int]:
        """(what both ends agreed on: 0 none, 1 split, 2 full; bytes of chunks before compression, and after)."""
        peer = Peer(size=ctypes.sizeof(Peer))
        check(self._dll.epf_p2p_peer(self._ep, conn_id, byref(peer)))
        return peer.compress, peer.packed_from, peer.packed_to

    def accept(self) -> Tuple[bool, str, int, int]:
        """(ok, address, GPU, connection) of a peer that connects."""
        conn, peer = c_uint64(), Peer(size=ctypes.sizeof(Peer))
        ok = self._ok(self._dll.epf_p2p_accept(self._ep, self._timeout, byref(conn)))
        ok = ok and self._ok(self._dll.epf_p2p_peer(self._ep, conn, byref(peer)))
        return ok, peer.host.decode(), peer.gpu, conn.value

    def start_passive_accept(self) -> bool:
        """True: connections of peers work unaccepted."""
        return True

    def remove_remote_endpoint(self, conn_id: int) -> bool:
        """Disconnects."""
        for key in [k for k in self._imports if k[0] == conn_id]:
            del self._imports[key]
        return self._ok(self._dll.epf_p2p_disconnect(self._ep, conn_id, self._timeout))

    # Memory.

    def reg(self, ptr: Any, size: Optional[int] = None, floatType: Optional[FloatType] = None) -> Tuple[bool, int]:
        """Registers memory by address and size, or what memory_of() knows. floatType: what its values are, for compression (setting
        p2p-compress); None: by the dtype of a tensor or array, unknown of an address."""
        holds, device = None, AUTO
        if size is None:
            holds = ptr
            floatType = float_type_of(ptr) if floatType is None else floatType
            ptr, size, device = memory_of(ptr)
        mr = c_uint64()
        ok = self._ok(self._dll.epf_p2p_register(self._ep, ptr, size, device, byref(mr)))
        if ok and floatType:
            ok = self._ok(self._dll.epf_p2p_set_float(self._ep, mr, int(floatType)))
            if not ok:
                self._dll.epf_p2p_deregister(self._ep, mr, self._timeout)
        if ok:
            self._regions[mr.value] = (int(ptr), size, holds)
        return ok, mr.value if ok else 0

    def regv(self, ptrs: Sequence[int], sizes: Sequence[int]) -> Tuple[bool, List[int]]:
        """Registers several; all or none."""
        got: List[int] = []
        for ptr, size in zip(ptrs, sizes):
            ok, mr = self.reg(ptr, size)
            if not ok:
                for other in got:
                    self.dereg(other)
                return False, []
            got.append(mr)
        return True, got

    def dereg(self, mr: int) -> bool:
        """Withdraws what was advertised of it, and waits for transfers that use it: the memory may be freed after True."""
        ok = self._ok(self._dll.epf_p2p_deregister(self._ep, mr, self._timeout))
        if ok:
            self._regions.pop(mr, None)
        return ok

    def advertise(self, mr_id: int, ptr: Any, size: int, *, conn_id: int = 0, rights: int = WRITE | READ, lifetime: float = 0.0) -> Tuple[bool, bytes]:
        """A 64-byte key with which peers read and write [ptr, ptr + size) of a region; only the peer of a connection, if given."""
        key = (c_uint8 * KEY_BYTES)()
        base = self._regions.get(mr_id, (0, 0, None))[0]
        address = _address(ptr)
        if address < base:
            self.last_error = "advertise: the address is not in the region"
            return False, b""
        ok = self._ok(self._dll.epf_p2p_export(self._ep, mr_id, address - base, size, rights, conn_id, int(lifetime * 1e9), key))
        return ok, bytes(key) if ok else b""

    def advertisev(self, mr_id_v: Sequence[int], ptr_v: Sequence[int], size_v: Sequence[int], num_iovs: Optional[int] = None, *,
                   conn_id: int = 0) -> Tuple[bool, List[bytes]]:
        """Several keys; all or none."""
        del num_iovs
        got: List[bytes] = []
        for mr, ptr, size in zip(mr_id_v, ptr_v, size_v):
            ok, key = self.advertise(mr, ptr, size, conn_id=conn_id)
            if not ok:
                for other in got:
                    self.withdraw(other)
                return False, []
            got.append(key)
        return True, got

    def withdraw(self, key: bytes) -> bool:
        """Ends an advertisement: after True no peer touches the memory by it."""
        ok = self._ok(self._dll.epf_p2p_withdraw(self._ep, key, self._timeout))
        if ok and bytes(key) in self._of_key:
            ok = self.dereg(self._of_key.pop(bytes(key)))
        return ok

    def _import(self, conn: int, key: bytes) -> Optional[Tuple[int, int]]:
        known = self._imports.get((conn, bytes(key)))
        if known is not None:
            return known
        if len(key) != KEY_BYTES:
            self.last_error = f"a key has {KEY_BYTES} bytes, not {len(key)}"
            return None
        got = c_uint64()
        if not self._ok(self._dll.epf_p2p_import(self._ep, conn, bytes(key), self._timeout, byref(got))):
            return None
        address = c_uint64()
        check(self._dll.epf_p2p_import_info(self._ep, got, byref(address), None, None))
        self._imports[(conn, bytes(key))] = got.value, address.value
        return got.value, address.value

    # Transfers.

    def _post(self, op: int, conn: int, mrs: Sequence[int], addrs: Sequence[int], sizes: Sequence[int], keys: Sequence[bytes],
              note: Optional[bytes], theirs: Optional[Sequence[int]] = None) -> Optional[c_void_p]:
        """theirs: addresses at the peer; None: where the keys' memory begins."""
        groups: Dict[Tuple[int, int], List[bytes]] = {}
        for i, (mr, addr, size, key) in enumerate(zip(mrs, addrs, sizes, keys)):
            known = self._import(conn, key)
            if known is None:
                return None
            there, far_base = known
            far = 0 if theirs is None else theirs[i] - far_base
            base = self._regions.get(mr, (0, 0, None))[0]
            if (addr - base) >> 48 or far >> 48:  # negative, or more than a block can say
                self.last_error = "the address is not in the region"
                return None
            blocks = groups.setdefault((mr, there), [])
            for at in range(0, size, 1 << 31):
                blocks.append(block(addr - base + at, far + at, min(size - at, 1 << 31)))
        vectors = (Vector * max(len(groups), 1))()
        holds = []
        for v, ((mr, there), blocks) in zip(vectors, groups.items()):
            text = b"".join(blocks)
            holds.append(text)
            v.region, v.import_, v.count = mr, there, len(blocks)
            v.blocks = ctypes.cast(c_char_p(text), c_void_p)
        handle = c_void_p()
        options = XferOptions(size=ctypes.sizeof(XferOptions), deadline_ns=self._timeout)
        if not self._ok(self._dll.epf_p2p_prepare(self._ep, conn, op, vectors, len(groups), byref(options), byref(handle))):
            return None
        if not self._ok(self._dll.epf_p2p_post(handle, note, len(note) if note is not None else 0)):
            self._dll.epf_p2p_xfer_free(handle)
            return None
        return handle

    def _now(self, *what: Any) -> bool:
        handle = self._post(*what)
        if handle is None:
            return False
        ok = self._ok(self._dll.epf_p2p_wait(handle, self._timeout))
        self._dll.epf_p2p_xfer_free(handle)
        return ok

    def _later(self, *what: Any) -> Tuple[bool, int]:
        handle = self._post(*what)
        if handle is None:
            return False, 0
        number = self._next
        self._next += 1
        self._posted[number] = _Posted(handle, what)
        return True, number

    def write(self, conn_id: int, mr_id: int, src: Any, size: int, meta: bytes, note: Optional[bytes] = None) -> bool:
        """Writes size bytes at address src of region mr_id to what `meta` advertises; with a notification after the data, if given."""
        return self._now(WRITE, conn_id, [mr_id], [_address(src)], [size], [meta], note)

    def read(self, conn_id: int, mr_id: int, dst: Any, size: int, meta: bytes, note: Optional[bytes] = None) -> bool:
        """Reads size bytes from what `meta` advertises to address dst of region mr_id."""
        return self._now(READ, conn_id, [mr_id], [_address(dst)], [size], [meta], note)

    def writev(self, conn_id: int, mr_ids: Sequence[int], srcs: Sequence[Any], sizes: Sequence[int], metas: Sequence[bytes],
               num_iovs: Optional[int] = None) -> bool:
        """Several writes as one transfer."""
        del num_iovs
        return self._now(WRITE, conn_id, mr_ids, [_address(s) for s in srcs], sizes, metas, None)

    def readv(self, conn_id: int, mr_ids: Sequence[int], dsts: Sequence[Any], sizes: Sequence[int], metas: Sequence[bytes],
              num_iovs: Optional[int] = None) -> bool:
        """Several reads as one transfer."""
        del num_iovs
        return self._now(READ, conn_id, mr_ids, [_address(d) for d in dsts], sizes, metas, None)

    def write_async(self, conn_id: int, mr_id: int, src: Any, size: int, meta: bytes) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        return self._later(WRITE, conn_id, [mr_id], [_address(src)], [size], [meta], None)

    def read_async(self, conn_id: int, mr_id: int, dst: Any, size: int, meta: bytes) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        return self._later(READ, conn_id, [mr_id], [_address(dst)], [size], [meta], None)

    def writev_async(self, conn_id: int, mr_ids: Sequence[int], srcs: Sequence[Any], sizes: Sequence[int], metas: Sequence[bytes],
                     num_iovs: Optional[int] = None) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        del num_iovs
        return self._later(WRITE, conn_id, mr_ids, [_address(s) for s in srcs], sizes, metas, None)

    def readv_async(self, conn_id: int, mr_ids: Sequence[int], dsts: Sequence[Any], sizes: Sequence[int], metas: Sequence[bytes],
                    num_iovs: Optional[int] = None) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        del num_iovs
        return self._later(READ, conn_id, mr_ids, [_address(d) for d in dsts], sizes, metas, None)

    def poll_async(self, transfer_id: int) -> Tuple[bool, bool]:
        """(ok, done). (False, True): it has failed. A number that is not under way: (False, False)."""
        posted = self._posted.get(transfer_id)
        if posted is None:
            self.last_error = f"transfer {transfer_id} is not under way"
            return False, False
        result = self._dll.epf_p2p_test(posted.handle)
        if result == 0:
            return True, False
        ok = self._ok(result)
        del self._posted[transfer_id]
        self._dll.epf_p2p_xfer_free(posted.handle)
        return ok, True

    def notify(self, conn_id: int, note: bytes) -> bool:
        """Sends a notification without data."""
        return self._ok(self._dll.epf_p2p_notify(self._ep, conn_id, note, len(note), self._timeout))

    def get_notifs(self, timeout: float = 0.0) -> List[Tuple[int, bytes]]:
        """Notifications that have arrived: (connection, bytes). Waits up to timeout seconds for the first event."""
        if timeout > 0 and self._dll.epf_p2p_wait_event(self._ep, int(timeout * 1e9)) < 0:
            return []
        events = (Event * 64)()
        got = []
        count = check(self._dll.epf_p2p_events(self._ep, events, len(events)))
        for event in events[:count]:
            if event.kind == NOTE:
                got.append((event.conn, ctypes.string_at(event.data, event.bytes) if event.bytes else b""))
            self._dll.epf_p2p_event_free(byref(event))
        return got

    def fileno(self) -> int:
        """A descriptor that select and asyncio can wait on: readable while there are events to take."""
        return check(self._dll.epf_p2p_fd(self._ep))


def _address(memory: Any) -> int:
    return memory if isinstance(memory, int) else memory_of(memory)[0]


__all__ = ["Endpoint", "FloatType", "Unavailable", "XferDesc", "block", "float_type_of", "load", "memory_of", "HOST", "AUTO", "READ", "WRITE"]
