#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL's UCX back end and ours through NIXL's agents, alternating, between two processes on one machine, with host memory from NumPy or GPU memory.

  xfer.py --wheel FOLDER --plugin libplugin_EPF.so [--rounds N] [--seconds S] [--gpu HERE,THERE] [--only TEXT] [--json FILE]
  xfer.py --wheel FOLDER --plugin libplugin_EPF.so --target PORT       the other end, on another host, and there:
  xfer.py --wheel FOLDER --plugin libplugin_EPF.so --peer HOST:PORT    (hosts.sh does both, with two namespaces as hosts)

FOLDER is what tools/frameworks/fetch.py nixl-1.5 FOLDER makes (with GPUs: nixl-gpu-1.5). Per row and back end: the median and the best time of one transfer, from
the call that posts it to the poll that finds it done, with prepared lists. A round measures one back end in processes of its own, and then the other, and begins with
the other one next time: UCX's progress threads poll as long as an agent with it is open, and would take the CPUs from whatever is measured beside them. `8 B, note`
is the time until the peer's program has the notification and its answer has arrived, halved. Prints the machine's load; figures of a busy machine mean little.
"""
import argparse
import glob
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Client, Listener

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/nixl"))

import wheels  # noqa: E402

BACKENDS = ("EPF", "UCX")
# Name, blocks, bytes of a block, bytes between blocks, whether in random order.
SIZES = [(f"1 of {size >> 10} KiB", 1, size, 0, False) for size in (4 << 10, 64 << 10, 1 << 20, 16 << 20)]
ROWS = [("1 of 8 B", 1, 8, 0, False), *SIZES, ("16000 of 4 KiB, apart, shuffled", 16000, 4096, 128, True), ("1000 of 64 KiB, apart, shuffled", 1000, 65536, 128, True),
        ("16000 of 4 KiB, adjacent", 16000, 4096, 0, False), ("1000 of 64 KiB, adjacent", 1000, 65536, 0, False), ("1 of 256 MiB", 1, 256 << 20, 0, False),
        ("112000 of 4 KiB, apart, shuffled", 112000, 4096, 128, True)]
# Between hosts.
FAR_ROWS = [("1 of 8 B", 1, 8, 0, False), *SIZES, ("1 of 65536 KiB", 1, 64 << 20, 0, False),
            ("16000 of 4 KiB, apart, shuffled", 16000, 4096, 128, True), ("16000 of 4 KiB, adjacent", 16000, 4096, 0, False),
            ("1000 of 64 KiB, apart, shuffled", 1000, 65536, 128, True)]
MOST = max(count * (size + gap) for _, count, size, gap, _ in ROWS)
FAR_MOST = max(count * (size + gap) for _, count, size, gap, _ in FAR_ROWS)
KEY = b"a benchmark between two hosts, nothing secret"


class Memory:
    """What an agent has registered. gpu: a GPU's number, or None for host memory."""

    def __init__(self, one, backend, gpu, size):
        self.kind, self.device = ("DRAM", 0) if gpu is None else ("VRAM", gpu)
        if gpu is None:
            import numpy as np
            self.array = np.ones(size, dtype=np.uint8)
            self.address = self.array.ctypes.data
        else:
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/gpu"))
            import p2p_memory
            self.address = p2p_memory.CudaMemory(p2p_memory.Cuda(), gpu, size).address
        one.register_memory([(self.address, size, self.device, "")], self.kind, backends=[backend])


def agent(name, backend, gpu, size):
    api = wheels.module()
    one = api.nixl_agent(name, api.nixl_agent_config(backends=[backend]))
    return one, Memory(one, backend, gpu, size)


def notify(one, name, note, backend):
    """send_notif() with a back end raises a TypeError in NIXL 1.5.1."""
    one.agent.genNotif(name, note, [one.backends[backend]])


def target(pipe, backend, gpu, size):
    """Answers each notification with one over the same back end, and otherwise waits for the pipe."""
    one, memory = agent("target", backend, gpu, size)
    pipe.send((one.get_agent_metadata(), memory.address, memory.device))
    name = one.add_remote_agent(pipe.recv()).decode()
    pipe.send("ready")
    for count in iter(pipe.recv, None):
        while count:
            for notes in one.get_new_notifs(backends=[backend]).values():
                for note in notes:
                    notify(one, name, note, backend)
                    count -= 1
        pipe.send("answered")


class Case:
    """A prepared transfer of one row over one back end."""

    def __init__(self, one, memory, there, name, backend, operation, row):
        import numpy as np
        _, self.count, self.size, gap, shuffled = row
        self.one, self.backend, self.name = one, backend, name
        self.lists = []
        order = np.random.default_rng(1)
        for base, device, who in ((memory.address, memory.device, "NIXL_INIT_AGENT"), (*there, name)):
            rows = np.zeros((self.count, 3), dtype=np.uint64)
            rows[:, 0] = base + np.arange(self.count, dtype=np.uint64) * (self.size + gap)
            rows[:, 1] = self.size
            rows[:, 2] = device
            self.lists.append(one.prep_xfer_dlist(who, one.get_xfer_descs(rows, memory.kind), backends=[backend]))
        ids = [order.permutation(self.count).astype(np.int32) if shuffled else np.arange(self.count, dtype=np.int32) for _ in range(2)]
        start = time.perf_counter()
        self.handle = one.make_prepped_xfer(operation, self.lists[0], ids[0], self.lists[1], ids[1], backends=[backend])
        self.prepare = time.perf_counter() - start
        self.times, self.posts = [], []

    def once(self):
        start = time.perf_counter()
        state = self.one.transfer(self.handle)
        posted = time.perf_counter()
        while state == "PROC":
            state = self.one.check_xfer_state(self.handle)
        end = time.perf_counter()
        assert state == "DONE", state
        return end - start, posted - start

    def round(self, seconds):
        self.once()
        end = time.perf_counter() + seconds
        while True:
            whole, post = self.once()
            self.times.append(whole)
            self.posts.append(post)
            if time.perf_counter() > end:
                break

    def close(self):
        self.one.release_xfer_handle(self.handle)
        for one in self.lists:
            self.one.release_dlist_handle(one)


