#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recorded sysfs trees: makes a folder from a text file, or such a text from a machine.

    tree.py expand FILE FOLDER      tree.py record [SYSFS] >FILE

A line of a tree file is one of these; paths are relative to the root of the tree:

    PATH = TEXT             a file with that text and a line end
    PATH -> TARGET          a symbolic link
    PATH/                   an empty folder
    pci PLACE KEY=VALUE...  a PCI device and its link in bus/pci/devices. PLACE is its way down from the root complex:
                            pci0000:44/44:00.0/45:00.0; the domain of the root goes for all. Bridges on the way are made too.
                            class=, vendor=, device= (hexadecimal), node= (default -1), cpus= (default: none)
    rdma NAME ADDRESS KEY=VALUE...   an RDMA device on a PCI device named before ("-": on none) with one port:
                            port= (1), state= ("4: ACTIVE"), link= (InfiniBand), rate= ("400 Gb/sec (4X NDR)")
    # ...                   a comment

Values with blanks go in double quotes. Used by tests/unit/place/test_place.c; `record` is for people with a machine worth testing: its
output names PCI addresses and device names of that machine, no serial numbers and no network addresses.
"""
import os
import re
import shlex
import sys

PCI_FILES = ("class", "vendor", "device", "numa_node", "local_cpulist")
PORT_FILES = ("state", "link_layer", "rate")


class Tree:
    def __init__(self, root):
        self.root = root
        self.pci = {}  # address: path below the root

    def path(self, name):
        full = os.path.normpath(os.path.join(self.root, name))
        if os.path.commonpath([full, self.root]) != self.root:
            raise ValueError(f"{name} leads out of the tree")
        return full

    def file(self, name, text):
        full = self.path(name)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text + "\n")

    def link(self, name, target):
        full = self.path(name)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        os.symlink(target, full)

    def relative(self, name, target):
        """A link as the kernel writes them: relative to where it stands."""
        self.link(name, os.path.relpath(target, os.path.dirname(name)))

    def pci_device(self, place, values):
        root, *steps = place.split("/")
        domain = root[3:].split(":")[0]
        path = f"devices/{root}"
        for i, step in enumerate(steps):
            address = f"{domain}:{step}"
            path += f"/{address}"
            if address in self.pci:
                continue
            self.pci[address] = path
            last = i == len(steps) - 1
            own = values if last else {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}
            for key in ("class", "vendor", "device"):
                self.file(f"{path}/{key}", own[key])
            self.file(f"{path}/numa_node", values.get("node", "-1"))
            self.file(f"{path}/local_cpulist", values.get("cpus", ""))
            self.relative(f"bus/pci/devices/{address}", path)

    def rdma_device(self, name, address, values):
        where = f"{self.pci[address]}" if address != "-" else "devices/virtual"
        home = f"{where}/infiniband/{name}"
        port = f"{home}/ports/{values.get('port', '1')}"
        self.file(f"{port}/state", values.get("state", "4: ACTIVE"))
        self.file(f"{port}/link_layer", values.get("link", "InfiniBand"))
        self.file(f"{port}/rate", values.get("rate", "400 Gb/sec (4X NDR)"))
        if not os.path.lexists(self.path(f"class/infiniband/{name}")):
            self.relative(f"class/infiniband/{name}", home)
            if address != "-":
                self.relative(f"{home}/device", where)

    def line(self, text):
        if not text or text.startswith("#"):
            return
        word = text.split(None, 1)[0]
        if word in ("pci", "rdma"):
            fields = shlex.split(text)
            values = dict(f.split("=", 1) for f in fields[1:] if "=" in f)
            names = [f for f in fields[1:] if "=" not in f]
            (self.pci_device if word == "pci" else self.rdma_device)(*names, values)
        elif m := re.fullmatch(r"(\S+) -> (\S+)", text):
            self.link(m[1], m[2])
        elif m := re.fullmatch(r"(\S+) =(?: (.*))?", text):
            self.file(m[1], m[2] or "")
        elif text.endswith("/"):
            os.makedirs(self.path(text), exist_ok=True)
        else:
            raise ValueError("not a line of a tree file")


def expand(source, folder):
    tree = Tree(os.path.realpath(folder))
    with open(source, encoding="utf-8") as f:
        for number, text in enumerate(f, 1):
            try:
                tree.line(text.strip())
            except (KeyError, OSError, TypeError, ValueError) as e:
                raise SystemExit(f"{source}:{number}: {e!r}: {text.strip()}")


def show_file(sysfs, name):
    try:
        with open(os.path.join(sysfs, name), encoding="utf-8", errors="replace") as f:
            print(f"{name} = {f.read().strip()}")
    except OSError as e:
        print(f"# {name}: {e.strerror}")


def show_link(sysfs, name):
    try:
        print(f"{name} -> {os.readlink(os.path.join(sysfs, name))}")
    except OSError as e:
        print(f"# {name}: {e.strerror}")


def names(sysfs, folder, pattern="[^.].*"):
    try:
        return sorted(n for n in os.listdir(os.path.join(sysfs, folder)) if re.fullmatch(pattern, n))
    except OSError:
        return []


def record(sysfs):
    sysfs = os.path.realpath(sysfs)
    print("# Captured by tests/place/tree.py record.")
    show_file(sysfs, "devices/system/node/has_memory")
    for node in names(sysfs, "devices/system/node", r"node\d+"):
        show_file(sysfs, f"devices/system/node/{node}/cpulist")
    show_file(sysfs, "devices/system/cpu/online")
    for cpu in names(sysfs, "devices/system/cpu", r"cpu\d+"):
        show_file(sysfs, f"devices/system/cpu/{cpu}/topology/thread_siblings_list")
    for pci in names(sysfs, "bus/pci/devices"):
        show_link(sysfs, f"bus/pci/devices/{pci}")
        where = os.path.relpath(os.path.realpath(f"{sysfs}/bus/pci/devices/{pci}"), sysfs)
        for name in PCI_FILES:
            show_file(sysfs, f"{where}/{name}")
    for nic in names(sysfs, "class/infiniband"):
        show_link(sysfs, f"class/infiniband/{nic}")
        home = os.path.relpath(os.path.realpath(f"{sysfs}/class/infiniband/{nic}"), sysfs)
        if os.path.lexists(f"{sysfs}/{home}/device"):
            show_link(sysfs, f"{home}/device")
        elif os.path.exists(f"{sysfs}/{home}/parent"):
            show_file(sysfs, f"{home}/parent")
        for port in names(sysfs, f"{home}/ports"):
            for name in PORT_FILES:
                show_file(sysfs, f"{home}/ports/{port}/{name}")


def main(argv):
    if len(argv) == 4 and argv[1] == "expand":
        expand(argv[2], argv[3])
    elif len(argv) in (2, 3) and argv[1] == "record":
        record(argv[2] if len(argv) == 3 else "/sys")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
