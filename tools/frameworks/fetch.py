#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches pinned packages of other projects from PyPI, checks their hashes, keeps what is needed, and says later whether it is all still there.

  fetch.py cpu FOLDER      PyTorch, transformers, Megatron-core, torchtitan, and the dispatchers of SGLang and LMDeploy, for CPU tensors: what the stage
                           `frameworks` of tools/quickstart test runs (730 MB fetched, 1.2 GB on disk)
  fetch.py gpu FOLDER      what a machine with GPUs, PyTorch and transformers lacks of these and of sources (210 MB fetched, 35 MB on disk), to be carried there
  fetch.py sources FOLDER  DeepSpeed, and the classes of vLLM's newest release that call DeepEP, from their sources (52 MB fetched, 19 MB on disk): what the stage
                           `frameworks` runs, too
  fetch.py vllm FOLDER     the same as gpu for vLLM (320 MB fetched, 190 MB on disk), pruned to Hopper's code; also packs it into FOLDER.1, FOLDER.2, ... of at most
                           32 MiB, to be carried one by one
  fetch.py unpack FOLDER PART...   puts such parts together again, and verifies
  fetch.py nixl-1.5 FOLDER (nixl-1.4, nixl-1.3)
                           a release of NIXL: what the stage `nixl` runs (50 to 80 MB fetched, 110 to 160 MB on disk)
  fetch.py nixl-gpu-1.5 FOLDER (nixl-gpu-1.4)
                           NIXL for a machine with GPUs and CUDA 13, without what its Python module and UCX do not need; packed into FOLDER.1 (9 MB)
  fetch.py verify FOLDER   compares every file with what was unpacked; prints files and bytes

FOLDER goes into PYTHONPATH. Nothing is fetched again while the lists beside this file stay as they are. PyPI has PyTorch for Linux on x86-64 only built for
CUDA: its CUDA libraries, 2.5 GB, are left out, and libraries made here stand in for them, whose functions exist and fail. PyTorch then sees no GPU.
Exit status 1: a hash differs, or a file has changed; 77: it cannot be fetched here, and the last line says why.
"""
import glob
import hashlib
import io
import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
MANIFEST = "MANIFEST"
MARK = ".quickstart"  # tells the tests of our documents that a folder is no part of the tree
NO_CUDA = 100  # cudaErrorNoDevice
FREE_BYTES = 3 << 30
PART_BYTES = 32 << 20
PLATFORMS = ["manylinux_2_34_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
SERVERS = ("servers.txt", "3.11", r"(?!sglang/srt/(environ|layers/moe/utils|layers/moe/token_dispatcher/(base|deepep|deepep_v2))\.py$|"
                                  r"lmdeploy/pytorch/(envs|backends/(|default/|cuda/)token_dispatcher)\.py$)")
VLLM_PARTS = ("vllm-source.txt", "", r"(?!vllm/(envs|utils/math_utils|v1/worker/ubatching|distributed/device_communicators/(base_device_communicator|all2all)|"
                                     r"model_executor/layers/fused_moe/(activation|modular_kernel|topk_weight_and_reduce|prepare_finalize/deepep_(ht|ll|v2)))\.py$)")
DEEPSPEED = ("deepspeed-source.txt", "", r"(?!(deepspeed|op_builder)/|(version|build)\.txt$)")
SECONDS = 180  # that an index may be silent
# Lists by form: (file, version of Python that the wheels are for or "" for a source, what is left out of them).
LISTS = {
    "cpu": [("cpu.txt", "3.11", r"torch/(include|share|test)/|torch/lib/libtorch_cuda_linalg\.so$|.*\.data/|.*/tests/"), ("megatron.txt", "3.12", r".*\.so$"),
            ("torchtitan.txt", "3.12", r".*/(tests|examples)/"), SERVERS],
    "gpu": [("megatron.txt", "3.12", r".*\.(so|cpp|md)$|.*Makefile$"), ("torchtitan.txt", "3.12", r".*/(tests|examples)/"), SERVERS, VLLM_PARTS, DEEPSPEED, ("deepspeed.txt", "3.12", r".*\.data/")],
    "sources": [VLLM_PARTS, DEEPSPEED, ("deepspeed.txt", "3.11", r".*\.data/")],
    # Without FlashAttention's, FlashMLA's and other compiled parts that Triton replaces, without DeepGEMM and the server's pages.
    "vllm": [("vllm.txt", "3.12", r"vllm/vllm-rs$|vllm/.*(fa2|fa3|flashmla|flashmla_extension|qutlass|rust_tool_parser)(_C)?\.abi3\.so$|"
                                  r"vllm/third_party/(?!__init__\.py|pynvml\.py)|vllm/.*/static/|.*\.dist-info/(RECORD|licenses/)|.*/tests/|.*\.pyi$")],
    # Without its expert-parallel library, programs, and all plug-ins but UCX's.
    **{f"nixl-{v}": [(f"nixl-{v}.txt", "3.11", r"nixl_ep|.*\.(data|scripts)/|.*/lib(telemetry|plugin_(?!UCX))")] for v in ("1.3", "1.4", "1.5")},
    **{f"nixl-gpu-{v}": [(f"nixl-gpu-{v}.txt", "3.12", r"nixl_ep|.*\.(data|scripts)/|.*libucx_perftest")] for v in ("1.4", "1.5")},
}
CARRIED = ("gpu", "vllm", "nixl-gpu-1.4", "nixl-gpu-1.5")  # to another machine: they need not run here
PACKED = CARRIED[1:]
# Archives of device code in a compiled part: a header (magic, version, its size, size of what follows), then members (kind, version, their header's size, size,
# and at byte 28 the architecture).
FATBIN = struct.Struct("<IHHQ")
FATBIN_MAGIC = 0xBA55ED50
MEMBER = struct.Struct("<HHIQ12xI")
PTX, CUBIN = 1, 2
HOPPER = 90


class Missing(Exception):
    """It cannot be fetched on this machine."""


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def key(form):
    """What decides the content of a folder: the form, the lists, and this program."""
    parts = [form] + [sha256(os.path.join(HERE, name)) for name in sorted({one[0] for one in LISTS[form]}) + [os.path.basename(__file__)]]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def can(form, folder):
    """Raises Missing where the wheels would not run."""
    if form not in CARRIED and (platform.system(), platform.machine(), sysconfig.get_python_version()) != ("Linux", "x86_64", "3.11"):
        raise Missing(f"the packages are pinned for Python 3.11 on Linux and x86-64; this is {sysconfig.get_python_version()} on {platform.machine()}")
    if form == "cpu" and (free := shutil.disk_usage(folder).free) < FREE_BYTES:
        raise Missing(f"{folder} has {free >> 20} MiB left; {FREE_BYTES >> 20} are needed")


def download(name, version, into):
    """Lets pip fetch the wheels of a list and check their hashes."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-cache-dir", "--progress-bar=off", "--no-deps", "--require-hashes",
               "--only-binary=:all:", f"--python-version={version}", *(f"--platform={p}" for p in PLATFORMS), "-r", os.path.join(HERE, name), "-d", into]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stdout + done.stderr
    if "DO NOT MATCH THE HASHES" in said:
        sys.exit(said)
    errors = [line for line in said.splitlines() if line.startswith("ERROR")] or said.splitlines() or ["no word"]
    raise Missing(f"pip could not fetch {name}: {errors[-1][:300]}")


