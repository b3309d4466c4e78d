#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs agents.py: every case with the newest release, some of them again over NICs, one with each other release: test_agents.py PLUGIN. Skipped without the wheels (wheels.py)."""
import os
import sys

import wheels

PLUGINS = os.path.dirname(os.path.abspath(sys.argv[1]))
bad = 0
for version in wheels.VERSIONS:
    print(f"# NIXL {version}", flush=True)
    rc, _ = wheels.output([f"{wheels.HERE}/agents.py", *([] if version == wheels.NEWEST else ["write_read_notify"])], version, PLUGINS, timeout=240)
    bad |= rc
print("# over NICs, as between machines", flush=True)
os.environ["EPF_P2P_LOCAL"] = "no"
rc, _ = wheels.output([f"{wheels.HERE}/agents.py", "write_read_notify", "prepared_lists", "killed_peer", "deregistered_under_traffic"], wheels.NEWEST, PLUGINS, timeout=240)
bad |= rc
sys.exit(bad != 0)
