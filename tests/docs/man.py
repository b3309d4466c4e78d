#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual pages against what they describe: each option of each command's --help, each setting, each counter.

Usage: man.py FOLDER-OF-PAGES EP-FABRIC EP-BENCH [EP-TOP]. Pages are rendered by groff, whose warnings fail too; without groff their
sources are read. It reads --help as people get it, not as the generator does.
"""
import json
import os
import re
import shutil
import subprocess
import sys

OPTION = re.compile(r"^ +(?:-\w, +)?(--[a-z0-9-]+)", re.M)
COMMAND = re.compile(r"^  ([a-z][a-z0-9-]*)  ", re.M)
EVERYWHERE = {"--help", "--usage"}


def render(path):
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tascii", "-P-c", "-ww", "-rLL=200n", path], capture_output=True, text=True, check=True)
        assert not done.stderr, f"{path}: {done.stderr}"
        return re.sub(r".\x08", "", done.stdout)
    with open(path, encoding="utf-8") as f:
        return f.read().replace("\\-", "-")


def text_of(*words):
    return subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout


def check_program(program, page, settings):
    """Number of options seen in the page, each in the part of its command."""
    seen = 0
    name = os.path.basename(program)
    waiting = [[command] for command in COMMAND.findall(text_of(program))]
    assert waiting, f"{program}: no commands"
    while waiting:
        command = waiting.pop()
        usage = text_of(program, *command)
        title = " ".join([name, *command])
        start = page.find(f"\n   {title}\n")
        assert start >= 0 or not shutil.which("groff"), f"no part '{title}'"
        part = page[start:] if start < 0 else page[start:page.find(f"\n   {name} ", start + 1)]
        for option in set(OPTION.findall(usage)) - EVERYWHERE - settings:
            assert option in part, f"{title}: {option} is not in the page"
            seen += 1
        if " COMMAND" in usage.split("\n")[0]:
            waiting += [command + [sub] for sub in COMMAND.findall(usage)]
    return seen


def check_single(program, page):
    """The same for a program without commands."""
    options = set(OPTION.findall(text_of(program))) - EVERYWHERE
    missing = [option for option in options if option not in page]
    assert options and not missing, f"{program}: not in the page: {missing}"
    return len(options)


def main(folder, fabric, bench, top=None):
    pages = {name: render(os.path.join(folder, name)) for name in os.listdir(folder) if re.search(r"\.[1-8]$", name)}
    rows = json.loads(subprocess.run([fabric, "config", "--json"], capture_output=True, text=True, check=True).stdout)
    names = [row["name"] for row in rows["settings"]]
    settings = {f"--{name}" for name in names} | {"--config"}
    options = check_program(fabric, pages["ep-fabric.8"], settings) + check_program(bench, pages["ep-bench.1"], set())
    if top:
        options += check_single(top, pages["ep-top.1"])
    missing = [name for name in names if not re.search(rf"^ *{re.escape(name)} \(", pages["ep-fabric.conf.5"], re.M)]
    assert not missing or not shutil.which("groff"), f"not in ep-fabric.conf(5): {missing}"
    assert len(pages["epf-counters.5"]) > 2000 and "cmds_dequeued" in pages["epf-counters.5"]
    for call in ("epf_open", "epf_join", "epf_put", "epf_flush", "epf_close"):
        assert call in pages["libepf.3"], call
    assert options > 50 and len(names) > 50, (options, len(names))
    print(f"{len(pages)} pages, {options} options, {len(names)} settings")


if __name__ == "__main__":
    main(*sys.argv[1:])