def ping(one, pipe, name, backend, count=200):
    """Returns the times of a notification one way."""
    pipe.send(count)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        notify(one, name, b"8 bytes.", backend)
        while not one.get_new_notifs(backends=[backend]):
            pass
        times.append((time.perf_counter() - start) / 2)
    assert pipe.recv() == "answered"
    return times


def meet(args):
    """Returns a pipe to the target, which this program starts unless it runs on another host, and what ends it."""
    if args.peer:
        host, _, port = args.peer.rpartition(":")
        end = time.monotonic() + 30
        while True:
            try:
                return Client((host, int(port)), authkey=KEY), lambda: None
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    child = spawn.Process(target=target, args=(theirs, args.inside, args.gpu and args.gpu[1], MOST), daemon=True)
    child.start()
    return pipe, child.join


def measure(args):
    """One round of one back end: returns {row: times and what else is known of it}."""
    pipe, join = meet(args)
    metadata, *there = pipe.recv()
    one, memory = agent("initiator", args.inside, args.gpu and args.gpu[0], FAR_MOST if args.peer else MOST)
    name = one.add_remote_agent(metadata).decode()
    pipe.send(one.get_agent_metadata())
    assert pipe.recv() == "ready"
    results = {}
    for row in [row for row in (FAR_ROWS if args.peer else ROWS) if args.only in row[0]]:
        for operation in ("WRITE", "READ"):
            case = Case(one, memory, there, name, args.inside, operation, row)
            case.round(args.seconds)
            results[f"{row[0]:34s} {operation:5s}"] = {"bytes": row[1] * row[2], "count": row[1], "times": case.times, "posts": case.posts, "prepare": case.prepare}
            case.close()
    results[f"{'notification of 8 B, one way':34s} NOTE "] = {"bytes": 8, "count": 1, "times": ping(one, pipe, name, args.inside)}
    pipe.send(None)
    join()
    return results


def report(row, of):
    """Prints one row: microseconds and GB/s by the median, best times in brackets, and how many times faster ours is."""
    text = []
    for backend in BACKENDS:
        median = statistics.median(of[backend]["times"])
        text.append(f"{backend} {median * 1e6:10.1f} us [{min(of[backend]['times']) * 1e6:10.1f}] {of[backend]['bytes'] / median / 1e9:6.2f} GB/s")
    print(row, *text, f" x{statistics.median(of['UCX']['times']) / statistics.median(of['EPF']['times']):.2f}", flush=True)


def inside(args):
    """What runs with the wheel. Does not return: a library of the wheel's (libnl-route) crashes in its destructor when the process exits in order."""
    if args.target:
        with Listener(("", args.target), authkey=KEY) as listener:
            target(listener.accept(), args.inside, None, FAR_MOST)
    else:
        json.dump(measure(args), sys.stdout)
    sys.stdout.flush()
    os._exit(0)


def one_round(args, backend):
    """Runs one back end in processes of its own; returns what they measured, None for the other end."""
    wheel = os.path.abspath(args.wheel)
    plugin = args.plugin if backend == "EPF" else glob.glob(f"{wheel}/.nixl_cu1?.mesonpy.libs/plugins/libplugin_UCX.so")[0]
    env = {**os.environ, "PYTHONPATH": wheel, "NIXL_PLUGIN_DIR": os.path.dirname(os.path.abspath(plugin)), **wheels.libraries(wheel), "NIXL_LOG_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--inside", backend], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout) if done.stdout else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--rounds", type=int, default=5, help="the same at both ends")
    parser.add_argument("--seconds", type=float, default=0.2, help="of one back end in one round of one row")
    parser.add_argument("--gpu", type=lambda text: [int(n) for n in text.split(",")], help="GPUs with the memory of the initiator and of the target")
    parser.add_argument("--target", type=int, metavar="PORT", help="be the other end")
    parser.add_argument("--peer", metavar="HOST:PORT", help="the other end is there")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--json")
    parser.add_argument("--inside", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args)
    print(f"# load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, {args.rounds} rounds of {args.seconds} s", flush=True)
    results = {}
    for number in range(args.rounds):
        for backend in BACKENDS if number % 2 == 0 else BACKENDS[::-1]:
            for row, got in (one_round(args, backend) or {}).items():
                known = results.setdefault(row, {}).setdefault(backend, {**got, "times": [], "posts": []})
                known["times"] += got["times"]
                known["posts"] += got.get("posts", [])
    for row, of in results.items():
        report(row, of)
    print(f"# load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
