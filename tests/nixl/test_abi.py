#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Verifies tools/nixl/nixl_abi.h against NIXL's wheels: test_abi.py PLUGIN-EPF PLUGIN-PROBE. Skipped without the wheels (wheels.py).

The virtual functions: names, signatures and order, by the symbols of the wheel's UCX plug-in. The fields of what an agent passes and reads, by what the probe
wrote down. The refusal of other releases, by a wheel whose version was changed.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import wheels

PLUGIN, PROBE = map(os.path.abspath, sys.argv[1:3])


def said_by(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def virtual_functions(library, name, *options):
    """Returns {slot: mangled name without its class} of a class. Slots of pure type information are left out."""
    at, table = {}, None
    for line in said_by("nm", "-S", *options, library).splitlines():
        fields = line.split()
        if len(fields) != 4:
            continue
        at.setdefault(int(fields[0], 16), set()).add(fields[3])
        if fields[3] == f"_ZTV{name}":
            table = (int(fields[0], 16), int(fields[1], 16))
    assert table, f"{library} has no table of {name}"
    slots = {}
    for line in said_by("readelf", "-rW", library).splitlines():
        fields = line.split()
        if len(fields) < 4 or not re.fullmatch("[0-9a-f]{16}", fields[0]) or not table[0] <= int(fields[0], 16) < sum(table):
            continue
        names = at.get(int(fields[3], 16), set()) if "RELATIVE" in fields[2] else {fields[4].split("@")[0]}
        mine = [n for n in names if name in n or "17nixlBackendEngine" in n]
        if mine and not mine[0].startswith("_ZTI"):
            slots[(int(fields[0], 16) - table[0]) // 8] = mine[0].replace(name, "@").replace("17nixlBackendEngine", "@")
    return slots


def virtual_functions_have_nixls_order():
    ours = virtual_functions(PLUGIN, "13epfNixlEngine")
    assert len(ours) == 27, ours
    for version in wheels.VERSIONS:
        theirs = virtual_functions(f"{wheels.wheel(version)}/.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so", "13nixlUcxEngine", "-D")
        # Destructors have names of their own in a final class; both have two, in front.
        wrong = {slot: (ours.get(slot), theirs[slot]) for slot in range(4, 29) if ours.get(slot) != theirs.get(slot)}
        assert not wrong, f"NIXL {version}: {wrong}"
        assert all("D" in theirs[slot] for slot in (2, 3))


DRIVER = """
import os, sys
from nixl_cu12._api import nixl_agent, nixl_agent_config
import nixl_cu12._bindings as raw
log = sys.argv[1]
def make(name, **extra):
    one = nixl_agent(name, nixl_agent_config(enable_prog_thread=name == "first", backends=[]))
    one.create_backend("PROBE", {"log": log + "." + name, "also": "this", **extra})
    return one
one, two = make("first"), make("second")
print("params", sorted(one.get_backend_params("PROBE").items()), one.get_backend_mem_types("PROBE"), one.get_plugin_params("PROBE"))
try:
    make("third", fail="1")
    print("a failed back end was accepted")
except Exception as error:
    print("refused", type(error).__name__)
a = one.register_memory([(0x10000, 0x1000, 5, "first blob"), (0x20000, 0x2000, 5, "")], "VRAM")
b = two.register_memory([(0x30000, 0x3000, 0, "")], "DRAM")
name = one.add_remote_agent(two.get_agent_metadata()).decode()
one.make_connection(name)
h = one.initialize_xfer("READ", one.get_xfer_descs([(0x10010, 16, 5), (0x20020, 32, 5)], "VRAM"),
                        one.get_xfer_descs([(0x30000, 16, 0), (0x30100, 32, 0)], "DRAM"), name, b"with a note")
print("states", one.transfer(h), one.check_xfer_state(h), one.get_new_notifs())
one.release_xfer_handle(h)
one.send_notif(name, b"alone")
one.deregister_memory(a)
one.remove_remote_agent(name)
del one, two
os.environ.update(NIXL_TELEMETRY_ENABLE="y", NIXL_TELEMETRY_DIR=os.path.dirname(log))
config = raw.nixlAgentConfig()
config.useProgThread, config.pthrDelay, config.syncMode, config.captureTelemetry = False, 123456789012, raw.NIXL_THREAD_SYNC_RW, True
other = raw.nixlAgent("other", config)
other.createBackend("PROBE", {"log": log + ".other"})
"""

OTHER = "init other PROBE 1 0 123456789012 2 1"
EXPECTED = """init first PROBE 2 1 0 0 0
register 1 10000 4096 5 first blob
register 1 20000 8192 5
load-connection second: connection of second
load second: 0 30000 12288 0 public of second
connect second
prepare 0 second 2 1 0 20020 32 30100 0 1 with a note
post 0 second 2 1 0 20020 32 30100 0 1 with a note
check
release
notify second: alone
deregister
deregister
unload
disconnect second
destroyed"""


def fields_are_where_the_agent_puts_them():
    for version in wheels.VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            rc, said = wheels.output(["-c", DRIVER, f"{folder}/log"], version, os.path.dirname(PROBE))
            assert rc == 0, f"NIXL {version}: exit status {rc}"
            lines, other = ([line.rstrip() for line in open(f"{folder}/log.{name}", encoding="utf-8")] for name in ("first", "other"))
        assert lines[0] == EXPECTED.splitlines()[0] and sorted(lines) == sorted(EXPECTED.splitlines()), f"NIXL {version}: " + "\n".join(lines)
        assert other[0] == OTHER, f"NIXL {version}: {other[0]}"
        assert "[('also', 'this'), ('log', " in said and "['VRAM_SEG', 'DRAM_SEG'] {'log': ''}" in said, said
        assert "refused nixlBackendError" in said and "states PROC DONE {'somebody': [b'a message']}" in said, said


def other_releases_are_refused_in_one_line():
    with tempfile.TemporaryDirectory() as folder:
        source = wheels.wheel(wheels.NEWEST)
        for entry in os.listdir(source):
            if entry.endswith(".dist-info"):
                os.mkdir(f"{folder}/{entry.replace('-1.5.', '-1.6.')}")
            elif entry in ("nixl_cu12", ".nixl_cu12.mesonpy.libs"):  # copied: what they load is found relative to them
                shutil.copytree(f"{source}/{entry}", f"{folder}/{entry}")
            else:
                os.symlink(f"{source}/{entry}", f"{folder}/{entry}")
        env = {**wheels.environment(wheels.NEWEST, os.path.dirname(PLUGIN)), "PYTHONPATH": f"{folder}:{wheels.HERE}"}
        done = subprocess.run([wheels.PYTHON, "-c", "import wheels\nwheels.agent('one')"], env=env, capture_output=True, text=True, timeout=60, check=False)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ep-fabric: ")]
        assert done.returncode and len(lines) == 1, done.stderr
        assert re.search(r"NIXL: version 1\.6\.\d+ is none that .* tried with \(1\.3 to 1\.5\): install one of these, or build", lines[0]), lines


wheels.run([virtual_functions_have_nixls_order, fields_are_where_the_agent_puts_them, other_releases_are_refused_in_one_line])
