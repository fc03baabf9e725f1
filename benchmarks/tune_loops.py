"""Tunes loops of wp.tile_matmul with ``warp-tiles tune``, and measures them beside their defaults in fresh processes.

    python benchmarks/tune_loops.py --json benchmarks/results/tune_loops.json --budget 1200

The cells are the rows of benchmarks/loops.py with the setting ``auto``, and twenty other loops: short K, few blocks,
odd sizes, fp32 and fp64. Each cell is tuned as a script of its own with an equal share of the budget. Then two fresh
processes measure it: the kernel with the records, and a copy under the policy fast, which reads none. Their launches
alternate. The ratio is the default's time over the tuned one. The fields of the answer are those that the record names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.loops import ROWS, Row
from benchmarks.machine import gpu_record
from benchmarks.speed.ratios import geometric_mean
from warp_tiles.util.files import write_output

REPOSITORY = Path(__file__).resolve().parent.parent
TURNS = 2
LAUNCHES, WARM_LAUNCHES = 60, 10
SHARE_OF_TUNING = 0.7  # of a cell's share of the budget; the rest measures


@dataclass(frozen=True)
class Cell:
    """A loop over matrices of m x k and k x n elements, and the tile of a block."""

    row: Row
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """A line for the terminal."""
        row = self.row
        forms = ", B columns" * row.b_columns + ", C added" * row.c_added
        return f"{row.dtype} {self.m}x{self.n}x{self.k} by {row.m}x{row.n}x{row.k}, {row.threads} threads{forms}"

    @property
    def script(self) -> str:
        """A script with the loop. With ``--measure`` it prints the median times of tuned and default launches in us."""
        return SCRIPT.format(
            kernel=self.row.source, m=self.m, n=self.n, k=self.k, stored=self.row.stored, total=self.row.total,
            rows=f"({self.n}, {self.k})" if self.row.b_columns else f"({self.k}, {self.n})",
            dim=(-(-self.m // self.row.m), -(-self.n // self.row.n)), threads=self.row.threads,
            launches=LAUNCHES, warm=WARM_LAUNCHES,
        )  # fmt: skip


def _other(dtype: str, m: int, n: int, k: int, tile: tuple[int, int, int, int], columns: bool = False) -> Cell:
    return Cell(Row(dtype, m, *tile, "auto", columns), m, n, k)


LISTED = tuple(Cell(row, row.size, row.size, row.size) for row in ROWS if row.main_loop == "auto")
OTHERS = (
    *(_other("float16", 4096, 4096, k, (128, 128, 64, 256)) for k in (64, 128, 256)),
    *(_other("float16", side, side, 4096, (64, 64, 64, 128)) for side in (128, 256, 512)),
    _other("float16", 512, 4096, 5056, (128, 128, 64, 128)),
    _other("float16", 1000, 1000, 1000, (64, 64, 32, 128)),
    _other("float16", 4096, 4096, 4096, (96, 96, 32, 96)),
    _other("tf32", 384, 384, 8192, (64, 64, 32, 128)),
    _other("tf32", 4096, 4096, 64, (128, 128, 32, 256)),
    *(_other("float32", side, side, 2048, (64, 64, 32, 128)) for side in (256, 1024)),
    _other("float32", 4096, 4096, 64, (64, 64, 16, 128)),
    _other("float32", 2048, 2048, 2048, (32, 32, 32, 64)),
    _other("float32", 1500, 1500, 1500, (64, 128, 16, 128), columns=True),
    *(_other("float64", side, side, 1024, (64, 64, 16, 128)) for side in (256, 2048)),
    _other("float64", 2048, 2048, 64, (32, 64, 16, 64)),
    _other("float64", 1000, 1000, 1000, (64, 32, 16, 128)),
)

SCRIPT = """import statistics
import sys

import numpy as np
import warp as wp

{kernel}

rng = np.random.default_rng(0)


def matrix(shape, dtype):
    return wp.array(rng.standard_normal(shape, dtype=np.float32) / 8, dtype=dtype, device="cuda")


a, b = matrix(({m}, {k}), wp.{stored}), matrix({rows}, wp.{stored})
c = wp.zeros(({m}, {n}), dtype=wp.{total}, device="cuda")


def launch(kernel, **options):
    return wp.launch_tiled(kernel, dim={dim}, inputs=[a, b], outputs=[c], block_dim={threads}, device="cuda", **options)


if "--measure" not in sys.argv:
    launch(gemm)
