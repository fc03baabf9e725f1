"""Compares loops with stages with the same loops under ``provider="cublasdx"``, which forbids stages, on a GPU.

    python benchmarks/forced_provider.py --json benchmarks/results/forced_provider.json

Rows are loops of benchmarks/loops.py. ``share`` is the speed under cuBLASDx, relative to the speed with stages. The
plan (``codegen/loops.py``) quotes the least share of each kind of instruction.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.loops import F32_TILES, F64_TILES, SMALL, TF32_TILES, TILES, Row, call_of, measure_rows, measured

ROWS = (
    *(Row("float16", 4096, *tile, "auto") for tile in (TILES[1], SMALL)),
    Row("tf32", 4096, *TF32_TILES[3], "auto"),
    Row("float64", 4096, *F64_TILES[3], "auto"),
    *(Row("float32", 4096, *tile, "auto") for tile in (F32_TILES[1], F32_TILES[3])),
)


def measure(torch: Any, row: Row) -> dict[str, Any]:
    """The times of a row with both providers, and what the plan says about the cost."""
    import warp_tiles

    torch.backends.cuda.matmul.allow_tf32 = row.dtype == "tf32"
    stages = call_of(torch, row)
    with warp_tiles.override(provider="cublasdx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning whose number this measures
        forced = call_of(torch, row)
    us = measured(torch, {"stages": stages.launch.launch, "cublasdx": forced.launch.launch}).us
    tflops = {name: round(2 * row.size**3 / time / 1e6, 1) for name, time in us.items()}
    share = round(us["stages"] / us["cublasdx"], 3)
    found = {"name": row.name, **asdict(row), "instruction": stages.loop["instruction"], "cost": forced.loop["cost"]}
    return {**found, "us": us, "tflops": tflops, "share": share}


def main(arguments: list[str] | None = None) -> int:
    """Measure all rows, and write the file after each."""
    return measure_rows(__doc__, ROWS, measure, lambda found: f"{found['tflops']}, share {found['share']}", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
