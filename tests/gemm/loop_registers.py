"""Registers of a thread in loops with stages: the estimate, and what ptxas takes without a limit.

    python -m tests.gemm.loop_registers          writes tests/gemm/loop_registers.json, in minutes

Needs no GPU. The table has a row for each instruction, number of accumulators and class of architectures.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import warp_tiles
from benchmarks.loops import Row
from benchmarks.speed.cubin import registers
from tests.integration.helpers import compile_module, load
from warp_tiles.compile.find import dotted, find_toolchain
from warp_tiles.plan import planner

TABLE = Path(__file__).with_suffix(".json")
ARCHS = (80, 89, 90, 100, 120)  # of each class of estimates, and of each size of shared memory
BELOW = 40  # registers that the estimate may lack: ptxas spends those that are free
BELOW_OF_COLUMNS = 56  # in fp64 with columns of B on sm_90, whose pipelines were measured with this estimate
TILES = {
    "float16": ((16, 16, 16, 32), (32, 32, 32, 64), (64, 64, 64, 128), (128, 128, 32, 256), (128, 128, 32, 128)),
    "tf32": ((32, 32, 32, 64), (64, 64, 32, 128), (128, 128, 32, 256), (128, 128, 32, 128)),
    "float64": ((32, 32, 16, 128), (32, 32, 16, 64), (64, 64, 16, 128), (128, 64, 16, 256), (128, 64, 16, 128)),
    "float32": ((32, 32, 16, 64), (64, 64, 32, 128), (64, 64, 16, 64), (128, 128, 32, 256), (128, 128, 16, 128)),
}


def rows() -> Iterator[tuple[Row, int]]:
    """The loops and their architectures."""
    for (dtype, tiles), columns, arch in itertools.product(TILES.items(), (False, True), ARCHS):
        families = ("auto", "mma") if arch == 90 and dtype in ("float16", "tf32") else ("auto",)
        for tile, family in itertools.product(tiles, families):
            yield Row(dtype, 4096, *tile, family, columns), arch


def most_below(loop: str, arch: int) -> int:
    """Registers that the estimate of a loop may lack."""
    return BELOW_OF_COLUMNS if arch == 90 and loop.startswith("float64") and "B columns" in loop else BELOW


def measured(row: Row, arch: int) -> dict[str, Any] | None:
    """The estimate for one loop, and the registers that ptxas takes; None if the loop has no stages."""
    unlimited = planner.with_register_limit

    def without_limit(plan: planner.ModulePlan) -> planner.ModulePlan:
        return replace(unlimited(plan), register_limit=None, register_limit_reason="")

    with (
        patch.object(planner, "with_register_limit", without_limit),
        warp_tiles.override(main_loop=row.main_loop),
        tempfile.TemporaryDirectory() as folder,
    ):
        cubin, record = compile_module(load(row.source, block_dim=row.threads), Path(folder), arch)
        taken = registers(cubin.read_bytes())
    (loop,) = record["loops"]
    if not loop["instruction"]:
        return None
    return {
        "loop": row.name,
        "arch": arch,
        **{name: loop[name] for name in ("instruction", "accumulators", "operands")},
        "estimate": loop["registers"],
        "registers": max(taken.values()),
    }


def main() -> None:
    """Entry point."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with warp_tiles.enabled():
        found = [line for row, arch in rows() if (line := measured(row, arch)) is not None]
    text = ",\n".join(f"  {json.dumps(line)}" for line in found)
    compiler = f"NVRTC {dotted(find_toolchain().nvrtc_version)}"
    TABLE.write_text(f'{{"compiler": "{compiler}", "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
