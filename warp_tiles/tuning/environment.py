"""The machine of a measurement, as Warp describes it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from warp_tiles.errors import ToolchainError
from warp_tiles.tuning.key import Environment
from warp_tiles.tuning.space import CPU_LIMITS, Limits
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import warn

_CPUINFO = Path("/proc/cpuinfo")
_CPUINFO_BYTES = 8192  # holds the first core


def environment_of(device: Any) -> Environment:
    """Returns the environment for which a measurement on a Warp device is valid.

    Args:
        device: Warp's device, or its name.
    """
    import warp as wp

    found = wp.get_device(device)
    if found.is_cpu:
        return Environment(processor(), None, os.cpu_count() or 1, wp.__version__, "", __version__)
    driver = ".".join(map(str, wp.get_cuda_driver_version() or ()))
    return Environment(found.name, found.arch, found.sm_count, wp.__version__, driver, __version__)


def alike(device: Any, others: Iterable[Any]) -> list[Any]:
    """Returns the GPUs with the same name, architecture and multiprocessor count, whose measurements hold for a device.

    Args:
        others: Warp's devices; no CUDA context is made on those that differ.

    Returns:
        The matching GPUs of ``others``, each once and without ``device``.
    """
    kind = (device.name, device.arch, device.sm_count) if device.is_cuda else None
    found = {
        other.alias: other
        for other in others
        if other.is_cuda and other.alias != device.alias and (other.name, other.arch, other.sm_count) == kind
    }
    return list(found.values())


def sharing_gpus(names: Sequence[str] = ()) -> list[Any]:
    """Returns the GPUs that tune together. Their results hold for each of them.

    Args:
        names: Warp's names of GPUs; the first is the one to tune for. Empty for Warp's default GPU and all like it.

    Returns:
        Warp's devices; the first is the one to tune for. GPUs unlike it are left out, with a warning if they were
        named.

    Raises:
        ToolchainError: There is no GPU, or none with a given name.
    """
    import warp as wp

    wp.init()
    present = {device.alias: device for device in wp.get_cuda_devices()}
    if not present:
        seen = ", ".join(f"{device.alias} ({device.name})" for device in wp.get_devices())
        raise ToolchainError(
            f"tuning needs an NVIDIA GPU, and Warp found none: {seen}",
            remedy="run it on the machine whose GPU is to be tuned, and copy its records with `warp-tiles tune export`",
        )
    unknown = [name for name in names if name not in present]
    if unknown:
        raise ToolchainError(
            f"there is no GPU {', '.join(unknown)}",
            remedy=f"name some of {', '.join(present)}; CUDA_VISIBLE_DEVICES says which ones programs see",
        )
    default = present.get(wp.get_device().alias)  # the CPU may be the default device
    first, *others = [present[name] for name in names] or [*filter(None, (default,)), *present.values()]
    found = [first, *alike(first, others)]
    for other in others if names else ():
        if other.alias not in {device.alias for device in found}:
            text = f"{other.alias} ({other.name}, {other.sm_count} multiprocessors) is not used for tuning"
            unlike = f"{first.alias} is a different GPU ({first.name}, {first.sm_count})"
            warn(f"{text}: {unlike}")
    return found


def limits_of(device: Any) -> Limits:
    """Limits of one block on a Warp device."""
    import warp as wp

    found = wp.get_device(device)
    return CPU_LIMITS if found.is_cpu else Limits(shared_bytes=found.max_shared_memory_per_block)


@lru_cache(maxsize=1)
def processor() -> str:
    """Name of the processor."""
    with suppress(OSError), _CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file.read(_CPUINFO_BYTES).splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "cpu"
