# SPDX-License-Identifier: Apache-2.0
"""UCCL's calls between two processes of one machine, for epf.p2p.Endpoint: connections by the GPU's number, and transfers of memory that is given by its address.

Who calls accept_local() is found by connect_local(): its metadata lies in a folder of the user's own until it closes. Memory that is given by address alone is
registered at its first use and stays so until the endpoint is closed; what is advertised is registered by each call, since GPU memory at the same
address may be other memory by then.
"""
from __future__ import annotations

import os
import stat
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

PAUSE = 0.02


def _folder() -> str:
    """The folder of this user's endpoints, which nobody else can have made."""
    path = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), f"epf-p2p-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise OSError(f"{path}: not a folder of this user alone; remove it, or set XDG_RUNTIME_DIR")
    return path


class Local:
    """A part of Endpoint, which has the rest."""

    _timeout: int
    last_error: str
    _regions: Dict[int, Tuple[int, int, Any]]
    _gpu: int
    get_metadata: Any
    add_remote_endpoint: Any
    accept: Any
    reg: Any
    dereg: Any
    advertise: Any
    withdraw: Any
    read: Any
    write: Any
    readv: Any
    writev: Any
    read_async: Any
    write_async: Any
    readv_async: Any
    writev_async: Any

    def __init__(self) -> None:
        self._known: Dict[Tuple[int, int], int] = {}
        self._of_key: Dict[bytes, int] = {}  # regions of advertise_ipc()
        self._published: Optional[str] = None

    def _publish(self) -> None:
        path = os.path.join(_folder(), f"gpu-{self._gpu}")
        fresh = f"{path}.{os.getpid()}"
        with open(fresh, "wb") as f:
            f.write(self.get_metadata())
        os.rename(fresh, path)
        self._published = path

    def _unpublish(self) -> None:
        path, self._published = self._published, None
        try:
            if path and open(path, "rb").read() == self.get_metadata():
                os.unlink(path)
        except OSError:
            pass

    def accept_local(self) -> Tuple[bool, int, int]:
        """(ok, GPU, connection) of a process of this machine that connects; connect_local() finds this endpoint from now on."""
        try:
            self._publish()
        except OSError as error:
            self.last_error = f"accept_local: {error}"
            return False, 0, 0
        ok, _, gpu, conn = self.accept()
        return ok, gpu, conn

    def connect_local(self, remote_gpu_idx: Any) -> Tuple[bool, int]:
        """Connects to the endpoint of that GPU on this machine; waits for its accept_local()."""
        end = time.monotonic() + self._timeout / 1e9
        why = "nobody there has called accept_local()"
        while time.monotonic() < end:
            try:
                with open(os.path.join(_folder(), f"gpu-{remote_gpu_idx}"), "rb") as f:
                    metadata = f.read()
            except OSError as error:
                metadata = b""
                if not isinstance(error, FileNotFoundError):
                    why = str(error)
            if metadata and metadata != self.get_metadata():
                ok, conn = self.add_remote_endpoint(metadata)
                if ok:
                    return True, conn
                why = self.last_error  # perhaps of a process that has ended: another may come
            time.sleep(PAUSE)
        self.last_error = f"connect_local: GPU {remote_gpu_idx}: {why}"
        return False, 0

    def advertise_ipc(self, conn_id: int, ptr: int, size: int) -> Tuple[bool, bytes]:
        """A key for the peer of that connection."""
        ok, mr = self.reg(ptr, size)
        if not ok:
            return False, b""
        ok, key = self.advertise(mr, ptr, size, conn_id=conn_id)
        if ok:
            self._of_key[key] = mr
        else:
            self.dereg(mr)
        return ok, key

    def advertisev_ipc(self, conn_id: int, ptr_v: Sequence[int], size_v: Sequence[int]) -> Tuple[bool, List[bytes]]:
        """Several keys; all or none."""
        got: List[bytes] = []
        for ptr, size in zip(ptr_v, size_v):
            ok, key = self.advertise_ipc(conn_id, ptr, size)
            if not ok:
                for other in got:
                    self.withdraw(other)
                return False, []
            got.append(key)
        return True, got

    def _region_of(self, ptr: int, size: int) -> int:
        """A region that has this memory; 0 with the error set if it cannot be registered."""
        known = self._known.get((ptr, size))
        if known is not None and known in self._regions:
            return known
        for mr, (base, bytes_, _) in self._regions.items():
            if base <= ptr and ptr + size <= base + bytes_:
                break
        else:
            ok, mr = self.reg(ptr, size)
            if not ok:
                return 0
        self._known[(ptr, size)] = mr
        return mr

    def _one(self, call: Any, failed: Any, conn_id: int, ptr: int, size: int, info: bytes) -> Any:
        mr = self._region_of(ptr, size)
        return call(conn_id, mr, ptr, size, info) if mr else failed

    def _many(self, call: Any, failed: Any, conn_id: int, ptr_v: Sequence[int], size_v: Sequence[int], info_v: Sequence[bytes]) -> Any:
        mrs = [self._region_of(ptr, size) for ptr, size in zip(ptr_v, size_v)]
        return call(conn_id, mrs, ptr_v, size_v, info_v) if all(mrs) else failed

    def write_ipc(self, conn_id: int, ptr: int, size: int, info: bytes) -> bool:
        """Writes memory at an address to what `info` advertises."""
        return self._one(self.write, False, conn_id, ptr, size, info)

    def read_ipc(self, conn_id: int, ptr: int, size: int, info: bytes) -> bool:
        """Reads what `info` advertises to memory at an address."""
        return self._one(self.read, False, conn_id, ptr, size, info)

    def write_ipc_async(self, conn_id: int, ptr: int, size: int, info: bytes) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        return self._one(self.write_async, (False, 0), conn_id, ptr, size, info)

    def read_ipc_async(self, conn_id: int, ptr: int, size: int, info: bytes) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        return self._one(self.read_async, (False, 0), conn_id, ptr, size, info)

    def writev_ipc(self, conn_id: int, ptr_v: Sequence[int], size_v: Sequence[int], info_v: Sequence[bytes]) -> bool:
        """Several writes as one transfer."""
        return self._many(self.writev, False, conn_id, ptr_v, size_v, info_v)

    def readv_ipc(self, conn_id: int, ptr_v: Sequence[int], size_v: Sequence[int], info_v: Sequence[bytes]) -> bool:
        """Several reads as one transfer."""
        return self._many(self.readv, False, conn_id, ptr_v, size_v, info_v)

    def writev_ipc_async(self, conn_id: int, ptr_v: Sequence[int], size_v: Sequence[int], info_v: Sequence[bytes]) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        return self._many(self.writev_async, (False, 0), conn_id, ptr_v, size_v, info_v)

    def readv_ipc_async(self, conn_id: int, ptr_v: Sequence[int], size_v: Sequence[int], info_v: Sequence[bytes]) -> Tuple[bool, int]:
        """(ok, number for poll_async)."""
        return self._many(self.readv_async, (False, 0), conn_id, ptr_v, size_v, info_v)
