#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder with programs that use NCCL's one-sided operations, for a machine with GPUs and without a network: tests/gpu/nccl_clients.sh.

  nccl_clients.py make FOLDER --deepep TREE [--deepep-nccl TREE] [--build DIR] [--hooks DIR] [--python INCLUDE]
  nccl_clients.py unpack FOLDER       on that machine: writes FOLDER/nvidia/nccl/lib/libnccl.so.2
  nccl_clients.py layouts FOLDER NCCL compares tools/nccl's declarations with the headers of an NCCL source tree and of the folder's wheel

make fetches NCCL and NCCL EP from PyPI (nccl-clients.txt, pinned), prunes NCCL's library to Hopper's code (250 MB, 13 MB packed), compiles DeepEP V2's
module from TREE, a checkout of DeepEP's main branch, with the headers of the PyTorch in nccl-build.txt (600 MB fetched, 5 minutes, nvcc 13), with
--deepep-nccl also that of DeepEP's pull request 521, whose first version's kernels use NCCL's one-sided operations, and copies
this project's libraries from the build tree DIR; --hooks: the plug-in of a build with test_hooks, whose order can be switched off. --python: headers of Python 3.12. Objects are kept in FOLDER.objects, so that a second run is short.
Exit status 77: something cannot be fetched here.
"""
import argparse
import glob
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fetch  # noqa: E402

fetch.PLATFORMS += ["manylinux_2_24_x86_64", "manylinux_2_18_x86_64"]

PYTHON = "3.12"
LEFT_OUT = (r"nccl/m2n/|nvidia_nccl_cu13-.*|nccl/ep/lib/cu12/|cuda/core/cu12/|nccl/_extensions/bindings/.*m2n|nvidia/nccl/lib/libnccl_device\.bc|.*\.(pxd|pyx|cu)$|.*/licenses/|.*/RECORD$")
BUILD_LEFT_OUT = r"torch/(?!include/|lib/lib(c10|c10_cuda|torch|torch_cpu|torch_cuda|torch_python)\.so$)|torchgen/|functorch/|nvidia/nvshmem/lib/nvshmem_"
KERNELS = ["backend/nccl", "backend/nvshmem", "backend/cuda_driver", "legacy/layout", "legacy/intranode", "legacy/internode_ll", "legacy/internode"]
KERNELS_NCCL = ["runtime", "layout", "intranode", "internode", "internode_ll", "nccl_gin_backend"]
OURS = ["tools/nccl/libnccl-net-epf.so", "bench/ep-bench"]
BESIDE = ("libinih", "libsodium", "libjansson", "libzstd")  # which the machine may lack
# As torch.utils.cpp_extension and DeepEP's setup.py set them for Hopper.
DEFINES = ["-DTORCH_EXTENSION_NAME=_C", "-DTORCH_API_INCLUDE_EXTENSION_H"]
NVCC = ["-std=c++17", "-O3", "-Xcompiler", "-O3,-fPIC", "--extended-lambda", "--expt-relaxed-constexpr", "--diag-suppress=128,2417", "-rdc=true",
        "--ptxas-options=--register-usage-level=10", "-gencode", "arch=compute_90,code=sm_90", "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
        "-D__CUDA_NO_BFLOAT16_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__"]


def run(*command):
    print("  " + " ".join(command)[:150], flush=True)
    subprocess.run(command, check=True)


def wheels(name, folder, left_out):
    """Fetches a list and unpacks it, unless that was done."""
    done = os.path.join(folder, f".{name}.{fetch.sha256(os.path.join(fetch.HERE, name))[:16]}")
    if os.path.exists(done):
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, fetch.MARK), "w", encoding="ascii") as f:
        f.write("other projects\n")
    fetch.download(name, PYTHON, os.path.join(folder, "wheels"))
    for wheel in sorted(glob.glob(f"{folder}/wheels/*.whl")):
        fetch.unpack(wheel, folder, left_out)
    os.rmdir(os.path.join(folder, "wheels"))
    with open(done, "w", encoding="ascii"):
        pass


def section(path, name):
    """Returns (offset, size) of a section in a file."""
    found = re.search(rf"{re.escape(name)} +(\w+) +\w+ +\w+ +(\w+)", fetch.said_by("objdump", "-h", path))
    size, offset = (int(part, 16) for part in found.groups())
    return offset, size


def pack_nccl(folder):
    """Leaves libnccl.so.2.xz: without debug information, code for relinking, and code for other GPUs."""
    library = f"{folder}/nvidia/nccl/lib/libnccl.so.2"
    if not os.path.exists(library):
        return
    run("strip", "--strip-debug", library)
    offset, size = section(library, "__nv_relfatbin")
    with open(library, "r+b") as f:
        f.seek(offset)
        f.write(bytes(size))
    fetch.prune_file(library)
    with open(library, "rb") as plain, lzma.open(library + ".xz", "w", preset=6) as packed:
        shutil.copyfileobj(plain, packed, 1 << 22)
    with open(library + ".sha256", "w", encoding="ascii") as f:
        f.write(fetch.sha256(library) + "\n")
    os.unlink(library)
    print(f"  libnccl.so.2.xz: {os.path.getsize(library + '.xz')} bytes")


def strip_parts(folder):
    for part in glob.glob(f"{folder}/nccl/**/*.so", recursive=True) + glob.glob(f"{folder}/cuda/**/*.so", recursive=True):
        subprocess.run(["strip", "--strip-debug", part], check=True)


def unpack_nccl(folder):
    library = f"{folder}/nvidia/nccl/lib/libnccl.so.2"
    if not os.path.exists(library):
        with lzma.open(library + ".xz") as packed, open(library, "wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 22)
    with open(library + ".sha256", encoding="ascii") as f:
        if f.read().strip() != fetch.sha256(library):
            sys.exit(f"{library} is not what was packed")


def stand_ins(objects, *made):
    """Makes libraries that this machine may lack, with the functions that object files need of them: the linker wants no more."""
    names = {name for one in made for name in re.findall(r" U (nccl\w+|cu[A-Z]\w+)$", fetch.said_by("nm", "--undefined-only", one), re.M)}
    for prefix, library, soname in (("cu", "cuda", "libcuda.so.1"), ("nccl", "nccl", "libnccl.so.2")):
        code = f"{objects}/{library}.c"
        with open(code, "w", encoding="ascii") as f:
            f.writelines(f"int {name}(void) {{ return 1; }}\n" for name in sorted(names) if name.startswith(prefix))
        run("gcc", "-w", "-fPIC", "-shared", code, f"-Wl,-soname,{soname}", "-o", f"{objects}/lib{library}.so")


def compile_latency(folder, objects):
    """The round trip through NCCL's device API."""
    source = os.path.join(os.path.dirname(os.path.dirname(fetch.HERE)), "kernels/bench/gin.cu")
    os.makedirs(objects, exist_ok=True)
    run("nvcc", "-std=c++17", "-O2", "-gencode", "arch=compute_90,code=sm_90", "-diag-suppress=940", f"-I{folder}/nvidia/nccl/include", "-c", source, "-o",
        f"{objects}/gin.o")
    stand_ins(objects, f"{objects}/gin.o")
    run("nvcc", f"{objects}/gin.o", "-o", f"{folder}/gin", f"-L{objects}", "-lnccl")


