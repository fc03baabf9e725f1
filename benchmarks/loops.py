"""Compares unmodified loops of wp.tile_matmul over whole matrices with cuBLAS, in one run on a GPU.

    python benchmarks/loops.py --json benchmarks/results/loops.json
    python benchmarks/loops.py --buffered --repeats 100 --json buffered.json

A row is a square product of one size, with a block's tile, its threads and the setting `main_loop`. Rows of tf32
multiply float32 arrays with this precision. "B columns" is a B whose columns are contiguous. A loop of a row "C added"
begins with its tile of C. cuBLAS is called through torch, with the same arrays and an output of the operands' type. In
rows "C added" it is torch.addmm, which reads its output first. Launches alternate (``benchmarks/speed/timing.py``). The
result is compared with a product in float64, relative to its largest element.

--buffered measures loops that keep double buffers by default, beside two stages (`main_loop="stages=2"`) in place of
cuBLAS. `to_buffers` is the speed of the stages, of that of the double buffers.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.speed.timing import CALLS, Launch, row_of, time_alternately
from tests.integration.helpers import load

ALLOWED = {"tf32": 4e-3, "float64": 1e-12}  # difference of correct results
ALLOWED_OTHERS = 1e-4


@dataclass(frozen=True)
class Row:
    """One product of size x size elements by a block of threads, whose tile of C is m x n, in steps of k."""

    dtype: str
    size: int
    m: int
    n: int
    k: int
    threads: int
    main_loop: str
    b_columns: bool = False
    c_added: bool = False

    @property
    def stored(self) -> str:
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def total(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def precision(self) -> str:
        return "tf32" if self.dtype == "tf32" else "default"

    @property
    def name(self) -> str:
        forms = ", B columns" * self.b_columns + ", C added" * self.c_added
        return f"{self.dtype} {self.size} {self.m}x{self.n}x{self.k} {self.threads} threads, {self.main_loop}{forms}"

    @property
    def source(self) -> str:
        loaded, right = f"({self.k}, {self.n}), offset=(step, j * {self.n})", "b"
        if self.b_columns:
            loaded, right = f"({self.n}, {self.k}), offset=(j * {self.n}, step)", "wp.tile_transpose(b)"
        start = f'wp.tile_zeros(shape=({self.m}, {self.n}), dtype=wp.{self.total}, storage="shared")'
        if self.c_added:
            offset = f"(i * {self.m}, j * {self.n})"
            start = f'wp.tile_load(C, shape=({self.m}, {self.n}), offset={offset}, storage="shared")'
        return KERNEL.format(
            m=self.m, n=self.n, k=self.k, stored=self.stored, total=self.total, precision=self.precision,
            loaded=loaded, right=right, start=start,
        )  # fmt: skip


TILES = ((128, 256, 64, 256), (128, 128, 64, 128), (128, 128, 64, 256), (128, 128, 32, 128), (128, 128, 32, 256))
SMALL = (64, 64, 64, 128)
TF32_TILES = ((256, 128, 32, 256), (128, 256, 32, 256), (128, 128, 32, 256), (128, 128, 32, 128), (64, 64, 32, 128))
F64_TILES = ((128, 64, 16, 256), (128, 64, 16, 128), (128, 128, 16, 256), (64, 64, 16, 128))
F32_TILES = ((128, 256, 16, 256), (128, 128, 16, 128), (128, 128, 32, 256), (64, 64, 32, 128))
C_ADDED = (
    *(("float16", tile) for tile in (*TILES[:2], SMALL)),
    *(("tf32", TF32_TILES[0]), ("float64", F64_TILES[0]), ("float32", F32_TILES[0]), ("float32", F32_TILES[1])),
)
ROWS = (
    *(Row("float16", 4096, *tile, "auto") for tile in (*TILES, SMALL)),
    *(Row("float16", size, *tile, "auto") for size in (2048, 8192) for tile in TILES[:2]),
    *(Row("bfloat16", size, *TILES[0], "auto") for size in (4096, 8192)),
    *(Row("float16", 4096, *tile, "mma") for tile in (*TILES[:4], SMALL)),
    *(Row("float16", 4096, *tile, "double_buffered") for tile in (SMALL, TILES[3])),
    *(Row("tf32", 4096, *tile, "auto", columns) for tile in TF32_TILES for columns in (False, True)),
    *(Row("tf32", 4096, *tile, main_loop) for tile in TF32_TILES[3:] for main_loop in ("mma", "double_buffered")),
    *(Row("float64", 4096, *tile, main_loop) for tile in F64_TILES for main_loop in ("auto", "double_buffered")),
    *(Row("float32", 4096, *tile, "auto", columns) for tile in F32_TILES for columns in (False, True)),
    *(Row("float32", 4096, *tile, "double_buffered") for tile in F32_TILES[1:]),
    *(Row("float32", 4096, *tile, "double_buffered", True) for tile in F32_TILES[2:]),
    *(Row(dtype, 4096, *tile, "auto", c_added=True) for dtype, tile in C_ADDED),
)

# float32 with fewer than 32 accumulators of a thread
BUFFERED_TILES = (
    *((32, 32, 16, 64), (32, 32, 32, 64), (32, 32, 32, 128), (64, 32, 16, 128), (32, 64, 16, 128)),
    *((64, 64, 16, 256), (64, 64, 32, 256), (64, 32, 32, 256)),
)
BUFFERED = tuple(
    Row("float32", size, *tile, "auto", c_added=c_added)
    for size in (1024, 4096)
    for tile in BUFFERED_TILES
    for c_added in (False, True)
)

# a loop that a user of Warp writes
KERNEL = """
@wp.kernel(enable_backward=False)
def gemm(A: wp.array2d(dtype=wp.{stored}), B: wp.array2d(dtype=wp.{stored}), C: wp.array2d(dtype=wp.{total})):
    i, j = wp.tid()
    c = {start}
    for step in range(0, A.shape[1], {k}):
        a = wp.tile_load(A, shape=({m}, {k}), offset=(i * {m}, step), storage="shared")
        b = wp.tile_load(B, shape={loaded}, storage="shared")
        wp.tile_matmul(a, {right}, c, precision="{precision}")
    wp.tile_store(C, c, offset=(i * {m}, j * {n}))
