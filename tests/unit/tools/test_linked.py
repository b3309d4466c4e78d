#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What our programs and libraries pull into a process: nothing of DPDK, and no library that they do not use.

  test_linked.py OBJECT...   programs and shared libraries of the build
"""
import re
import subprocess
import sys

REFUSED = re.compile(r"librte_|libfdt|libbsd|libmd\.")


def output(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def needed(path):
    return re.findall(r"\(NEEDED\)\s+Shared library: \[(.*?)\]", output("readelf", "-d", path))


def faults(path):
    direct = needed(path)
    if not direct:
        return [f"{path}: readelf names no library"]
    found = [f"{path}: links {name}" for name in direct if REFUSED.match(name)]
    found += [f"{path}: brings {line.split()[0]} with it" for line in output("ldd", path).splitlines()
              if REFUSED.match(line.strip()) and line.split()[0] not in direct]
    unused = [line.strip() for line in output("ldd", "-u", path).splitlines() if line.startswith("\t")]
    return found + [f"{path}: links {name} and uses nothing of it" for name in unused]


def main(paths):
    if not paths:
        sys.exit(__doc__)
    bad = [fault for path in paths for fault in faults(path)]
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
