#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a C file that holds the bytes of a device image (fat binary, bundle), so that a change of the image rebuilds what carries it.

    embed.py IMAGE SYMBOL OUT.c

Run by meson where a device's compiler is. `const void *const SYMBOL` points to the bytes, aligned to 64; a NULL terminates PTX text.
It must not look at what the image means.
"""
import sys


def main(argv):
    image, symbol, out = argv[1:]
    with open(image, "rb") as f:
        data = f.read() + b"\0"
    data += b"\0" * (-len(data) % 8)
    words = [int.from_bytes(data[i:i + 8], "little") for i in range(0, len(data), 8)]
    with open(out, "w", encoding="ascii") as f:
        f.write("/* Made by kernels/embed.py. */\n#include <stdint.h>\n")
        f.write(f"extern const void *const {symbol};\n")
        f.write("static const uint64_t image[] __attribute__((aligned(64))) = {\n")
        for i in range(0, len(words), 6):
            f.write(" ".join(f"{w:#x}ull," for w in words[i:i + 6]) + "\n")
        f.write("};\n")
        f.write(f"const void *const {symbol} = image;\n")


if __name__ == "__main__":
    main(sys.argv)
