#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs connectors.py with the newest release of NIXL: test_connectors.py PLUGIN. Skipped without the wheels (wheels.py)."""
import os
import sys

import wheels

os.environ["NIXL_TELEMETRY_ENABLE"] = "y"  # vLLM asks for the time of each transfer
sys.exit(wheels.output([f"{wheels.HERE}/connectors.py"], wheels.NEWEST, os.path.dirname(os.path.abspath(sys.argv[1])), timeout=150)[0])
