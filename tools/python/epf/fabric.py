# SPDX-License-Identifier: Apache-2.0
"""One rank's access to the fabric: epf_open, epf_join and what a rank asks afterwards, with the library's errors as exceptions."""
from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Mapping, Optional, Tuple

from . import lib
from .meet import Alone, Group, MpiGroup, Place, TorchGroup, agree, meet


def as_group(group: Any = None, comm: Any = None) -> Group:
    """The ranks' group out of a torch.distributed process group or an mpi4py communicator; neither: one rank alone."""
    if isinstance(group, Group):
        return group
    if group is not None:
        return TorchGroup(group)
    if comm is not None:
        return MpiGroup(comm)
    return Alone()


class Secret:
    """The job's secret as a file that only this process has: it stands in no environment, no argument and no directory."""

    def __init__(self, secret: bytes) -> None:
        self._fd = os.memfd_create("epf-secret", os.MFD_CLOEXEC)
        os.fchmod(self._fd, 0o600)
        os.write(self._fd, secret)

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Fabric:
    """One rank in one job. Collective to make; close() or the end of a `with` ends it.

    Arguments:
        group: torch.distributed process group, or an epf.meet.Group; its ranks become the job's.
        comm: an mpi4py communicator instead.
        settings: configuration by option name (docs/config.md); stronger than the environment and files.
        purpose: begins the job's name, which statistics and ep-top show.

    The engine runs inside the process, or in a daemon if the setting `service` (EPF_SERVICE) names one. An object belongs to one
    thread at a time. Errors: EpfError with the library's line, at every rank if one of them fails while it is made.
    """

    def __init__(self, group: Any = None, comm: Any = None, settings: Optional[Mapping[str, Any]] = None, purpose: str = "epf") -> None:
        self._ep: Optional[c_void_p] = None
        self._secret: Optional[Secret] = None
        self.group = as_group(group, comm)
        failed: Optional[BaseException] = None
        try:
            self._dll = lib.load()
        except lib.EpfError as error:
            failed = error
        agree(self.group, failed, "loading libepf")
        place = meet(self.group, purpose)
        try:
            self._open(place, dict(settings or {}))
        except (lib.EpfError, OSError) as error:
            failed = error
        try:
            agree(self.group, failed, "opening the fabric")
            lib.check(self._dll.epf_join(self._ep, None), "joining")
        except BaseException:
            self.close()
            raise
        finally:
            if place.reserved:
                place.reserved.close()

    def _open(self, place: Place, settings: Dict[str, Any]) -> None:
        self._secret = Secret(place.secret)
        settings.update({"rank": place.rank, "world-size": place.world, "rendezvous": place.rendezvous, "job": place.job,
                         "secret-file": self._secret.path})
        options = lib.Options()
        self._dll.epf_options_init(ctypes.byref(options))
        if options.size != ctypes.sizeof(lib.Options):
            raise lib.Unavailable(f"struct epf_options has {options.size} bytes in the library and {ctypes.sizeof(lib.Options)} here: "
                                  "library and Python package are of different versions")
        lines = [f"{name}={value}".encode() for name, value in settings.items()]
        options.settings = (c_char_p * (len(lines) + 1))(*lines, None)
        ep = c_void_p()
        lib.check(self._dll.epf_open(ctypes.byref(options), ctypes.byref(ep)))
        self._ep = ep

    @property
    def handle(self) -> c_void_p:
        """struct epf *, for other functions of the library. Raises after close()."""
        if self._ep is None:
            raise lib.EpfError(9, "the fabric is closed")
        return self._ep

    @property
    def rank(self) -> int:
        return self._dll.epf_rank(self.handle)

    @property
    def world(self) -> int:
        return self._dll.epf_world(self.handle)

    @property
    def mode(self) -> str:
        """"embedded" or "service:INSTANCE"."""
        return self._dll.epf_mode(self.handle).decode()

    def node_of(self, rank: int) -> int:
        """Number of the node a rank runs on, counted by the lowest rank."""
        return self._dll.epf_node_of(self.handle, rank)

    @property
    def nodes(self) -> int:
        return self._dll.epf_nodes(self.handle)

    def barrier(self) -> None:
        """Collective, over the bootstrap: for setting up, not for the data path."""
        lib.check(self._dll.epf_barrier(self.handle), "barrier")

    def memory(self, size: int) -> Tuple[int, memoryview]:
        """Zeroed, page-aligned memory that can be registered: its address, and a view of its bytes. Freed with the fabric."""
        out = c_void_p()
        lib.check(self._dll.epf_memory_alloc(self.handle, size, ctypes.byref(out)), "memory")
        return out.value, memoryview((ctypes.c_ubyte * size).from_address(out.value)).cast("B")

    def register(self, address: int, size: int, access: int = 3) -> int:
        """Registers memory for peers (1: they may write, 2: read); returns the region's number. Then exchange()."""
        region = c_uint32()
        lib.check(self._dll.epf_region_register(self.handle, address, size, access, ctypes.byref(region)), "register")
        return region.value

    def exchange(self) -> None:
        """Collective: publishes regions registered since the join."""
        lib.check(self._dll.epf_exchange(self.handle), "exchange")

    def peer_state(self, rank: int) -> int:
        """1 up, 0 not known yet, or a negative errno: lost or closed."""
        return self._dll.epf_peer_state(self.handle, rank)

    def counter(self, name: str) -> int:
        """A counter of the engine or the NIC by name, as ep-top shows it."""
        value = c_uint64()
        lib.check(self._dll.epf_counter(self.handle, name.encode(), ctypes.byref(value)), "counter")
        return value.value

    def abort(self) -> None:
        """Ends every wait of this rank, also those in kernels, now and from now on. From any thread."""
        self._dll.epf_abort(self.handle)

    def close(self) -> None:
        """Leaves the job. Not collective; a second call does nothing."""
        ep, self._ep = self._ep, None
        if ep is not None:
            self._dll.epf_close(ep)
        if self._secret is not None:
            self._secret.close()

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
