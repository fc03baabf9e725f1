"""Compares the cold compile time of modules with one loop of products with that of another state of this checkout.

    git worktree add ../before COMMIT
    python benchmarks/cold_loops.py --before ../before [--json FILE]

Each row is a module of ``tests/staged_cases.py`` for sm_90. A fresh process of each state compiles it with empty
caches, and the states alternate. The time is the wall time of ``wp.compile_aot_module``, with code generation, the
functions of the products and the link. The first run of a row does not count. Ratios are those of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import commit_of, run_in
from tests.staged_cases import Case

CHILD = """
import importlib.util, json, pathlib, sys, time
import warp as wp
import warp_tiles
wp.config.log_level = wp.LOG_WARNING
text, threads = json.loads(sys.stdin.read())
path = pathlib.Path("cold_loop.py").resolve()
path.write_text("import warp as wp\\n\\n" + text)
spec = importlib.util.spec_from_file_location(path.stem, path)
module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
wp.init()
wp.set_module_options({"block_dim": threads}, module=module)
with warp_tiles.enabled():
    start = time.perf_counter()
    wp.compile_aot_module(module, arch=90, module_dir="out", use_ptx=False)
    print(json.dumps([time.perf_counter() - start, warp_tiles.__file__]))
"""


@dataclass(frozen=True)
class Row:
    """A loop over m x n tiles of C, in steps of k, by blocks of threads; with an adjoint if ``backward``."""

    dtype: str
    precision: str
    m: int
    n: int
    k: int
    threads: int
    backward: bool = False

    @property
    def name(self) -> str:
        dtype = "tf32" if self.precision == "tf32" else self.dtype
        return f"{dtype} {self.m}x{self.n}x{self.k} {self.threads} threads{', with adjoint' if self.backward else ''}"

    @property
    def source(self) -> str:
        """The source of its kernel."""
        case = Case(self.m, self.n, self.k, 0, 0, 4096, dtype=self.dtype, precision=self.precision)
        return case.text("multiply", backward=self.backward)


ROWS = [
    Row(*sizes, backward)
    for backward in (False, True)
    for sizes in (
        ("float16", "default", 64, 64, 64, 128),
        ("float16", "default", 128, 128, 64, 256),
        ("float16", "default", 128, 256, 64, 256),
        ("float32", "tf32", 64, 64, 32, 128),
        ("float32", "tf32", 128, 128, 32, 256),
        ("float32", "default", 64, 64, 32, 128),
        ("float64", "default", 64, 64, 16, 128),
    )
]


def seconds(state: Path, row: Row) -> float:
    """The time of a cold compile of a row in a state."""
    time_s, file = run_in(state, CHILD, [row.source, row.threads])
    if not Path(file).is_relative_to(state.resolve()):
        raise SystemExit(f"{state}: the process imported {file}")
    return float(time_s)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of the other state")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each row and state")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    states = {"before": arguments.before, "now": ROOT}
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        times: dict[str, list[float]] = {name: [] for name in states}
        for _ in range(arguments.runs + 1):
            for name, state in states.items():
                times[name].append(seconds(state, row))
        medians = {name: statistics.median(found[1:]) for name, found in times.items()}
        ratio = round(medians["now"] / medians["before"], 3)
        rows.append({"name": row.name, **{f"{name}_s": round(s, 3) for name, s in medians.items()}, "ratio": ratio})
        print(f"{row.name}: {medians['before']:.2f} s, now {medians['now']:.2f} s, {ratio}", flush=True)
    if arguments.json:
        record = {**cpu_record(), "before": commit_of(arguments.before), "runs": arguments.runs, "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
