# SPDX-License-Identifier: Apache-2.0
"""The calls that vLLM's NixlConnector and SGLang's NIXL disaggregation make of an agent, in their order, between two processes: connectors.py CASE...

Read in their sources and written anew; what differs: memory is DRAM here, and their own messages go over pipes. Run by test_connectors.py.
"""
import os
import signal
import sys
import threading
import time
import uuid

import numpy as np

import wheels
from agents import SECONDS, Target, descriptors, finish, memory

LAYERS, BLOCKS, BLOCK = 6, 200, 8192


# ---- vLLM ------------------------------------------------------------------------------------------


class Worker:
    """What NixlConnectorWorker keeps of an agent: an array per layer, and a prepared list of all blocks of all layers."""

    def __init__(self, fill):
        from nixl_cu12._api import nixl_agent, nixl_agent_config
        self.agent = nixl_agent(str(uuid.uuid4()), nixl_agent_config(backends=["EPF"], capture_telemetry=True))
        self.caches = [fill(layer) for layer in range(LAYERS)]
        self.registered = self.agent.get_reg_descs([(c.ctypes.data, c.nbytes, 0, "") for c in self.caches], "DRAM")
        self.agent.register_memory(self.registered, backends=["EPF"])
        self.local = self.prepare("NIXL_INIT_AGENT", [c.ctypes.data for c in self.caches])
        self.remote = {}

    def prepare(self, name, addresses):
        rows = [(base + block * BLOCK, BLOCK, 0) for base in addresses for block in range(BLOCKS)]
        return self.agent.prep_xfer_dlist(name, self.agent.get_xfer_descs(rows, "DRAM"))

    def handshake(self, metadata, addresses):
        """In a separate thread, as vLLM does."""
        def add():
            name = self.agent.add_remote_agent(metadata)
            name = name.decode() if isinstance(name, bytes) else name
            self.remote[name] = self.prepare(name, addresses)
        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
        return list(self.remote)[-1]

    def ids(self, blocks):
        return [layer * BLOCKS + block for layer in range(LAYERS) for block in blocks]

    def start(self, operation, name, local_blocks, remote_blocks, note):
        handle = self.agent.make_prepped_xfer(operation, self.local, self.ids(local_blocks), self.remote[name], self.ids(remote_blocks), notif_msg=note)
        self.agent.transfer(handle)
        return handle

    def shutdown(self):
        self.agent.release_dlist_handle(self.local)
        for name, handle in self.remote.items():
            self.agent.release_dlist_handle(handle)
            self.agent.remove_remote_agent(name)
        self.agent.deregister_memory(self.registered, backends=["EPF"])


def layers(_layer):
    return memory(BLOCKS * BLOCK)


def numbered(layer):
    return np.random.default_rng(layer).integers(0, 256, BLOCKS * BLOCK, dtype=np.uint8)


def prefill(pipe):
    """The other process: its caches are full. Serves until it is told to stop; counts notes per request, as vLLM does before it frees blocks."""
    worker = Worker(numbered)
    pipe.send((worker.agent.get_agent_metadata(), [c.ctypes.data for c in worker.caches]))
    counts, end = {}, time.monotonic() + SECONDS
    while not pipe.poll(0.001) and time.monotonic() < end:
        for notes in worker.agent.get_new_notifs().values():
            for note in notes:
                request = note.decode().rsplit(":", 1)[0]
                counts[request] = counts.get(request, 0) + 1
                if request == "pushed":
                    pipe.send(("pushed", [c.tobytes() for c in worker.caches]))
    pipe.recv()
    pipe.send(counts)
    worker.shutdown()


def vllm_pulls_and_pushes():
    from agents import spawn
    pipe, theirs = spawn.Pipe()
    child = spawn.Process(target=prefill, args=(theirs,), daemon=True)
    child.start()
    assert pipe.poll(SECONDS)
    metadata, addresses = pipe.recv()
    worker = Worker(layers)
    name = worker.handshake(metadata, addresses)
    random, requests = np.random.default_rng(7), {}
    taken = random.permutation(BLOCKS)
    for number in range(8):  # several requests at once, blocks scattered on both sides
        local, remote = taken[number * 20:number * 20 + 20].tolist(), random.permutation(BLOCKS)[:20].tolist()
        requests[f"request-{number}"] = (worker.start("READ", name, local, remote, f"request-{number}:1".encode()), local, remote)
    worker.agent.send_notif(name, notif_msg=b"prefix-hit:1")
    waiting, end = dict(requests), time.monotonic() + SECONDS
    while waiting and time.monotonic() < end:
        for request, (handle, _, _) in list(waiting.items()):
            if worker.agent.check_xfer_state(handle) == "DONE":
                worker.agent.get_xfer_telemetry(handle)
                worker.agent.release_xfer_handle(handle)
                del waiting[request]
    assert not waiting, waiting
    for _, local, remote in requests.values():
        for layer in range(LAYERS):
            wanted = numbered(layer).reshape(BLOCKS, BLOCK)
            assert (worker.caches[layer].reshape(BLOCKS, BLOCK)[local] == wanted[remote]).all()
    for layer in range(LAYERS):
        worker.caches[layer][:] = layer + 1
    handle = worker.start("WRITE", name, range(10), range(50, 60), b"pushed:1")
    assert finish(worker.agent, handle, "PROC") == "DONE"
    worker.agent.release_xfer_handle(handle)
    assert pipe.poll(SECONDS)
    _, caches = pipe.recv()
    for layer, got in enumerate(caches):
        wanted = numbered(layer).reshape(BLOCKS, BLOCK)
        wanted[50:60] = layer + 1
        assert got == wanted.tobytes()
    worker.shutdown()
    pipe.send("stop")
    assert pipe.poll(SECONDS)
    counts = pipe.recv()
    assert counts == {**{request: 1 for request in requests}, "prefix-hit": 1, "pushed": 1}, counts
    child.join(SECONDS)
    assert child.exitcode == 0, child.exitcode


