"""Measures the cost of tuned kernels: a search with and without parallel builds, and the look-up of a record.

    python benchmarks/tuning.py --json benchmarks/results/tuning.json

Everything runs on Warp's CPU device, in separate processes with empty caches. `first` is the first launch of a process
with a record beside the winner's kernel by itself, `later` the launches after it beside ``wp.launch_tiled``, and
`search` 24 configurations whose builds run one by one or in parallel. `others` is the share of the cores that other
processes took during a search.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import cpu_record
from benchmarks.processes import environment, run_json
from benchmarks.runner import Row

SHAPE = (64, 64, 64)
_CPU_TIMES = ("user", "system", "children_user", "children_system")
_BEGIN = """
import json, sys, time
sys.path.insert(0, "examples")
import warp as wp
wp.config.log_level = wp.LOG_WARNING
import autotune_gemm
wp.init()
args = autotune_gemm.operands({shape}, "fp32", "cpu")
lists = {{"inputs": [args["a"], args["b"]], "outputs": [args["c"]], "device": "cpu"}}
"""
_SEARCH = """
gemm = autotune_gemm.tuned_gemm("fp32", jobs={jobs})
start = time.perf_counter()
gemm.launch(**lists)
total_s = time.perf_counter() - start
print(json.dumps({{"total_s": total_s, **vars(gemm.counters)}}))
"""
_PLAIN = """
config = {config}
make = autotune_gemm.tuned_gemm("fp32").__wrapped__
start = time.perf_counter()
kernel = make(config["tile_m"], config["tile_n"], config["tile_k"])
wp.launch_tiled(kernel, dim={dim}, block_dim=config["block_dim"], **lists)
print(json.dumps({{"total_s": time.perf_counter() - start}}))
"""
_LATER = """
gemm = autotune_gemm.tuned_gemm("fp32")
config = gemm.best(args, "cpu").config
kernel, dim, block_dim = gemm.launch_of(config, args)
def tuned():
    gemm.launch(**lists)
def plain():
    wp.launch_tiled(kernel, dim=dim, block_dim=block_dim, **lists)
times = {{"tuned": [], "plain": []}}
for _ in range({iterations}):
    for name, launch in (("tuned", tuned), ("plain", plain)):
        start = time.perf_counter()
        for _ in range(20):
            launch()
        times[name].append((time.perf_counter() - start) / 20 * 1e6)
print(json.dumps({{name: sorted(values)[len(values) // 2] for name, values in times.items()}}))
"""


_BEST = """
gemm = autotune_gemm.tuned_gemm("fp32")
best = dict(gemm.best(args, "cpu").config)
print(json.dumps({{"config": best, "dim": gemm.launch_of(best, args)[1]}}))
"""


def child(code: str, folder: Path, **values: Any) -> Row:
    """Run a fresh process with caches in ``folder``. Returns the JSON that it prints last."""
    text = (_BEGIN + code).format(shape=SHAPE, **values)
    environ = environment(WARP_CACHE_PATH=folder / "warp", WARP_TILES_CACHE_DIR=folder / "tiles")
    return dict(run_json([sys.executable, "-c", text], environ))


def busy_s() -> float:
    """CPU time that all processes of the machine have taken; NaN on systems other than Linux."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return math.nan
    idle, waiting = 3, 4
    ticks = sum(int(value) for place, value in enumerate(fields[:8]) if place not in (idle, waiting))
    return ticks / os.sysconf("SC_CLK_TCK")


def search(jobs: int) -> Row:
    """Search in a fresh process. Returns its counters, and the share of the cores that other processes took."""
    start, busy, own = time.perf_counter(), busy_s(), os.times()
    with tempfile.TemporaryDirectory() as folder:
        found = child(_SEARCH, Path(folder), jobs=jobs)
    assert (found["builds"], found["measurements"]) == (24, 24), found
    after, wall_s = os.times(), time.perf_counter() - start
    own_s = sum(getattr(after, name) - getattr(own, name) for name in _CPU_TIMES)
    others = (busy_s() - busy - own_s) / wall_s / len(os.sched_getaffinity(0))
    return {**found, "others": round(max(0.0, others), 3)}


def measure_search(repeats: int) -> Row:
    """Searches without a record: with builds one by one, and with one build per core."""
    runs = runner.alternately({"serial": partial(search, 1), "side_by_side": partial(search, 0)}, repeats)
    row: Row = {"configurations": 24, "most_of_others": max(one["others"] for found in runs.values() for one in found)}
    for part in ("build_s", "total_s"):
        times = {name: [one[part] for one in found] for name, found in runs.items()}
        row[part] = {name: round(statistics.median(values), 2) for name, values in times.items()}
        row[part] |= runner.ratio(times["serial"], times["side_by_side"], 2)
    return row


def measure_first(scratch: Path, repeats: int) -> Row:
    """The first launch of a process with a record, and of the winner's kernel by itself. Everything is built."""
    child(_SEARCH, scratch, jobs=0)
    winner = child(_BEST, scratch)

    def tuned() -> float:
        found = child(_SEARCH, scratch, jobs=0)
        assert (found["builds"], found["measurements"]) == (0, 0), found
        return float(found["total_s"]) * 1e3

    def plain() -> float:
        return float(child(_PLAIN, scratch, **winner)["total_s"]) * 1e3

    times = runner.alternately({"tuned": tuned, "plain": plain}, repeats)
    medians = {f"{name}_ms": round(statistics.median(values), 2) for name, values in times.items()}
    return {**medians, "added_ms": round(medians["tuned_ms"] - medians["plain_ms"], 2)}


def measure_later(scratch: Path) -> Row:
    """The launches after the first."""
    child(_SEARCH, scratch, jobs=0)
    found = child(_LATER, scratch, iterations=2000)
    row = {f"{name}_us": round(value, 2) for name, value in found.items()}
    return {**row, "added_us": round(found["tuned"] - found["plain"], 2)}


@dataclass(frozen=True)
class Case:
    """A row."""

    name: str
    measured: Callable[[], Row]


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen rows."""
    options = runner.parser(__doc__, repeats=5).parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="warp_tiles_tuning_") as folder:
        scratch = Path(folder)
        cases = [
            Case("first", partial(measure_first, scratch, options.repeats)),
            Case("later", partial(measure_later, scratch)),
            Case("search", partial(measure_search, options.repeats)),
        ]
        record = runner.Record(options.json, cpu_record(), [case.name for case in cases])
        return runner.measure(runner.select(cases, options.only), record, options, lambda case: case.measured())


if __name__ == "__main__":
    sys.exit(main())
