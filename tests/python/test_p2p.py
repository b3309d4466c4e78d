#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""epf.p2p.Endpoint between two processes: UCCL's calls, every kind of host memory, notifications, death of the peer.

Usage: test_p2p.py PACKAGE-DIR libepf.so. NumPy and PyTorch are used where they are installed; without them the rest runs.
"""
import ctypes
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["EPF_LIBRARY"] = os.path.abspath(sys.argv[2])
sys.path[:0] = [HERE, os.path.abspath(sys.argv[1])]

from epf import lib, p2p  # noqa: E402
from kit import raises, run  # noqa: E402

SIZE = 1 << 20


def target(pipe):
    """A peer that advertises one megabyte and does what it is told."""
    ep = p2p.Endpoint(3, name="target")
    memory = bytearray(SIZE)
    ok, mr = ep.reg(memory)
    assert ok
    address = p2p.memory_of(memory)[0]
    assert ep.start_passive_accept()
    pipe.send(ep.get_metadata())
    while True:
        what = pipe.recv()
        if what[0] == "accept":
            pipe.send(ep.accept()[2:])
        elif what[0] == "advertise":
            pipe.send(ep.advertise(mr, address + what[2], what[3], conn_id=what[1]))
        elif what[0] == "bytes":
            pipe.send(bytes(memory[what[1]:what[1] + what[2]]))
        elif what[0] == "notifs":
            got = []
            while not got:
                got = ep.get_notifs(10)
            pipe.send(got)
        elif what[0] == "notify":
            pipe.send(ep.notify(what[1], what[2]))
        elif what[0] == "withdraw":
            pipe.send(ep.withdraw(what[1]))
        elif what[0] == "register":  # descriptors of parts of the memory, as (from, to)
            descs = ep.register_memory([memoryview(memory)[a:b] for a, b in what[1]])
            pipe.send(ep.get_serialized_descs(descs))
        elif what[0] == "deregister":
            pipe.send(ep.deregister_memory(descs))
        else:
            ep.close()
            pipe.send("closed")
            return


class Both:
    """This process and a target."""

    def __enter__(self):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=target, args=(theirs,))
        self.process.start()
        theirs.close()
        self.metadata = self.pipe.recv()
        self.ep = p2p.Endpoint(0, name="initiator")
        ok, self.conn = self.ep.add_remote_endpoint(self.metadata)
        assert ok, self.ep.last_error
        self.gpu, self.their_conn = self.ask("accept")
        return self

    def ask(self, *what):
        self.pipe.send(what)
        assert self.pipe.poll(30), "the target does not answer"
        return self.pipe.recv()

    def __exit__(self, *_):
        self.ep.close()
        if self.process.is_alive():
            self.ask("close")
        self.process.join(30)


def uccl_calls():
    with Both() as b:
        ep = b.ep
        host, port, gpu = p2p.Endpoint.parse_metadata(b.metadata)
        assert gpu == 3 and b.gpu == 0 and port > 0 and host
        assert ep.connect("127.0.0.1", gpu, remote_port=port) == (True, b.conn)
        assert ep.remove_remote_endpoint(b.conn)
        ok, b.conn = ep.connect(host, gpu, remote_port=port)  # by the metadata that was parsed
        assert ok, ep.last_error
        b.gpu, b.their_conn = b.ask("accept")
        assert ep.connect(b.metadata) == (True, b.conn)
        mine = bytearray(os.urandom(4096))
        address, size, _ = p2p.memory_of(mine)
        ok, mr = ep.reg(address, size)
        assert ok
        ok, key = b.ask("advertise", b.their_conn, 100, 4096)
        assert ok and len(key) == 64
        assert ep.write(b.conn, mr, address, 4096, key)
        assert b.ask("bytes", 100, 4096) == bytes(mine)
        want = bytes(mine)
        mine[:] = bytes(4096)
        assert ep.read(b.conn, mr, address, 4096, key)
        assert bytes(mine) == want
        ok, number = ep.write_async(b.conn, mr, address, 4096, key)
        assert ok
        while True:
            ok, done = ep.poll_async(number)
            assert ok
            if done:
                break
        assert ep.poll_async(number) == (False, False)
        assert ep.write_ipc(b.conn, address, 10, key)
        # One byte too many, and a key that is none.
        assert not ep.write(b.conn, mr, address, 4097, key) and "4097" in ep.last_error
        assert not ep.write(b.conn, mr, address, 1, bytes(64)) and "target" in ep.last_error
        assert not ep.write(b.conn, mr, address, 1, bytes(63))
        assert b.ask("withdraw", key)
        assert not ep.write(b.conn, mr, address, 10, key) and "withdrawn" in ep.last_error
        assert ep.dereg(mr)
        assert not ep.dereg(mr)
        assert ep.remove_remote_endpoint(b.conn)


def local_calls():
    """UCCL's calls within a machine: found by the GPU's number, memory by its address alone."""
    with tempfile.TemporaryDirectory() as folder, p2p.Endpoint(61, timeout=20) as near, p2p.Endpoint(62, timeout=20) as far:
        before, os.environ["XDG_RUNTIME_DIR"] = os.environ.get("XDG_RUNTIME_DIR"), folder
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(far.accept_local()))
        thread.start()
        ok, conn = near.connect_local(62)
        thread.join()
        assert ok, near.last_error
        ok, gpu, back = accepted[0]
        assert ok and gpu == 61
        mine, theirs = bytearray(os.urandom(8192)), bytearray(8192)
        here, there = p2p.memory_of(mine)[0], p2p.memory_of(theirs)[0]
        ok, key = far.advertise_ipc(back, there, 4096)
        assert ok and near.write_ipc(conn, here, 4096, key), near.last_error
        assert theirs[:4096] == mine[:4096] and not any(theirs[4096:])
        assert not near.write_ipc(conn, here, 4097, key) and "4097" in near.last_error
        ok, keys = far.advertisev_ipc(back, [there + 4096, there], [2048, 2048])
        assert ok and near.writev_ipc(conn, [here + 4096, here], [2048, 2048], keys), near.last_error
        assert theirs[4096:6144] == mine[4096:6144]
        want = bytes(theirs)
        mine[:] = bytes(8192)
        for call, arguments in ((near.read_ipc_async, (here, 4096, key)), (near.readv_ipc_async, ([here + 4096], [2048], keys[:1]))):
            ok, number = call(conn, *arguments)
            assert ok, near.last_error
            done = False
            while not done:
                ok, done = near.poll_async(number)
                assert ok, near.last_error
        assert mine[:6144] == want[:6144]
        regions = len(far._regions)
        assert far.withdraw(key) and len(far._regions) == regions - 1
        assert not near.read_ipc(conn, here, 4096, key) and "withdrawn" in near.last_error
        far.close()
        assert os.listdir(os.path.join(folder, f"epf-p2p-{os.getuid()}")) == []
        with p2p.Endpoint(61, timeout=0.2) as other:
            assert not other.connect_local(62)[0] and "accept_local" in other.last_error
            os.chmod(os.path.join(folder, f"epf-p2p-{os.getuid()}"), 0o755)
            assert not other.accept_local()[0] and "alone" in other.last_error
        del os.environ["XDG_RUNTIME_DIR"]
        if before:
            os.environ["XDG_RUNTIME_DIR"] = before


def vectors():
    with Both() as b:
        mine = bytearray(os.urandom(64 * 1024))
        address = p2p.memory_of(mine)[0]
        ok, mrs = b.ep.regv([address, address + 32768], [32768, 32768])
        assert ok and len(mrs) == 2
        keys, srcs, sizes, regions = [], [], [], []
        for i in range(16):
            ok, key = b.ask("advertise", b.their_conn, i * 8192, 4096)
            assert ok
            keys.append(key)
            srcs.append(address + i * 4096)
            sizes.append(4096 - i)
            regions.append(mrs[i // 8])
        assert b.ep.writev(b.conn, regions, srcs, sizes, keys, 16), b.ep.last_error
        for i in range(16):
            assert b.ask("bytes", i * 8192, 4096 - i) == bytes(mine[i * 4096:i * 4096 + 4096 - i])
        want = bytes(mine)
        for i in range(16):
            mine[i * 4096:i * 4096 + 100] = bytes(100)
        ok, number = b.ep.readv_async(b.conn, regions, srcs, sizes, keys, 16)
        assert ok
        while not b.ep.poll_async(number)[1]:
            pass
        assert bytes(mine) == want
        assert not b.ep.regv([address, 4096], [10, 4096])[0]


def finish(ep, started):
    """What becomes of a transfer that has begun."""
    ok, number = started
    assert ok, ep.last_error
    done = False
    while not done:
        ok, done = ep.poll_async(number)
    return ok


def descriptors():
    """UCCL's register_memory() and transfer(): lists of memory both ways, parts of it, and what cannot be meant."""
    with Both() as b:
        ep = b.ep
        mine = [bytearray(os.urandom(n)) for n in (4096, 1, 100000)]
        local = ep.register_memory(mine)
        assert [d.size for d in local] == [4096, 1, 100000] and len({d.mr_id for d in local}) == 3, local
        assert local[0].addr == p2p.memory_of(mine[0])[0] and repr(local[0]) == f"<XferDesc addr={local[0].addr} size=4096 mr_id={local[0].mr_id}>"
        sent = b.ask("register", [(0, 4096), (5000, 5001), (10000, 110000)])
        remote = ep.deserialize_descs(sent)
        assert [d.size for d in remote] == [4096, 1, 100000] and ep.get_serialized_descs(remote) == sent
        want = [bytes(m) for m in mine]
        assert finish(ep, ep.transfer(b.conn, "write", local, remote))
        assert b.ask("bytes", 0, 4096) == want[0] and b.ask("bytes", 5000, 2) == want[1] + b"\0" and b.ask("bytes", 10000, 100000) == want[2]
        for m in mine:
            m[:] = bytes(len(m))
        assert finish(ep, ep.transfer(b.conn, "read", local, remote))
        assert mine == want
        # A part of a region on either side, by its address.
        part, there = p2p.XferDesc(), ep.deserialize_descs(sent)[2]
        part.addr, part.size, part.mr_id = local[2].addr + 7, 1000, local[2].mr_id
        there.addr += 90000
        assert finish(ep, ep.transfer(b.conn, op_name="write", local_desc_list=[part], remote_desc_list=[there]))
        assert b.ask("bytes", 99999, 1002) == want[2][89999:90000] + want[2][7:1007] + want[2][91000:91001]
        there.addr += 9001  # the last byte would be one behind the end
        assert not ep.transfer(b.conn, "write", [part], [there])[0] and "99001" in ep.last_error, ep.last_error
        for far in (-1, 2**48):
            there.addr = remote[2].addr + far
            assert ep.transfer(b.conn, "write", [part], [there]) == (False, 0)
            assert "not in the region" in ep.last_error
        assert finish(ep, ep.transfer(b.conn, "read", [], []))
        for text, call, *what in (("same size", ep.transfer, b.conn, "write", local, remote[1:]), ("neither", ep.transfer, b.conn, "add", local, remote),
                                  ("0 of the local", ep.transfer, b.conn, "write", [p2p.XferDesc()], remote[:1]),
                                  ("0 of the remote", ep.transfer, b.conn, "write", local[:1], [p2p.XferDesc()]),
                                  ("100000 bytes here, 4096", ep.transfer, b.conn, "read", local[2:], remote[:1]),
                                  ("no descriptors", ep.deserialize_descs, sent[:-1]), ("no descriptors", ep.deserialize_descs, b"1234567")):
            raises(RuntimeError, text, call, *what)
        assert ep.deserialize_descs(b"") == [] == ep.deserialize_descs(ep.get_serialized_descs([]))
        # The peer withdraws: nothing is written any more. Here, a descriptor can be given back twice, and memory that cannot be registered has none.
        b.ask("deregister")
        ok, number = ep.transfer(b.conn, "write", local, remote)
        assert not (ok and finish(ep, (ok, number))) and "target" in ep.last_error, ep.last_error
        ep.deregister_memory(local)
        ep.deregister_memory(local + remote)
        assert all(d.mr_id == p2p.XferDesc().mr_id for d in local)
        nothing, = ep.register_memory([bytearray()])
        assert nothing.mr_id == local[0].mr_id and ep.last_error
        assert p2p.FloatType.kFloat8E4M3FN == p2p.FloatType.kFloat8E5M2 == p2p.FloatType.kFloat8