# ---- SGLang ----------------------------------------------------------------------------------------


def sglang_agent():
    """As NixlKVManager does: the back end by name out of the environment, its parameters as JSON, strict locking."""
    from nixl_cu12._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
    agent = nixl_agent(str(uuid.uuid4()), nixl_agent_config(backends=[], num_threads=8, sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT))
    assert "EPF" in agent.get_plugin_list(), agent.get_plugin_list()
    agent.create_backend("EPF", {"wait-timeout": "20s"})
    return agent


def sglang_status(agent, _array, _registration, rooms, chunks):
    """A decode server: collects "room_kv_chunk_last" and "room_aux" until every room is complete."""
    seen, end = {room: set() for room in rooms}, time.monotonic() + SECONDS
    while any(len(s) < chunks + 1 for s in seen.values()) and time.monotonic() < end:
        for notes in agent.get_new_notifs().values():
            for note in notes:
                room, kind, *rest = note.decode("ascii").split("_")
                seen[int(room)].add("aux" if kind == "aux" else int(rest[0]))
        time.sleep(0.001)
    return seen


def sglang_writes():
    """Two prefill workers write chunks and auxiliary data to two decode servers, one of which dies; another takes its place meanwhile."""
    item, items, aux = 4096, 256, 64
    agent, source = sglang_agent(), np.random.default_rng(9).integers(0, 256, item * items + aux, dtype=np.uint8)
    agent.register_memory([(source.ctypes.data, source.nbytes, 0, "")], "DRAM")
    targets = [Target(str(uuid.uuid4()), item * items + aux, enable_prog_thread=True) for _ in range(2)]
    failures = []

    def send(target, room):
        try:
            agent.add_remote_agent(target.metadata)  # the bootstrap thread's; here each worker adds its own
            order, handles = np.random.default_rng(room).permutation(items), []
            for chunk in range(4):
                part = order[chunk * 64:chunk * 64 + 64]
                handles.append(agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, part * item, item), descriptors(agent, target.address, part * item, item),
                                                     target.name, f"{room}_kv_{chunk}_{int(chunk == 3)}".encode("ascii")))
                assert agent.transfer(handles[-1]) != "ERR"
            handles.append(agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [item * items], aux), descriptors(agent, target.address, [item * items], aux),
                                                 target.name, f"{room}_aux".encode("ascii")))
            assert agent.transfer(handles[-1]) != "ERR"
            for handle in handles:
                assert finish(agent, handle, "PROC") == "DONE"
                agent.release_xfer_handle(handle)
        except BaseException as error:
            failures.append(repr(error))

    def send_all(pairs):
        threads = [threading.Thread(target=send, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        for target, room in pairs:
            assert target.call(sglang_status_of, room) == {room: {0, 1, 2, 3, "aux"}}

    send_all([(targets[0], 1), (targets[1], 2)])
    assert all(t.call(content_of) == source.tobytes() for t in targets)
    os.kill(targets[1].process.pid, signal.SIGKILL)
    targets[1].process.join()
    try:
        handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [0], item), descriptors(agent, targets[1].address, [0], item), targets[1].name, b"2_kv_0_1")
        finish(agent, handle)
        raise AssertionError("a dead server took a chunk")
    except Exception as error:
        assert "nixl" in type(error).__name__, error
    source[:] = ~source
    with Target(str(uuid.uuid4()), item * items + aux) as third:
        send_all([(targets[0], 3), (third, 4)])
        assert third.call(content_of) == source.tobytes() == targets[0].call(content_of)
    targets[0].__exit__()


def sglang_status_of(agent, array, registration, room):
    return sglang_status(agent, array, registration, [room], 4)


def content_of(_agent, array, _registration):
    return array.tobytes()


CASES = [vllm_pulls_and_pushes, sglang_writes]

if __name__ == "__main__":
    wheels.run([case for case in CASES if len(sys.argv) < 2 or case.__name__ in sys.argv[1:]])
