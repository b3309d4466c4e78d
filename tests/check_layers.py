#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The structure of the tree: which folder may include which, no cycles, and the length of files and functions.

  check_layers.py [ROOT]           checks; exit 1 with one line per fault
  check_layers.py --table [ROOT]   prints the layers, lowest first

Project headers are included from the root ("queues/epf_cmd.h"), so an include names its layer. Inside a folder a .c file and the
header of the same name are one unit; a unit depends on another if it includes its header or names one of its functions.
Run by meson (suite layers) and by `tools/quickstart test layers`. Reads sources only, never generated files.
"""
import os
import re
import sys

NIC = ["fabric/nic", "fabric/base", "queues"]
RDMA = NIC + ["fabric/nic/rdma", "fabric/nic/rails", "fabric/gpu", "fabric/place"]
ENGINE = ["fabric/nic", "fabric/gpu", "fabric/base", "queues"]
HOME = ["fabric/engine", "fabric/join", "fabric/protocol", "fabric/place", "bootstrap"] + ENGINE
EPF = "fabric/client/epf.h"
BENCH = ["bench/common", "queues", "fabric/base", "bootstrap", EPF]

# Folder: what it may include besides itself, lowest first. An entry with .h is one file. A subfolder without a row belongs to its nearest
# parent with one.
MAY_INCLUDE = {
    "queues": [],
    "fabric/base": [],
    "bootstrap": ["fabric/base"],
    "fabric/gpu": ["fabric/base", "queues"],
    "fabric/place": ["fabric/base"],
    "fabric/nic": ["fabric/base"],
    "fabric/nic/null": NIC,
    "fabric/nic/emu": NIC + ["fabric/gpu"],
    "fabric/nic/rails": NIC + ["fabric/place"],
    "fabric/nic/tcp": NIC + ["fabric/nic/rails", "fabric/gpu", "bootstrap"],
    "fabric/nic/ofi": NIC + ["fabric/nic/rdma", "bootstrap"],
    "fabric/nic/rdma": NIC + ["fabric/gpu", "fabric/place"],
    "fabric/nic/verbs": RDMA,
    "fabric/nic/efa": RDMA,
    "fabric/engine": ENGINE,
    "fabric/join": ["fabric/engine", "fabric/base", "bootstrap"],
    "fabric/protocol": ["fabric/base", "bootstrap"],
    "fabric/client": HOME,
    "fabric/p2p": HOME + [EPF, "fabric/client/reuse.h"],
    "fabric/service": HOME + [EPF],
    "kernels": ["queues", EPF, "fabric/gpu/fake.h"],
    "kernels/pack": ["queues", "kernels", "fabric/gpu/fake.h", "fabric/gpu/copy.h"],
    "tools/shim": ["queues", "fabric/base", "bootstrap", "fabric/gpu/gpu.h", EPF],
    "tools/nccl": ["fabric/base", "bootstrap", "fabric/place", "fabric/gpu", EPF],
    "tools/waits": ["queues", "kernels/epf_why.h"],
    "tools/prove": ["queues", "fabric/base", "bootstrap", "fabric/gpu", "fabric/nic/nic.h", "fabric/nic/fill.h"],
    "tools/doctor": ["fabric/base", "fabric/place", "fabric/nic/nic.h", "bootstrap/net.h", "fabric/protocol", EPF],
    "tools/cli": ["queues", "fabric/base", "bootstrap", "fabric/place", "fabric/nic/nic.h", "fabric/engine/lanes_plan.h", "fabric/protocol",
                  "fabric/service/service.h", "tools/waits", "tools/doctor", "tools/prove", "tools/shim/modules.h", EPF],
    "tools/top": ["queues", "fabric/base", "tools/waits", EPF],
    "tools/nixl": [EPF, "fabric/p2p/epf_p2p.h"],
    "tools/docs": ["queues", "fabric/base"],
    "tests/ref": [],  # the reference must not share code with what it judges
    "bench/common": ["queues", "fabric/base", "bootstrap", EPF],
    "bench/verbs": BENCH + ["fabric/nic/rdma/lib.h", "fabric/nic/verbs/gid.h"],
    "bench/empty": BENCH + ["bench/verbs", "fabric/engine/bench_core.h"],
    "bench/core": BENCH + ["fabric/engine/bench_core.h"],
    "bench/ring": BENCH + ["kernels", "fabric/gpu"],
    "bench/moe": BENCH + ["kernels", "tests/ref"],
    "bench/scale": BENCH + ["fabric/nic", "fabric/engine", "fabric/join", "kernels"],
    "bench/hosts": ["fabric/base", "fabric/gpu"],
    "bench/jobs": BENCH,
    "bench/p2p": BENCH + ["bench/ring", "bench/verbs", "kernels", "fabric/gpu", "fabric/nic/emu/stages.h"],
    "bench/coder": ["fabric/base", "fabric/gpu"],
    "bench/compress": ["fabric/p2p/codec.h", "fabric/p2p/planes.h"],
    "bench/xfer": BENCH + ["fabric/p2p/epf_p2p.h", "fabric/gpu/copy.h"],
    "bench": ["bench/common", EPF],
    "tests": ["queues", "fabric", "bootstrap", "kernels", "tools", "bench", "tests/ref"],
}

# Accepted cycles between files of one folder: the units, and why.
CYCLES = {}

# Limits of lines per file and per function, by folder or file.
FILE_LINES = {"fabric": 500}
FUNCTION_LINES = {"fabric/engine": 60}

# Tiers inside a folder, lowest first: a unit depends only on its own tier and lower ones. Every unit of the folder is in one.
TIERS = {"fabric/engine": [
    "core tables nodes wire grow hash_hot lane_hot plain_hot limits",
    "policy_hot words_hot retire_hot fail data_path admit_hot message_hot notify_hot flush_hot stream_open gpu_add gpu_hold stage_hot put_hot "
    "arrive_hot check_hot dequeue_hot sample_hot post_hot reap_hot publish_hot step_hot",
    "engine core_priv control_plane recovery losses control connect revoke rings ranks node_down recover replay reopen messages tick watch "
    "watch_priv watch_wait watch_shelf watch_sample watch_round",
    "device_region regions lanes lanes_plan core_world create reconnect between owner drive loop fair scheduler counter bench_core",
]}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = (".c", ".h", ".cu", ".cuh", ".inc", ".cc", ".cpp", ".hip", ".in")
DEFINITION = re.compile(r"^(?!static|typedef|struct \w+ \{|enum|#|\s|/)[\w\s*]*?\b(\w+)\([^;{}]*\)\s*\n\{", re.M)
FUNCTION = re.compile(r"^(?!typedef|struct \w+ \{|enum|union|#|\s|/)[^\n;={}]*\([^;{}]*\)\s*\n\{\n(.*?)^\}", re.M | re.S)
WORD = re.compile(r"[A-Za-z_]\w+")
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\b(?:struct|enum|union) \w+|(?:->|\.)\s*\w+', re.S)


def layer_of(path):
    fitting = [name for name in MAY_INCLUDE if path.startswith(name + "/")]
    return max(fitting, key=len) if fitting else None


def covers(allowed, target):
    """True if a row's entry allows the target: a file, or a folder with everything below it."""
    return target == allowed or (not allowed.endswith(".h") and target.startswith(allowed + "/")
                                 and (allowed in ("fabric", "kernels", "bench", "tools") or layer_of(target) == allowed))


