"""The conditions of a measurement: the machine, the versions and the measured sources."""

from __future__ import annotations

import datetime
import hashlib
import importlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def _nvidia_smi(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def driver_version() -> str:
    return _nvidia_smi("driver_version")


@cache
def source_digest() -> str:
    """Short digest of the package and the device sources. Measurements of two states have different ones."""
    digest = hashlib.sha256()
    for folder, pattern in (("warp_tiles", "*.py"), ("kernels", "*.cuh")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@cache
def torch_with_warp() -> Any:
    """torch, with warp_tiles enabled and Warp's launches on torch's stream."""
    import warp as wp

    import warp_tiles

    torch = importlib.import_module("torch")
    wp.config.log_level = wp.LOG_WARNING
    warp_tiles.enable()
    wp.set_stream(wp.stream_from_torch(torch.cuda.current_stream()))
    return torch


def torch_record() -> dict[str, Any]:
    """:func:`gpu_record` with the versions of torch, which shares its stream with Warp."""
    torch = torch_with_warp()
    return gpu_record() | {"torch": str(torch.__version__), "torch_cuda": torch.version.cuda}


def cpu_record() -> dict[str, Any]:
    import warp as wp

    import warp_tiles
    from warp_tiles.compile.find import dotted, find_toolchain
    from warp_tiles.tuning.record import processor

    toolchain = find_toolchain()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "warp": wp.__version__,
        "warp_tiles": warp_tiles.__version__,
        "sources": source_digest(),
        "nvrtc": dotted(toolchain.nvrtc_version),
        "nvjitlink": dotted(toolchain.nvjitlink_version),
        "mathdx": toolchain.mathdx_version,
    }


def gpu_record() -> dict[str, Any]:
    import warp as wp

    from warp_tiles.compile.find import dotted

    device = wp.get_device("cuda:0")
    return {
        **cpu_record(),
        "gpu": device.name,
        "multiprocessors": device.sm_count,
        "largest_clock_ghz": float(_nvidia_smi("clocks.max.sm")) / 1e3,
        "driver": driver_version(),
        "warp_cuda": dotted(wp.get_cuda_toolkit_version() or (0, 0)),
    }