def compile_deepep(folder, objects, tree, python):
    """Compiles DeepEP V2's module and copies its package and tests. Objects that are newer than their source are kept."""
    target = f"{folder}/deepep"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(f"{tree}/deep_ep", f"{target}/deep_ep")
    shutil.copytree(f"{tree}/tests", f"{target}/tests")
    with open(f"{target}/REVISION", "w", encoding="ascii") as f:
        f.write("DeepEP " + fetch.said_by("git", "-C", tree, "rev-parse", "--short", "HEAD"))
    torch, nvshmem, nccl = f"{objects}/torch", f"{objects}/nvidia/nvshmem", f"{folder}/nvidia/nccl"
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    include = [f"-I{tree}/deep_ep/include", f"-I{nccl}/include", f"-I{nvshmem}/include"]
    for at in (f"{torch}/include", f"{torch}/include/torch/csrc/api/include", f"{cuda}/include/cccl", f"{cuda}/include", python):
        include += ["-isystem", at]
    made = []
    for name in ["python_api", *KERNELS]:
        source = f"{tree}/csrc/python_api.cpp" if name == "python_api" else f"{tree}/csrc/kernels/{name}.cu"
        made.append(f"{objects}/{os.path.basename(name)}.o")
        if os.path.exists(made[-1]) and os.path.getmtime(made[-1]) > os.path.getmtime(source):
            continue
        if name == "python_api":
            run("g++", "-std=c++17", "-fPIC", "-O3", "-w", *include, *DEFINES, "-c", source, "-o", made[-1])
        else:
            run("nvcc", *NVCC, *include, *DEFINES, "-c", source, "-o", made[-1])
    linked = f"{objects}/device.o"
    run("nvcc", "-dlink", "-arch=sm_90", "-Xcompiler", "-fPIC", *made[1:], f"-L{nvshmem}/lib", "-lnvshmem_device", "-o", linked)
    stand_ins(objects, *made)
    module = "_C.cpython-312-x86_64-linux-gnu.so"
    run("g++", "-shared", *made, linked, "-o", f"{objects}/{module}", "-Wl,--no-as-needed",
        f"-L{objects}", "-lcuda", "-lnccl", f"-L{torch}/lib", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10_cuda", "-ltorch_cuda",
        f"-L{nvshmem}/lib", "-l:libnvshmem_host.so.3", "-l:libnvshmem_device.a", f"-L{cuda}/lib64", "-lcudart")
    run("strip", "--strip-debug", "-o", f"{target}/deep_ep/{module}", f"{objects}/{module}")


