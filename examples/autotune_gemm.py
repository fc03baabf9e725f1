"""A tiled GEMM whose tile sizes and block size are tuned for each shape.

    python examples/autotune_gemm.py                                # one shape: tune, or use the record, and check
    python examples/autotune_gemm.py --precision tf32 --shape 64x4096x4096
    python examples/autotune_gemm.py --compare --json compare.json  # default and tuned, ten shapes, all precisions

A second run finds the records and measures nothing. Without a GPU it runs on the CPU, with smaller shapes.
"""

import argparse
import datetime
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

import warp_tiles
from warp_tiles.tuning.measure import Effort, Runner, clock_for, race

# M, N and K of the tiles, threads per block
DEFAULT = (64, 64, 32, 128)
TILES = [
    DEFAULT,
    *[(16, 16, 64, 32), (16, 32, 128, 64), (16, 64, 64, 64), (64, 16, 64, 64), (16, 128, 64, 128), (128, 16, 64, 128)],
    *[(32, 32, 32, 64), (32, 32, 64, 64), (32, 32, 128, 128), (32, 64, 32, 64), (32, 64, 64, 128), (64, 32, 64, 128)],
    *[(32, 128, 64, 128), (128, 32, 64, 128), (64, 64, 16, 128), (64, 64, 64, 128), (64, 64, 64, 256)],
    *[(64, 128, 32, 128), (128, 64, 32, 128), (64, 128, 64, 256), (128, 64, 64, 256)],
    *[(128, 128, 32, 256), (128, 128, 64, 256)],
]
CONFIGS = [dict(zip(("tile_m", "tile_n", "tile_k", "block_dim"), tile)) for tile in TILES]
PRECISIONS = ("fp16", "tf32", "fp32")
SHAPES = [  # M, N, K: square, skinny, small
    *[(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)],
    *[(64, 4096, 4096), (4096, 64, 4096), (128, 8192, 1024)],
    *[(128, 128, 128), (256, 256, 256), (100, 300, 500)],
]
CPU_SCALE = 16
TOLERANCE = {"fp16": 1e-4, "tf32": 5e-3, "fp32": 1e-4}  # of the largest element


