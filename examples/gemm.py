"""A tiled GEMM, planned, built and checked against NumPy.

    warp-tiles run examples/gemm.py
    python examples/gemm.py --size 1024

Runs on a GPU if there is one. Otherwise it runs on the CPU, and also compiles for sm_90 to exercise
the build for a GPU.
"""

import argparse
import sys
import tempfile
import time

import numpy as np
import warp as wp

import warp_tiles

TILE_M, TILE_N, TILE_K = wp.constant(64), wp.constant(64), wp.constant(32)
THREADS = 128


@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d[wp.float16], B: wp.array2d[wp.float16], C: wp.array2d[wp.float32]):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(TILE_M, TILE_N), dtype=wp.float32)
    for step in range(A.shape[1] // TILE_K):
        a = wp.tile_load(A, shape=(TILE_M, TILE_K), offset=(i * TILE_M, step * TILE_K))
        b = wp.tile_load(B, shape=(TILE_K, TILE_N), offset=(step * TILE_K, j * TILE_N))
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, offset=(i * TILE_M, j * TILE_N))


def show_plan(arch: int) -> None:
    plan = warp_tiles.plan(sys.modules[__name__], arch=arch, block_dim=THREADS)
    print(f"plan for sm_{arch}, {THREADS} threads:")
    for planned in plan.functions:
        state = f"build with {planned.provider}" if planned.needed else "skip"
        print(f"  {planned.role.value:10} {planned.problem.describe()}: {state}, {planned.reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="rows and columns of the matrices, a multiple of 64")
    arguments = parser.parse_args()
    if arguments.size <= 0 or arguments.size % 64:
        parser.error(f"--size must be a positive multiple of 64, got {arguments.size}")

    warp_tiles.enable()
    device = wp.get_preferred_device()
    arch = device.arch if device.is_cuda else 90
    show_plan(arch)

    if not device.is_cuda and not warp_tiles.is_planning():
        with tempfile.TemporaryDirectory() as folder:
            wp.set_module_options({"block_dim": THREADS})
            start = time.perf_counter()
            wp.compile_aot_module(sys.modules[__name__], arch=arch, module_dir=folder)
            print(f"no GPU here: compiled for sm_{arch} in {time.perf_counter() - start:.1f} s, running on the CPU")

    size = arguments.size
    random = np.random.default_rng(0)
    a = random.uniform(-1, 1, (size, size)).astype(np.float16)
    b = random.uniform(-1, 1, (size, size)).astype(np.float16)
    c = wp.empty((size, size), dtype=wp.float32, device=device)
    blocks = [size // TILE_M, size // TILE_N]
    wp.launch_tiled(
        gemm,
        dim=blocks,
        inputs=[wp.array(a, device=device), wp.array(b, device=device), c],
        block_dim=THREADS,
        device=device,
    )
    if warp_tiles.is_planning():  # under warp-tiles plan or compile nothing was computed
        return

    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.max(np.abs(c.numpy() - expected)) / np.max(np.abs(expected))
    print(f"{size}x{size}x{size} on {device}: largest error {error:.1e} of the largest element")
    if not error < 1e-5:
        sys.exit(f"the result is wrong: {error:.1e} is above 1e-5")


if __name__ == "__main__":
    main()
