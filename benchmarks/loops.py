"""Compares unmodified loops of wp.tile_matmul over whole matrices with cuBLAS, in one run on a GPU.

    python benchmarks/loops.py --json benchmarks/results/loops.json

A row is a square product of one size, with a block's tile, its threads and the setting `main_loop`. Rows of tf32
multiply float32 arrays with this precision. "B columns" is a B whose columns are contiguous. A loop of a row "C added"
begins with its tile of C. cuBLAS is called through torch, with the same arrays and an output of the operands' type. In
rows "C added" it is torch.addmm, which reads its output first. Launches of both alternate. Times are medians by CUDA
events. A kernel that spins runs before each launch, so that the launch is queued when it begins, and the time is that
of the GPU alone. The same kernel reads the clock. The result is compared with a product in float64, relative to its
largest element.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import gpu_record
from benchmarks.speed.clock import read_clock
from benchmarks.speed.timing import SPIN_NS
from tests.integration.helpers import load

LAUNCHES, WARM_LAUNCHES = 30, 5
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
        """The type of A and B."""
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def total(self) -> str:
        """The type of C."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def name(self) -> str:
        forms = ", B columns" * self.b_columns + ", C added" * self.c_added
        return f"{self.dtype} {self.size} {self.m}x{self.n}x{self.k} {self.threads} threads, {self.main_loop}{forms}"

    @property
    def source(self) -> str:
        """The source of its kernel."""
        loaded, right = f"({self.k}, {self.n}), offset=(step, j * {self.n})", "b"
        if self.b_columns:
            loaded, right = f"({self.n}, {self.k}), offset=(j * {self.n}, step)", "wp.tile_transpose(b)"
        precision = "tf32" if self.dtype == "tf32" else "default"
        start = f'wp.tile_zeros(shape=({self.m}, {self.n}), dtype=wp.{self.total}, storage="shared")'
        if self.c_added:
            offset = f"(i * {self.m}, j * {self.n})"
            start = f'wp.tile_load(C, shape=({self.m}, {self.n}), offset={offset}, storage="shared")'
        return KERNEL.format(
            m=self.m, n=self.n, k=self.k, stored=self.stored, total=self.total, precision=precision,
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
    """The kernel of a row."""
    return load(row.source, block_dim=row.threads).gemm


@dataclass(frozen=True)
class Measured:
    """The times of some functions, by their names.

    Attributes:
        us: Median times in microseconds.
        clock_ghz: Median clocks of a multiprocessor right before the calls.
        late: The number of calls, warm-up calls included, that the host had not launched when the GPU was ready. Their
            times contain the host.
    """

    us: dict[str, float]
    clock_ghz: dict[str, float]
    late: int


def measured(torch: Any, runs: dict[str, Callable[[], object]], *, queued: bool = True) -> Measured:
    """Times some functions that launch kernels. Their calls alternate.

    Args:
        runs: The functions, by name.
        queued: True for the time of the GPU alone, while a kernel that spins keeps it busy until all is launched. False
            for the time of a call on an idle GPU, which contains what the host does; there are no clocks then.

    Warp's current stream must be torch's, as :func:`measure_rows` sets it.
    """
    import warp as wp

    times: dict[str, list[float]] = {name: [] for name in runs}
    total, late = WARM_LAUNCHES + LAUNCHES, 0
    clocks = wp.zeros((total, len(runs)), dtype=wp.float64, device="cuda")
    for number in range(total):
        for position, (name, run) in enumerate(runs.items()):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if queued:
                wp.launch(read_clock, dim=1, inputs=[clocks[number], position, SPIN_NS], device="cuda")
            start.record()
            run()
            end.record()
            late += queued and start.query()
            end.synchronize()
            if number >= WARM_LAUNCHES:
                times[name].append(1e3 * start.elapsed_time(end))
    read = clocks.numpy()[WARM_LAUNCHES:].T if queued else ()
    return Measured(
        {name: statistics.median(found) for name, found in times.items()},
        {name: round(statistics.median(one.tolist()), 3) for name, one in zip(runs, read)},
        late,
    )


def medians_us(torch: Any, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median times of :func:`measured`."""
    return measured(torch, runs).us


@dataclass(frozen=True)
class LoopCall:
    """A row's arrays and its recorded launch, which has run once.

    Attributes:
        a, b: The operands.
        c: C, which the launch writes.
        initial_c: C before the first launch.
        launch: The recorded launch.
        loop: The loop of its plan.
    """

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


def measure(torch: Any, row: Row) -> dict[str, Any]:
    """The times of a row, the treatment of its loop, and its difference from float64."""
    torch.backends.cuda.matmul.allow_tf32 = row.dtype == "tf32"
    call = call_of(torch, row)
    a, b, out = call.a, call.b, torch.zeros_like(call.a)
    expected = a.double() @ b.double() + call.initial_c
    difference = float((call.c.double() - expected).abs().max() / expected.abs().max())
    del expected

    def cublas() -> Any:
        return torch.addmm(out, a, b, out=out) if row.c_added else torch.matmul(a, b, out=out)

    timed = measured(torch, {"tiles": call.launch.launch, "cublas": cublas})
    times = timed.us
    tflops = {name: round(2 * row.size**3 / us / 1e6, 1) for name, us in times.items()}
    treatment = {key: call.loop[key] for key in ("state", "stages", "instruction", "reason")}
    found = {"name": row.name, **asdict(row), **treatment, "us": times, "tflops": tflops, "difference": difference}
    found |= {"clock_ghz": timed.clock_ghz, "late": timed.late}
    found["to_cublas"] = round(times["cublas"] / times["tiles"], 3)
    if not difference <= ALLOWED.get(row.dtype, ALLOWED_OTHERS):
        found["wrong"] = f"differs from float64 by {difference:.3g}"
    return found


def measure_rows(
    description: str | None,
    rows: Sequence[Any],
    measure_row: Callable[[Any, Any], dict[str, Any]],
    described: Callable[[dict[str, Any]], str],
    arguments: list[str] | None,
) -> int:
    """Measures rows in one run, and writes the file after each.

    Args:
        description: The text of the command's help.
        rows: Rows with a ``name``.
        measure_row: Returns the result of a row, from torch and the row. One with ``wrong`` is a failure.
        described: The words about a result on the terminal, behind the row's name.
        arguments: Those of the command; None for the process's own.

    Returns:
        The status of the process: 1 if a result is wrong, else 0.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", default="", help="measure only rows whose names contain this text")
    options = parser.parse_args(arguments)
    import warp as wp

    import warp_tiles

    torch = importlib.import_module("torch")
    wp.config.log_level = wp.LOG_WARNING
    warp_tiles.enable()
    wp.set_stream(wp.stream_from_torch(torch.cuda.current_stream()))
    data: dict[str, Any] = {
        **gpu_record("auto"),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "rows": [],
    }
    for row in rows:
        if options.only in row.name:
            found = measure_row(torch, row)
            print(f"{row.name}: {described(found)}", flush=True)
            data["rows"].append(found)
            options.json.write_text(json.dumps(data, indent=1) + "\n")
    return int(any("wrong" in row for row in data["rows"]))


def main(arguments: list[str] | None = None) -> int:
    """Measure all rows, and write the file after each."""

    def described(found: dict[str, Any]) -> str:
        return f"{found['tflops']['tiles']} TFLOP/s, {found['to_cublas']} of cuBLAS"

    return measure_rows(__doc__, ROWS, measure, described, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
