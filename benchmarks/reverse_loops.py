"""Measures the adjoint kernels of loops of wp.tile_matmul on a GPU, with and without stages, beside cuBLAS.

    python benchmarks/reverse_loops.py --json benchmarks/results/reverse_loops.json

A row is a loop over K of square matrices with a bias and a rounding store, so that its gradients are no products of
whole arrays. "before" is the same kernel with `main_loop=double_buffered`, whose reverse pass calls the products'
adjoint functions in each iteration. cuBLAS computes the two gradients of a plain product through torch. Launches of all
alternate. Times are medians by CUDA events, of the GPU alone (benchmarks/loops.py). The gradients are compared with
float64, relative to their largest element.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.loops import measure_rows, medians_us
from tests.integration.helpers import load

# differences of correct results; atomic sums of 16-bit numbers round each time
ALLOWED = {"float16": 1e-2, "bfloat16": 5e-2, "tf32": 4e-3, "float64": 1e-12, "float32": 1e-5}


@dataclass(frozen=True)
class Row:
    """The gradients of a product of size x size elements by blocks of threads, with m x n tiles of C, in steps of k."""

    dtype: str
    size: int
    m: int
    n: int
    k: int
    threads: int

    @property
    def stored(self) -> str:
        """The type of A, B and C."""
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def total(self) -> str:
        """The type of the sums."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.size} {self.m}x{self.n}x{self.k} {self.threads} threads"

    @property
    def source(self) -> str:
        """The source of its kernel."""
        precision = "tf32" if self.dtype == "tf32" else "default"
        return KERNEL.format(m=self.m, n=self.n, k=self.k, stored=self.stored, total=self.total, precision=precision)


ROWS = (
    Row("float16", 4096, 128, 128, 64, 256),
    Row("float16", 4096, 128, 64, 64, 128),
    Row("float16", 4096, 128, 128, 32, 256),
    Row("float16", 4096, 64, 64, 64, 128),
    Row("bfloat16", 4096, 128, 64, 64, 128),
    Row("tf32", 2048, 64, 64, 32, 128),
    Row("float32", 2048, 64, 64, 32, 128),
    Row("float64", 2048, 64, 64, 16, 128),
)

KERNEL = """
@wp.kernel
def layer(
    A: wp.array2d(dtype=wp.{stored}), B: wp.array2d(dtype=wp.{stored}), Bias: wp.array2d(dtype=wp.{total}),
    C: wp.array2d(dtype=wp.{stored}),
):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{total}, storage="shared")
    for step in range(0, A.shape[1], {k}):
        a = wp.tile_load(A, shape=({m}, {k}), offset=(i * {m}, step), storage="shared")
        b = wp.tile_load(B, shape=({k}, {n}), offset=(step, j * {n}), storage="shared")
        wp.tile_matmul(a, b, c, precision="{precision}")
    row = wp.tile_load(Bias, shape=(1, {n}), offset=(0, j * {n}), storage="shared")
    bias = wp.tile_broadcast(row, shape=({m}, {n}))
    wp.tile_store(C, wp.tile_astype(c + bias, wp.{stored}), offset=(i * {m}, j * {n}))
"""


def measure(torch: Any, row: Row) -> dict[str, Any]:
    """The times of a row, the treatment of its reverse pass, and the difference of its gradients from float64."""
    import warp as wp

    import warp_tiles

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = row.dtype == "tf32"
    shape, dtype, total = (row.size, row.size), getattr(torch, row.stored), getattr(torch, row.total)
    a, b, g = (torch.randn(shape, device="cuda", dtype=dtype) / 8 for _ in range(3))
    bias, of_bias = (torch.zeros((1, row.size), device="cuda", dtype=total) for _ in range(2))
    c, of_a, of_b, of_c = (torch.zeros(shape, device="cuda", dtype=dtype) for _ in range(4))
    inputs = [wp.from_torch(x, requires_grad=False) for x in (a, b, bias, c)]
    gradients = [wp.from_torch(x, requires_grad=False) for x in (of_a, of_b, of_bias, of_c)]
    launches = {}
    for name, main_loop in (("stages", "auto"), ("before", "double_buffered")):
        with warp_tiles.override(main_loop=main_loop):
            kernel = load(row.source, block_dim=row.threads).layer
            launches[name] = wp.launch(
                kernel, dim=(row.size // row.m, row.size // row.n, row.threads), inputs=inputs, adj_inputs=gradients,
                adj_outputs=[], adjoint=True, block_dim=row.threads, record_cmd=True,
            )  # fmt: skip
            launches[name].launch()
            if name == "stages":
                (loop,) = warp_tiles.plan(kernel.module, arch=90, block_dim=row.threads).to_json()["loops"]
    of_a.zero_()
    of_b.zero_()
    of_c.copy_(g)
    launches["stages"].launch()
    expected = (g.double() @ b.double().T, a.double().T @ g.double())
    difference = max(
        float((found.double() - wanted).abs().max() / wanted.abs().max())
        for found, wanted in zip((of_a, of_b), expected)
    )
    del expected
    of_c.copy_(g)  # a launch sets it to zeros, which takes as long to multiply
    out = torch.empty_like(a), torch.empty_like(b)

    def products() -> None:
        torch.matmul(g, b.T, out=out[0])
        torch.matmul(a.T, g, out=out[1])

    times = medians_us(torch, {**{name: launch.launch for name, launch in launches.items()}, "cublas": products})
    tflops = {name: round(4 * row.size**3 / us / 1e6, 1) for name, us in times.items()}
    found = {"name": row.name, **asdict(row), "reverse": loop["reverse"], "us": times, "tflops": tflops}
    found |= {"to_before": round(times["before"] / times["stages"], 2), "difference": difference}
    found["to_cublas"] = round(times["cublas"] / times["stages"], 3)
    if not difference <= ALLOWED[row.dtype]:
        found["wrong"] = f"differs from float64 by {difference:.3g}"
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure all rows, and write the file after each."""

    def described(found: dict[str, Any]) -> str:
        return f"{found['tflops']} TFLOP/s, {found['to_before']} times before"

    return measure_rows(__doc__, ROWS, measure, described, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
