#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples for Kubernetes and Slurm: readable, and every ep-fabric command and EPF_ variable in them exists.

Usage: examples.py FOLDER EP-FABRIC. YAML is parsed where python3-yaml is there, else only read as text.
"""
import json
import os
import re
import subprocess
import sys


def main(folder, fabric):
    usage = subprocess.run([fabric, "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^  ([a-z]+) ", usage, re.M))
    rows = json.loads(subprocess.run([fabric, "config", "--json"], capture_output=True, text=True, check=True).stdout)["settings"]
    variables = {"EPF_" + row["name"].upper().replace("-", "_") for row in rows}
    with open(os.path.join(folder, "daemonset.yaml"), encoding="utf-8") as f:
        yaml_text = f.read()
    with open(os.path.join(folder, "slurm-prolog.sh"), encoding="utf-8") as f:
        shell_text = f.read()
    used = set(re.findall(r"\bep-fabric (?!run to)([a-z]+)\b(?= |$|:)", shell_text, re.M)) | set(
        re.findall(r'"ep-fabric", "([a-z]+)"', yaml_text))
    assert {"run", "status", "doctor"} <= used and used <= commands, used - commands
    named = set(re.findall(r"EPF_[A-Z_]+", yaml_text + shell_text))
    assert named and named <= variables, named - variables
    subprocess.run(["sh", "-n", os.path.join(folder, "slurm-prolog.sh")], check=True)
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("python3-yaml is not here: the YAML was read as text only")
        return
    top = yaml.safe_load(yaml_text)
    pod = top["spec"]["template"]
    assert top["kind"] == "DaemonSet" and pod["metadata"]["labels"] == top["spec"]["selector"]["matchLabels"]
    mounts = {m["name"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]}
    assert mounts == {v["name"] for v in pod["spec"]["volumes"]}
    print(f"{len(used)} commands, {len(named)} variables")


if __name__ == "__main__":
    main(*sys.argv[1:])
