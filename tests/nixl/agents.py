# SPDX-License-Identifier: Apache-2.0
"""Two agents in two processes over our back end, results checked: agents.py CASE... Run by test_agents.py with the variables of wheels.environment()."""
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

import numpy as np

import wheels

SECONDS = 60  # of waits that would otherwise never end
spawn = multiprocessing.get_context("spawn")


def memory(size, fill=0):
    return np.full(size, fill, dtype=np.uint8)


class FakeGpu:
    """Memory of the plug-in's fake GPU, which no CPU code can touch at its address; `bytes` is the same memory for the test."""

    def __init__(self, size):
        plugin = ctypes.CDLL(f"{os.environ['NIXL_PLUGIN_DIR']}/libplugin_EPF.so")  # the agent has loaded it
        plugin.epf_test_gpu_alloc.restype = plugin.epf_test_gpu_bytes.restype = ctypes.c_void_p
        self.address = plugin.epf_test_gpu_alloc(ctypes.c_uint64(size))
        at = plugin.epf_test_gpu_bytes(ctypes.c_void_p(self.address), ctypes.c_uint64(size))
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(at))


def register(agent, *arrays):
    return agent.register_memory([(a.ctypes.data, a.nbytes, 0, "") for a in arrays], "DRAM")


def descriptors(agent, base, offsets, size, kind="DRAM", device=0):
    """Returns a list for transfers of blocks of one size."""
    rows = np.zeros((len(offsets), 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(base) + np.asarray(offsets, dtype=np.uint64)
    rows[:, 1] = size
    rows[:, 2] = device
    return agent.get_xfer_descs(rows, kind)


def finish(agent, handle, state=None):
    """Posts a transfer unless state is given, and waits for it; returns its end."""
    end = time.monotonic() + SECONDS
    state = agent.transfer(handle) if state is None else state
    while state == "PROC" and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
    return state


def notes(agent, name, count):
    """Waits for messages of an agent; returns them."""
    got, end = [], time.monotonic() + SECONDS
    while len(got) < count and time.monotonic() < end:
        for sender, messages in agent.get_new_notifs().items():
            assert sender == name, f"a message from {sender}"
            got += messages
        time.sleep(0.001)
    return got


class Target:
    """An agent in another process with one array. It does what commands over a pipe say, and otherwise nothing: it makes no call of NIXL meanwhile."""

    def __init__(self, name, size, **options):
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(theirs, name, size, options), daemon=True)
        self.process.start()
        theirs.close()
        self.name = name
        self.metadata, self.address = self.receive()

    def receive(self):
        if not self.pipe.poll(SECONDS):
            raise TimeoutError(f"{self.name} says nothing")
        answer = self.pipe.recv()
        if isinstance(answer, str) and answer.startswith("Traceback"):
            raise RuntimeError(answer)
        return answer

    def call(self, function, *arguments):
        """Runs a function with (agent, array, registration, *arguments) there; returns its result."""
        self.start(function, *arguments)
        return self.receive()

    def start(self, function, *arguments):
        self.pipe.send((function, arguments))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join(SECONDS)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(f"{self.name} does not end")


def serve(pipe, name, size, options):
    try:
        agent, array = wheels.agent(name, **options), memory(size)
        registration = register(agent, array)
        pipe.send((agent.get_agent_metadata(), array.ctypes.data))
        while (command := pipe.recv()) is not None:
            pipe.send(command[0](agent, array, registration, *command[1]))
    except BaseException:  # the other side prints it
        pipe.send(traceback.format_exc())
        raise


# ---- what a target does on command ---------------------------------------------------------------


def content(_agent, array, _registration):
    return array.tobytes()


def wait_notes(agent, _array, _registration, name, count):
    return notes(agent, name, count)


def send_notes(agent, _array, _registration, metadata, messages):
    name = agent.add_remote_agent(metadata).decode()
    for message in messages:
        agent.send_notif(name, message)
    return len(messages)


def compute(_agent, _array, _registration, until):
    """Keeps the interpreter busy, as a program that computes, until a file is there."""
    end = time.monotonic() + SECONDS
    while not os.path.exists(until) and time.monotonic() < end:
        sum(range(1000))
    return os.path.exists(until)


def fill_and_watch(agent, array, registration, value, seconds):
    """Deregisters while a peer writes; afterwards returns how many bytes differ from what this process has written there since."""
    agent.deregister_memory(registration)
    array[:] = value
    time.sleep(seconds)
    return int((array != value).sum())


# ---- cases ---------------------------------------------------------------------------------------


def write_read_notify():
    """Shuffled pages, both directions, a notification after the data, and a transfer posted twice."""
    pages, size, gap = 300, 4096, 128
    with Target("target", pages * (size + gap)) as target:
        agent, source, back = wheels.agent("initiator"), np.random.default_rng(1).integers(0, 256, pages * size, dtype=np.uint8), memory(pages * size)
        register(agent, source, back)
        name = agent.add_remote_agent(target.metadata).decode()
        assert name == "target"
        order = np.random.default_rng(2).permutation(pages)
        ours, there = np.arange(pages) * size, order * (size + gap)
        handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, ours, size), descriptors(agent, target.address, there, size), name, b"wrote \0 it")
        assert finish(agent, handle) == "DONE"
        assert target.call(wait_notes, "initiator", 1) == [b"wrote \0 it"]
        got = np.frombuffer(target.call(content), dtype=np.uint8).reshape(pages, size + gap)
        assert (got[order, :size].ravel() == source).all() and not got[:, size:].any()
        source[:] = ~source
        assert finish(agent, handle) == "DONE"  # the same request again, the same note
        assert target.call(wait_notes, "initiator", 1) == [b"wrote \0 it"]
        agent.release_xfer_handle(handle)
        read = agent.initialize_xfer("READ", descriptors(agent, back.ctypes.data, ours, size), descriptors(agent, target.address, there, size), name)
        assert finish(agent, read) == "DONE" and (back == source).all()
        agent.release_xfer_handle(read)


