# SPDX-License-Identifier: Apache-2.0
"""What the tests of NIXL's plug-in share: the wheels, and programs that run with one of them."""
import glob
import importlib
import importlib.util
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../python")

from kit import run, skip  # noqa: E402,F401  pylint: disable=unused-import

PYTHON = "/usr/bin/python3"  # the wheels are for Debian's
VERSIONS = ("1.3", "1.4", "1.5")  # releases that the plug-in is tried with
NEWEST = VERSIONS[-1]


def wheel(version):
    """Returns the folder of a release. Ends the program as skipped without it."""
    folder = f"{os.environ.get('NIXL', '')}/{version}"
    if not os.path.isdir(f"{folder}/nixl"):
        skip(f"no NIXL {version} here: tools/frameworks/fetch.py nixl-{version} FOLDER/{version}, NIXL=FOLDER")
    return folder


def environment(version, plugins):
    """Returns the variables of a program that uses a release with the plug-ins of a folder."""
    return {**os.environ, "PYTHONPATH": f"{wheel(version)}:{HERE}:{HERE}/../python", "NIXL_PLUGIN_DIR": os.path.abspath(plugins), "NIXL_LOG_LEVEL": "ERROR",
            "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def output(arguments, version, plugins, timeout=120):
    """Runs Python with arguments; returns its exit status and what it said, which is printed too. Ends its whole group."""
    with subprocess.Popen([PYTHON, *arguments], env=environment(version, plugins), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as child:
        try:
            said = child.communicate(timeout=timeout * int(os.environ.get("LIMIT_TIMES", "1")))[0]
        finally:
            if child.poll() is None:
                os.killpg(child.pid, 9)
    print(said, end="", flush=True)
    return child.returncode, said


def module():
    """Returns NIXL's Python module of the wheel that is there, for CUDA 12 or 13."""
    for name in ("nixl_cu12._api", "nixl_cu13._api"):
        if importlib.util.find_spec(name.partition(".")[0]):
            return importlib.import_module(name)
    raise ImportError("neither nixl_cu12 nor nixl_cu13 in PYTHONPATH")


def libraries(folder):
    """Returns the variable by which UCX finds its own libraries in a wheel's folder, and CUDA's runtime where pip has installed it."""
    found = [*glob.glob(f"{os.path.abspath(folder)}/nixl_cu1?.libs"), *(f"{at}/nvidia/cu13/lib" for at in sys.path if os.path.isdir(f"{at}/nvidia/cu13/lib"))]
    return {"LD_LIBRARY_PATH": ":".join([*found, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])}


def agent(name, **options):
    """Returns an agent with our back end. In a program that output() runs. Without the package nixl, which in 1.3 imports PyTorch."""
    api = module()
    return api.nixl_agent(name, api.nixl_agent_config(backends=["EPF"], **options))


def settle(one, handle, state="PROC", seconds=60):
    """Polls a transfer until it has ended; returns its state."""
    import time
    end = time.monotonic() + seconds
    while state == "PROC" and time.monotonic() < end:
        state = one.check_xfer_state(handle)
    return state
