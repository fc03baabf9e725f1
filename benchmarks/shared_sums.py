"""Measures the gain from split-K over warps: the chooser's pick against its best tile without, on random products.

    python benchmarks/shared_sums.py --json benchmarks/results/shared_sums.json

M and N are 4 to 64, and K is 64 to 512. A, B and C are packed, in either arrangement. The tuner's benchmark is timed:
half of its products run in a loop whose sums stay in registers, and half run one by one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.gemm import table_text
from benchmarks.machine import gpu_record
from benchmarks.speed.cells import DTYPES, Types
from benchmarks.speed.ratios import geometric_mean
from warp_tiles.gemm.dispatch import Target, Tile, products
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.heuristics.choose import choose, ranked
from warp_tiles.tuning.gemm import Measurer
from warp_tiles.tuning.gemm_space import config_of
from warp_tiles.tuning.record import Timing, identity
from warp_tiles.util.files import write_atomic

SHARED_BYTES = 220_000  # for A, B and C
SIZES, DEPTHS = (4, 8, 12, 16, 24, 32, 48, 64), (64, 96, 128, 192, 256, 384, 512)
THREADS = (64, 128, 192, 256)
TYPES: tuple[Types, ...] = ("fp16", "bf16", "tf32", "fp64")


def _tile(dtype: str, rows: int, columns: int, row_major: bool) -> Tile:
    strides = (columns, 1) if row_major else (1, rows)
    return Tile(dtype, (rows, columns), strides, "row_major" if row_major else "col_major", True)  # type: ignore[arg-type]


def drawn(random_numbers: random.Random) -> Iterator[tuple[Types, GemmProblem]]:
    """Yield random products for which the chooser splits K over warps, each once, without end."""
    found: set[GemmProblem] = set()
    while True:
        types, threads = random_numbers.choice(TYPES), random_numbers.choice(THREADS)
        m, n, k = (random_numbers.choice(sizes) for sizes in (SIZES, SIZES, DEPTHS))
        ab, c = DTYPES[types]
        a_rows, b_rows, c_rows = (random_numbers.random() < 0.5 for _ in range(3))
        tiles = _tile(ab, m, k, a_rows), _tile(ab, k, n, b_rows), _tile(c, m, n, c_rows)
        precision = "tf32" if types == "tf32" else "default"
        variant = products(*tiles, precision=precision, target=Target(90, threads)).variants[Role.FORWARD]  # type: ignore[arg-type]
        needed = (m + n) * k * DTYPE_BYTES[variant.a.dtype] + m * n * DTYPE_BYTES[variant.c.dtype]
        if needed <= SHARED_BYTES and variant not in found and choose(variant).warps_k > 1:
            found.add(variant)
            yield types, variant


def best_alone(variant: GemmProblem) -> TileConfig:
    """Returns the chooser's best configuration without split-K over warps."""
    return next(config for config in ranked(variant) if config.warps_k == 1)


def timed(measurer: Measurer, variant: GemmProblem, configs: Sequence[TileConfig]) -> list[Timing]:
    """Measure tile configurations against each other."""
    found: dict[str, Timing] = {}

    def note(timings: Sequence[Timing]) -> None:
        found.update((identity(timing.config), timing) for timing in timings)

    named = [config_of("mma", config) for config in configs]
    measurer.measure(variant, named, on_timings=note)
    return [found[identity(config)] for config in named]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Number of products, mean, least and greatest gain, and number of losses above 3 %, by dtypes and over all."""
    found = {}
    for types in (*TYPES, "all"):
        gains = [row["gain"] for row in rows if types in (row["types"], "all")]
        if gains:
            found[types] = {
                "products": len(gains),
                "geometric_mean": geometric_mean(gains),
                "least": min(gains),
                "greatest": max(gains),
                "slower": sum(gain < 0.97 for gain in gains),
            }
    return found


def write(path: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the file of results, each row on its own line."""
    write_atomic(path, f"{table_text(head, rows)}\n".encode())


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="results")
    parser.add_argument("--products", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    import warp as wp

    import warp_tiles
    from warp_tiles import api
    from warp_tiles.settings import current
    from warp_tiles.tuning.gemm_device import GpuMeasurer

    warp_tiles.enable()
    measurer = GpuMeasurer(api.engine().build_context(current()), wp.get_device("cuda:0"))
    rows: list[dict[str, Any]] = []
    run = gpu_record("mma")
    for types, variant in drawn(random.Random(arguments.seed)):
        if len(rows) == arguments.products:
            break
        pair = choose(variant), best_alone(variant)
        shared, alone = timed(measurer, variant, pair)
        if "failed" in (shared.status, alone.status):
            sys.exit(f"{variant.symbol}: {shared.reason or alone.reason}")
        gain = round(alone.median_us / shared.median_us, 3)
        rows.append(
            {
                "types": types,
                "variant": variant.symbol,
                "shared": [pair[0].describe(), round(shared.median_us, 2)],
                "alone": [pair[1].describe(), round(alone.median_us, 2)],
                "gain": gain,
            }
        )
        print(f"{variant.describe()}: {pair[0].describe()} {gain} of {pair[1].describe()}", file=sys.stderr)
        write(arguments.json, {"run": run, "seed": arguments.seed, "summary": summary(rows)}, rows)
    print(json.dumps(summary(rows), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