def gpu_content(agent, array, registration, size):
    """Registers GPU memory of the target, once; returns its address and what it holds, and the agent's metadata."""
    if not hasattr(agent, "gpu"):
        agent.gpu = FakeGpu(size)
        agent.register_memory([(agent.gpu.address, size, 0, "")], "VRAM")
    return agent.gpu.address, agent.gpu.bytes.tobytes(), agent.get_agent_metadata()


def gpu_memory():
    """VRAM: shuffled pages from GPU to GPU and back, from host memory, to host memory, and within one agent; over the plug-in with a fake GPU."""
    pages, size, gap = 300, 4096, 128
    with Target("target", pages * (size + gap)) as target:
        agent, back = wheels.agent("initiator"), memory(pages * size)
        gpu, there, _ = FakeGpu(pages * size), *target.call(gpu_content, pages * (size + gap))[::2]
        metadata = target.call(gpu_content, 0)[2]
        source = gpu.bytes
        source[:] = np.random.default_rng(6).integers(0, 256, pages * size, dtype=np.uint8)
        agent.register_memory([(gpu.address, pages * size, 0, "")], "VRAM")
        register(agent, back)
        name = agent.add_remote_agent(metadata).decode()
        order = np.random.default_rng(2).permutation(pages)
        ours, theirs = np.arange(pages) * size, order * (size + gap)
        here, host = descriptors(agent, gpu.address, ours, size, "VRAM"), descriptors(agent, back.ctypes.data, ours, size)
        remote, remote_host = descriptors(agent, there, theirs, size, "VRAM"), descriptors(agent, target.address, theirs, size)

        def move(operation, local, other, to=name, note=b""):
            handle = agent.initialize_xfer(operation, local, other, to, note)
            assert finish(agent, handle) == "DONE"
            agent.release_xfer_handle(handle)

        move("WRITE", here, remote, note=b"on the GPU")
        assert target.call(wait_notes, "initiator", 1) == [b"on the GPU"]
        got = np.frombuffer(target.call(gpu_content, 0)[1], dtype=np.uint8).reshape(pages, size + gap)
        assert (got[order, :size].ravel() == source).all() and not got[:, size:].any()
        move("READ", host, remote)
        assert (back == source).all()
        move("WRITE", here, remote_host)
        got = np.frombuffer(target.call(content), dtype=np.uint8).reshape(pages, size + gap)
        assert (got[order, :size].ravel() == source).all() and not got[:, size:].any()
        source[:] = 0
        move("WRITE", host, here, "initiator")
        assert (back == source).all() and source.any()
        source[:] = 0
        move("READ", here, remote)
        assert (back == source).all()


