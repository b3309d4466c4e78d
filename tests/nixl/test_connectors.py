#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs connectors.py with the newest release of NIXL: test_connectors.py PLUGIN. Skipped without the wheels (wheels.py)."""
import os
import sys

import wheels

sys.exit(wheels.output([f"{wheels.HERE}/connectors.py"], wheels.NEWEST, os.path.dirname(os.path.abspath(sys.argv[1])), timeout=150)[0])
