#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""USDT probes: what docs/guides/tracing.md says is what the programs hold, and the scripts use nothing else.

Usage: probes.py ROOT BINARY... Each binary must hold exactly the probes of the page, each with as many arguments at every place; a script may name only these,
and only arguments they have. Exit status 77 where the build has no probes (readelf, of binutils, reads them). It runs no probe: that takes root.
"""
import glob
import os
import re
import subprocess
import sys


def of_page(path):
    """Probe: number of arguments, out of the page's table."""
    with open(path, encoding="utf-8") as f:
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", f.read(), re.M)
    return {name: len(re.sub(r"\([^)]*\)", "", args).split(",")) for name, args in rows}


def of_binary(path):
    """Probe: set of the numbers of arguments it has at its places."""
    text = subprocess.run(["readelf", "-n", path], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    found = {}
    for name, args in re.findall(r"Provider: epf\n\s+Name: (\w+)\n\s+Location: [^\n]*\n\s+Arguments:([^\n]*)", text):
        # An operand has blanks of its own on some machines; each begins with its size.
        found.setdefault(name, set()).add(len(re.findall(r"(?:^|\s)-?[1248]f?@", args)))
    return found


def check_script(path, probes):
    wrong = []
    with open(path, encoding="utf-8") as f:
        text = f.read()
    clauses = re.findall(r"^usdt:([^\n]*)\n(.*?)^\}", text, re.M | re.S)
    if not clauses or len(clauses) != text.count("usdt:"):
        wrong.append(f"{path}: {text.count('usdt:')} probes, {len(clauses)} of them with a body that begins on a line of its own")
    for head, body in clauses:
        place = re.fullmatch(r"/usr/bin/ep-fabric:epf:(\w+)", head.strip())
        if not place or place[1] not in probes:
            wrong.append(f"{path}: {head}: there is no such probe")
            continue
        used = {int(n) for n in re.findall(r"\barg(\d+)\b", body)}
        if used and max(used) >= probes[place[1]]:
            wrong.append(f"{path}: {place[1]} has {probes[place[1]]} arguments, arg{max(used)} is used")
    return wrong


def main(root, *binaries):
    page = of_page(os.path.join(root, "docs", "guides", "tracing.md"))
    wrong = [] if len(page) >= 10 else [f"docs/guides/tracing.md: a table of {len(page)} probes"]
    for path in binaries:
        found = of_binary(path)
        if not found:
            print("this build has no probes: there is no sys/sdt.h (package systemtap-sdt-dev)")
            return 77
        wrong += [f"{path}: probe {name} is not in docs/guides/tracing.md" for name in sorted(found.keys() - page.keys())]
        wrong += [f"{path}: no probe {name}, docs/guides/tracing.md has it" for name in sorted(page.keys() - found.keys())]
        wrong += [f"{path}: {name} has {sorted(found[name])} arguments, docs/guides/tracing.md says {page[name]}"
                  for name in sorted(found.keys() & page.keys()) if found[name] != {page[name]}]
    scripts = sorted(glob.glob(os.path.join(root, "tools", "trace", "*.bt")))
    with open(os.path.join(root, "docs", "guides", "tracing.md"), encoding="utf-8") as f:
        told = set(re.findall(r"^\| `(\w+\.bt)` \|", f.read(), re.M))
    if told != {os.path.basename(s) for s in scripts} or not told:
        wrong.append(f"docs/guides/tracing.md names {sorted(told)}, there are {scripts}")
    for script in scripts:
        wrong += check_script(script, page)
    print("\n".join(wrong) if wrong else f"{len(page)} probes, {len(scripts)} scripts")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