def prepared_lists():
    """112,000 descriptors, chosen by index from prepared lists as vLLM does, half of them at a time in reverse."""
    count, size, gap = 112000, 512, 128
    with Target("target", count * (size + gap)) as target:
        agent, source = wheels.agent("initiator"), np.random.default_rng(3).integers(0, 256, count * size, dtype=np.uint8)
        register(agent, source)
        name = agent.add_remote_agent(target.metadata).decode()
        local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", descriptors(agent, source.ctypes.data, np.arange(count) * size, size))
        remote = agent.prep_xfer_dlist(name, descriptors(agent, target.address, np.arange(count) * (size + gap), size))
        every, order = np.arange(count, dtype=np.int32), np.random.default_rng(4).permutation(count).astype(np.int32)
        handle = agent.make_prepped_xfer("WRITE", local, every, remote, order, b"all")
        assert finish(agent, handle) == "DONE" and target.call(wait_notes, "initiator", 1) == [b"all"]
        got = np.frombuffer(target.call(content), dtype=np.uint8).reshape(count, size + gap)
        assert (got[order, :size].ravel() == source).all() and not got[:, size:].any()
        wanted = source.copy()
        source[:] = 0
        half = every[::2][::-1].copy()
        read = agent.make_prepped_xfer("READ", local, half, remote, order[half])
        assert finish(agent, read) == "DONE"
        wanted.reshape(count, size)[1::2] = 0
        assert (source == wanted).all()
        for one in (handle, read):
            agent.release_xfer_handle(one)


def notifications():
    """Messages without data, both ways, in order; the empty one and the longest; one that is too long is refused and ends nothing."""
    messages = [b"", b"x" * 8000] + [b"%d" % i for i in range(2000)]
    with Target("target", 4096) as target:
        agent = wheels.agent("initiator")
        name = agent.add_remote_agent(target.metadata).decode()
        target.start(wait_notes, "initiator", len(messages))
        for message in messages:
            agent.send_notif(name, message)
        assert target.receive() == messages
        assert target.call(send_notes, agent.get_agent_metadata(), messages[:100]) == 100
        assert notes(agent, "target", 100) == messages[:100]
        try:
            agent.send_notif(name, b"x" * 9000)
            raise AssertionError("a notification of 9000 bytes was accepted")
        except Exception as error:
            assert "nixl" in type(error).__name__, error
        agent.send_notif(name, b"last")
        assert target.call(wait_notes, "initiator", 1) == [b"last"]


def target_computes():
    """Transfers and notifications proceed while the target's program does something else, with the agent's progress thread and without."""
    for thread in (True, False):
        with Target("target", 1 << 20, enable_prog_thread=thread) as target:
            agent, source = wheels.agent("initiator", enable_prog_thread=thread), memory(1 << 20, 7)
            register(agent, source)
            name = agent.add_remote_agent(target.metadata).decode()
            folder = tempfile.mkdtemp()
            target.start(compute, f"{folder}/enough")
            handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [0], 1 << 20), descriptors(agent, target.address, [0], 1 << 20), name, b"n")
            assert finish(agent, handle) == "DONE", "no end while the target computes"
            os.mkdir(f"{folder}/enough")
            assert target.receive() is True
            shutil.rmtree(folder)
            assert target.call(wait_notes, "initiator", 1) == [b"n"] and target.call(content) == source.tobytes()
            agent.release_xfer_handle(handle)


def killed_peer():
    """A target dies while transfers run: each ends in an error, nothing hangs, and its successor of the same name is reached after its metadata is loaded."""
    size = 32 << 20
    agent, source = wheels.agent("initiator"), memory(size, 9)
    register(agent, source)
    target = Target("target", size)
    name = agent.add_remote_agent(target.metadata).decode()
    handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [0], size), descriptors(agent, target.address, [0], size), name)
    assert finish(agent, handle) == "DONE"
    os.kill(target.process.pid, signal.SIGKILL)
    target.process.join()
    error, end = None, time.monotonic() + SECONDS
    while error is None and time.monotonic() < end:
        try:
            state = finish(agent, handle)
            error = None if state == "DONE" else state
        except Exception as raised:
            error = type(raised).__name__
    assert error == "nixlRemoteDisconnectError", error
    agent.release_xfer_handle(handle)
    try:
        agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [0], size), descriptors(agent, target.address, [0], size), name)
        raise AssertionError("a transfer to a dead agent was prepared")
    except Exception as raised:
        assert "nixl" in type(raised).__name__, raised
    try:
        agent.remove_remote_agent(name)
    except Exception as raised:  # some releases have forgotten it by themselves
        assert type(raised).__name__ == "nixlNotFoundError", raised
    with Target("target", size) as successor:
        name = agent.add_remote_agent(successor.metadata).decode()
        handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [0], size), descriptors(agent, successor.address, [0], size), name, b"again")
        assert finish(agent, handle) == "DONE" and successor.call(wait_notes, "initiator", 1) == [b"again"]
        assert successor.call(content) == source.tobytes()
        agent.release_xfer_handle(handle)