def tuned_gemm(precision: str, **options: Any) -> warp_tiles.TunedKernel:
    """A tuned kernel for C = A B, with operands and products of a precision, and C in fp32."""
    dtype = wp.float16 if precision == "fp16" else wp.float32

    @warp_tiles.autotune(
        CONFIGS,
        key=("a", "b"),
        dim=lambda c, args: (-(-args.c.shape[0] // c["tile_m"]), -(-args.c.shape[1] // c["tile_n"])),
        tiled=True,
        restore=("c",),
        reference="first",
        **options,
    )
    def gemm(tile_m: int, tile_n: int, tile_k: int) -> wp.Kernel:
        if precision == "tf32":

            @wp.kernel(module="unique", enable_backward=False)
            def product(a: wp.array2d(dtype=dtype), b: wp.array2d(dtype=dtype), c: wp.array2d(dtype=wp.float32)):
                i, j = wp.tid()
                sums = wp.tile_zeros(shape=(tile_m, tile_n), dtype=wp.float32)
                for step in range((a.shape[1] + tile_k - 1) // tile_k):
                    left = wp.tile_load(a, shape=(tile_m, tile_k), offset=(i * tile_m, step * tile_k))
                    right = wp.tile_load(b, shape=(tile_k, tile_n), offset=(step * tile_k, j * tile_n))
                    wp.tile_matmul(left, right, sums, precision="tf32")
                wp.tile_store(c, sums, offset=(i * tile_m, j * tile_n))
        else:

            @wp.kernel(module="unique", enable_backward=False)
            def product(a: wp.array2d(dtype=dtype), b: wp.array2d(dtype=dtype), c: wp.array2d(dtype=wp.float32)):
                i, j = wp.tid()
                sums = wp.tile_zeros(shape=(tile_m, tile_n), dtype=wp.float32)
                for step in range((a.shape[1] + tile_k - 1) // tile_k):
                    left = wp.tile_load(a, shape=(tile_m, tile_k), offset=(i * tile_m, step * tile_k))
                    right = wp.tile_load(b, shape=(tile_k, tile_n), offset=(step * tile_k, j * tile_n))
                    wp.tile_matmul(left, right, sums)
                wp.tile_store(c, sums, offset=(i * tile_m, j * tile_n))

        return product

    return gemm


def operands(shape: tuple[int, int, int], precision: str, device: Any) -> dict[str, Any]:
    """Random A and B, and C, by name."""
    m, n, k = shape
    random = np.random.default_rng(0)
    dtype = wp.float16 if precision == "fp16" else wp.float32
    a, b = (random.uniform(-1, 1, size).astype(np.float32) for size in ((m, k), (k, n)))
    return {
        "a": wp.array(a, dtype=dtype, device=device),
        "b": wp.array(b, dtype=dtype, device=device),
        "c": wp.zeros((m, n), dtype=wp.float32, device=device),
    }


def error_of(args: dict[str, Any]) -> float:
    """Largest error, as a share of the largest element."""
    expected = args["a"].numpy().astype(np.float64) @ args["b"].numpy().astype(np.float64)
    return float(np.max(np.abs(args["c"].numpy() - expected)) / np.max(np.abs(expected)))


class Repeated:
    """A recorded launch as a candidate, which needs no restoring."""

    def __init__(self, target: Any, args: dict[str, Any], device: Any) -> None:
        kernel, dim, block_dim = target
        options = {"inputs": list(args.values()), "device": device, "record_cmd": True}
        self._command = wp.launch_tiled(kernel, dim=dim, block_dim=block_dim, **options)

    def prepare(self) -> None:
        """Do nothing."""

    def run(self) -> None:
        """Launch once."""
        self._command.launch()

    def restore(self) -> None:
        """Do nothing, because each launch overwrites C."""


def compare(precision: str, shape: tuple[int, int, int], device: Any, gemm: warp_tiles.TunedKernel) -> dict[str, Any]:
    """Time the default and the tuned configuration alternately, after the search."""
    args = operands(shape, precision, device)
    start = time.perf_counter()
    record = gemm.tune(args, device)
    searched_s = time.perf_counter() - start
    winner = gemm.best(args, device)
    assert winner is not None
    row = {
        "precision": precision,
        "shape": list(shape),
        "winner": dict(winner.config),
        "search_s": round(searched_s, 1),
        "failed": {str(t.config): t.reason for t in record.timings if t.status == "failed"},
    }
    runners = [
        Runner(name, Repeated(gemm.launch_of(config, args), args, device))
        for name, config in (("default", CONFIGS[0]), ("tuned", winner.config))
    ]
    if winner.config == CONFIGS[0]:
        runners = runners[:1]
    race(runners, clock_for(device), Effort(warmup=5, runs=10, iterations=10, candidate_s=5.0))
    times = {runner.name: runner.statistics() for runner in runners}
    times.setdefault("tuned", times["default"])
    gemm.launch(**args, device=device)
    m, n, k = shape
    for name, found in times.items():
        row[f"{name}_us"] = round(found.median_us, 2)
        row[f"{name}_interval_us"] = [round(found.low_us, 2), round(found.high_us, 2)]
        row[f"{name}_tflops"] = round(2 * m * n * k / found.median_us / 1e6, 3)
    row["ratio"] = round(times["default"].median_us / times["tuned"].median_us, 3)
    row["error"] = error_of(args)
    if not row["error"] < TOLERANCE[precision]:
        sys.exit(f"the result is wrong: {row['error']:.1e} is above {TOLERANCE[precision]:.0e}")
    text = ", ".join(f"{name}={value}" for name, value in winner.config.items())
    print(
        f"{precision} {m:5}x{n:5}x{k:5}: default {row['default_us']:9.1f} us, tuned {row['tuned_us']:9.1f} us, "
        f"{row['ratio']:5.2f} times, {text}, searched {searched_s:.1f} s",
        flush=True,
    )
    return row


def compare_all(precisions: list[str], shapes: list[tuple[int, int, int]], device: Any, path: Path | None) -> None:
    """Compare every precision and shape, print the geometric mean, and write JSON."""
    rows = []
    for precision in precisions:
        gemm = tuned_gemm(precision)
        rows += [compare(precision, shape, device, gemm) for shape in shapes]
    ratios = [row["ratio"] for row in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}")
    if path is not None:
        result = {"machine": machine(device), "rows": rows, "geometric_mean": round(mean, 3), "least": min(ratios)}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def launch_each(precision: str, shape: tuple[int, int, int], device: Any) -> None:
    """Launch every configuration once."""
    args = operands(shape, precision, device)
    gemm = tuned_gemm(precision)
    for config in CONFIGS:
        kernel, dim, block_dim = gemm.launch_of(config, args)
        wp.launch_tiled(kernel, dim=dim, inputs=list(args.values()), block_dim=block_dim, device=device)


def machine(device: Any) -> dict[str, Any]:
    """Date, device and versions."""
    if device.is_cuda:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from benchmarks.machine import gpu_record

        return gpu_record(warp_tiles.Settings().provider)
    from warp_tiles.tuning.record import processor

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"date": now, "cpu": processor(), "warp": wp.__version__, "warp_tiles": warp_tiles.__version__}


def parsed_shape(text: str) -> tuple[int, int, int]:
    """M, N and K of a text such as 64x4096x4096."""
    try:
        m, n, k = (int(part) for part in text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 64x4096x4096") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has an extent below 1")
    return m, n, k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp16; with --compare: all")
    parser.add_argument("--shape", type=parsed_shape, action="append", help="MxNxK; may be given several times")
    parser.add_argument("--compare", action="store_true", help="compare default and tuned")
    parser.add_argument("--json", type=Path, help="with --compare: file for the results")
    arguments = parser.parse_args()

    warp_tiles.enable()
    device = wp.get_preferred_device()
    shapes = arguments.shape or SHAPES
    if not arguments.shape and device.is_cpu:
        shapes = [tuple(max(16, extent // CPU_SCALE) for extent in shape) for shape in SHAPES]
    precisions = [arguments.precision] if arguments.precision else list(PRECISIONS)
    precision = arguments.precision or "fp16"
    if warp_tiles.is_planning():  # under warp-tiles plan or compile no launch is executed, so none can be timed
        for each in precisions if arguments.compare else [precision]:
            launch_each(each, shapes[0], device)
        return
    if arguments.compare:
        compare_all(precisions, shapes, device, arguments.json)
        return

    gemm = tuned_gemm(precision)
    for shape in shapes if arguments.shape else shapes[1:2]:
        args = operands(shape, precision, device)
        start = time.perf_counter()
        gemm.launch(**args, device=device)
        wp.synchronize_device(device)
        took_s, best, error = time.perf_counter() - start, gemm.best(args, device), error_of(args)
        size = "x".join(map(str, shape))
        print(f"{precision} {size} on {device}: first launch {took_s:.2f} s, {gemm.counters}")
        if best is not None:
            print(f"  {dict(best.config)}, {best.median_us:.1f} us; largest error {error:.1e} of the largest element")
        if not error < TOLERANCE[precision]:
            sys.exit(f"the result is wrong: {error:.1e} is above {TOLERANCE[precision]:.0e}")


if __name__ == "__main__":
    main()