def include_fault(root, path, quote, target):
    """Returns what is wrong with an include, or None."""
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
    if target.endswith("_priv.h") and theirs != mine and mine != "tests":
        return f'"{target}" belongs to {theirs} alone'
    if theirs == mine or any(covers(allowed, target) for allowed in MAY_INCLUDE[mine]):
        return None
    return f'"{target}": {mine} may include {", ".join(MAY_INCLUDE[mine]) or "nothing of ours"}'


def cycles(graph):
    """Returns strongly connected components of more than one node, each sorted (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while not part or part[-1] != node:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(tuple(sorted(part)))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def folder_faults():
    """Checks the table: folders must form layers."""
    graph = {a: {layer_of(t + "/") or layer_of(t) for t in row} - {a, None} for a, row in MAY_INCLUDE.items()}
    return ["the table lets folders include each other: " + ", ".join(c) for c in cycles(graph)]


def unit_of(path):
    return os.path.splitext(path)[0]


def tier_faults(graph):
    """Returns units that depend on a higher tier of their folder, or are in no tier."""
    found = []
    for folder, tiers in TIERS.items():
        tier = {f"{folder}/{name}": i for i, names in enumerate(tiers) for name in names.split()}
        for unit in sorted(u for u in graph if os.path.dirname(u) == folder):
            if unit not in tier:
                found.append(f"{unit}: in no tier of its folder")
            found += [f"{unit}: depends on {os.path.basename(other)}, a higher tier" for other in sorted(graph[unit])
                      if tier.get(other, -1) > tier.get(unit, len(tiers))]
        found += [f"TIERS names {unit}, which does not exist" for unit in tier if unit not in graph]
    return found


def unit_faults(texts):
    """Returns cycles between files of one folder, by includes and by names of functions."""
    owner, graph = {}, {}
    for path, text in texts.items():
        graph.setdefault(unit_of(path), set())
        if path.endswith(".c"):
            for match in DEFINITION.finditer(text):
                owner.setdefault(match[1], set()).add(unit_of(path))
    for path, text in texts.items():
        mine = unit_of(path)
        for line in text.splitlines():
            match = INCLUDE.match(line)
            if match and match[2] in texts:
                graph[mine].add(unit_of(match[2]))
        if path.endswith(".c") or path.endswith("_hot.h"):
            for name in set(WORD.findall(COMMENT.sub("", text))):
                if len(owner.get(name, ())) == 1:
                    graph[mine].update(owner[name])
    for unit in graph:
        graph[unit] = {u for u in graph[unit] if u != unit and os.path.dirname(u) == os.path.dirname(unit)}
    found = tier_faults(graph)
    for part in cycles(graph):
        if not part[0].startswith("tests/") and part not in CYCLES:
            ties = "; ".join(f"{os.path.basename(a)} -> {', '.join(sorted(os.path.basename(b) for b in graph[a] if b in part))}" for a in part)
            found.append(f"{os.path.dirname(part[0])}: files depend on each other: {ties}")
    return found + [f"CYCLES names {', '.join(c)}, which is no cycle" for c in CYCLES if c not in cycles(graph)]


def limit_of(limits, path):
    fitting = [name for name in limits if path == name or path.startswith(name + "/")]
    return limits[max(fitting, key=len)] if fitting else None


def length_faults(path, text):
    found = []
    most = limit_of(FILE_LINES, path)
    if most and text.count("\n") > most:
        found.append(f"{path}: {text.count(chr(10))} lines, at most {most}")
    most = limit_of(FUNCTION_LINES, path)
    for match in FUNCTION.finditer(text) if most else ():
        lines = match[1].count("\n") + 2
        if lines > most:
            found.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1}: a function of {lines} lines, at most {most}")
    return found


def sources(root):
    for top in sorted({name.split("/")[0] for name in MAY_INCLUDE}):
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def main(argv):
    root = next((a for a in argv[1:] if not a.startswith("-")), ".")
    if "--table" in argv:
        for folder, row in MAY_INCLUDE.items():
            print(f"{folder:18} {', '.join(row) or '-'}")
        return 0
    texts = {}
    for path in sources(root):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            texts[path] = f.read()
    found = folder_faults() + unit_faults(texts)
    for path, text in texts.items():
        found += length_faults(path, text)
        for number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            fault = match and include_fault(root, path, match[1], match[2])
            if fault:
                found.append(f"{path}:{number}: {fault}")
    print("\n".join(found + [f"# {len(texts)} files, {len(MAY_INCLUDE)} folders, {len(found)} faults"]))
    return 1 if found or not texts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
