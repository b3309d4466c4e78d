# SPDX-License-Identifier: Apache-2.0
"""Builds the libraries and programs with Meson and packs them into epf/lib, with every library they need beyond glibc.

EPF_BUILD_DIR: a Meson build folder to use and to keep; without it a temporary one is made.
"""
import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as project:
    VERSION = re.search(r"version: '([^']+)'", project.read()).group(1)

# What is packed, by its name as installed, and the folder below lib; a library goes under its SONAME. Plug-ins lie alone: programs are told their folders.
FILES = {"ep-fabric": "", "ep-top": "", "ep-bench": "", "libepf.so.0": "", "libepf-ll.so.0": "", "libepf-deepep.so": "", "libnccl-net-epf.so": "nccl",
         "libplugin_EPF.so": "nixl"}
DROP_IN = "share/ep-fabric/python/deep_ep"  # where ep-fabric exec looks for it; no program imports it unasked
# What every Linux system with a new enough glibc has (PEP 600).
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so")


def run(*command):
    subprocess.run([str(c) for c in command], check=True, stdout=sys.stderr)


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def installed(build, root):
    """Builds, and installs below root; returns the path of each installed file by its name."""
    # RPATH, not RUNPATH: it also holds for what the packed libraries need themselves.
    # In C++ is the plug-in for NIXL, which may be linked into the folder of NIXL's own beside this package.
    paths = "link_args=-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/.."
    options = ["-Dprefix=/usr", "-Dtests=disabled", "-Dc_" + paths, "-Dcpp_" + paths + ":$ORIGIN/../../epf/lib"]
    if os.path.exists(os.path.join(build, "build.ninja")):
        run("meson", "configure", build, *options)
    else:
        run("meson", "setup", build, ROOT, "--buildtype=release", "-Dhip=disabled", *options)
    run("ninja", "-C", build)
    run("meson", "install", "--no-rebuild", "--quiet", "-C", build, "--destdir", root)
    return {name: os.path.join(at, name) for at, _, names in os.walk(root) for name in names}


def needed(path):
    """The libraries of a file and of those, which a plain glibc system may lack."""
    for line in output("ldd", path).splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest and not SYSTEM.match(name) and name not in FILES:
            assert rest.startswith("/"), f"{path} needs {name}, which is not here"
            yield name, rest.split(" ")[0]


def copyright_of(path):
    """The file with the licence of a library, where Debian keeps it; None elsewhere."""
    for name in (path, os.path.realpath(path)):
        owner = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True, check=False) if shutil.which("dpkg") else None
        text = "/usr/share/doc/" + owner.stdout.partition(":")[0] + "/copyright" if owner and owner.stdout else ""
        if os.path.isfile(text):
            return text
    return None


def newest_glibc(folder):
    """The newest version of glibc's symbols that a file in the folder, or below it, uses, as (2, minor)."""
    minor = 17
    for at, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".copyright"):
                continue
            for found in re.findall(r"GLIBC_2\.(\d+)", output("objdump", "-T", os.path.join(at, name))):
                minor = max(minor, int(found))
    return 2, minor


class Build(build_py):
    """Adds epf/lib, the drop-in for ep-fabric exec, and epf/_installed.py."""

    def run(self):
        super().run()
        package = os.path.join(self.build_lib, "epf")
        lib = os.path.join(package, "lib")
        shutil.rmtree(lib, ignore_errors=True)
        os.makedirs(lib)
        with tempfile.TemporaryDirectory() as scratch:
            found = installed(os.environ.get("EPF_BUILD_DIR") or os.path.join(scratch, "build"), os.path.join(scratch, "root"))
            if "_call.abi3.so" in found:  # without Python's headers ctypes serves
                shutil.copy(found["_call.abi3.so"], package)
            libraries = {}
            for name, folder in FILES.items():
                if name == "libplugin_EPF.so" and name not in found:
                    print("no compiler for C++20: the wheel has no plug-in for NIXL", file=sys.stderr)
                    continue
                os.makedirs(os.path.join(lib, folder), exist_ok=True)
                shutil.copy(os.path.realpath(found[name]), os.path.join(lib, folder, name))
                libraries.update(needed(os.path.join(lib, folder, name)))
            for name, path in libraries.items():
                shutil.copy(os.path.realpath(path), os.path.join(lib, name))
                text = copyright_of(path)
                if text:
                    shutil.copy(text, os.path.join(lib, name + ".copyright"))
        shutil.copytree(os.path.join(HERE, "deep_ep"), os.path.join(package, DROP_IN), ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        with open(os.path.join(package, "_installed.py"), "w", encoding="utf-8") as out:
            out.write('"""Where the libraries of this package are: in the wheel itself."""\nimport os\n\n'
                      'LIBDIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")\n')


class Wheel(bdist_wheel):
    """One wheel for every Python 3, for systems with a glibc as new as the build needs."""

    def get_tag(self):
        lib = os.path.join(self.get_finalized_command("build_py").build_lib, "epf", "lib")
        return "py3", "none", "manylinux_%d_%d_%s" % (*newest_glibc(lib), os.uname().machine)


class Binary(Distribution):
    """It goes where platform-dependent packages do."""

    def has_ext_modules(self):
        return True


SCRATCH = tempfile.mkdtemp()  # nothing is written into the source tree
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
OPTIONS = {"build": {"build_base": SCRATCH}, "egg_info": {"egg_base": SCRATCH}}

setup(version=VERSION, packages=["epf"], cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary,
      extras_require={"deep_ep": [f"ep-fabric-deep-ep=={VERSION}"]}, options=OPTIONS)
