"""Compile times: unmodified Warp and warp_tiles in one run.

    python benchmarks/compile_time.py --json benchmarks/results/compile_time.json --plot docs/compile_time.png

Every figure is the median of its repeats, each in a fresh process with caches of its own. No GPU is
needed. `--quick` leaves out Warp's eight-kernel builds, which take minutes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import Job, Kernel, build

ONE = Kernel(64, 64, 64)
EIGHT = [
    Kernel(16, 16, 16),
    Kernel(32, 32, 32),
    Kernel(64, 64, 32),
    Kernel(64, 64, 64),
    Kernel(128, 64, 32),
    Kernel(32, 64, 64),
    Kernel(32, 32, 32, "float32"),
    Kernel(64, 32, 16, "float32"),
]
THREADS, ARCH = 128, 90
TARGETS = {
    "differentiable, cold": ("warp", 0.5),
    "forward only by kernel option, cold": ("warp", 0.35),
    "differentiable, LTO-IR cached": ("warp", 0.35),
    "differentiable, cubin bytes": ("warp", 0.1),
    "eight kernels in one module, cold": ("serial", 1 / 1.8),
    "eight modules, cold": ("serial", 1 / 1.8),
}


class Runner:
    """Builds jobs, cold or warm, and keeps every result."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.number = 0

    def cold(self, modules: list[str], tiles: bool, **settings: str) -> dict[str, Any]:
        """One build with empty caches."""
        return self._build(modules, tiles, self._folder(), settings)[0]

    def warm(self, modules: list[str], tiles: bool) -> dict[str, Any]:
        """One build with LTO-IR cached and Warp's kernel cache empty."""
        return self._build(modules, tiles, self._folder(), {}, again=True)[1]

    def _folder(self) -> Path:
        self.number += 1
        return self.scratch / str(self.number)

    def _build(
        self, modules: list[str], tiles: bool, folder: Path, settings: dict[str, str], again: bool = False
    ) -> list[dict[str, Any]]:
        results = []
        for out in ("first", "second") if again else ("first",):
            job = Job(
                tuple(modules),
                tiles,
                ARCH,
                THREADS,
                str(folder / "warp"),
                str(folder / "tiles"),
                str(folder / out),
                tuple(settings.items()),
            )
            results.append(build(job))
        return results


def median_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The result with the median time."""
    return sorted(results, key=lambda result: float(result["seconds"]))[len(results) // 2]


def compare(name: str, rows: dict[str, dict[str, Any]], field: str = "seconds") -> dict[str, Any]:
    """One line of the table: ours over the peer's, beside the target."""
    peer, target = TARGETS[name]
    ratio = rows["warp_tiles"][field] / rows[peer][field]
    line = {"name": name, "peer": peer, "ratio": round(ratio, 3), "target": round(target, 3), "rows": rows}
    print(f"{name}: {ratio:.3f} of {peer}, at most {target:.3f}: {'reached' if ratio <= target else 'MISSED'}")
    for who, row in rows.items():
        print(f"    {who:12} {json.dumps(row)}", flush=True)
    return line


STARTUP = """
import sys, time
start = time.perf_counter()
import warp as wp
wp.config.log_level = wp.LOG_WARNING
if sys.argv[1] == "tiles":
    import warp_tiles
    warp_tiles.enable()
wp.init()
namespace = {"__name__": "kernels", "__file__": sys.argv[2]}
exec(compile(open(sys.argv[2]).read(), sys.argv[2], "exec"), namespace)
kernel = namespace["product"]
a = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
wp.launch_tiled(kernel, dim=[1], inputs=[a], block_dim=64, device="cpu")
loaded = time.perf_counter() - start
times = []
for _ in range(200):
    begin = time.perf_counter()
    for _ in range(20):
        wp.launch(kernel, dim=1, inputs=[a], block_dim=64, device="cpu")
    times.append((time.perf_counter() - begin) / 20)
print(loaded * 1e3, sorted(times)[len(times) // 2] * 1e6)
"""
STARTUP_KERNEL = """
import warp as wp
@wp.kernel
def product(A: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(16, 16))
    wp.tile_store(A, wp.tile_matmul(a, a))
"""


