"""Compiles what one step of a client launches, in this process, and prints the cost as a line of JSON.

    python -m benchmarks.client_scripts.child CLIENT SIDE FOLDER [RECORD]

The sides are `warp`, `tiles`, `warp_start`, `start` and `default_start`. The folder receives the cubins. The
environment names the caches. All but `warp` and `warp_start` enable warp_tiles before the client is imported, as users
do. `start` sets modules="all", so that workers compile, and loads modules at their launches, for a fake GPU. It begins
with the start list RECORD, if it exists, and writes it. `warp_start` loads modules in the same way with Warp alone,
`default_start` with the default settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import warp as wp

import warp_tiles
from benchmarks.client_scripts.steps import ARCH, CLIENTS, versions
from benchmarks.stand_in import stand_in
from warp_tiles._warp.intercept import NotedLaunch, intercepted


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = ""
        with contextlib.suppress(OSError):  # the thread has ended
            children = (task / "children").read_text()
        for child in map(int, children.split()):
            yield child
            yield from _descendants(child)


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it started, running ones included."""
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in ended)
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


class Meter:
    """CPU and wall seconds since its creation."""

    def __init__(self) -> None:
        self._cpu, self._wall = cpu_seconds(), time.perf_counter()

    def read(self) -> dict[str, float]:
        return {"cpu_s": cpu_seconds() - self._cpu, "wall_s": time.perf_counter() - self._wall}


def total(*parts: dict[str, float], prefix: str = "") -> dict[str, float]:
    """The sums of costs, rounded to milliseconds."""
    return {f"{prefix}{name}": round(sum(part[name] for part in parts), 3) for name in ("cpu_s", "wall_s")}


def mathdx_builds() -> int:
    """Number of functions that Warp has built with libmathdx: the files of its LTO cache."""
    folder = Path(wp.config.kernel_cache_dir) / "lto"
    return sum(not path.name.endswith("_fatbin.lto") for path in folder.glob("*.lto"))


def linked_functions(source: str) -> int:
    """Number of separately built functions that a generated module declares."""
    blocks = re.findall(r'^extern "C" \{$(.*?)^\}$', source, re.MULTILINE | re.DOTALL)
    return sum(len(re.findall(r"^void \w+\(", block, re.MULTILINE)) for block in blocks)


def compile_module(module: Any, threads: int, folder: Path) -> dict[str, Any]:
    """Compile a module for one block size, and return its row of the result."""
    default, meter = module.options["block_dim"], Meter()
    module.options["block_dim"] = threads
    try:
        wp.compile_aot_module(module, arch=ARCH, module_dir=folder)
    finally:
        module.options["block_dim"] = default
    row: dict[str, Any] = {"kernels": sorted(module.kernels), "threads": threads, **total(meter.read())}
    return row | {"functions": sum(linked_functions(path.read_text()) for path in folder.glob("*.cu"))}


def launched_modules(
    step: Callable[[], None], load: Callable[[Any, int], None] = lambda module, threads: None
) -> dict[tuple[int, int], tuple[Any, int]]:
    """The Warp modules that a step launches, each with each block size, in order. Each launch loads its own."""
    found: dict[tuple[int, int], tuple[Any, int]] = {}

    def note(launch: NotedLaunch) -> None:
        module, threads = launch.kernel.module, launch.block_dim
        found.setdefault((id(module), threads), (module, threads))
        load(module, threads)

    with intercepted(note):
        step()
    return found


def compiled(step: Callable[[], None], enabling: dict[str, float], folder: Path) -> dict[str, Any]:
    """Find what a step launches and compile it, one module after another, as launches do."""
    setup = Meter()
    targets = launched_modules(step).values()
    met, compiling = setup.read(), Meter()
    rows = [compile_module(*target, folder / str(number)) for number, target in enumerate(targets)]
    records = warp_tiles.report()["modules"] if warp_tiles.is_enabled() else []
    warp_tiles.disable()
    return {
        **total(compiling.read(), enabling),
        **total(met, prefix="setup_"),
        "modules": len(targets),
        "cubin_bytes": sum(path.stat().st_size for path in folder.rglob("*.cubin")),
        "mathdx_builds": mathdx_builds(),
        "own_builds": sum(record.get("lto_builds", 0) for record in records),
        "rows": rows,
    }


def started(step: Callable[[], None], enabling: dict[str, float]) -> dict[str, Any]:
    """Load modules at their launches, while the functions that launch them run, as on a GPU. The rest is setup."""
    setup, costs = Meter(), [{"cpu_s": 0.0, "wall_s": 0.0}]
    with stand_in(Path(wp.config.kernel_cache_dir)) as device:

        def load(module: Any, threads: int) -> None:
            meter = Meter()
            module.load(device.alias, threads)
            costs.append(meter.read())

        modules = launched_modules(step, load)
    met = setup.read()
    records = warp_tiles.report()["modules"] if warp_tiles.is_enabled() else []
    ending = Meter()
    warp_tiles.disable()  # writes the start list
    without = [{name: -value for name, value in cost.items()} for cost in costs]
    return {
        **total(*costs, enabling, ending.read()),
        **total(met, *without, prefix="setup_"),
        "modules": len(modules),
        "found": sum(record.get("found", False) for record in records),
        "not_generated": sum(record.get("start_key") == "found" for record in records),
    }


def measure(step: Callable[[], None], side: str, folder: Path, record: Path | None = None) -> dict[str, Any]:
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    enabling = Meter()
    if side == "start":
        warp_tiles.configure(modules="all")
    if not side.startswith("warp"):
        warp_tiles.enable(start=record)
    cost = enabling.read()
    return compiled(step, cost, folder) if side in ("warp", "tiles") else started(step, cost)


def main() -> None:
    name, side, folder, *record = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        result = measure(CLIENTS[name].step, side, Path(folder), *map(Path, record))
    print(json.dumps({**result, "versions": versions()}))


if __name__ == "__main__":
    main()
