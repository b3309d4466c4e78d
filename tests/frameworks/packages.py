# SPDX-License-Identifier: Apache-2.0
"""What the tests of frameworks share: the packages, and how programs that need them run."""
import os
import subprocess
import sys

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
    return {**os.environ, "PYTHONPATH": f"{ROOT}/tools/python:{os.path.abspath(packages)}", "EPF_LIBRARY": libepf, "EPF_LL_LIBRARY": libepf_ll, "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


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
