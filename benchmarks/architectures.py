"""Compares the compile time of each architecture with that of sm_90, with this project's own code.

    python benchmarks/architectures.py --json benchmarks/results/architectures.json

A row is a module with one product, one loop of products, or one Cholesky factor. It is compiled ahead of time, cold, in
a process of its own, for one architecture after another, and the least of its repeats counts. No GPU is needed. The
exit status is 1 if a module is not built from own code, or takes 3 times as long as for sm_90 or longer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.loops import Row as Loop
from benchmarks.machine import cpu_record
from benchmarks.measure import Job, build
from benchmarks.runner import Row
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


@dataclass(frozen=True)
class Case:
    """A module."""

    name: str
    text: str


def modules() -> Iterator[Case]:
    types = {"fp16": "float16", "bf16": "bfloat16", "tf32": "tf32", "fp32": "float32", "fp64": "float64"}
    for name, dtype in types.items():
        loop = Loop(dtype, 4096, 64, 64, 32, THREADS, "auto")
        product = PRODUCT.format(stored=loop.stored, total=loop.total, precision=loop.precision)
        yield from (Case(f"product {name}", product), Case(f"loop {name}", loop.source))
    yield from (Case(f"cholesky {name}", FACTOR.format(dtype=types[name])) for name in ("fp32", "fp64"))


def compiled(text: str, arch: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        folders = (f"{folder}/warp", f"{folder}/tiles", f"{folder}/out")
        return build(Job((text,), True, arch, THREADS, *folders, (("WARP_TILES_PROVIDER", "own"),), imported=True))


def measure(case: Case, options: argparse.Namespace) -> Row:
    """The least seconds of each architecture, and the architectures whose build is left to Warp."""
    sides = {str(arch): partial(compiled, case.text, arch) for arch in MULTIPROCESSORS}
    found = runner.alternately(sides, options.repeats)
    left = [arch for arch, builds in found.items() if any(one["linkers"] != ["warp_tiles"] for one in builds)]
    return {"seconds": {arch: min(one["seconds"] for one in builds) for arch, builds in found.items()}, "left": left}


def ratios(row: Row) -> dict[str, float]:
    return {arch: seconds / row["seconds"][str(PEER)] for arch, seconds in row["seconds"].items()}


def summary(rows: list[Row]) -> Row:
    """The sums of all modules by architecture, beside those of sm_90."""
    found: list[Row] = []
    totals = {arch: sum(row["seconds"][str(arch)] for row in rows) for arch in MULTIPROCESSORS}
    for arch, total in totals.items():
        slowest = max(rows, key=lambda row: ratios(row)[str(arch)])
        left = ", ".join(row["name"] for row in rows if str(arch) in row["left"])
        found.append(
            {
                "arch": arch,
                "seconds": round(total, 2),
                "ratio": round(total / totals[PEER], 3),
                "slowest": slowest["name"],
                "slowest_ratio": round(ratios(slowest)[str(arch)], 3),
                "state": f"left to Warp: {left}" if left else "own code",
            }
        )
    return {"peer": PEER, "limit": LIMIT, "architectures": found}


main = runner.command(
    __doc__,
    list(modules()),
    measure,
    lambda options: cpu_record(),
    repeats=2,
    summarize=summary,
    is_bad=lambda row: bool(row["left"]) or max(ratios(row).values()) >= LIMIT,
)


if __name__ == "__main__":
    sys.exit(main())
