#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom: the table below against every #include "..." of the tree.

Run by meson (suite layers) and by `tools/quickstart test layers`, with the source root as argument.
Project headers are included from the root ("queues/epf_cmd.h"), so an include names its layer.
It must not read generated files or build directories.
"""
import os
import re
import sys

# Layer: what it may include besides itself. A trailing .h names one file. Longest path prefix wins.
MAY_INCLUDE = {
    "queues": [],
    "fabric/base": [],
    "bootstrap": ["fabric/base"],
    "fabric": ["queues", "fabric/base", "bootstrap", "fabric/protocol/proto.h", "fabric/protocol/channel.h",
               "fabric/base/sweep.h"],
    "fabric/service": ["queues", "fabric", "fabric/base", "bootstrap"],
    "kernels": ["queues", "fabric/client/epf.h", "fabric/gpu/fake.h"],
    "tools": ["queues", "fabric/client/epf.h", "fabric/nic/nic.h", "fabric/place/place.h", "fabric/engine/lanes_plan.h", "fabric/base", "bootstrap", "fabric/service"],
    "tools/shim": ["queues", "fabric/client/epf.h", "fabric/gpu/gpu.h", "fabric/base", "bootstrap"],
    "bench": ["queues", "fabric/client/epf.h", "fabric/engine/bench_core.h", "fabric/gpu/gpu.h", "fabric/gpu/context.h", "fabric/gpu/fake.h", "fabric/gpu/copy.h", "fabric/nic/emu/stages.h", "fabric/nic/rdma/lib.h", "fabric/nic/verbs/gid.h", "fabric/base", "bootstrap", "kernels", "tests/ref"],
    "tests": ["queues", "fabric", "fabric/base", "fabric/service", "bootstrap", "kernels", "tools", "tools/shim", "bench", "tests/ref"],
    "tests/ref": [],  # the reference must not share a mistake with what it judges
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = (".c", ".h", ".cu", ".cuh", ".inc", ".cc", ".cpp", ".hip", ".in")


def layer_of(path):
    fitting = [name for name in MAY_INCLUDE if path.startswith(name + "/")]
    return max(fitting, key=len) if fitting else None


def complaint(root, path, quote, target):
    """What is wrong with one include, or None."""
    mine = layer_of(path)
    theirs = layer_of(target)
    if quote == "<":
        return f"<{target}> is ours: write it with quotes" if theirs else None
    if theirs is None:
        if os.path.exists(os.path.join(root, os.path.dirname(path), target)):
            return f'"{target}": include from the root, "{os.path.dirname(path)}/{target}"'
        return None  # generated, or a foreign header: the compiler finds it or not
    if target.endswith(".c"):
        return f'"{target}": a .c file is compiled, not included'
    if theirs == mine or theirs in MAY_INCLUDE[mine] or target in MAY_INCLUDE[mine]:
        return None
    allowed = ", ".join(MAY_INCLUDE[mine]) or "nothing of ours"
    return f'"{target}": {mine} may include {allowed}'


def check_file(root, path):
    found = []
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        for number, line in enumerate(f, 1):
            if m := INCLUDE.match(line):
                if text := complaint(root, path, m[1], m[2]):
                    found.append(f"{path}:{number}: {text}")
    return found


def main(argv):
    root = argv[1] if len(argv) > 1 else "."
    files = 0
    found = []
    for top in sorted({name.split("/")[0] for name in MAY_INCLUDE}):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if name.endswith(SUFFIXES):
                    files += 1
                    found += check_file(root, os.path.relpath(os.path.join(folder, name), root))
    print("\n".join(found + [f"# {files} files, {len(found)} includes against the table"]))
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