def notifications():
    with Both() as b:
        mine = bytearray(8)
        ok, mr = b.ep.reg(mine)
        assert ok
        _, key = b.ask("advertise", 0, 0, 8)
        assert b.ep.write(b.conn, mr, mine, 8, key, note=b"block 7")
        assert b.ask("notifs") == [(b.their_conn, b"block 7")]
        assert b.ep.notify(b.conn, b"")
        assert b.ask("notifs") == [(b.their_conn, b"")]
        fd = b.ep.fileno()
        assert b.ask("notify", b.their_conn, b"hello")
        assert select.select([fd], [], [], 20)[0]
        assert b.ep.get_notifs() == [(b.conn, b"hello")]


def kinds_of_memory():
    made = [bytearray(b"0123456789abcdef"), (ctypes.c_char * 16)(*b"0123456789abcdef")]
    try:
        import numpy
        made.append(numpy.frombuffer(bytearray(b"0123456789abcdef"), dtype=numpy.uint16))
        raises(ValueError, "gaps", p2p.memory_of, numpy.zeros((4, 4))[:, 1])

        class OnlyDlpack:
            def __init__(self, array):
                self.__dlpack__ = array.__dlpack__

        if hasattr(numpy.ndarray, "__dlpack__"):
            made.append(OnlyDlpack(numpy.frombuffer(bytearray(b"0123456789abcdef"), dtype=numpy.uint32)))
    except ImportError:
        print("# NumPy is not installed")
    try:
        import torch
        made.append(torch.tensor(list(b"0123456789abcdef"), dtype=torch.uint8))
        made.append(torch.zeros(2, 2, requires_grad=True, dtype=torch.float32))
    except ImportError:
        print("# PyTorch is not installed")
    raises(ValueError, "read-only", p2p.memory_of, b"0123456789abcdef")
    with Both() as b:
        for memory in made:
            address, size, device = p2p.memory_of(memory)
            assert size == 16 and device == p2p.HOST
            ok, mr = b.ep.reg(memory)
            assert ok, b.ep.last_error
            _, key = b.ask("advertise", b.their_conn, 0, 16)
            assert b.ep.write(b.conn, mr, memory, 16, key)
            assert b.ask("bytes", 0, 16) == ctypes.string_at(address, 16)
            assert b.ep.dereg(mr)


