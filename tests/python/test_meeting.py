#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that meet through a group, without PyTorch, a given port or a given secret; with the real libraries and kernels on the software NIC.

Usage: test_meeting.py PACKAGE-DIR libepf.so libepf-ll.so PROGRAM, which prints the layout of the C structures (layout.c).
"""
import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["EPF_LIBRARY"], os.environ["EPF_LL_LIBRARY"] = os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
sys.path[:0] = [HERE, os.path.abspath(sys.argv[1])]

import epf  # noqa: E402
from epf import lib, lowlat, meet  # noqa: E402
from epf.shared import HostShared  # noqa: E402
from kit import PipeGroup, processes, raises, run  # noqa: E402


class Group(PipeGroup, meet.Group):
    pass


class Threads(meet.Group):
    """Ranks as threads of one process, for tests without a library."""

    def __init__(self, rank, size, slots, barrier):
        self.rank, self.size, self._slots, self._barrier = rank, size, slots, barrier

    def all_gather(self, mine):
        self._slots[self.rank] = mine
        self._barrier.wait(30)
        got = list(self._slots)
        self._barrier.wait(30)
        return got


def together(size, function):
    """Runs function(group) in threads; returns what each returned or raised."""
    slots, barrier, got = [None] * size, threading.Barrier(size), [None] * size

    def one(rank):
        try:
            got[rank] = function(Threads(rank, size, slots, barrier))
        except Exception as error:
            got[rank] = error

    threads = [threading.Thread(target=one, args=(r,)) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return got


# ---------------------------------------------------------------------- agreeing


def ranks_agree_on_a_place():
    got = together(3, meet.meet)
    assert [p.rank for p in got] == [0, 1, 2] and {p.world for p in got} == {3}
    assert len({(p.rendezvous, p.job, p.secret) for p in got}) == 1
    assert got[0].rendezvous.startswith("127.0.0.1:") and len(got[0].secret) == 64 and got[1].reserved is None
    again = together(2, meet.meet)[0]
    assert again.secret != got[0].secret and again.job != got[0].job and again.rendezvous != got[0].rendezvous
    got[0].reserved.close()
    again.reserved.close()


def a_reserved_port_is_kept_and_can_be_listened_at():
    keeper, port = meet.reserve("127.0.0.1")
    with socket.socket() as stranger:
        raises(OSError, "in use", stranger.bind, ("127.0.0.1", port))
    with socket.socket() as server:  # as the library does
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        keeper.close()
        socket.create_connection(("127.0.0.1", port), 10).close()


def separate_hosts_get_a_reachable_address():
    here = meet.host_key()
    assert meet.root_address([(here, None), (here, "10.0.0.1")]) == "127.0.0.1"
    assert meet.root_address([(here, None), ("there", "127.0.0.1")]) == "127.0.0.1"  # a local address
    assert meet.root_address([(here, "10.1.2.3"), ("there", None)]) == "10.1.2.3"
    raises(epf.EpfError, "none of them has an address", meet.root_address, [(here, None), ("there", None)])


def interfaces_can_be_chosen():
    for spec, name, holds in (("eth", "eth0", True), ("=eth", "eth0", False), ("=lo,eth0", "eth0", True), ("^docker,lo", "eth0", True),
                              ("^eth", "eth0", False), ("ib", "eth0", False)):
        assert meet.fits(spec, name) == holds, (spec, name)
    os.environ["EPF_SOCKET_IFNAME"] = "=lo"
    try:
        assert meet.interface_address() == meet.guess_address() == "127.0.0.1"
        assert meet.root_address([(meet.host_key(), None), ("there", "10.0.0.1")]) == "127.0.0.1"
        os.environ["EPF_SOCKET_IFNAME"] = "=nothing"
        assert meet.interface_address() is None
        assert meet.addresses_of("=lo") == ["127.0.0.1"]
    finally:
        del os.environ["EPF_SOCKET_IFNAME"]


def a_failed_rank_is_named_on_all_ranks():
    def half(group):
        meet.agree(group, OSError("no room") if group.rank == 1 else None, "opening")
    got = together(3, half)
    assert isinstance(got[1], OSError)
    for rank in (0, 2):
        assert isinstance(got[rank], epf.EpfError) and str(got[rank]) == "opening: rank 1 failed, so this one stops: no room", got[rank]


def a_separate_server_is_refused():
    os.environ["EPF_BOOTSTRAP_SERVER"] = "1"
    try:
        raises(epf.EpfError, "EPF_BOOTSTRAP_SERVER is set", meet.meet, meet.Alone())
    finally:
        del os.environ["EPF_BOOTSTRAP_SERVER"]


# ---------------------------------------------------------------------- the library


def _ring(rank, size, pipes):
    """Each rank puts its number into the next rank's memory."""
    fabric = epf.Fabric(Group(rank, size, pipes), settings={"signals": 64, "wait-timeout": "60s"})
    dll = epf.load()
    with fabric:
        address, memory = fabric.memory(4096)
        region = fabric.register(address, 4096)
        fabric.exchange()
        memory[0] = rank + 1
        ring = ctypes.c_void_p()
        epf.lib.check(dll.epf_ring_open(fabric.handle, None, ctypes.byref(ring)))
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        to = (rank + 1) % size
        epf.lib.check(dll.epf_put_signal(ring, u32(to), u32(region), u64(0), u32(region), u64(64), u64(1), u32(7), u32(1), 0))
        epf.lib.check(dll.epf_signal_wait(fabric.handle, u32(7), u64(1), u64(0)))
        state = fabric.peer_state(to)
        fabric.barrier()
        got, moved = memory[64], fabric.counter("cmds_dequeued")
        del memory
        seen = (fabric.rank, fabric.world, fabric.mode, got, moved, state, "EPF_SECRET" in os.environ)
    raises(epf.EpfError, "closed", lambda: fabric.rank)
    return seen


