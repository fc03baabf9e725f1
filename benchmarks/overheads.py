"""Measures overheads of warp_tiles: of import, launches and cache hits with everything cached, and of planning."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import environment

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
    """Time the import plus first load of a cached module, and a launch, with and without warp_tiles."""
    source = scratch / "startup_kernel.py"
    source.write_text(STARTUP_KERNEL)
    environ = environment(
        WARP_CACHE_PATH=scratch / "startup_warp",
        WARP_TILES_CACHE_DIR=scratch / "startup_tiles",
        PYTHONPYCACHEPREFIX=scratch / "bytecode",
    )
    found: dict[str, list[tuple[float, float]]] = {"warp": [], "tiles": []}
    for repeat in range(repeats + 1):
        for who, values in found.items():
            command = [sys.executable, "-c", STARTUP, who, str(source)]
            run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            load_ms, launch_us = map(float, run.stdout.strip().splitlines()[-1].split())
            if repeat:  # the first of each fills the caches
                values.append((load_ms, launch_us))
            time.sleep(2.1 if not repeat else 0)  # digests of files younger than two seconds are not cached
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
    from warp_tiles.store.cache import Cache
    from warp_tiles.store.key import CacheKey

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


def planning(scratch: Path, repeats: int) -> dict[str, Any]:
    """CPU time of ``warp_tiles.plan()`` for the modules of ``tests/loop_forms.py``, in milliseconds.

    It contains Warp's code generation. Each plan is of a new module, so that nothing of an earlier plan is used again.
    """
    import warp as wp

    import warp_tiles
    from tests.loop_forms import FORMS, Form
    from tests.products import load_kernels

    def plan_ms(form: Form) -> float:
        module = load_kernels(f"import warp as wp\n\n{form.text}")
        start = time.process_time()
        warp_tiles.plan(module, arch=90, block_dim=64)
        return (time.process_time() - start) * 1e3

    wp.config.log_level = wp.LOG_WARNING
    with warp_tiles.override(cache_dir=scratch / "planning"), warp_tiles.enabled():
        plan_ms(next(iter(FORMS.values())))  # finds the toolchain and digests its files
        times = [statistics.median(plan_ms(form) for _ in range(repeats)) for form in FORMS.values()]
    result = {
        "modules": len(times),
        "median_ms": round(statistics.median(times), 2),
        "largest_ms": round(max(times), 2),
        "sum_ms": round(sum(times), 1),
    }
    print(f"planning: {json.dumps(result)}", flush=True)
    return result