class FakeGpu:
    """Memory of the fake GPU: no CPU code may touch its addresses."""

    def __init__(self, size):
        self.dll, options = p2p.load(), lib.Options()
        self.ep, self.size, self.address = ctypes.c_void_p(), size, ctypes.c_void_p()
        for name, arguments in (("alloc", [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]), ("free", [ctypes.c_void_p] * 2),
                                ("copy", [ctypes.c_void_p] * 3 + [ctypes.c_uint64])):
            getattr(self.dll, f"epf_gpu_{name}").argtypes = arguments
        self.dll.epf_options_init(ctypes.byref(options))
        options.settings = (ctypes.c_char_p * 3)(b"nic=emu", b"gpu-backend=fake", None)
        assert self.dll.epf_open(ctypes.byref(options), ctypes.byref(self.ep)) == 0, p2p.last_error()
        assert self.dll.epf_gpu_alloc(self.ep, 0, size, ctypes.byref(self.address)) == 0, p2p.last_error()

    def fill(self, data):
        assert self.dll.epf_gpu_copy(self.ep, self.address, data, len(data)) == 0

    def content(self):
        got = ctypes.create_string_buffer(self.size)
        assert self.dll.epf_gpu_copy(self.ep, got, self.address, self.size) == 0
        return got.raw

    def close(self):
        self.dll.epf_gpu_free(self.ep, self.address)
        self.dll.epf_close(self.ep)


