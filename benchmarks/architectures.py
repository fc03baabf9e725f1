"""Compares the compile time of each architecture with that of sm_90, with this project's own code.

    python benchmarks/architectures.py --json benchmarks/results/architectures.json

A module has one product, one loop of products, or one Cholesky factor. Each is compiled ahead of time, cold, in a
process of its own, for one architecture after another, and the least of its repeats counts. No GPU is needed. The exit
status is 1 if a module is not built from own code, or takes 3 times as long as for sm_90 or longer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.loops import Row
from benchmarks.machine import cpu_record
from benchmarks.measure import Job, build
from warp_tiles.compile.search import dotted, find_toolchain
from warp_tiles.gemm.hardware import MULTIPROCESSORS

PEER, LIMIT, THREADS = 90, 3.0, 128
PRODUCT = """
@wp.kernel(enable_backward=False)
def product(A: wp.array2d(dtype=wp.{stored}), B: wp.array2d(dtype=wp.{stored}), C: wp.array2d(dtype=wp.{total})):
    a = wp.tile_load(A, shape=(64, 32), storage="shared")
    b = wp.tile_load(B, shape=(32, 64), storage="shared")
    c = wp.tile_zeros(shape=(64, 64), dtype=wp.{total}, storage="shared")
    wp.tile_matmul(a, b, c, precision="{precision}")
    wp.tile_store(C, c)
"""
FACTOR = """
@wp.kernel(enable_backward=False)
def factor(A: wp.array2d(dtype=wp.{dtype}), L: wp.array2d(dtype=wp.{dtype})):
    wp.tile_store(L, wp.tile_cholesky(wp.tile_load(A, shape=(32, 32))))
"""


def modules() -> dict[str, str]:
    """The texts of the modules by name."""
    found = {}
    for name, dtype in {
        "fp16": "float16",
        "bf16": "bfloat16",
        "tf32": "tf32",
        "fp32": "float32",
        "fp64": "float64",
    }.items():
        loop = Row(dtype, 4096, 64, 64, 32, THREADS, "auto")
        precision = "tf32" if dtype == "tf32" else "default"
        found[f"product {name}"] = PRODUCT.format(stored=loop.stored, total=loop.total, precision=precision)
        found[f"loop {name}"] = loop.source
    return found | {
        f"cholesky {name}": FACTOR.format(dtype=dtype) for name, dtype in (("fp32", "float32"), ("fp64", "float64"))
    }


def measured(text: str, arch: int) -> dict[str, Any]:
    """One cold build."""
    with tempfile.TemporaryDirectory() as folder:
        warp, tiles, out = (str(Path(folder) / name) for name in ("warp", "tiles", "out"))
        settings = (("WARP_TILES_PROVIDER", "mma"),)
        return build(Job((text,), True, arch, THREADS, warp, tiles, out, settings, imported=True))


def main() -> int:
    """Entry point. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    seconds: dict[int, dict[str, float]] = {arch: {} for arch in MULTIPROCESSORS}
    left: dict[int, list[str]] = {arch: [] for arch in MULTIPROCESSORS}
    for name, text in modules().items():
        for _ in range(arguments.repeats):
            for arch, times in seconds.items():
                found = measured(text, arch)
                times[name] = min(found["seconds"], times.get(name, found["seconds"]))
                if found["linkers"] != ["warp_tiles"] and name not in left[arch]:
                    left[arch].append(name)
        print(name, {arch: times[name] for arch, times in seconds.items()}, flush=True)
    rows: list[dict[str, Any]] = []
    for arch, times in seconds.items():
        ratios = {name: time / seconds[PEER][name] for name, time in times.items()}
        slowest = max(ratios, key=ratios.__getitem__)
        state = f"left to Warp: {', '.join(left[arch])}" if left[arch] else "own code"
        rows.append(
            {
                "arch": arch,
                "seconds": round(sum(times.values()), 2),
                "ratio": round(sum(times.values()) / sum(seconds[PEER].values()), 3),
                "slowest": slowest,
                "slowest_ratio": round(ratios[slowest], 3),
                "state": state,
                "modules": times,
            }
        )
        print(rows[-1], flush=True)
    toolchain = find_toolchain()
    record = {
        **cpu_record(),
        "nvrtc": dotted(toolchain.nvrtc_version),
        "nvjitlink": dotted(toolchain.nvjitlink_version),
        "peer": PEER,
        "limit": LIMIT,
        "repeats": arguments.repeats,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")
    return int(any(row["slowest_ratio"] >= LIMIT or row["state"] != "own code" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
