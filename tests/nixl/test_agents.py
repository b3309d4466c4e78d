#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs agents.py: every case with the newest release, some of them again over NICs, one with each other release: test_agents.py PLUGIN PLUGIN-WITH-FAKE-GPU. Skipped without the wheels (wheels.py)."""
import os
import sys

import wheels

PLUGINS = os.path.dirname(os.path.abspath(sys.argv[1]))
bad = 0
for version in wheels.VERSIONS:
    print(f"# NIXL {version}", flush=True)
    rc, _ = wheels.output([f"{wheels.HERE}/agents.py", *([] if version == wheels.NEWEST else ["write_read_notify"])], version, PLUGINS, timeout=240)
    bad |= rc
print("# GPU memory, of a fake GPU", flush=True)
os.environ["EPF_GPU_BACKEND"] = "fake"
rc, _ = wheels.output([f"{wheels.HERE}/agents.py", "gpu_memory"], wheels.NEWEST, os.path.dirname(os.path.abspath(sys.argv[2])), timeout=240)
bad |= rc
del os.environ["EPF_GPU_BACKEND"]
print("# over NICs, as between machines", flush=True)
os.environ["EPF_P2P_LOCAL"] = "no"
rc, _ = wheels.output([f"{wheels.HERE}/agents.py", "write_read_notify", "prepared_lists", "killed_peer", "deregistered_under_traffic"], wheels.NEWEST, PLUGINS, timeout=240)
bad |= rc
sys.exit(bad != 0)