def startup(scratch: Path, repeats: int) -> dict[str, Any]:
    """Import plus first load of a cached module, and a launch, with and without warp_tiles."""
    source = scratch / "startup_kernel.py"
    source.write_text(STARTUP_KERNEL)
    root = str(Path(__file__).resolve().parent.parent)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "WARP_CACHE_PATH": str(scratch / "startup_warp"),
        "WARP_TILES_CACHE_DIR": str(scratch / "startup_tiles"),
    }
    found: dict[str, list[tuple[float, float]]] = {"warp": [], "tiles": []}
    for repeat in range(repeats + 1):
        for who, values in found.items():
            command = [sys.executable, "-c", STARTUP, who, str(source)]
            run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            load_ms, launch_us = map(float, run.stdout.strip().splitlines()[-1].split())
            if repeat:  # the first of each fills the caches
                values.append((load_ms, launch_us))
            time.sleep(2.1 if not repeat else 0)  # files younger than two seconds are not remembered
    medians = {who: [statistics.median(column) for column in zip(*values)] for who, values in found.items()}
    result = {
        "added_ms": round(medians["tiles"][0] - medians["warp"][0], 1),
        "warp_ms": round(medians["warp"][0], 1),
        "launch_us": {who: round(values[1], 2) for who, values in medians.items()},
    }
    print(f"everything cached: {json.dumps(result)}, at most 50 ms added", flush=True)
    return result


def cache_hit(scratch: Path) -> dict[str, Any]:
    """Median of a verified hit of a 5 MB entry, in milliseconds."""
    from warp_tiles.cache import Cache, CacheKey

    cache = Cache(scratch / "hit")
    key = CacheKey.of({"benchmark": "hit"})
    cache.put(key, os.urandom(5_000_000), {})
    times = []
    for _ in range(101):
        start = time.perf_counter()
        assert cache.get(key) is not None
        times.append(time.perf_counter() - start)
    result = {"bytes": 5_000_000, "median_ms": round(statistics.median(times) * 1e3, 2)}
    print(f"cache hit: {json.dumps(result)}, below 2 ms", flush=True)
    return result


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Bars of seconds, ours beside the peers'."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [line for line in lines if "bytes" not in line["name"]]
    colours = {"warp": "#999999", "serial": "#c9d8a6", "warp_tiles": "#5b8c00"}
    labels = {"warp": "unmodified Warp", "serial": "warp_tiles, one process", "warp_tiles": "warp_tiles"}
    figure, axes = pyplot.subplots(figsize=(9, 0.9 * len(timed) + 1.2))
    shown = set()
    for position, line in enumerate(timed):
        rows = [(who, line["rows"][who]["seconds"]) for who in colours if who in line["rows"]]
        for offset, (who, seconds) in enumerate(rows):
            y = position + 0.27 * (offset - (len(rows) - 1) / 2)
            label = None if who in shown else labels[who]
            axes.barh(y, seconds, height=0.25, color=colours[who], label=label)
            axes.text(seconds, y, f" {seconds:.1f} s", va="center", fontsize=8)
            shown.add(who)
    axes.set_yticks(range(len(timed)), [line["name"] for line in timed])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds on {len(os.sched_getaffinity(0))} cores, sm_{ARCH}, no GPU")
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave out what takes Warp minutes")
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Runner(Path(folder))
        repeats = range(arguments.repeats)
        one, forward = [ONE.source(None)], [ONE.source(False)]
        cold = {who: median_of([run.cold(one, who != "warp") for _ in repeats]) for who in ("warp", "warp_tiles")}
        lines.append(compare("differentiable, cold", cold))
        lines.append(compare("differentiable, cubin bytes", cold, "cubin_bytes"))
        rows = {who: median_of([run.cold(forward, who != "warp") for _ in repeats]) for who in ("warp", "warp_tiles")}
        lines.append(compare("forward only by kernel option, cold", rows))
        rows = {who: median_of([run.warm(one, who != "warp") for _ in repeats]) for who in ("warp", "warp_tiles")}
        lines.append(compare("differentiable, LTO-IR cached", rows))
        together = ["".join(kernel.source(None) for kernel in EIGHT)]
        apart = [kernel.source(None) for kernel in EIGHT]
        for name, modules in (("eight kernels in one module, cold", together), ("eight modules, cold", apart)):
            rows = {} if arguments.quick else {"warp": run.cold(modules, False)}
            rows["serial"] = median_of([run.cold(modules, True, WARP_TILES_JOBS="1") for _ in repeats])
            rows["warp_tiles"] = median_of([run.cold(modules, True) for _ in repeats])
            lines.append(compare(name, rows))
        cached = startup(Path(folder), 7)
        hit = cache_hit(Path(folder))
    if arguments.plot:
        draw(lines, arguments.plot)
    if arguments.json:
        names = ("warp-lang", "cuda-core", "nvidia-cuda-nvrtc-cu12", "nvidia-nvjitlink-cu12", "nvidia-mathdx")
        record = {
            "date": datetime.date.today().isoformat(),
            "machine": {"cores": len(os.sched_getaffinity(0)), "processor": platform.machine(), "gpu": None},
            "python": platform.python_version(),
            "versions": {name: importlib.metadata.version(name) for name in names},
            "compile": lines,
            "startup": cached,
            "cache_hit": hit,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
