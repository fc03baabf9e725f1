"""Builds modules of tile kernels in a separate process, and measures the cost."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import environment, run_json

KERNEL = """
@wp.kernel{options}
def gemm_{name}(A: wp.array2d(dtype=wp.{a}), B: wp.array2d(dtype=wp.{a}), C: wp.array2d(dtype=wp.{c})):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{c})
    for step in range(A.shape[1] // {k}):
        a = wp.tile_load(A, shape=({m}, {k}), offset=(i * {m}, step * {k}))
        b = wp.tile_load(B, shape=({k}, {n}), offset=(step * {k}, j * {n}))
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, offset=(i * {m}, j * {n}))
"""


@dataclass(frozen=True)
class Kernel:
    m: int
    n: int
    k: int
    a: str = "float16"
    c: str = "float32"

    def source(self, backward: bool | None) -> str:
        """The text of the kernel. ``backward`` is a kernel option; None leaves it out."""
        options = "" if backward is None else f"(enable_backward={backward})"
        name = f"{self.a}_{self.m}x{self.n}x{self.k}"
        return KERNEL.format(options=options, name=name, **asdict(self))


@dataclass(frozen=True)
class Job:
    """A build: the modules and the builder.

    Attributes:
        modules: Texts of Python modules with kernels.
        tiles: True if warp_tiles is enabled.
        arch: Compute capability.
        threads: Threads per block.
        warp_cache: Folder of Warp's caches, its LTO cache among them.
        tiles_cache: Folder of warp_tiles' cache.
        out: Folder for the cubins.
        settings: Environment variables of warp_tiles.
        scalar: True if the modules request Warp's scalar path.
        imported: True to import warp_tiles before the time begins.
        root: Another checkout of warp_tiles; empty for this one.
    """

    modules: tuple[str, ...]
    tiles: bool
    arch: int
    threads: int
    warp_cache: str
    tiles_cache: str
    out: str
    settings: tuple[tuple[str, str], ...] = ()
    scalar: bool = False
    imported: bool = False
    root: str = ""


_CHILD = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
job = json.loads(sys.stdin.read())
import warp as wp
wp.config.log_level = wp.LOG_WARNING
wp.init()
modules = []
for number, text in enumerate(job["modules"]):
    path = Path(job["out"]) / f"kernels_{number}.py"
    path.write_text("import warp as wp\\n" + text)
    namespace = {"__name__": f"kernels_{number}", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    sys.modules[f"kernels_{number}"] = type(sys)(f"kernels_{number}")
    module = wp.get_module(f"kernels_{number}")
    module.options["block_dim"] = job["threads"]
    if job["scalar"]:
        module.options |= {"enable_mathdx_gemm": False, "enable_mathdx_solver": False}
    modules.append(module)
if job["imported"]:
    import warp_tiles
start = time.perf_counter()
if job["tiles"]:
    import warp_tiles
    warp_tiles.enable()
def build(module):
    return wp.compile_aot_module(module, arch=job["arch"], module_dir=job["out"])[0]
# Warp itself loads modules on at most four threads
with ThreadPoolExecutor(min(4, len(modules))) as pool:
    cubins = list(pool.map(build, modules))
seconds = time.perf_counter() - start
records = warp_tiles.report()["modules"] if job["tiles"] else []
print(json.dumps({
    "seconds": round(seconds, 3),
    "cubin_bytes": sum(Path(c).stat().st_size for c in cubins),
    "lto_builds": sum(r.get("lto_builds", 0) for r in records),
    "lto_bytes": sum(r.get("lto_bytes", 0) for r in records),
    "linkers": sorted({r["linker"] for r in records}),
    "phases_s": {p["name"]: round(p["seconds"], 3) for p in records[0]["phases"]} if len(records) == 1 else {},
}))
"""


def build(job: Job) -> dict[str, Any]:
    """Run a job in a fresh process.

    Returns:
        Seconds from importing warp_tiles, or from enabling it if it is imported, to the last cubin, bytes and counts.
    """
    for folder in (job.warp_cache, job.tiles_cache, job.out):
        Path(folder).mkdir(parents=True, exist_ok=True)
    caches = {"WARP_CACHE_PATH": job.warp_cache, "WARP_TILES_CACHE_DIR": job.tiles_cache}
    environ = environment(**caches, **dict(job.settings))
    if job.root:
        environ["PYTHONPATH"] = job.root
    result: dict[str, Any] = run_json([sys.executable, "-c", _CHILD], environ, asdict(job))
    if not job.tiles:  # Warp keeps no record, but its LTO cache holds the builds
        lto = [f for f in Path(job.warp_cache).glob("*/lto/*.lto") if not f.name.endswith("_fatbin.lto")]
        result["lto_builds"] = len(lto)
        result["lto_bytes"] = sum(f.stat().st_size for f in lto)
    return result
