#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Point-to-point transfers of GPU memory between two processes: p2p_cases.py --libepf FILE (correct | speed | compress) [--devices A,B] [--fake] [--rounds N].

correct: random data, destinations full of a pattern, every byte compared: memory of each kind on both sides, odd blocks in random order, one block of
several chunks, withdrawal, and 112,000 blocks. speed: times of prepared transfers beside cuMemcpyPeer() of as many bytes; printed, never judged.
compress: over the software NIC, as between machines, compressed by the GPUs (nvCOMP), of values of every type; then none, split and full in turn.
"""
import argparse
import ctypes
import hashlib
import multiprocessing
import os
import random
import statistics
import struct
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../tools/python")]

import p2p_memory  # noqa: E402

SECONDS = 120


def load(args):
    os.environ["EPF_LIBRARY"] = os.path.abspath(args.libepf)
    from epf import lib, p2p
    return lib, p2p


def memory(args, kind, device, size):
    lib, p2p = load(args)
    if kind == "host":
        return p2p_memory.HostMemory(size)
    if kind == "epf" or args.fake:
        return p2p_memory.EpfMemory(lib, p2p.load(), device, size, "fake" if args.fake else "cuda")
    return p2p_memory.CudaMemory(p2p_memory.Cuda(), device, size)


def endpoint(args, name):
    _, p2p = load(args)
    return p2p.Endpoint(0, name=name, settings=(["gpu-backend=fake"] if args.fake else []) + args.settings, timeout=60)


def pattern(size, seed):
    rng, piece = random.Random(seed), 64 << 20  # randbytes() takes less than 256 MiB
    return b"".join(rng.randbytes(min(piece, size - at)) for at in range(0, size, piece))


def serve(pipe, args, kind, size):
    ep, own = endpoint(args, "target"), memory(args, kind, args.devices[1], size)
    ok, mr = ep.reg(own.address, size)
    assert ok, ep.last_error
    ok, key = ep.advertise(mr, own.address, size)
    pipe.send((ep.get_metadata(), key))
    while (command := pipe.recv()) is not None:
        if command[0] == "put":
            own.put(pattern(size, command[1]))
            pipe.send(True)
        elif command[0] == "values":
            own.put(command[1])
            pipe.send(True)
        elif command[0] == "withdraw":
            pipe.send(ep.withdraw(key))
        else:
            pipe.send(hashlib.blake2b(own.get()).hexdigest())
    ep.close()


class Pair:
    """This process with memory of one kind, and a target with memory of another."""

    def __init__(self, args, here, there, size):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, args, there, size), daemon=True)
        self.process.start()
        theirs.close()
        metadata, self.key = self.receive()
        self.ep, self.own, self.size = endpoint(args, "initiator"), memory(args, here, args.devices[0], size), size
        self.p2p = load(args)[1]
        self.dll = self.p2p.load()
        self.mr = self.must(*self.ep.reg(self.own.address, size))
        self.conn = self.must(*self.ep.add_remote_endpoint(metadata))
        number = ctypes.c_uint64()
        self.check(self.dll.epf_p2p_import(self.ep._ep, self.conn, self.key, SECONDS * 10**9, ctypes.byref(number)))
        self.there = number.value

    def must(self, ok, value):
        assert ok, self.ep.last_error
        return value

    def check(self, rc):
        assert rc >= 0, f"{rc}: {self.p2p.last_error()}"

    def receive(self):
        assert self.pipe.poll(SECONDS), "the target says nothing"
        return self.pipe.recv()

    def ask(self, *command):
        self.pipe.send(command)
        return self.receive()

    def prepare(self, op, blocks):
        """blocks: (here, there, bytes)."""
        text = b"".join(self.p2p.block(*b) for b in blocks)
        vector, handle = self.p2p.Vector(region=self.mr, import_=self.there, count=len(blocks)), ctypes.c_void_p()
        vector.blocks = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p)
        self.check(self.dll.epf_p2p_prepare(self.ep._ep, self.conn, op, ctypes.byref(vector), 1, None, ctypes.byref(handle)))
        return handle

    def run(self, handle):
        self.check(self.dll.epf_p2p_post(handle, None, 0))
        self.check(self.dll.epf_p2p_wait(handle, SECONDS * 10**9))

    def once(self, op, blocks):
        handle = self.prepare(op, blocks)
        self.run(handle)
        self.dll.epf_p2p_xfer_free(handle)

    def close(self):
        self.ep.close()
        self.pipe.send(None)
        self.process.join(SECONDS)
        assert self.process.exitcode == 0, f"the target ended with {self.process.exitcode}"


def odd_blocks(size, count, seed):
    """Blocks of odd sizes, apart, each from somewhere to somewhere else, in random order."""
    rng, slot = random.Random(seed), size // count
    to = list(range(count))
    rng.shuffle(to)
    blocks = [(i * slot + rng.randrange(8), to[i] * slot + rng.randrange(8), rng.randrange(1, slot - 8)) for i in range(count)]
    rng.shuffle(blocks)
    return blocks


def compare(pair, blocks, seed, what):
    """A write over a pattern, and a read over another; every byte of both memories."""
    data, poison = pattern(pair.size, seed), pattern(pair.size, seed + 1)
    want = bytearray(poison)
    for here, there, size in blocks:
        want[there:there + size] = data[here:here + size]
    pair.own.put(data)
    pair.ask("put", seed + 1)
    pair.once(pair.p2p.WRITE, blocks)
    assert pair.ask("digest") == hashlib.blake2b(want).hexdigest(), f"{what}: a write left wrong bytes"
    mine = bytearray(pattern(pair.size, seed + 2))
    pair.own.put(mine)
    pair.once(pair.p2p.READ, blocks)
    for here, there, size in blocks:
        mine[here:here + size] = want[there:there + size]
    assert pair.own.get() == mine, f"{what}: a read left wrong bytes"


def correct(args):
    size = (4 if args.fake else 64) << 20
    for here, there in (("cuda", "cuda"), ("epf", "epf"), ("cuda", "epf"), ("host", "cuda"), ("cuda", "host"), ("host", "epf"), ("epf", "host")):
        pair = Pair(args, here, there, size)
        compare(pair, odd_blocks(size, 3000, 5), 1, f"{here} to {there}, odd blocks")
        compare(pair, [(1, 16, size - 64)], 10, f"{here} to {there}, one block")
        compare(pair, [(size - 1, 0, 1)], 20, f"{here} to {there}, one byte")
        compare(pair, [(i * 65536 + 64, i * 65536, 65536 - 128) for i in range(size // 65536)], 30, f"{here} to {there}, large blocks")
        assert pair.ask("withdraw") is True
        assert not pair.ep.write(pair.conn, pair.mr, pair.own.address, 4096, pair.key), "a write to withdrawn memory"
        pair.close()
        print(f"# {here:5s} to {there:5s} right", flush=True)
    count, page, gap = (2000 if args.fake else 112000), 4096, 128
    pair = Pair(args, "cuda", "cuda", count * (page + gap))
    to = list(range(count))
    random.Random(3).shuffle(to)
    compare(pair, [(i * (page + gap), to[i] * (page + gap), page) for i in range(count)], 40, f"{count} pages")
    pair.close()
    print(f"# {count} pages of 4 KiB right")


ROWS = [("1 of 4 KiB", 1, 4096, 0), ("1 of 64 KiB", 1, 65536, 0), ("1 of 1 MiB", 1, 1 << 20, 0), ("1 of 16 MiB", 1, 16 << 20, 0), ("1 of 256 MiB", 1, 256 << 20, 0),
        ("1000 of 64 KiB, apart, shuffled", 1000, 65536, 128), ("1000 of 256 KiB, apart, shuffled", 1000, 262144, 128), ("200 of 1 MiB, apart, shuffled", 200, 1 << 20, 128),
        ("112000 of 4 KiB, apart, shuffled", 112000, 4096, 128)]


def timed(function, rounds):
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def speed(args):
    most = max(count * (size + gap) for _, count, size, gap in ROWS)
    if args.fake:
        most = 8 << 20
    for kinds in (("cuda", "cuda"), ("host", "cuda")):
        pair, cuda, other = Pair(args, *kinds, most), None, None
        if not args.fake and kinds[0] == "cuda":
            cuda = pair.own.cuda
            other = p2p_memory.CudaMemory(cuda, args.devices[1], most)
            if args.devices[0] != args.devices[1]:
                cuda.let_reach(args.devices[0], args.devices[1])
        for name, count, size, gap in ROWS:
            if count * (size + gap) > most:
                continue
            order = list(range(count))
            random.Random(1).shuffle(order)
            blocks = [(i * (size + gap), order[i] * (size + gap), size) for i in range(count)]
            line = f"# {kinds[0]:4s} {name:34s}"
            for op, word in ((pair.p2p.WRITE, "write"), (pair.p2p.READ, "read")):
                handle = pair.prepare(op, blocks)
                median = timed(lambda h=handle: pair.run(h), args.rounds)
                pair.dll.epf_p2p_xfer_free(handle)
                line += f"  {word} {median * 1e6:10.1f} us {count * size / median / 1e9:7.1f} GB/s"
            if cuda:
                reference = timed(lambda n=count * size: cuda.copy_peer(other.address, args.devices[1], pair.own.address, args.devices[0], n), args.rounds)
                line += f"  cuMemcpyPeer {reference * 1e6:10.1f} us, ours {reference / median:.2f} of it"
            print(line, flush=True)
        pair.close()


def values_of(size, dtype, seed):
    """Bytes of normally distributed values, by truncation; or of others."""
    rng, count = random.Random(seed), 1 << 18
    if dtype == "any":
        return pattern(size, seed)
    if dtype == "odd":
        some = b"".join(struct.pack("<H", rng.choice((0x7fc0, 0xffff, 0x7f80, 0xff80, 0, 0x8000, 1, 0x7f81))) for _ in range(count))
    else:
        values = [rng.gauss(0, 0.02) for _ in range(count)]
        fp32, fp16 = struct.pack(f"<{count}f", *values), struct.pack(f"<{count}e", *values)
        bf16 = bytearray(2 * count)
        bf16[::2], bf16[1::2] = fp32[2::4], fp32[3::4]
        some = {"fp32": fp32, "fp16": fp16, "bf16": bytes(bf16), "fp8": fp16[1::2]}[dtype]  # fp8: E5M2 is the higher byte of fp16
    return (some * (size // len(some) + 1))[:size]


def packed_pair(args, strategy, size):
    args.settings = ["p2p-local=no", "nic=emu", f"p2p-compress={strategy}", "p2p-compress-min=1"]
    return Pair(args, "cuda", "cuda", size)


def packed(pair, op, size, shift, before):
    """One transfer, and what became of its bytes: (seconds, bytes compressed, to how many)."""
    start = time.perf_counter()
    pair.once(op, [(shift, shift, size)])
    seconds = time.perf_counter() - start
    _, now, less = pair.ep.compression(pair.conn)
    return seconds, now - before[0], less - before[1]


def totals(pair):
    return pair.ep.compression(pair.conn)[1:]


def compress(args):
    """A connection compresses its first 32 chunks of 2 MiB of each direction, whatever it measures later: what follows stays below that."""
    _, p2p = load(args)
    kinds = (("bf16", "kBFloat16"), ("fp16", "kFloat16"), ("fp32", "kFloat32"), ("fp8", "kFloat8"), ("any", "kBFloat16"), ("odd", "kFloat16"))
    size = (6 << 20) + 4096
    for strategy in ("split", "full"):
        for name, kind in kinds:
            pair = packed_pair(args, strategy, size)
            pair.check(pair.dll.epf_p2p_set_float(pair.ep._ep, pair.mr, int(getattr(p2p.FloatType, kind))))
            for shift, length in ((0, size), (3, size - 100), (4096, 2 << 20), (1, 65537)):
                data, other = values_of(size, name, shift), pattern(size, 7)
                pair.own.put(data)
                pair.ask("put", 7)
                _, before, after = packed(pair, pair.p2p.WRITE, length, shift, totals(pair))
                want = other[:shift] + data[shift:shift + length] + other[shift + length:]
                assert pair.ask("digest") == hashlib.blake2b(want).hexdigest(), f"{strategy} {name}: a write of {length} bytes at {shift} left wrong bytes"
                if not before:
                    raise SystemExit(f"# {strategy}: GPU memory goes uncompressed; the log says why (nvCOMP 6: --nvcomp)")
                pair.own.put(other)
                pair.ask("values", data)
                packed(pair, pair.p2p.READ, length, shift, totals(pair))
                assert pair.own.get() == want, f"{strategy} {name}: a read of {length} bytes at {shift} left wrong bytes"
            print(f"# {strategy:5s} {name:4s} right; the last write left {after / before:.3f} of {before} bytes", flush=True)
            assert pair.ask("withdraw") is True
            assert not pair.ep.write(pair.conn, pair.mr, pair.own.address, 4096, pair.key), "a write to withdrawn memory"
            pair.close()
    size = (2 if args.fake else 32) << 20
    rates = {}
    for _ in range(2 if args.fake else max(2, args.rounds // 3)):
        for strategy in ("none", "split", "full"):
            pair = packed_pair(args, strategy, size)
            pair.own.put(values_of(size, "bf16", 1))
            pair.check(pair.dll.epf_p2p_set_float(pair.ep._ep, pair.mr, int(p2p.FloatType.kBFloat16)))
            for op, word in ((pair.p2p.WRITE, "write"), (pair.p2p.READ, "read")):
                packed(pair, op, size, 0, totals(pair))  # opens what is opened at first
                seconds, before, after = packed(pair, op, size, 0, totals(pair))
                assert (before > 0) == (strategy != "none"), f"{strategy}: {before} bytes compressed"
                rates.setdefault((word, strategy), []).append((seconds, after / before if before else 1))
            pair.close()
    for (word, strategy), runs in rates.items():
        median = statistics.median(seconds for seconds, _ in runs)
        print(f"# {word:5s} bf16 {size >> 20} MiB over the software NIC, {strategy:5s} {median * 1e3:8.2f} ms {size / median / 1e9:6.2f} GB/s, left {runs[-1][1]:.3f}, best of {len(runs)} "
              f"{size / min(seconds for seconds, _ in runs) / 1e9:6.2f} GB/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("correct", "speed", "compress"))
    parser.add_argument("--libepf", required=True)
    parser.add_argument("--devices", default="0,0", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--fake", action="store_true", help="the fake GPU: checks this program where there is none")
    parser.set_defaults(settings=[])
    args = parser.parse_args()
    {"correct": correct, "speed": speed, "compress": compress}[args.what](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
