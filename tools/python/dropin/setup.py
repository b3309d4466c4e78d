# SPDX-License-Identifier: Apache-2.0
"""Packs ../deep_ep."""
import atexit
import os
import re
import shutil
import tempfile

from setuptools import setup

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "../../../meson.build"), encoding="utf-8") as project:
    VERSION = re.search(r"version: '([^']+)'", project.read()).group(1)

SCRATCH = tempfile.mkdtemp()  # nothing is written into the source tree
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
OPTIONS = {"build": {"build_base": SCRATCH}, "egg_info": {"egg_base": SCRATCH}}

setup(version=VERSION, packages=["deep_ep", "deep_ep.utils"], package_dir={"deep_ep": "../deep_ep"}, install_requires=[f"ep-fabric=={VERSION}"], options=OPTIONS)