"""


def kernel_of(row: Row) -> Any:
    return load(row.source, block_dim=row.threads).gemm


@dataclass(frozen=True)
class LoopCall:
    """A row's operands, C before and after one launch, that launch as it is recorded, and the loop of its plan."""

    a: Any
    b: Any
    c: Any
    initial_c: Any
    launch: Any
    loop: dict[str, Any]


def call_of(torch: Any, row: Row) -> LoopCall:
    """The call of a row, after one launch."""
    import warp as wp

    import warp_tiles

    torch.manual_seed(0)
    shape, dtype, total = (row.size, row.size), getattr(torch, row.stored), getattr(torch, row.total)
    a, given = (torch.randn(shape, device="cuda", dtype=dtype) / 8 for _ in range(2))
    initial_c = (torch.randn if row.c_added else torch.zeros)(shape, device="cuda", dtype=total)
    c = initial_c.clone()
    kernel = kernel_of(row)
    dim = (-(-row.size // row.m), -(-row.size // row.n))
    with warp_tiles.override(main_loop=row.main_loop):
        inputs, outputs = [wp.from_torch(a), wp.from_torch(given)], [wp.from_torch(c)]
        launch = wp.launch_tiled(
            kernel, dim=dim, inputs=inputs, outputs=outputs, block_dim=row.threads, record_cmd=True
        )
        (loop,) = warp_tiles.plan(kernel.module, arch=90, block_dim=row.threads).to_json()["loops"]
        launch.launch()
    return LoopCall(a, given.T if row.b_columns else given, c, initial_c, launch, loop)


def measure(row: Row, options: argparse.Namespace) -> runner.Row:
    """The times, the treatment of the loop, and its difference from float64."""
    torch = torch_with_warp()
    torch.backends.cuda.matmul.allow_tf32 = row.dtype == "tf32"
    call = call_of(torch, row)
    a, b, out = call.a, call.b, torch.zeros_like(call.a)
    difference = runner.difference(call.c.double(), a.double() @ b.double() + call.initial_c)
    runner.require_close(difference, ALLOWED.get(row.dtype, ALLOWED_OTHERS), "float64")

    def cublas() -> Any:
        return torch.addmm(out, a, b, out=out) if row.c_added else torch.matmul(a, b, out=out)

    peer = cublas
    if options.buffered:
        stages = call_of(torch, replace(row, main_loop="stages=2"))
        runner.require_close(runner.difference(stages.c.double(), call.c.double()), ALLOWED_OTHERS, "double buffers")
        peer = stages.launch.launch
    name = "stages" if options.buffered else "cublas"
    launches = {"tiles": Launch(call.launch.launch), name: Launch(peer)}
    timed = time_alternately(launches, options.repeats, together=False)
    treatment = {key: call.loop[key] for key in ("state", "stages", "instruction", "reason")}
    found = {**asdict(row), **treatment, "difference": difference, **row_of(timed, 2 * row.size**3)}
    ours, other = timed["tiles"].median_us, timed[name].median_us
    ratio = {"to_buffers": ours / other} if options.buffered else {"to_cublas": other / ours}
    return found | {key: round(value, 3) for key, value in ratio.items()}


def summarize(rows: list[runner.Row]) -> runner.Row:
    ratios = [row["to_buffers"] for row in rows if "to_buffers" in row]
    return {"to_buffers": runner.summary(ratios)} if ratios else {}


main = runner.command(
    __doc__, lambda options: BUFFERED if options.buffered else ROWS, measure, lambda options: torch_record(),
    options={"--buffered": {"action": "store_true", "help": "compare double buffers with two stages"}},
    repeats=CALLS, summarize=summarize, described=lambda row: str(row.get("to_buffers", row["tflops"])),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
