"""Compares builds on a Dask cluster of local worker processes with builds in warp_tiles' own compiler processes.

    python benchmarks/cluster.py --json benchmarks/results/cluster.json

Both sides build the same sets with empty caches: 16 GEMM functions, and eight modules with their functions. They
alternate, each in a fresh process. The cluster is started before the clock, as a scheduler that is already there. A
`fresh` process or worker has built nothing before. A `used` one has built other functions, so it knows the toolchain
and its compilers run. No GPU is needed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import cpu_record
from benchmarks.processes import environment, run_json
from benchmarks.runner import Row

WORKERS, THREADS, ARCH = 4, 128, 90
SIZES = list(itertools.product((32, 64), (32, 64), (16, 32)))
TYPES = ("float16", "float32")


@dataclass(frozen=True)
class Case:
    """A set, built by processes of a state."""

    built: str
    state: str

    @property
    def name(self) -> str:
        return f"{self.built}, {self.state}"


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
    for (m, n, k), dtype in itertools.product(SIZES, types):
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
CASES = [Case(built, state) for built in SETS for state in ("used", "fresh")]


def _child(side: str, built: str, state: str, folder: Path) -> None:
    """Build a set, and print the seconds and the bytes."""
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
    print(json.dumps([round(seconds, 3), size]))


def _built(case: Case, side: str) -> tuple[float, int]:
    """Build a set in a fresh process. It shares an empty cache with its workers, as on one machine."""
    with tempfile.TemporaryDirectory(prefix="warp_tiles_cluster_") as folder:
        environ = environment(WARP_CACHE_PATH=f"{folder}/warp", WARP_TILES_CACHE_DIR=f"{folder}/cache")
        command = [sys.executable, __file__, "--child", side, case.built, case.state, folder]
        seconds, size = run_json(command, environ)
    return seconds, size


def measure(case: Case, repeats: int) -> Row:
    """The seconds of both sides, their medians and the ratio."""
    found = runner.alternately({side: partial(_built, case, side) for side in ("own", "dask")}, repeats)
    if len({size for pairs in found.values() for _, size in pairs}) != 1:
        raise runner.WrongResultError(f"the two sides built something else: {found}")
    seconds = {side: [time_s for time_s, _ in pairs] for side, pairs in found.items()}
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    row: Row = {"load_average": os.getloadavg()[0], "seconds": seconds, "medians": medians}
    return row | runner.ratio(seconds["dask"], seconds["own"])


def conditions() -> Row:
    return {**cpu_record(), "distributed": importlib.metadata.version("distributed"), "workers": WORKERS}


main = runner.command(__doc__, CASES, lambda case, options: measure(case, options.repeats), conditions, repeats=5)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
    else:
        sys.exit(main(sys.argv[1:]))
