"""The clock of records: seconds since warp_tiles was first enabled in this process."""

from __future__ import annotations

import time

_ZERO = time.perf_counter()


def now_s() -> float:
    """Seconds since this module was imported, which :func:`warp_tiles.enable` does."""
    return time.perf_counter() - _ZERO
