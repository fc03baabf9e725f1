"""Compares builds on a Dask cluster of local worker processes with builds in warp_tiles' own compiler processes.

    python benchmarks/cluster.py --json benchmarks/results/cluster.json

Both sides build the same sets with empty caches: 16 GEMM functions, and eight modules with their functions. Each repeat
runs both sides in alternating order, each in a fresh process. The cluster is started before the clock, as a scheduler
that is already there. A `fresh` process or worker has built nothing before. A `used` one has built other functions, so
it knows the toolchain and its compilers run. No GPU is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.processes import environment

WORKERS, THREADS, ARCH = 4, 128, 90
SIDES = ("own", "dask")
STATES = ("used", "fresh")
LIMIT = 1.25  # of Dask's time to the own time, for processes and workers that were used before
SIZES = [(m, n, k) for m in (32, 64) for n in (32, 64) for k in (16, 32)]
TYPES = ("float16", "float32")


@contextlib.contextmanager
def _executor(side: str) -> Iterator[Executor | None]:
    if side == "own":
        yield None
        return
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(WORKERS)
        yield client.get_executor()


def _functions(folder: Path, types: tuple[str, ...] = TYPES) -> int:
    """Build 16 functions, without their module."""
    from warp_tiles import settings
    from warp_tiles._warp import require_hooks
    from warp_tiles.gemm.dispatch import Target, Tile, products
    from warp_tiles.gemm.problem import Role

    variants = []
    for m, n, k in SIZES:
        for dtype in types:
            a, b = Tile(dtype, (m, k), (k, 1), "row_major", True), Tile(dtype, (k, n), (n, 1), "row_major", True)  # type: ignore[arg-type]
            c = Tile("float32", (m, n), (n, 1), "row_major", True)
            found = products(a, b, c, precision="default", target=Target(ARCH, THREADS))
            variants.append(found.variants[Role.FORWARD])
    built = require_hooks("benchmark").engine.start(variants, settings.current())
    return sum(len(future.result().payload) for future in built.values())


def _modules(folder: Path) -> int:
    """Build eight modules of one differentiable kernel each, with their functions."""
    import warp as wp

    from benchmarks.compile_time import EIGHT
    from warp_tiles._warp.modules import compile_module
    from warp_tiles.util.threads import side_by_side

    modules = []
    for number, kernel in enumerate(EIGHT):
        path = folder / f"kernels_{number}.py"
        path.write_text("import warp as wp\n" + kernel.source(None))
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": path.stem, "__file__": str(path)})
        module = wp.get_module(path.stem)
        module.options["block_dim"] = THREADS
        modules.append(module)
    out = folder / "out"
    out.mkdir()
    cubins = side_by_side(lambda module: compile_module(module, ARCH, THREADS, out), modules, 32)
    return sum(cubin.stat().st_size for cubin in cubins)


SETS: dict[str, Callable[[Path], int]] = {"functions": _functions, "modules": _modules}


def _child(side: str, built: str, state: str, folder: Path) -> None:
    """Build a set, and print the seconds."""
    import warp as wp

    import warp_tiles

    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    with _executor(side) as executor:
        warp_tiles.enable(executor=executor)
        with warp_tiles.override(progress="off"):
            if state != "fresh":
                _functions(folder, ("float64", "bfloat16"))
            start = time.perf_counter()
            size = SETS[built](folder)
            seconds = time.perf_counter() - start
        warp_tiles.disable()
    print(json.dumps({"seconds": round(seconds, 3), "bytes": size}))


def _run(side: str, built: str, state: str) -> dict[str, Any]:
    """Build a set in a fresh process. It shares an empty cache with its workers, as on one machine."""
    with tempfile.TemporaryDirectory(prefix="warp_tiles_cluster_") as folder:
        caches = {"WARP_CACHE_PATH": f"{folder}/warp", "WARP_TILES_CACHE_DIR": f"{folder}/cache"}
        done = subprocess.run(
            [sys.executable, __file__, "--child", side, built, state, folder],
            env=environment(**caches),
            capture_output=True,
            text=True,
        )
    if done.returncode:
        sys.exit(f"{side} failed at {built}:\n{done.stdout}\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def measure(sets: Sequence[str], repeats: int) -> dict[str, Any]:
    """Returns the seconds of each set and side, their medians and the ratio, as JSON values."""
    from benchmarks.machine import cpu_record

    versions = {"distributed": importlib.metadata.version("distributed"), "workers": WORKERS}
    results: dict[str, Any] = {}
    for built, state in ((built, state) for built in sets for state in STATES):
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for repeat in range(repeats):
            for side in SIDES if repeat % 2 == 0 else reversed(SIDES):
                found[side].append(_run(side, built, state))
                print(f"{built}, {state}, {side}: {found[side][-1]}", file=sys.stderr, flush=True)
        if len({row["bytes"] for side in SIDES for row in found[side]}) != 1:
            sys.exit(f"{built}: the two sides built something else: {found}")
        seconds = {side: [row["seconds"] for row in found[side]] for side in SIDES}
        medians = {side: statistics.median(values) for side, values in seconds.items()}
        results[f"{built}, {state}"] = {
            **cpu_record(),
            **versions,
            "load_average": os.getloadavg()[0],
            "seconds": seconds,
            "medians": medians,
            "ratio": round(medians["dask"] / medians["own"], 3),
        }
    return results


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=list(SETS), action="append", help="a set; the file keeps the others")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, built, state, folder = arguments.child
        _child(side, built, state, Path(folder))
        return
    known = json.loads(arguments.json.read_text())["results"] if arguments.json and arguments.json.is_file() else {}
    results = measure(arguments.only or list(SETS), arguments.repeats)
    record = {"limit": LIMIT, "results": known | results}
    for name, row in results.items():
        print(f"{name}: own {row['medians']['own']:.2f} s, Dask {row['medians']['dask']:.2f} s, ratio {row['ratio']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