def ranks_join_and_put():
    got = processes(3, _ring)
    for rank, (mine, world, mode, value, moved, state, leaked) in enumerate(got):
        assert (mine, world, mode) == (rank, 3, "embedded") and value == (rank - 1) % 3 + 1
        assert moved >= 1 and state == 1 and not leaked, (moved, state, leaked)


def _many(rank, size, pipes):
    group = Group(rank, size, pipes)
    for _ in range(3):
        with epf.Fabric(group, settings={"signals": 64}) as fabric:
            fabric.barrier()
    first, second = epf.Fabric(group, settings={"signals": 64}), epf.Fabric(group, settings={"signals": 64})
    second.barrier()
    first.barrier()
    first.close()
    second.barrier()
    second.close()
    return len(os.listdir("/proc/self/fd"))


def jobs_follow_each_other_and_live_side_by_side():
    processes(2, _many)


def _bad(rank, size, pipes):
    try:
        epf.Fabric(Group(rank, size, pipes), settings={"signals": 64, "ring-slots": 63 if rank else 64})
    except epf.EpfError as error:
        return str(error)
    return None


def one_rank_that_cannot_open_stops_all():
    ours, theirs = processes(2, _bad)
    assert "ring-slots" in theirs and "EPF-" in theirs, theirs
    assert ours.startswith("opening the fabric: rank 1 failed") and "ring-slots" in ours, ours


def _pages(rank, size, pipes):
    group = Group(rank, size, pipes)
    shared = HostShared(group, 10000, f"epf-test-{os.getppid()}")
    alone = HostShared(group, 100, f"epf-test-{os.getppid()}-alone", share=False)
    assert alone.peers == [None] * size and shared.peers[rank] is None and shared.address % 4096 == 0
    for peer, address in enumerate(shared.peers):
        if peer != rank:
            ctypes.c_uint8.from_address(address + 9999 - rank).value = rank + 1
    group.all_gather(None)
    left = [name for name in os.listdir("/dev/shm") if name.startswith(f"epf-test-{os.getppid()}")]
    return [shared.buffer[9999 - r] for r in range(size)], left


def pages_are_shared_and_have_no_name_left():
    for rank, (seen, left) in enumerate(processes(3, _pages)):
        assert seen == [0 if r == rank else r + 1 for r in range(3)], (rank, seen)
        assert not left, left


# ---------------------------------------------------------------------- the kernels


def structures_match_c():
    said = subprocess.run([os.path.abspath(sys.argv[4])], capture_output=True, text=True, check=True, timeout=60).stdout.split("\n")
    in_c = {tuple(line.split()[:2]): tuple(map(int, line.split()[2:])) for line in said if line}
    mine = {}
    for name, kind in (("epf_options", lib.Options), ("epf_ll_shape", lowlat.CShape), ("epf_ll_options", lowlat.Options),
                       ("epf_ll_dispatch", lowlat.Dispatch), ("epf_ll_combine", lowlat.Combine)):
        mine[name, "="] = (ctypes.sizeof(kind), 0)
        for field, _ in kind._fields_:
            mine[name, field] = (getattr(kind, field).offset, getattr(kind, field).size)
    assert mine == in_c, set(mine.items()) ^ set(in_c.items())


HIDDEN, TOKENS, EXPERTS, TOPK = 128, 3, 2, 2


def bf16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


