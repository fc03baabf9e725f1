"""Resident GEMM: warp_tiles' cuBLASDx functions beside unmodified Warp's, one GPU, one run.

A and B stay in shared memory and 64 calls are made on them, in 2112 blocks, so that nothing but the
GEMM function is timed.

    python benchmarks/resident_gemm.py --json FILE
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import warp as wp

import warp_tiles

CELLS = [
    ("float16", "float32", 64, 64, 64, 128),
    ("float16", "float32", 64, 64, 64, 64),
    ("float16", "float32", 128, 128, 32, 128),
    ("float32", "float32", 32, 32, 32, 128),
    ("float32", "float32", 64, 64, 64, 128),
    ("float32", "float32", 64, 64, 64, 256),
    ("float32", "float32", 128, 128, 32, 256),
    ("float64", "float64", 64, 64, 64, 128),
    ("float64", "float64", 32, 32, 32, 64),
    ("float32", "float16", 64, 64, 64, 128),
    ("float16", "float16", 64, 64, 64, 128),
]
CALLS, BLOCKS = 64, 2112

SOURCE = """
import warp as wp

@wp.kernel(enable_backward=False, module="unique")
def resident(A: wp.array2d(dtype=wp.{ab}), B: wp.array2d(dtype=wp.{ab}), C: wp.array3d(dtype=wp.{c})):
    i = wp.tid()
    a = wp.tile_load(A, shape=({m}, {k}), storage="shared")
    b = wp.tile_load(B, shape=({k}, {n}), storage="shared")
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{c}, storage="shared")
    for step in range({calls}):
        wp.tile_matmul(a, b, c)
    wp.tile_store(C[i], c)
"""


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def load(text: str, folder: Path, name: str):
    path = folder / f"{name}.py"
    path.write_text(text)
    namespace = {"__name__": name, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace["resident"]


def measure(cell, folder: Path, name: str) -> float:
    ab, c, m, n, k, threads = cell
    kernel = load(SOURCE.format(ab=ab, c=c, m=m, n=n, k=k, calls=CALLS), folder, name)
    random = np.random.default_rng(0)
    a = wp.array(random.uniform(-1, 1, (m, k)), dtype=getattr(wp, ab), device="cuda:0")
    b = wp.array(random.uniform(-1, 1, (k, n)), dtype=getattr(wp, ab), device="cuda:0")
    out = wp.empty((BLOCKS, m, n), dtype=getattr(wp, c), device="cuda:0")
    times = []
    for repeat in range(13):
        start, stop = wp.Event(enable_timing=True), wp.Event(enable_timing=True)
        wp.record_event(start)
        wp.launch_tiled(kernel, dim=[BLOCKS], inputs=[a, b, out], block_dim=threads, device="cuda:0")
        wp.record_event(stop)
        milliseconds = wp.get_event_elapsed_time(start, stop)
        if repeat >= 3:
            times.append(milliseconds)
    return 2 * m * n * k * CALLS * BLOCKS / statistics.median(times) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, cell in enumerate(CELLS):
            theirs = measure(cell, Path(scratch), f"warp_{number}")
            with warp_tiles.enabled():
                ours = measure(cell, Path(scratch), f"tiles_{number}")
            rows.append({"cell": list(cell), "warp_tflops": theirs, "warp_tiles_tflops": ours, "ratio": ours / theirs})
            print(cell, f"{theirs:.1f} -> {ours:.1f} TFLOP/s, ratio {ours / theirs:.2f}", file=sys.stderr)
    if arguments.json:
        device = wp.get_device("cuda:0")
        record = {
            "date": datetime.date.today().isoformat(),
            "gpu": device.name,
            "driver": driver_version(),
            "warp": wp.__version__,
            "warp_tiles": warp_tiles.__version__,
            "calls": CALLS,
            "blocks": BLOCKS,
            "cells": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
