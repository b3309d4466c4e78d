#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gate of the hot path: no *_hot.c object may call functions that allocate, lock, log or enter the kernel.

  check_hot.py --list BUILD ROOT   the hot objects: ninja target and source
  check_hot.py BUILD ROOT [DIR..]  checks them; all must be built, except those in these folders, which this build omits

Undefined symbols must be on the allow-list, end in _cold (a slow function of ours that a hot one rarely calls), or be defined by another hot
object; no object may contain an instruction that enters the kernel. Run by meson (suite hot) and by `tools/quickstart test hot`. Exit 77 under
a sanitizer, which adds calls.
"""
import json
import os
import re
import subprocess
import sys

# Emitted by the compiler, or without locks and system calls.
ALLOWED = {"memcpy", "memmove", "memset", "memcmp", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
COLD = re.compile(r"^epf_\w+_cold$")
KERNEL_ENTRY = re.compile(r"\t(syscall|sysenter|int\s+\$0x80|svc\s)")
FOLDERS = ("queues", "fabric", "bootstrap", "kernels", "tools", "bench")


def hot_sources(root):
    found = set()
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            found.update(os.path.realpath(os.path.join(folder, n)) for n in names if n.endswith("_hot.c"))
    return found


def hot_objects(build, sources):
    """Returns object file -> source for every compilation of a hot source outside tests."""
    objects = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        for entry in json.load(f):
            source = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
            if source in sources and not entry["output"].startswith("tests/"):
                objects[entry["output"]] = source
    return objects


def symbols(path, *options):
    out = subprocess.run(["nm", "-P", *options, path], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in out.splitlines() if line}


def enters_kernel(path):
    out = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True)
    return sorted({m[1].strip() for m in map(KERNEL_ENTRY.search, out.stdout.splitlines()) if m})


def sanitized(build):
    with open(os.path.join(build, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as f:
        return next((o["value"] for o in json.load(f) if o["name"] == "b_sanitize"), "none") != "none"


def check(build, root, left_out):
    sources = {s for s in hot_sources(root) if os.path.relpath(os.path.dirname(s), os.path.realpath(root)) not in left_out}
    objects = hot_objects(build, sources)
    bad = [f"{os.path.relpath(s, root)}: hot, but no target compiles it" for s in sources - set(objects.values())]
    if not sources:
        bad.append("there is no *_hot.c file")
    missing = [o for o in objects if not os.path.exists(os.path.join(build, o))]
    bad += [f"{o}: not built; run ninja first" for o in missing]
    paths = {o: os.path.join(build, o) for o in objects if o not in missing}
    defined = set()
    for path in paths.values():
        defined |= symbols(path, "-g", "--defined-only")
    for name, path in sorted(paths.items()):
        wanted = symbols(path, "-u")
        refused = sorted(s for s in wanted if s not in ALLOWED and s not in defined and not COLD.match(s))
        entries = enters_kernel(path)
        bad += [f"{name}: calls {s}, which is neither a hot nor a _cold function of ours" for s in refused]
        bad += [f"{name}: contains the instruction '{e}'" for e in entries]
        verdict = "not ok" if refused or entries else "ok"
        print(f"{verdict} - {name} ({len(wanted)} undefined symbols)")
    print("\n".join(bad))
    return 1 if bad else 0


def main(argv):
    if argv[1:2] == ["--list"] and len(argv) == 4:
        for target, source in sorted(hot_objects(argv[2], hot_sources(argv[3])).items()):
            print(target, os.path.relpath(source, argv[3]))
        return 0
    if len(argv) < 3:
        sys.exit(__doc__)
    if sanitized(argv[1]):
        print("a sanitizer adds calls: use a build without one")
        return 77
    return check(argv[1], argv[2], argv[3:])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
