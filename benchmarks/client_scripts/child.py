"""Compiles what one step of a client launches, in this process, and prints the cost as a line of JSON.

    python -m benchmarks.client_scripts.child CLIENT SIDE FOLDER [RECORD]

The sides are `warp`, `tiles`, `warp_start`, `start` and `wheel`. The folder receives the cubins. The environment names
the caches. All but `warp` and `warp_start` enable warp_tiles before the client is imported, as users do. `start` sets
modules="all", so that workers compile, and loads modules at their launches, for a fake GPU. It begins with the start
record RECORD, if it exists, and writes it. `warp_start` loads modules in the same way with Warp alone, `wheel` with the
default settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import warp as wp

import warp_tiles
from benchmarks.client_scripts.steps import STEPS
from benchmarks.stand_in import stand_in
from warp_tiles._warp.intercept import NotedLaunch, intercepted

ARCH = 90


def launched_modules(step: Callable[[], None]) -> list[tuple[Any, int]]:
    """The Warp modules that a step launches, each with each block size, in the order of their first launches."""
    found: dict[tuple[int, int], tuple[Any, int]] = {}

    def note(launch: NotedLaunch) -> None:
        module, threads = launch.kernel.module, launch.block_dim
        found.setdefault((id(module), threads), (module, threads))

    with intercepted(note):
        step()
    return list(found.values())


# ---- cost


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
        """Both, rounded to milliseconds."""
        return {
            "cpu_s": round(cpu_seconds() - self._cpu, 3),
            "wall_s": round(time.perf_counter() - self._wall, 3),
        }


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
    before, default = mathdx_builds(), module.options["block_dim"]
    meter = Meter()
    module.options["block_dim"] = threads
    try:
        (cubin,) = wp.compile_aot_module(module, arch=ARCH, module_dir=folder)
    finally:
        module.options["block_dim"] = default
    row: dict[str, Any] = {"kernels": sorted(module.kernels), "threads": threads, **meter.read()}
    row["cubin_bytes"] = Path(cubin).stat().st_size
    row["mathdx_builds"] = mathdx_builds() - before
    row["functions"] = sum(linked_functions(path.read_text()) for path in folder.glob("*.cu"))
    return row


def load_at_launches(step: Callable[[], None]) -> tuple[int, dict[str, float]]:
    """Load modules at their launches, while the functions that launch them run, as on a GPU.

    Returns:
        The number of modules, and the cost of loading them.
    """
    seen: set[tuple[int, int]] = set()
    total = {"cpu_s": 0.0, "wall_s": 0.0}
    with stand_in(Path(wp.config.kernel_cache_dir)) as device:

        def note(launch: NotedLaunch) -> None:
            module, threads = launch.kernel.module, launch.block_dim
            seen.add((id(module), threads))
            meter = Meter()
            module.load(device.alias, threads)
            for name, value in meter.read().items():
                total[name] += value

        with intercepted(note):
            step()
    return len(seen), total


def versions() -> dict[str, str]:
    names = (
        "warp-lang",
        "mujoco-warp",
        "mujoco",
        "newton",
        "warp-nn",
        "nvidia-cuda-nvrtc-cu12",
        "nvidia-nvjitlink-cu12",
    )
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def measure(step: Callable[[], None], side: str, folder: Path, record: Path | None = None) -> dict[str, Any]:
    """Find what a step launches and compile it, one module after another, as launches do."""
    tiles = side in ("tiles", "start", "wheel")
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    enabling = Meter()
    if side == "start":
        warp_tiles.configure(modules="all")
    if tiles:
        warp_tiles.enable(start=record)
    start = enabling.read()
    setup = Meter()
    if side in ("start", "warp_start", "wheel"):
        return started(step, start, setup)
    targets = launched_modules(step)
    met = setup.read()
    compiling = Meter()
    rows = [compile_module(*target, folder / str(number)) for number, target in enumerate(targets)]
    records = warp_tiles.report()["modules"] if tiles else []
    if tiles:
        warp_tiles.disable()
    cost = compiling.read()
    return {
        **{name: round(cost[name] + start[name], 3) for name in cost},
        "setup_cpu_s": met["cpu_s"],
        "setup_wall_s": met["wall_s"],
        "modules": len(targets),
        "cubin_bytes": sum(path.stat().st_size for path in folder.rglob("*.cubin")),
        "found": sum(record.get("found", False) for record in records),
        "mathdx_builds": mathdx_builds(),
        "own_builds": sum(record.get("lto_builds", 0) for record in records),
        "rows": rows,
    }


def started(step: Callable[[], None], enabling: dict[str, float], setup: Meter) -> dict[str, Any]:
    """Runs a step whose launches load their modules. The rest of its time is recorded as setup."""
    modules, cost = load_at_launches(step)
    met = setup.read()
    records = warp_tiles.report()["modules"] if warp_tiles.is_enabled() else []
    found = sum(record.get("found", False) for record in records)
    ending = Meter()
    warp_tiles.disable()  # writes the start record
    end = ending.read()
    return {
        **{name: round(cost[name] + enabling[name] + end[name], 3) for name in cost},
        "setup_cpu_s": round(met["cpu_s"] - cost["cpu_s"], 3),
        "setup_wall_s": round(met["wall_s"] - cost["wall_s"], 3),
        "modules": modules,
        "found": found,
    }


def main() -> None:
    client, side, folder, *record = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        result = measure(STEPS[client], side, Path(folder), *map(Path, record))
    print(json.dumps({**result, "versions": versions(), "python": platform.python_version()}))


if __name__ == "__main__":
    main()
