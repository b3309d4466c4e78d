#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs agents.py: every case with the newest release, one with each other: test_agents.py PLUGIN. Skipped without the wheels (wheels.py)."""
import os
import sys

import wheels

PLUGINS = os.path.dirname(os.path.abspath(sys.argv[1]))
bad = 0
for version in wheels.VERSIONS:
    print(f"# NIXL {version}", flush=True)
    rc, _ = wheels.output([f"{wheels.HERE}/agents.py", *([] if version == wheels.NEWEST else ["write_read_notify"])], version, PLUGINS, timeout=240)
    bad |= rc
sys.exit(bad != 0)