class OnDevice:
    """Offers GPU memory through DLPack, as PyTorch and CuPy do."""

    def __init__(self, gpu):
        self.shape = (ctypes.c_int64 * 1)(gpu.size)
        self.tensor = p2p._DLTensor(data=gpu.address.value, device_type=2, device_id=0, ndim=1, code=1, bits=8, lanes=1, shape=self.shape)

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


class LikeTensor:
    """As much of a PyTorch tensor on a GPU as memory_of() uses."""

    class device:  # pylint: disable=invalid-name
        type, index = "cuda", 0

    def __init__(self, gpu):
        self.gpu = gpu

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return self.gpu.address.value

    def numel(self):
        return self.gpu.size // 2

    def element_size(self):
        return 2


def gpu_memory():
    """Memory of the fake GPU, given through DLPack, as a tensor, and as a bare address."""
    gpu, data = FakeGpu(8192), bytes(os.urandom(8192))
    with Both() as b, p2p.Endpoint(0, name="with-gpu", settings=["gpu-backend=fake"]) as ep:
        ok, conn = ep.add_remote_endpoint(b.metadata)
        assert ok, ep.last_error
        _, key = b.ask("advertise", 0, 0, 8192)
        for memory in (OnDevice(gpu), LikeTensor(gpu), None):
            gpu.fill(data)
            address, size, device = p2p.memory_of(memory) if memory else (gpu.address.value, gpu.size, 0)
            assert (address, size, device) == (gpu.address.value, 8192, 0)
            ok, mr = ep.reg(memory) if memory else ep.reg(address, size)
            assert ok, ep.last_error
            assert ep.write(conn, mr, address, 8192, key), ep.last_error
            assert b.ask("bytes", 0, 8192) == data
            gpu.fill(bytes(8192))
            assert ep.read(conn, mr, address + 16, 8000, key), ep.last_error
            assert gpu.content() == bytes(16) + data[:8000] + bytes(176)
            assert ep.dereg(mr)
            data = data[1:] + data[:1]
    gpu.close()