def compile_deepep_nccl(folder, objects, tree, python):
    """The same for DeepEP's pull request 521."""
    target = f"{folder}/deepep-nccl"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(f"{tree}/deep_ep", f"{target}/deep_ep")
    shutil.copytree(f"{tree}/tests", f"{target}/tests")
    torch, nccl, at = f"{objects}/torch", f"{folder}/nvidia/nccl", f"{objects}/deepep-nccl"
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    include = [f"-I{tree}/csrc", f"-I{nccl}/include"]
    for path in (f"{torch}/include", f"{torch}/include/torch/csrc/api/include", f"{cuda}/include/cccl", f"{cuda}/include", python):
        include += ["-isystem", path]
    defines = ["-DTORCH_EXTENSION_NAME=deep_ep_cpp", "-DTORCH_API_INCLUDE_EXTENSION_H", "-DENABLE_NCCL", "-DDISABLE_AGGRESSIVE_PTX_INSTRS"]
    os.makedirs(at, exist_ok=True)
    made = []
    for name in ["deep_ep.cpp", "kernels/backend_factory.cpp"] + [f"kernels/{kernel}.cu" for kernel in KERNELS_NCCL]:
        source = f"{tree}/csrc/{name}"
        made.append(f"{at}/{os.path.basename(name)}.o")
        if os.path.exists(made[-1]) and os.path.getmtime(made[-1]) > os.path.getmtime(source):
            continue
        if name.endswith(".cpp"):
            run("g++", "-std=c++17", "-fPIC", "-O3", "-w", *include, *defines, "-c", source, "-o", made[-1])
        else:
            run("nvcc", *NVCC, *include, *defines, "-c", source, "-o", made[-1])
    linked = f"{at}/device.o"
    run("nvcc", "-dlink", "-arch=sm_90", "-Xcompiler", "-fPIC", *made[2:], "-o", linked)
    stand_ins(at, *made)
    module = "deep_ep_cpp.cpython-312-x86_64-linux-gnu.so"
    run("g++", "-shared", *made, linked, "-o", f"{at}/{module}", "-Wl,--no-as-needed", f"-L{at}", "-lcuda", "-lnccl", f"-L{torch}/lib", "-lc10", "-ltorch", "-ltorch_cpu",
        "-ltorch_python", "-lc10_cuda", "-ltorch_cuda", f"-L{cuda}/lib64", "-lcudart")
    run("strip", "--strip-debug", "-o", f"{target}/{module}", f"{at}/{module}")


