"""Measures NVRTC time and LTO-IR size of single functions of the provider ``mma``, in a separate process.

python -m benchmarks.variant_times      # prints JSON; no GPU is needed
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import environment

ROOT = Path(__file__).resolve().parent.parent
THREADS, ARCH, REPEATS = 128, 90, 7
TYPES = {
    "fp16": ("float16", "float32", "default"),
    "bf16": ("bfloat16", "float32", "default"),
    "tf32": ("float32", "float32", "tf32"),
    "fp32": ("float32", "float32", "default"),
    "fp64": ("float64", "float64", "default"),
}
SIZES = (64, 16, 6)  # M, N and K


def _rows() -> Iterator[dict[str, Any]]:
    from warp_tiles.compile.toolchain import ToolchainStore
    from warp_tiles.compile.worker import run
    from warp_tiles.errors import WarpTilesError
    from warp_tiles.gemm.dispatch import Target, Tile, products
    from warp_tiles.providers.mma import MmaProvider

    with tempfile.TemporaryDirectory() as folder:
        provider = MmaProvider(ToolchainStore(Path(folder)))
        warm = True
        for types, (ab, c, precision) in TYPES.items():
            for size in SIZES:
                tiles = [Tile(dtype, (size, size), (size, 1), "row_major", True) for dtype in (ab, ab, c)]  # type: ignore[arg-type]
                found = products(*tiles, precision=precision, target=Target(ARCH, THREADS))  # type: ignore[arg-type]
                for role, variant in found.variants.items():
                    row = {"types": types, "size": size, "role": role.value}
                    try:
                        request = provider.request(provider.recipes(variant)[0])
                        if warm:  # the first loads the compiler
                            run(request)
                            warm = False
                        built = [run(request) for _ in range(REPEATS)]
                    except WarpTilesError as error:
                        yield {**row, "error": str(error)[:2000]}
                        continue
                    yield {
                        **row,
                        "milliseconds": round(statistics.median(each.seconds for each in built) * 1e3, 1),
                        "lto_bytes": len(built[0].payload),
                        "compiler": built[0].compiler,
                    }


def variant_times() -> list[dict[str, Any]]:
    """Measure one row for each dtype, size and role, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.variant_times"]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"the variants could not be built:\n{run.stdout}\n{run.stderr}")
    rows: list[dict[str, Any]] = json.loads(run.stdout)
    return rows


if __name__ == "__main__":
    print(json.dumps(list(_rows()), indent=1))