def compression():
    """UCCL's argument of reg(), and dtypes: values of two endpoints over a NIC come bit for bit, in fewer bytes."""
    assert p2p.float_type_of(b"bytes") == p2p.FloatType.kUndefined
    try:
        import numpy
        assert p2p.float_type_of(numpy.zeros(2, "float32")) == p2p.FloatType.kFloat32
        assert p2p.float_type_of(numpy.zeros(2, "float16")) == p2p.FloatType.kFloat16
        assert p2p.float_type_of(numpy.zeros(2, "int32")) == p2p.FloatType.kUndefined
    except ImportError:
        pass
    try:
        import torch
        assert p2p.float_type_of(torch.zeros(2, dtype=torch.bfloat16)) == p2p.FloatType.kBFloat16
    except ImportError:
        pass
    settings = ["p2p-local=no", "nic=emu", "p2p-compress=split"]
    size = 4 << 20
    with p2p.Endpoint(name="left", settings=settings) as left, p2p.Endpoint(name="right", settings=settings) as right:
        ok, conn = left.add_remote_endpoint(right.get_metadata())
        assert ok, left.last_error
        mine, theirs = bytearray(os.urandom(size)), bytearray(size)
        mine[1::2] = b"\x3f" * (size // 2)  # bf16 between 0.5 and 2
        _, there = right.reg(theirs)
        _, key = right.advertise(there, theirs, size)
        for known in (False, True):
            address = p2p.memory_of(mine)[0]
            ok, mr = left.reg(address, size, floatType=p2p.FloatType.kBFloat16) if known else left.reg(mine)
            assert ok, left.last_error
            theirs[:] = bytes(size)
            assert left.write(conn, mr, mine, size, key), left.last_error
            assert theirs == mine
            agreed, before, after = left.compression(conn)
            assert agreed == 1
            # Where this build has no libzstd, nothing is agreed, and the assertion above says so.
            assert before == (size if known else 0), before
            assert after < before * 0.7 or not known, (before, after)
        ok, mr = left.reg(mine, floatType=99)
        assert not ok and "99" in left.last_error, left.last_error


def dead_peer():
    with Both() as b:
        mine = bytearray(SIZE)
        _, mr = b.ep.reg(mine)
        _, key = b.ask("advertise", b.their_conn, 0, SIZE)
        assert b.ep.write(b.conn, mr, mine, SIZE, key)
        os.kill(b.process.pid, signal.SIGKILL)
        b.process.join(30)
        while b.ep.write(b.conn, mr, mine, SIZE, key):
            pass
        assert "target" in b.ep.last_error, b.ep.last_error
        assert b.ep.dereg(mr)


run([uccl_calls, local_calls, vectors, descriptors, notifications, kinds_of_memory, gpu_memory, compression, dead_peer])
