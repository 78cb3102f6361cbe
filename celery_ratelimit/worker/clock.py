"""The gate's clock: read here and nowhere else in it. Whatever is decided is decided for a time that is given."""

from __future__ import annotations

import time

__all__ = ["monotonic"]


def monotonic() -> float:
    """Seconds; of use only beside others of this worker."""
    return time.monotonic()
