"""Measures the cost of tuned kernels: a search with and without parallel builds, and the look-up of a record.

    python benchmarks/tuning.py --json benchmarks/results/tuning.json

Everything runs on Warp's CPU device, in separate processes with empty caches. The look-up is compared with
``wp.launch_tiled`` of the same kernel with the same dimensions, alternately in the same run. If other processes took
more than 5 % of the cores during a search, it is repeated, at most ``--patience`` times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import ROOT, cpu_record
from benchmarks.processes import environment

SHAPE = (64, 64, 64)
MAX_OTHERS = 0.05  # share of the cores that other processes may take during a search
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


def child(code: str, folder: Path, **values: Any) -> dict[str, Any]:
    """Run a fresh process with caches in ``folder``. Returns the JSON that it prints last."""
    text = (_BEGIN + code).format(shape=SHAPE, **values)
    environ = environment(WARP_CACHE_PATH=folder / "warp", WARP_TILES_CACHE_DIR=folder / "tiles")
    run = subprocess.run(
        [sys.executable, "-c", text], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return found


def busy_s() -> float:
    """CPU time that all processes of the machine have taken; NaN on systems other than Linux."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return math.nan
    idle, waiting = 3, 4
    ticks = sum(int(value) for place, value in enumerate(fields[:8]) if place not in (idle, waiting))
    return ticks / os.sysconf("SC_CLK_TCK")


def run_search(folder: Path, jobs: int) -> dict[str, Any]:
    """Search in a fresh process. Returns its counters, and the share of the cores that other processes took."""
    start, busy, own = time.perf_counter(), busy_s(), os.times()
    found = child(_SEARCH, folder, jobs=jobs)
    assert (found["builds"], found["measurements"]) == (24, 24), found
    after, wall_s = os.times(), time.perf_counter() - start
    own_s = sum(getattr(after, name) - getattr(own, name) for name in _CPU_TIMES)
    others = (busy_s() - busy - own_s) / wall_s / len(os.sched_getaffinity(0))
    return {**found, "others": round(max(0.0, others), 3)}


def overlap(scratch: Path, repeats: int, patience: int) -> dict[str, Any]:
    """Search 24 configurations without a record: with builds one by one, and with one build per core, alternately.

    Args:
        scratch: Folder of the caches.
        repeats, patience: Options of the command line.
    """
    times: dict[str, list[dict[str, Any]]] = {"serial": [], "side_by_side": []}
    for attempt in range(repeats + patience):
        for name, jobs in (("serial", 1), ("side_by_side", 0)):
            if sum(not found["others"] > MAX_OTHERS for found in times[name]) < repeats:
                times[name].append(run_search(scratch / f"{name}_{attempt}", jobs))
    times = {name: sorted(runs, key=lambda found: found["others"])[:repeats] for name, runs in times.items()}
    result: dict[str, Any] = {
        "configurations": 24,
        "runs": repeats,
        "most_of_others": max(found["others"] for runs in times.values() for found in runs),
    }
    for part in ("build_s", "total_s"):
        medians = {name: statistics.median(found[part] for found in runs) for name, runs in times.items()}
        result[part] = {name: round(value, 2) for name, value in medians.items()}
        result[part]["ratio"] = round(medians["serial"] / medians["side_by_side"], 2)
    print(f"search: {json.dumps(result)}; builds at least 1.6 times faster", flush=True)
    return result


def first_launch(scratch: Path, repeats: int) -> dict[str, Any]:
    """Time the first launch of a process with a record, and of the winner's kernel by itself. Everything is built."""
    folder = scratch / "first"
    child(_SEARCH, folder, jobs=0)
    code = 'gemm = autotune_gemm.tuned_gemm("fp32")\nbest = dict(gemm.best(args, "cpu").config)\n'
    code += 'print(json.dumps({{"config": best, "dim": gemm.launch_of(best, args)[1]}}))'
    winner = child(code, folder)
    times: dict[str, list[float]] = {"tuned": [], "plain": []}
    for _ in range(repeats):
        found = child(_SEARCH, folder, jobs=0)
        assert (found["builds"], found["measurements"]) == (0, 0), found
        times["tuned"].append(found["total_s"] * 1e3)
        times["plain"].append(child(_PLAIN, folder, **winner)["total_s"] * 1e3)
    medians = {f"{name}_ms": round(statistics.median(values), 2) for name, values in times.items()}
    result = {**medians, "added_ms": round(medians["tuned_ms"] - medians["plain_ms"], 2), "builds": 0, "measured": 0}
    print(f"first launch with a record: {json.dumps(result)}, at most 2 ms added", flush=True)
    return result


def later_launches(scratch: Path, iterations: int) -> dict[str, Any]:
    """Time the launches after the first."""
    found = child(_LATER, scratch / "first", iterations=iterations)
    result = {f"{name}_us": round(value, 2) for name, value in found.items()}
    result["added_us"] = round(found["tuned"] - found["plain"], 2)
    print(f"later launches: {json.dumps(result)}, at most 5 us added", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file of the results")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind")
    parser.add_argument("--patience", type=int, default=0, help="further searches of each kind on a busy machine")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warp_tiles_tuning_") as folder:
        scratch = Path(folder)
        result = {
            "machine": cpu_record(),
            "first_launch": first_launch(scratch, arguments.repeats),
            "later_launches": later_launches(scratch, 2000),
            "search": overlap(scratch, arguments.repeats, arguments.patience),
        }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
