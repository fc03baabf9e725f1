"""The cost of enable_backward: the same kernel with and without its adjoints, compared with unmodified Warp.

    python examples/skip_adjoints.py
    python examples/skip_adjoints.py --size 64 --dtype float16

The kernel is built for sm_90 with cold caches, in a new process for each row: with adjoints, without them by
the module option, and without them by the kernel option. No GPU is needed. At the end, a kernel runs on the
GPU if there is one, and otherwise on the CPU.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import warp as wp

import warp_tiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measure import Job, Kernel, build

THREADS = 128


@wp.kernel(enable_backward=False)
def square_tile(A: wp.array2d[wp.float32], C: wp.array2d[wp.float32]):
    a = wp.tile_load(A, shape=(16, 16))
    wp.tile_store(C, wp.tile_matmul(a, a))


def run_once(device: wp.Device) -> float:
    """Largest error of a forward-only product."""
    a = np.random.default_rng(0).uniform(-1, 1, (16, 16)).astype(np.float32)
    c = wp.empty((16, 16), dtype=wp.float32, device=device)
    wp.launch_tiled(square_tile, dim=[1], inputs=[wp.array(a, device=device), c], block_dim=64, device=device)
    return float(np.max(np.abs(c.numpy() - a.astype(np.float64) @ a)))


def compare_builds(size: int, dtype: str, arch: int) -> None:
    """Build each case with Warp and with warp_tiles, and print a row for each."""
    c = "float32" if dtype == "float16" else dtype
    kernel = Kernel(size, size, size, dtype, c)
    off = 'wp.set_module_options({"enable_backward": False})\n'
    cases = {
        "with adjoints": kernel.source(None),
        "module option off": off + kernel.source(None),
        "kernel option off": kernel.source(False),
    }
    print(f"{dtype} {size}x{size}x{size}, sm_{arch}, cold")
    print(f"{'':20}{'':12}{'functions':>9}{'seconds':>9}{'LTO-IR kB':>11}{'cubin kB':>10}")
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, text) in enumerate(cases.items()):
            for tiles in (False, True):
                folder = Path(scratch) / f"{number}_{tiles}"
                job = Job((text,), tiles, arch, THREADS, str(folder / "w"), str(folder / "t"), str(folder / "o"))
                row = build(job)
                print(
                    f"{name:20}{'warp_tiles' if tiles else 'Warp':12}{row['lto_builds']:>9}{row['seconds']:>9.1f}"
                    f"{row['lto_bytes'] / 1e3:>11.0f}{row['cubin_bytes'] / 1e3:>10.0f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16, help="M, N and K of the tiles")
    parser.add_argument("--dtype", choices=["float16", "float32", "float64"], default="float32")
    parser.add_argument("--arch", type=int, default=90)
    arguments = parser.parse_args()
    if not 1 <= arguments.size <= 128:
        parser.error(f"--size must be from 1 to 128, got {arguments.size}")

    planning = warp_tiles.is_planning()  # under warp-tiles plan or compile nothing is computed
    if not planning:
        compare_builds(arguments.size, arguments.dtype, arguments.arch)

    warp_tiles.enable()
    device = wp.get_preferred_device()
    error = run_once(device)
    if planning:
        return
    print(f"forward only on {device}: largest error {error:.1e}")
    if not error < 1e-5:
        sys.exit(f"the result is wrong: {error:.1e} is above 1e-5")


if __name__ == "__main__":
    main()
