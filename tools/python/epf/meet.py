# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job find each other without a port or a secret to set: through a group they already have.

A group (a torch.distributed process group, an mpi4py communicator, or one rank alone) is used once, to agree on an address, a free port
and a random secret of rank 0. From then on the ranks meet at the library's own rendezvous (bootstrap/), and the group is left alone.
"""
from __future__ import annotations

import fcntl
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from .lib import EpfError

# Any address that is not this host's: nothing is sent there, the kernel only says by which interface it would be.
FAR_AWAY = "192.0.2.1"
SIOCGIFADDR = 0x8915  # netdevice(7)


class Group:
    """What the package needs of a group. Every rank makes the same calls in the same order."""

    rank: int
    size: int

    def all_gather(self, mine: Any) -> List[Any]:
        """What every rank gave, in rank order."""
        raise NotImplementedError


class Alone(Group):
    """A job of one rank."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1

    def all_gather(self, mine: Any) -> List[Any]:
        return [mine]


class TorchGroup(Group):
    """A torch.distributed.ProcessGroup with any back-end that gathers objects (gloo, nccl, mpi)."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist
        self._dist, self._group = dist, group
        self.rank, self.size = group.rank(), group.size()

    def all_gather(self, mine: Any) -> List[Any]:
        everybody: List[Any] = [None] * self.size
        self._dist.all_gather_object(everybody, mine, self._group)
        return everybody


class MpiGroup(Group):
    """An mpi4py communicator, or anything with its Get_rank, Get_size and allgather."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def all_gather(self, mine: Any) -> List[Any]:
        return list(self._comm.allgather(mine))


@dataclass
class Place:
    """A rank's place in a job, and what it needs to get there."""
    rank: int
    world: int
    rendezvous: str
    job: str
    secret: bytes
    reserved: Optional[socket.socket] = None  # rank 0: keeps the port until the library listens there


def agree(group: Group, error: Optional[BaseException], what: str) -> None:
    """Raises at every rank if one of them has failed, naming it, so that none waits for a rank that will not come."""
    texts = group.all_gather(None if error is None else str(error) or type(error).__name__)
    failed = [(rank, text) for rank, text in enumerate(texts) if text is not None]
    if error is not None:
        raise error
    if failed:
        rank, text = failed[0]
        raise EpfError(104, f"{what}: rank {rank} failed, so this one stops: {text}")


def host_key() -> str:
    """The same for processes that reach each other over loopback: one machine, one boot, one network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            boot = f.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def own_address(towards: str) -> str:
    """The address of this host on the interface that leads to `towards`; nothing is sent."""
    for family, kind, proto, _, where in socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, proto) as probe:
            try:
                probe.connect(where)
            except OSError:
                continue
            return probe.getsockname()[0]
    raise EpfError(101, f"no interface of this host leads to {towards}")


def fits(spec: str, name: str) -> bool:
    """Whether an interface is meant: prefixes with commas; ^ in front excludes, = means exact names. As EPF_SOCKET_IFNAME and NCCL's."""
    exclude = spec.startswith("^")
    spec = spec[exclude:]
    exact = spec.startswith("=")
    items = [item for item in spec[exact:].split(",") if item]
    return any(name == item if exact else name.startswith(item) for item in items) != exclude


def addresses_of(spec: str) -> List[str]:
    """The IPv4 addresses of the interfaces that a specification means."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            if fits(spec, name):
                try:
                    answer = fcntl.ioctl(asker, SIOCGIFADDR, struct.pack("256s", name.encode()))
                except OSError:
                    continue  # no address
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def interface_address() -> Optional[str]:
    """The IPv4 address of the interface that EPF_SOCKET_IFNAME or NCCL_SOCKET_IFNAME chooses; None: neither is set, or nothing fits."""
    spec = os.environ.get("EPF_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME")
    return next(iter(addresses_of(spec)), None) if spec else None


def guess_address() -> Optional[str]:
    """An address under which other hosts reach this one: of the chosen interface, on the way to MASTER_ADDR, by the default route, or the only one there is; or None."""
    chosen = interface_address()
    if chosen:
        return chosen
    for towards in (os.environ.get("MASTER_ADDR"), FAR_AWAY):
        try:
            address = own_address(towards) if towards else None
        except (OSError, EpfError):
            continue
        if address and not address.startswith("127.") and address != "::1":
            return address
    only = addresses_of("^=lo")
    return only[0] if len(only) == 1 else None


def reserve(address: str) -> Tuple[socket.socket, int]:
    """A free port, and the socket that keeps it: bound and never listening, so that the library, which allows reuse, can listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    keeper = socket.socket(family, socket.SOCK_STREAM)
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1" if address == "127.0.0.1" else "", 0))
    return keeper, keeper.getsockname()[1]


def root_address(hosts: List[Tuple[str, Optional[str]]]) -> str:
    """Where rank 0 listens: loopback if all ranks are on its host, else the chosen interface, or the one that leads to the others."""
    mine, guess = hosts[0]
    others = [address for key, address in hosts if key != mine]
    if not others:
        return "127.0.0.1"
    chosen = interface_address()
    if chosen:
        return chosen
    for other in others:
        if other:
            return own_address(other)
    if guess:
        return guess
    raise EpfError(101, "the ranks are on several hosts, and none of them has an address that others reach: is the network up? EPF_SOCKET_IFNAME names the interface where no route tells")


def meet(group: Group, purpose: str = "epf") -> Place:
    """Collective: agrees on where the ranks of a new job meet. The caller closes `reserved` once the library has joined."""
    if os.environ.get("EPF_BOOTSTRAP_SERVER"):
        raise EpfError(22, "EPF_BOOTSTRAP_SERVER is set, but ranks that meet through a process group need no server: unset it")
    hosts = group.all_gather((host_key(), guess_address()))
    reserved, offer, failed = None, None, None
    if group.rank == 0:
        try:
            address = root_address(hosts)
            reserved, port = reserve(address)
            shown = f"[{address}]" if ":" in address else address
            offer = (f"{shown}:{port}", f"{purpose}-{secrets.token_hex(8)}", secrets.token_hex(32).encode())
        except (OSError, EpfError) as error:
            failed = error
    agree(group, failed, "meeting")
    rendezvous, job, secret = group.all_gather(offer)[0]
    return Place(group.rank, group.size, rendezvous, job, secret, reserved)