else:
    default = wp.kernel(gemm.func, module="default_of_the_loop", enable_backward=False)
    default.module.options["warp_tiles_policy"] = "fast"
    launches = [launch(kernel, record_cmd=True) for kernel in (gemm, default)]
    times = [[], []]
    filler = wp.empty(1 << 26, dtype=wp.uint8, device="cuda")
    for number in range({warm} + {launches}):
        for which in (0, 1) if number % 2 else (1, 0):
            start, end = (wp.Event(device="cuda", enable_timing=True) for _ in range(2))
            for _ in range(8):
                filler.zero_()
            launches[which].launch()
            wp.record_event(start)
            launches[which].launch()
            wp.record_event(end)
            wp.synchronize_event(end)
            if number >= {warm}:
                times[which].append(wp.get_event_elapsed_time(start, end) * 1e3)
    print(*(statistics.median(found) for found in times))
"""


def command(*words: object, cache: Path) -> str:
    """Run warp-tiles in a fresh process. Returns what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", "")))),
        "WARP_TILES_CACHE_DIR": str(cache),
        "WARP_CACHE_PATH": str(cache / "warp"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "warp_tiles", *map(str, words)],
        cwd=cache, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
    return done.stdout


def measured(script: Path, cache: Path) -> dict[str, float]:
    """The median times in microseconds with the records of a cache, and without."""
    found = [command("run", "-q", script, "--measure", cache=cache).split()[-2:] for _ in range(TURNS)]
    tuned, default = (statistics.median(map(float, column)) for column in zip(*found))
    return {"tuned": tuned, "default": default}


def cell_result(cell: Cell, budget_s: float, folder: Path) -> dict[str, Any]:
    """Tune a cell, and measure it with its records and without."""
    folder.mkdir()
    script = folder / "loop.py"
    script.write_text(cell.script)
    start = time.monotonic()
    printed = command("tune", "--json", "--budget", round(SHARE_OF_TUNING * budget_s, 1), script, cache=folder)
    searched_s = time.monotonic() - start
    places = json.loads(printed)["places"]
    times = measured(script, folder)
    return {
        "name": cell.name,
        "us": times,
        "ratio": round(times["default"] / times["tuned"], 4),
        "search_s": round(searched_s, 1),
        "places": [
            {
                "question": place["question"],
                "measured": place["measured"],
                "answer": None if place["winner"] is None else place["winner"]["config"],
                "us": None if place["winner"] is None else place["winner"]["median_us"],
                "default_us": None if place["default"] is None else place["default"]["median_us"],
            }
            for place in places
        ],
    }


def summary(rows: Sequence[dict[str, Any]], listed: Sequence[str]) -> dict[str, Any]:
    """Number of cells, geometric mean and least ratio, of the listed loops and of the others."""
    found = {}
    for name in ("listed", "others"):
        ratios = [row["ratio"] for row in rows if "ratio" in row and (row["name"] in listed) == (name == "listed")]
        if ratios:
            found[name] = {
                "cells": len(ratios),
                "geometric_mean": round(geometric_mean(ratios) or 0.0, 4),
                "least": min(ratios),
                "greatest": max(ratios),
            }
    return found


def chosen(only: str, limit: int) -> Iterator[Cell]:
    """The cells whose names contain a text, at most so many."""
    found = [cell for cell in (*OTHERS, *LISTED) if only in cell.name]
    yield from found[: limit or len(found)]


def main(arguments: list[str] | None = None) -> int:
    """Measure all cells, and write the file after each. The status is 1 if a cell could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds for all cells; each has an equal share")
    parser.add_argument("--only", default="", help="only cells whose names contain this text")
    parser.add_argument(
        "--limit", type=int, default=0, help="at most so many cells, the loops that are not listed first"
    )
    options = parser.parse_args(arguments)
    cells = list(chosen(options.only, options.limit))
    data: dict[str, Any] = {**gpu_record("auto"), "budget_s": options.budget, "summary": {}, "rows": []}
    end, listed = time.monotonic() + options.budget, [cell.name for cell in LISTED]
    with tempfile.TemporaryDirectory(prefix="tune_loops_") as folder:
        for number, cell in enumerate(cells):
            share_s = (end - time.monotonic()) / (len(cells) - number)
            if share_s <= 0:
                break
            try:
                found = cell_result(cell, share_s, Path(folder) / str(number))
                print(f"{cell.name}: {found['ratio']} ({found['us']['default']:.1f} us by default)", flush=True)
            except (RuntimeError, ValueError, KeyError) as error:
                found = {"name": cell.name, "failed": str(error)}
                print(f"{cell.name}: failed: {error}", flush=True)
            data["rows"].append(found)
            data["summary"] = summary(data["rows"], listed)
            write_output(options.json, (json.dumps(data, indent=1) + "\n").encode())
    print(json.dumps(data["summary"], indent=1))
    return int(any("failed" in row for row in data["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
