# SPDX-License-Identifier: Apache-2.0
"""What the tests of frameworks share: the packages, and how programs that need them run."""
import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(f"{HERE}/../..")
sys.path.insert(0, f"{HERE}/../python")

from kit import preload, run, skip, start  # noqa: E402,F401  pylint: disable=unused-import

PYTHON = "/usr/bin/python3"  # the packages are for Debian's


def environment(libraries):
    """Returns the variables of a program that trains. libraries: paths of libepf and libepf-ll. Ends the program as skipped without the packages."""
    packages = os.environ.get("FRAMEWORKS", "")
    if not os.path.isdir(f"{packages}/megatron"):
        skip("no Megatron-core and PyTorch here: tools/frameworks/fetch.py cpu FOLDER, FRAMEWORKS=FOLDER")
    libepf, libepf_ll = map(os.path.abspath, libraries)
    return {**os.environ, "PYTHONPATH": ":".join([f"{ROOT}/tools/python", os.path.abspath(packages), os.environ.get("SOURCES", "")]).rstrip(":"), "EPF_LIBRARY": libepf, "EPF_LL_LIBRARY": libepf_ll, "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def preloaded(variables, *modules):
    """Continues in Debian's Python, with these variables, and has the ranks that are started from now on forked from a process that has imported the modules:
    an import of PyTorch and what stands on it takes 3 to 5 s of CPU time."""
    if os.path.realpath(sys.executable) != os.path.realpath(PYTHON):
        os.execv(PYTHON, [PYTHON, *sys.argv])
    os.environ.update(variables)
    sys.path[:0] = variables["PYTHONPATH"].split(":")
    preload(*modules)


def ranks(nodes, program, arguments, variables, timeout):
    """Runs a program of torchrun's kind, a rank for each node named; each must end with 0, and one that does not ends the others. Returns what they said, which is
    printed too. To be called after preloaded()."""
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # here, as torchrun has it, so that its port is its own
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(len(nodes)), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    said, ends = "", time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        children = [start(program, arguments, {**variables, **meet, "RANK": str(r), "LOCAL_RANK": str(r), "EPF_NODE": node}, f"{folder}/{r}") for r, node in enumerate(nodes)]
        while not any(child.exitcode for child in children) and time.monotonic() < ends and (live := [child for child in children if child.exitcode is None]):
            multiprocessing.connection.wait([child.sentinel for child in live], 1)
        status = [child.exitcode for child in children]
        for child in children:
            child.kill()
            child.join()
        for r in range(len(nodes)):
            with open(f"{folder}/{r}", encoding="utf-8") as f:
                said += f.read()
    print(said, end="", flush=True)
    assert not any(status) and None not in status, f"how the ranks ended, None: not at all: {status}"
    return said


def output(command, env, timeout):
    """Runs a program; returns its exit status and what it said, which is printed too."""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as child:
        try:
            said = child.communicate(timeout=timeout)[0]
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)
    print(said, end="", flush=True)
    return child.returncode, said
