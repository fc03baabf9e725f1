"""The machine that something is measured on, from Warp."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

from warp_tiles.tuning.key import Environment
from warp_tiles.tuning.space import CPU_LIMITS, Limits
from warp_tiles.version import __version__

_CPUINFO = Path("/proc/cpuinfo")
_CPUINFO_BYTES = 4096  # the first core


def environment_of(device: Any) -> Environment:
    """What a measurement on a Warp device holds for.

    Args:
        device: Warp's device, or its name.
    """
    import warp as wp

    found = wp.get_device(device)
    if found.is_cpu:
        return Environment(processor(), None, os.cpu_count() or 1, wp.__version__, "", __version__)
    driver = ".".join(map(str, wp.get_cuda_driver_version() or ()))
    return Environment(found.name, found.arch, found.sm_count, wp.__version__, driver, __version__)


def limits_of(device: Any) -> Limits:
    """What a Warp device offers one block."""
    import warp as wp

    found = wp.get_device(device)
    return CPU_LIMITS if found.is_cpu else Limits(shared_bytes=found.max_shared_memory_per_block)


@lru_cache(maxsize=1)
def processor() -> str:
    """Name of the processor."""
    try:
        with _CPUINFO.open(encoding="utf-8", errors="replace") as file:
            for line in file.read(_CPUINFO_BYTES).splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "cpu"
