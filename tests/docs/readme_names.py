#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the README promises a reader: it is short, its quick starts are short, and every name in them exists.

Usage: readme_names.py ROOT EP-FABRIC. Options and variables are compared with what the program says of itself, functions with fabric/client/epf.h.
"""
import json
import os
import re
import subprocess
import sys

README_LINES, GLOSSARY_LINES, QUICK_START_LINES, OUTPUT_LINES = 200, 40, 8, 10


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def main(root, fabric):
    page = read(root, "README.md")
    wrong = []
    for name, text, most in ("README.md", page, README_LINES), ("docs/glossary.md", read(root, "docs", "glossary.md"), GLOSSARY_LINES):
        if text.count("\n") > most:
            wrong.append(f"{name}: {text.count(chr(10))} lines, at most {most}")
    starts = re.findall(r"```\w+\n(.*?)```", page.split("\n## Four ways to start\n")[1].split("\n## ")[0], re.S)
    if len(starts) != 4 or any(start.count("\n") > QUICK_START_LINES for start in starts):
        wrong.append(f"README.md: {[start.count(chr(10)) for start in starts]} lines of quick starts; four, of at most {QUICK_START_LINES}")
    output = re.search(r"<!-- demo output: begin -->\n```\n(.*?)```", page, re.S)[1]
    if output.count("\n") > OUTPUT_LINES:
        wrong.append(f"README.md: {output.count(chr(10))} lines of output, at most {OUTPUT_LINES}")
    api = read(root, "fabric", "client", "epf.h")
    calls = set(re.findall(r"\b(epf_\w+)\(", "".join(starts)))
    wrong += [f"README.md: {call}() is not in epf.h" for call in sorted(calls) if f" {call}(" not in api and f"*{call}(" not in api]
    rows = json.loads(subprocess.run([fabric, "config", "--json"], capture_output=True, text=True, check=True).stdout)["settings"]
    variables = {"EPF_" + row["name"].upper().replace("-", "_") for row in rows}
    wrong += [f"README.md: no variable {name}" for name in sorted(set(re.findall(r"\b(EPF_[A-Z_]+)=", page)) - variables)]
    usage = subprocess.run([fabric, "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z]+) ", usage, re.M))
    used = set(re.findall(r"(?m)^ep-fabric ([a-z]+)", "".join(starts)))
    wrong += [f"README.md: no command ep-fabric {name}" for name in sorted(used - commands)]
    print("\n".join(wrong) if wrong else f"{page.count(chr(10))} lines, {len(calls)} calls, {len(used)} commands")
    return 1 if wrong or not calls or not used else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
