#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C file with the build ID of the kernels, a digest of all sources in this folder. Ranks compare it when they open, and refuse any other.

    build_id.py OUT.c OUT.d

Run by meson. OUT.d names the sources and their folders, so that a changed, new or removed file rebuilds it. The same sources give the same ID
on every machine and in every build.
"""
import hashlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def main(argv):
    out, depfile = argv[1:]
    digest, seen = hashlib.sha256(), []
    for folder, folders, names in os.walk(HERE):
        folders.sort()
        seen.append(folder)
        for name in sorted(names):
            if not name.endswith((".c", ".h", ".cu", ".cuh")):
                continue
            path = os.path.join(folder, name)
            seen.append(path)
            with open(path, "rb") as f:
                data = f.read()
            digest.update(f"{os.path.relpath(path, HERE)} {len(data)}\n".encode() + data)
    with open(out, "w", encoding="ascii") as f:
        f.write('/* Made by kernels/build_id.py. */\n#include "kernels/ll/ll.h"\n')
        f.write(f"const uint64_t ll_build_id = 0x{digest.hexdigest()[:16]}ull;\n")
    with open(depfile, "w", encoding="utf-8") as f:
        f.write(f"{out}: " + " ".join(path.replace(" ", "\\ ") for path in seen) + "\n")


if __name__ == "__main__":
    main(sys.argv)