class Array:
    """Aligned host memory as numbers."""

    def __init__(self, kind, count, values=()):
        self._memory = ctypes.create_string_buffer(count * ctypes.sizeof(kind) + 64)
        self.at = -(-ctypes.addressof(self._memory) // 64) * 64
        self.all = (kind * count).from_address(self.at)
        for i, value in enumerate(values):
            self.all[i] = value


def packed(kind, shape, **fields):
    return bytes(kind(size=ctypes.sizeof(kind), shape=lowlat.CShape(*shape), **fields))


def _kernels(rank, size, pipes):
    """Every token, with the same number in all channels, goes to both experts; expert e multiplies the row by (e + 1); weights 1 and 1/2."""
    group = Group(rank, size, pipes)
    shape = lowlat.Shape(TOKENS, HIDDEN, EXPERTS, TOPK)
    rows, i32, i64, u16 = size * TOKENS, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint16
    x = Array(u16, TOKENS * HIDDEN, [bf16(16 * rank + t + 1) for t in range(TOKENS) for _ in range(HIDDEN)])
    idx = Array(i64, TOKENS * TOPK, [0, 1, 1, 0, -1, 1])
    weights = Array(ctypes.c_float, TOKENS * TOPK, [1.0, 0.5] * TOKENS)
    recv, out, count = Array(u16, rows * HIDDEN), Array(u16, TOKENS * HIDDEN), Array(i32, 1)
    info, slot, ranges = Array(i32, rows), Array(i32, rows), Array(i64, size)
    with epf.Fabric(group, settings={"core-idle": "pause"}) as fabric:
        ll = epf.LowLatency(fabric, epf.size_hint(TOKENS, HIDDEN, size, EXPERTS), timeout_ns=60 * 10**9)
        d = packed(lowlat.Dispatch, shape, tokens=TOKENS, x=x.at, topk_idx=idx.at, recv_x=recv.at, recv_count=count.at, src_info=info.at,
                   src_slot=slot.at, layout_range=ranges.at)
        c = packed(lowlat.Combine, shape, tokens=TOKENS, x=recv.at, src_info=info.at, src_slot=slot.at, layout_range=ranges.at, topk_idx=idx.at,
                   topk_weights=weights.at, out=out.at)
        seen = []
        for halves in ((lowlat.BOTH,), (lowlat.SEND, lowlat.RECV)):
            for h in halves:
                ll.dispatch(d, h)
            got = [recv.all[i * HIDDEN] for i in range(count.all[0])]
            for i, value in enumerate(got):
                row = bf16((rank + 1) * struct.unpack("<f", struct.pack("<I", value << 16))[0])
                recv.all[i * HIDDEN:(i + 1) * HIDDEN] = [row] * HIDDEN
            for h in halves:
                ll.combine(c, h)
            ll.check()
            seen.append((got, [set(out.all[t * HIDDEN:(t + 1) * HIDDEN]) for t in range(TOKENS)]))
        raises(epf.EpfError, "", ll.combine, packed(lowlat.Combine, shape, tokens=TOKENS + 1), lowlat.BOTH)
        fabric.barrier()
        ll.close()
    return seen


def kernels_run_on_plain_memory():
    for rank, rounds in enumerate(processes(2, _kernels)):
        mine = range(TOKENS - 1) if rank == 0 else range(TOKENS)  # the last token goes only to expert 1
        for got, sums in rounds:
            assert got == [bf16(16 * r + t + 1) for r in range(2) for t in mine], got
            v = [16 * rank + t + 1 for t in range(TOKENS)]
            assert sums == [{bf16(v[0] * 1 + 0.5 * v[0] * 2)}, {bf16(v[1] * 2 + 0.5 * v[1])}, {bf16(0.5 * v[2] * 2)}], sums


def invalid_sizes_are_refused():
    assert epf.size_hint(128, 7168, 4, 256) > 0
    raises(epf.EpfError, "hidden", epf.size_hint, 128, 7000, 4, 256)
    raises(epf.EpfError, "experts is 0", epf.size_hint, 128, 7168, 4, 0)


if __name__ == "__main__":
    run([ranks_agree_on_a_place, a_reserved_port_is_kept_and_can_be_listened_at, separate_hosts_get_a_reachable_address,
         interfaces_can_be_chosen, a_failed_rank_is_named_on_all_ranks, a_separate_server_is_refused, ranks_join_and_put, jobs_follow_each_other_and_live_side_by_side,
         one_rank_that_cannot_open_stops_all, pages_are_shared_and_have_no_name_left, structures_match_c, kernels_run_on_plain_memory,
         invalid_sizes_are_refused])