def copy_ours(folder, build, to):
    at = f"{folder}/{to}"
    shutil.rmtree(at, ignore_errors=True)
    os.makedirs(f"{at}/lib")
    for name in OURS:
        if not os.path.exists(f"{build}/{name}"):
            continue
        shutil.copy(os.path.realpath(f"{build}/{name}"), f"{at}/{os.path.basename(name)}")
        run("strip", "--strip-debug", f"{at}/{os.path.basename(name)}")
    needed = fetch.said_by("ldd", *(path for path in glob.glob(f"{at}/*") if os.path.isfile(path)))
    for name, path in set(re.findall(r"(\S+) => (/\S+)", needed)):
        if name.startswith(BESIDE):
            shutil.copy(path, f"{at}/lib/{name}")


def layouts(folder, nccl):
    """Compiles tests/headers/nccl_layout.c, whose assertions compare the tables. NCCL's headers are C but for two includes. Returns 0 if all agree."""
    root = os.path.dirname(os.path.dirname(fetch.HERE))
    bad = 0
    with tempfile.TemporaryDirectory() as plain:
        for name in ("stdint", "stddef"):
            with open(f"{plain}/c{name}", "w", encoding="ascii") as f:
                f.write(f"#include <{name}.h>\n")
        library = [f"-I{nccl}/src/include/plugin", f"-I{nccl}/src/include", f"-I{folder}/nvidia/nccl/include",
                   f"-I{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/include"]
        for tables, flags in (("net 10 to 12, GIN 13 and 14, RMA 14", library), ("GIN 11 and 12", ["-DEXAMPLES", f"-I{nccl}/plugins/gin/example/nccl"])):
            rc = subprocess.run(["gcc", "-std=gnu17", "-fsyntax-only", f"-I{plain}", f"-I{root}", *flags, f"{root}/tests/headers/nccl_layout.c"], check=False).returncode
            print(f"{tables}: {'as in NCCL' if rc == 0 else 'WRONG'}")
            bad |= rc
    return bad


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=("make", "unpack", "layouts"))
    parser.add_argument("folder")
    parser.add_argument("nccl", nargs="?")
    parser.add_argument("--deepep")
    parser.add_argument("--deepep-nccl")
    parser.add_argument("--build")
    parser.add_argument("--hooks")
    parser.add_argument("--python", default=os.path.expanduser("~/.pyenv/versions/3.12.1/include/python3.12"))
    o = parser.parse_args()
    folder = os.path.abspath(o.folder)
    if o.what == "unpack":
        unpack_nccl(folder)
        return 0
    if o.what == "layouts":
        return layouts(folder, os.path.abspath(o.nccl))
    try:
        wheels("nccl-clients.txt", folder, LEFT_OUT)
        pack_nccl(folder)
        strip_parts(folder)
        if o.deepep:
            objects = folder + ".objects"
            wheels("nccl-build.txt", objects, BUILD_LEFT_OUT)
            compile_deepep(folder, objects, os.path.abspath(o.deepep), o.python)
            if o.deepep_nccl:
                compile_deepep_nccl(folder, objects, os.path.abspath(o.deepep_nccl), o.python)
        compile_latency(folder, folder + ".objects")
        if o.build:
            copy_ours(folder, os.path.abspath(o.build), "epf")
        if o.hooks:
            copy_ours(folder, os.path.abspath(o.hooks), "epf-hooks")
    except fetch.Missing as error:
        print(error)
        return 77
    total = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
    print(f"{folder}: {total >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
