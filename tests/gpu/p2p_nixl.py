#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL's agents over our back end with GPU memory, two processes, every byte compared: p2p_nixl.py --wheel FOLDER --plugin FILE [--gpu HERE,THERE] [--fake].

Cases: GPU to GPU and back, to and from host memory, notifications after the data, 112,000 descriptors of 4 KiB, a killed peer, deregistration. FOLDER: what
tools/frameworks/fetch.py nixl-gpu-1.5 FOLDER makes. --fake: the fake GPU of the plug-in that tests/nixl builds. Run by p2p.sh.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../nixl")]

PAGES, PAGE, GAP = 112000, 4096, 128
BYTES = PAGES * (PAGE + GAP)


def gpu_memory(device, size):
    """GPU memory with put() and get() of all its bytes."""
    import agents
    import p2p_memory
    if not os.environ.get("P2P_NIXL_FAKE"):
        return p2p_memory.CudaMemory(p2p_memory.Cuda(), device, size)
    own = agents.FakeGpu(size)

    def put(data):
        own.bytes[:] = memoryview(data)
    own.put, own.get = put, lambda: own.bytes.tobytes()
    return own


def on_target(agent, _array, _registration, what, device, data=None):
    """What the target does with its GPU memory."""
    import numpy as np
    if what == "open":
        agent.gpu = gpu_memory(device, BYTES)
        agent.gpu.put(bytes(BYTES))
        agent.registered = agent.register_memory([(agent.gpu.address, BYTES, device, "")], "VRAM")
        return agent.gpu.address, agent.get_agent_metadata()
    if what == "deregister":
        agent.deregister_memory(agent.registered)
        agent.gpu.put(bytes(BYTES))
        time.sleep(0.2)
        return not any(agent.gpu.get())
    order, bytes_of = data
    got = np.frombuffer(agent.gpu.get(), dtype=np.uint8).reshape(PAGES, PAGE + GAP)
    return bool((got[order[:len(bytes_of) // PAGE], :PAGE].ravel() == np.frombuffer(bytes_of, dtype=np.uint8)).all() and not got[:, PAGE:].any())


def cases(here, there):
    import agents
    import numpy as np
    import wheels
    with agents.Target("target", PAGES * PAGE) as target:
        one = wheels.agent("initiator")
        address, metadata = target.call(on_target, "open", there)
        gpu, host = gpu_memory(here, PAGES * PAGE), agents.memory(PAGES * PAGE)
        data = np.random.default_rng(1).integers(0, 256, PAGES * PAGE, dtype=np.uint8)
        gpu.put(data.tobytes())
        one.register_memory([(gpu.address, PAGES * PAGE, here, "")], "VRAM")
        agents.register(one, host)
        name = one.add_remote_agent(metadata).decode()
        order = np.random.default_rng(2).permutation(PAGES)

        def lists(count):
            ours, theirs = np.arange(count) * PAGE, order[:count] * (PAGE + GAP)
            return (agents.descriptors(one, gpu.address, ours, PAGE, "VRAM", here), agents.descriptors(one, host.ctypes.data, ours, PAGE),
                    agents.descriptors(one, address, theirs, PAGE, "VRAM", there), agents.descriptors(one, target.address, ours, PAGE))

        def move(operation, local, other, note=b""):
            handle = one.initialize_xfer(operation, local, other, name, note)
            assert agents.finish(one, handle) == "DONE", operation
            one.release_xfer_handle(handle)

        for count in (300, PAGES):
            mine, own, remote, remote_host = lists(count)
            few = data[:count * PAGE]
            gpu.put(data.tobytes())
            move("WRITE", mine, remote, b"%d pages" % count)
            assert target.call(agents.wait_notes, "initiator", 1) == [b"%d pages" % count]
            assert target.call(on_target, "compare", there, (order, few.tobytes())), "GPU to GPU"
            print(f"# {count} descriptors, VRAM to VRAM, notification: right", flush=True)
            gpu.put(bytes(len(data)))
            move("READ", mine, remote)
            assert gpu.get()[:len(few)] == few.tobytes(), "GPU from GPU"
            host[:] = 0
            move("READ", own, remote)
            assert (host[:len(few)] == few).all(), "host from GPU"
            move("WRITE", mine, remote_host)
            assert target.call(agents.content)[:len(few)] == few.tobytes(), "GPU to host"
            host[:] = ~data
            move("WRITE", own, remote)
            assert target.call(on_target, "compare", there, (order, (~few).tobytes())), "host to GPU"
            move("READ", mine, remote_host)
            assert gpu.get()[:len(few)] == few.tobytes(), "GPU from host"
            print(f"# {count} descriptors, VRAM and DRAM, all four ways: right", flush=True)
        handle = one.initialize_xfer("WRITE", mine, remote, name)
        assert agents.finish(one, handle) == "DONE"
        assert target.call(on_target, "deregister", there), "bytes changed after the deregistration"
        print(f"# a transfer to memory that was deregistered: {ended(agents, one, handle)}", flush=True)
        handle = one.initialize_xfer("WRITE", mine, remote_host, name)
        assert agents.finish(one, handle) == "DONE"
        os.kill(target.process.pid, signal.SIGKILL)
        target.process.join()
        begun = time.monotonic()
        error = ended(agents, one, handle)
        print(f"# a killed peer: {error} after {time.monotonic() - begun:.2f} s", flush=True)
        assert error == "nixlRemoteDisconnectError", error


def ended(agents, one, handle):
    """Posts a transfer until it fails; returns with what."""
    end = time.monotonic() + agents.SECONDS
    while time.monotonic() < end:
        try:
            state = agents.finish(one, handle)
            if state != "DONE":
                return state
        except Exception as raised:
            return type(raised).__name__
    raise AssertionError("it does not fail")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", required=True)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--gpu", default="0,0", help="GPUs with the memory of the initiator and of the target")
    parser.add_argument("--fake", action="store_true")
    args = parser.parse_args()
    if os.environ.get("P2P_NIXL_INSIDE"):
        cases(*(int(n) for n in args.gpu.split(",")))
        return 0
    import wheels
    env = {**os.environ, "P2P_NIXL_INSIDE": "1", "PYTHONPATH": f"{os.path.abspath(args.wheel)}:{HERE}:{HERE}/../nixl:{HERE}/../python",
           "NIXL_PLUGIN_DIR": os.path.dirname(os.path.abspath(args.plugin)), "NIXL_LOG_LEVEL": "ERROR", "PYTHONDONTWRITEBYTECODE": "1",
           **wheels.libraries(args.wheel)}
    if args.fake:
        env.update(P2P_NIXL_FAKE="1", EPF_GPU_BACKEND="fake")
    return subprocess.run([sys.executable, os.path.abspath(__file__), *sys.argv[1:]], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