def index():
    """The package index that pip uses by its settings. pip has no command that prints it."""
    asked = "from pip._internal.commands import create_command; print(create_command('download').parse_args(['x'])[0].index_url)"
    try:
        return said_by(sys.executable, "-c", asked).strip().rstrip("/")
    except subprocess.CalledProcessError as error:
        raise Missing(f"pip does not say which index it uses: {(error.stderr.splitlines() or ['no word'])[-1][:300]}") from error


def unpack_source(name, folder, left_out):
    """Fetches a project's source from pip's index, and unpacks it. pip itself would run what is in it."""
    with open(os.path.join(HERE, name), encoding="ascii") as f:
        project, version, digest = re.search(r"^(\S+)==(\S+) --hash=sha256:(\w+)$", f.read(), re.M).groups()
    page = f"{index()}/{project}/"
    try:
        with urllib.request.urlopen(page, timeout=SECONDS) as f:
            link = re.search(rf'href="([^"#]*/{project}-{re.escape(version)}\.tar\.gz)', f.read().decode())
        if not link:
            raise Missing(f"{page} has no source of {project} {version}")
        with urllib.request.urlopen(urllib.parse.urljoin(page, link[1]), timeout=SECONDS) as f:
            data = f.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise Missing(f"cannot fetch the source of {project} from {page}: {error}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        sys.exit(f"{link[1]}: its hash is not that of {name}")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for one in archive:
            path = one.name.partition("/")[2]  # without the folder with the version
            if one.isfile() and not re.match(left_out, path):
                os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
                with open(os.path.join(folder, path), "wb") as f:
                    shutil.copyfileobj(archive.extractfile(one), f)


def unpack(wheel, folder, left_out):
    with zipfile.ZipFile(wheel) as z:
        for one in z.infolist():
            if re.match(left_out, one.filename):
                continue
            path = z.extract(one, folder)
            if one.external_attr >> 16 & 0o111 and os.path.isfile(path):
                os.chmod(path, 0o755)
    os.unlink(wheel)


def said_by(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def absent_libraries(folder):
    """Returns {library: {version: names of functions}} of what PyTorch's libraries need of CUDA's and is not in the folder; version None: without."""
    libraries = glob.glob(f"{folder}/*.so*")
    there = {os.path.basename(path) for path in libraries} | {"libcudart.so.13"}
    wanted, unversioned = {}, set()
    for path in libraries:
        text = said_by("objdump", "-p", path)
        for name in re.findall(r"NEEDED +(lib(?:cu|nv|nccl)\S+)", text):
            if name not in there:
                wanted.setdefault(name, {})
        of_version = {}
        for name, block in re.findall(r"required from (\S+):\n((?: +0x.*\n)+)", text):
            for version in re.findall(r"(\S+)\n", block) if name in wanted else ():
                of_version[version] = wanted[name].setdefault(version, set())
        for name, version in re.findall(r" U (\w+)(?:@(\S+))?$", said_by("nm", "-D", "--undefined-only", path), re.M):
            if version in of_version:
                of_version[version].add(name)
            elif not version and re.match("cu|nccl|nv", name):
                unversioned.add(name)  # any of the libraries may have it: names without a version are looked up in all
    wanted["libnccl.so.2"][None] = unversioned
    return wanted


def stand_in(folder):
    """Makes the libraries that PyTorch's are linked with and that are left out."""
    for library, versions in absent_libraries(folder).items():
        source = "\n".join(f"int {name}(void) {{ return {NO_CUDA}; }}" for names in versions.values() for name in sorted(names))
        script = os.path.join(folder, "stand-in.map")
        with open(script, "w", encoding="ascii") as f:
            f.write("".join(f"{version or ''} {{ global: {''.join(name + '; ' for name in sorted(names))}}};\n" for version, names in versions.items()) or "{ };\n")
        subprocess.run(["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{library},--version-script={script}", "-o",
                        os.path.join(folder, library)], input=source, text=True, check=True)
        os.unlink(script)


def prune(code):
    """Clears device code for other architectures than Hopper in a bytearray, the content of .nv_fatbin, and returns how many members it kept and cleared.

    Headers stay, so that the driver finds its way past what was cleared. Of an archive without binaries for Hopper its PTX stays, which the driver compiles.
    """
    kept = cleared = at = 0
    while at + FATBIN.size <= len(code):
        magic, _, header, size = FATBIN.unpack_from(code, at)
        if magic != FATBIN_MAGIC:
            at += 8  # archives are aligned
            continue
        members, end = [], at + header + size
        at += header
        while at < end:
            kind, _, header, size, architecture = MEMBER.unpack_from(code, at)
            members.append((kind, architecture, at + header, size))
            at += header + size
        wanted = CUBIN if any(kind == CUBIN and architecture == HOPPER for kind, architecture, _, _ in members) else PTX
        for kind, architecture, begin, size in members:
            if kind == wanted and (kind == PTX or architecture == HOPPER):
                kept += 1
            else:
                code[begin:begin + size] = bytes(size)
                cleared += 1
    return kept, cleared


def prune_file(path):
    """Prunes a compiled part in place; stops if there is nothing for Hopper in it."""
    found = re.search(r"\.nv_fatbin +(\w+) +\w+ +\w+ +(\w+)", said_by("objdump", "-h", path))
    size, offset = (int(part, 16) for part in found.groups())
    with open(path, "r+b") as f:
        f.seek(offset)
        code = bytearray(f.read(size))
        kept, cleared = prune(code)
        f.seek(offset)
        f.write(code)
    if not kept:
        sys.exit(f"{path}: no device code for Hopper found")
    print(f"{os.path.basename(path)}: device code for Hopper in {kept} members, {cleared} cleared")


def keep_needed(folder):
    """Removes the shared libraries of NIXL's wheel that neither its Python module nor UCX and its back end need."""
    libraries = {os.path.basename(path): path for path in glob.glob(f"{folder}/.*/**/*.so*", recursive=True) + glob.glob(f"{folder}/**/*.so*", recursive=True)}
    roots = [f"{folder}/nixl_cu1?/_bindings*.so", f"{folder}/.nixl_cu1?.mesonpy.libs/plugins/libplugin_UCX.so", f"{folder}/nixl_cu1?.libs/ucx/*.so*"]
    needed, left = set(), [path for root in roots for path in glob.glob(root)]
    while left:
        path = left.pop()
        if path not in needed:
            needed.add(path)
            left += [libraries[name] for name in re.findall(r"NEEDED +(\S+)", said_by("objdump", "-p", path)) if name in libraries]
    for at, _, names in os.walk(folder):
        for name in names:
            if ".so" in name and os.path.join(at, name) not in needed:
                os.unlink(os.path.join(at, name))


def pack(folder):
    """Packs a folder into FOLDER.1, FOLDER.2, ...: pieces of one compressed archive."""
    for part in glob.glob(f"{glob.escape(folder)}.[0-9]"):
        os.unlink(part)
    whole = io.BytesIO()
    with lzma.LZMAFile(whole, "w", preset=6) as compressed, tarfile.open(fileobj=compressed, mode="w|") as archive:
        for name in [MANIFEST, MARK, *files_of(folder)]:
            archive.add(os.path.join(folder, name), name)
    for number, begin in enumerate(range(0, len(whole.getbuffer()), PART_BYTES), 1):
        with open(f"{folder}.{number}", "wb") as f:
            f.write(whole.getbuffer()[begin:begin + PART_BYTES])
        print(f"{folder}.{number}: {os.path.getsize(f.name)} bytes")


def put_together(folder, parts):
    whole = io.BytesIO()
    for part in parts:
        with open(part, "rb") as f:
            shutil.copyfileobj(f, whole)
    whole.seek(0)
    with lzma.LZMAFile(whole) as compressed, tarfile.open(fileobj=compressed, mode="r|") as archive:
        archive.extractall(folder, filter="data")


def files_of(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names
                  if name not in (MANIFEST, MARK) and not name.endswith(".pyc"))


def write_manifest(form, folder):
    lines = [f"{sha256(os.path.join(folder, name))}  {name}\n" for name in files_of(folder)]
    with open(os.path.join(folder, MANIFEST), "w", encoding="utf-8") as f:
        f.writelines([key(form) + "\n", *lines])


def fetch(form, folder):
    manifest = os.path.join(folder, MANIFEST)
    if os.path.exists(manifest):
        with open(manifest, encoding="utf-8") as f:
            if f.readline().strip() == key(form):
                return
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder) and not os.path.exists(manifest):
        sys.exit(f"{folder} is not empty, and was not made by this program")
    can(form, folder)
    shutil.rmtree(folder)
    os.makedirs(folder)
    for name in (MANIFEST, MARK):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write("unfinished\n")
    for name, version, left_out in LISTS[form]:
        if not version:
            unpack_source(name, folder, left_out)
            continue
        download(name, version, os.path.join(folder, "wheels"))
        for wheel in sorted(glob.glob(f"{folder}/wheels/*.whl")):
            unpack(wheel, folder, left_out)
    shutil.rmtree(os.path.join(folder, "wheels"), ignore_errors=True)
    if form == "cpu":
        stand_in(os.path.join(folder, "torch/lib"))
    if form == "vllm":
        for path in glob.glob(f"{folder}/vllm/*_stable_libtorch.abi3.so"):
            prune_file(path)
        with open(f"{folder}/vllm/vllm_flash_attn/_vllm_fa2_C.py", "w", encoding="ascii") as f:
            f.write('"""Stands in for FlashAttention 2, which is left out: importing vLLM needs the module, Triton attention does not."""\n')
    if form.startswith("nixl-gpu"):
        keep_needed(folder)
    write_manifest(form, folder)
    if form in PACKED:
        pack(folder)


def verify(folder):
    """Returns what differs from the manifest, and prints a summary."""
    with open(os.path.join(folder, MANIFEST), encoding="utf-8") as f:
        listed = dict(reversed(line.rstrip("\n").split("  ", 1)) for line in f.readlines()[1:])
    there = files_of(folder)
    wrong = sorted(set(listed) ^ set(there)) + [name for name in there if name in listed and sha256(os.path.join(folder, name)) != listed[name]]
    print(f"{len(there)} files, {sum(os.path.getsize(os.path.join(folder, name)) for name in there)} bytes: "
          + (f"{len(wrong)} differ, e.g. {wrong[0]}" if wrong else "as they were unpacked"))
    return wrong or not listed


def main():
    parts = sys.argv[3:]
    if len(sys.argv) < 3 or sys.argv[1] not in (*LISTS, "verify", "unpack") or bool(parts) != (sys.argv[1] == "unpack"):
        sys.exit(__doc__)
    try:
        if parts:
            put_together(sys.argv[2], parts)
            return int(bool(verify(sys.argv[2])))
        if sys.argv[1] == "verify":
            return int(bool(verify(sys.argv[2])))
        fetch(*sys.argv[1:3])
    except Missing as error:
        print(error)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
