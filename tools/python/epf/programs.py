# SPDX-License-Identifier: Apache-2.0
"""ep-fabric, ep-bench and ep-top as an installed wheel has them: beside the libraries."""
from __future__ import annotations

import os
import sys

from .lib import Unavailable


def main() -> None:
    """Becomes the program that this process was started as."""
    from ._installed import LIBDIR
    name = os.path.basename(sys.argv[0])
    path = os.path.join(LIBDIR, name)
    try:
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as error:
        raise Unavailable(f"{path} cannot be run ({error.strerror}); install ep-fabric again") from None