def deregistered_under_traffic():
    """A target deregisters memory that is being written: afterwards no byte of it changes, and the writer gets an error."""
    size = 16 << 20
    with Target("target", size) as target:
        agent, source = wheels.agent("initiator"), memory(size, 1)
        register(agent, source)
        name = agent.add_remote_agent(target.metadata).decode()
        offsets = np.arange(0, size, 8192)
        handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, offsets, 4096), descriptors(agent, target.address, offsets, 4096), name)
        assert finish(agent, handle) == "DONE"
        target.start(fill_and_watch, 0xEE, 0.5)
        error, end = None, time.monotonic() + SECONDS
        while error is None and time.monotonic() < end:
            try:
                assert finish(agent, handle) == "DONE"
            except Exception as raised:
                error = type(raised).__name__
        assert error == "nixlNotAllowedError", error
        # The writer goes on trying while the target watches.
        for _ in range(10):
            try:
                state = finish(agent, handle)
            except Exception as raised:
                state = type(raised).__name__
            assert state == "nixlNotAllowedError", state
        assert target.receive() == 0, "bytes changed after the deregistration"
        agent.release_xfer_handle(handle)


def own_memory_deregistered():
    """Memory of one's own can be deregistered while a prepared transfer names it: the transfer fails, and the agent goes on."""
    size = 1 << 20
    with Target("target", size) as target:
        agent, gone, kept = wheels.agent("initiator"), memory(size, 1), memory(size, 2)
        registration = register(agent, gone)
        register(agent, kept)
        name = agent.add_remote_agent(target.metadata).decode()
        there = descriptors(agent, target.address, [0], size)
        handle = agent.initialize_xfer("WRITE", descriptors(agent, gone.ctypes.data, [0], size), there, name)
        assert finish(agent, handle) == "DONE"
        agent.deregister_memory(registration)
        try:
            state = finish(agent, handle)
            raise AssertionError(f"{state} after deregistration")
        except Exception as raised:
            assert "nixl" in type(raised).__name__, raised
        agent.release_xfer_handle(handle)
        handle = agent.initialize_xfer("WRITE", descriptors(agent, kept.ctypes.data, [0], size), there, name)
        assert finish(agent, handle) == "DONE" and target.call(content) == kept.tobytes()
        agent.release_xfer_handle(handle)


def to_itself():
    """An agent writes and reads its own memory, and notifies itself."""
    size = 1 << 20
    agent = wheels.agent("alone")
    one, two = np.random.default_rng(5).integers(0, 256, size, dtype=np.uint8), memory(size)
    register(agent, one, two)
    handle = agent.initialize_xfer("WRITE", descriptors(agent, one.ctypes.data, [0], size), descriptors(agent, two.ctypes.data, [0], size), "alone", b"me")
    assert finish(agent, handle) == "DONE" and (one == two).all() and notes(agent, "alone", 1) == [b"me"]
    agent.send_notif("alone", b"myself")
    assert notes(agent, "alone", 1) == [b"myself"]
    agent.release_xfer_handle(handle)


def removed_and_added():
    """Removing a remote agent ends the connection at this side only as far as the other notices nothing: it may still send, and be added again."""
    with Target("target", 4096) as target:
        agent, source = wheels.agent("initiator"), memory(4096, 3)
        register(agent, source)
        for _ in range(3):
            name = agent.add_remote_agent(target.metadata).decode()
            handle = agent.initialize_xfer("WRITE", descriptors(agent, source.ctypes.data, [0], 4096), descriptors(agent, target.address, [0], 4096), name, b"n")
            assert finish(agent, handle) == "DONE" and target.call(wait_notes, "initiator", 1) == [b"n"]
            agent.release_xfer_handle(handle)
            agent.remove_remote_agent(name)
            assert target.call(send_notes, agent.get_agent_metadata(), [b"still here"]) == 1
            assert notes(agent, "target", 1) == [b"still here"]


CASES = [write_read_notify, prepared_lists, notifications, target_computes, killed_peer, deregistered_under_traffic, own_memory_deregistered, to_itself,
         removed_and_added]

ON_REQUEST = [gpu_memory]  # needs the plug-in with a fake GPU

if __name__ == "__main__":
    wheels.run([case for case in CASES + ON_REQUEST if case.__name__ in sys.argv[1:]] or CASES)
