# SPDX-License-Identifier: Apache-2.0
"""What DeepEP's own test programs import from this package: our versions, which do the same."""
from ..event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
