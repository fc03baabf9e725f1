"""Measures the cost of the look-up of a tuning record.

    python benchmarks/tuning.py --json benchmarks/results/tuning.json

Everything runs on Warp's CPU device, in separate processes with empty caches. `first` is the first launch of a process
with a record beside the winner's kernel by itself, and `later` the launches after it beside ``wp.launch_tiled``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import cpu_record
from benchmarks.processes import environment, run_json
from benchmarks.runner import Row

SHAPE = (64, 64, 64)
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


def main(arguments: list[str] | None = None) -> int:
    options = runner.parser(__doc__, repeats=5).parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="warp_tiles_tuning_") as folder:
        scratch = Path(folder)
        cases = [
            runner.Task("first", partial(measure_first, scratch, options.repeats)),
            runner.Task("later", partial(measure_later, scratch)),
        ]
        record = runner.Record(options.json, cpu_record(), [case.name for case in cases])
        return runner.measure(runner.select(cases, options.only), record, options, lambda case: case.measured())


if __name__ == "__main__":
    sys.exit(main())
