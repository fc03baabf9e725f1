"""Compares solver functions on a GPU: warp_tiles, Warp with libmathdx, and Warp's native path, in one run.

    python benchmarks/solvers.py --json benchmarks/results/solvers.json

A cell is a kernel whose blocks each load a matrix, factor it or solve with it, and store the result; 4,096 blocks run.
Cells "blocked" work on matrices of up to 512 rows, part by part, and on 1 to 4,096 of them. Cells "*_product" multiply
in a loop: K is 64, in steps of 16. `--only "*_product*" "*_inplace*"` selects the calls for which clients turn MathDx
off. All sides are built ahead of time in separate processes (`--build-only` needs no GPU), launches of the sides
alternate, and times are medians by CUDA events. Results are compared first.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import gpu_record
from benchmarks.runner import DEVICE, Row
from benchmarks.speed.builds import Build, BuildStore, load_module
from benchmarks.speed.cells import BYTES
from benchmarks.speed.timing import Launch, time_alternately

SIDES = ("tiles", "warp", "native")
SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
THREADS = (32, 64, 128, 256)
DTYPES = {"fp32": "float32", "fp64": "float64"}
BATCH, BATCHES = 4096, (1, 32, 1024, 4096)  # matrices; and of cells "blocked"
BLOCKED_SIZES = (32, 64, 128, 256, 512)
LARGEST_BYTES = 3 << 30  # of an array
DRAWN = 64  # different matrices
BLOCKS = (16, 32)
# largest difference of two correct results, relative to the largest element: ten times that in results/solvers.json
LARGEST_DIFFERENCE = {"float32": 8e-6, "float64": 1.5e-14}

_TEXT = """import warp as wp

wp.set_module_options({options})


@wp.kernel
def run(
    A: wp.array3d(dtype=wp.{dtype}), B: wp.array{rhs_rank}d(dtype=wp.{dtype}), X: wp.array{rank}d(dtype=wp.{dtype})
):
    i = wp.tid()
{body}
"""
_MATRIX = '    a = wp.tile_load(A[i], shape=({n}, {n}), storage="shared")\n'
_RHS = '    b = wp.tile_load(B[i], shape={shape}, storage="shared")\n'
_BODIES = {
    "cholesky": "    wp.tile_store(X[i], wp.tile_cholesky(a))",
    "cholesky_solve": _RHS + "    wp.tile_store(X[i], wp.tile_cholesky_solve(a, b))",
    "lower_solve": _RHS + "    wp.tile_store(X[i], wp.tile_lower_solve(a, b))",
    "upper_solve": _RHS + "    wp.tile_store(X[i], wp.tile_upper_solve(a, b))",
}
for _function in ("cholesky_solve", "lower_solve"):
    _BODIES[f"{_function}_inplace"] = f"{_RHS}    wp.tile_{_function}_inplace(a, b)\n    wp.tile_store(X[i], b)"
_BODIES["cholesky_inplace"] = "    wp.tile_cholesky_inplace(a)\n    wp.tile_store(X[i], a)"
# as clients write them: Kamino's and Warp's example (lower), MuJoCo Warp's (upper), and the two substitutions
_BLOCKED = {
    "blocked_cholesky": """
    for k in range(0, A.shape[1], {block}):
        diagonal = wp.tile_load(A[i], shape=({block}, {block}), offset=(k, k), storage="shared")
        for j in range(0, k, {block}):
            before = wp.tile_load(X[i], shape=({block}, {block}), offset=(k, j))
            wp.tile_matmul(before, wp.tile_transpose(before), diagonal, alpha=-1.0)
        wp.tile_cholesky_inplace(diagonal)
        wp.tile_store(X[i], diagonal, offset=(k, k))
        for row in range(k + {block}, A.shape[1], {block}):
            below = wp.tile_load(A[i], shape=({block}, {block}), offset=(row, k), storage="shared")
            for j in range(0, k, {block}):
                left = wp.tile_load(X[i], shape=({block}, {block}), offset=(row, j))
                right = wp.tile_load(X[i], shape=({block}, {block}), offset=(k, j))
                wp.tile_matmul(left, wp.tile_transpose(right), below, alpha=-1.0)
            panel = wp.tile_transpose(below)
            wp.tile_lower_solve_inplace(diagonal, panel)
            wp.tile_store(X[i], wp.tile_transpose(panel), offset=(row, k))
""",
    "blocked_cholesky_upper": """
    for k in range(0, A.shape[1], {block}):
        diagonal = wp.tile_load(A[i], shape=({block}, {block}), offset=(k, k), storage="shared")
        for j in range(0, k, {block}):
            before = wp.tile_load(X[i], shape=({block}, {block}), offset=(j, k), storage="shared")
            wp.tile_matmul(wp.tile_transpose(before), before, diagonal, alpha=-1.0)
        wp.tile_cholesky_inplace(diagonal, fill_mode="upper")
        wp.tile_store(X[i], diagonal, offset=(k, k))
        for column in range(k + {block}, A.shape[1], {block}):
            right = wp.tile_load(A[i], shape=({block}, {block}), offset=(k, column), storage="shared")
            for j in range(0, k, {block}):
                above = wp.tile_load(X[i], shape=({block}, {block}), offset=(j, k), storage="shared")
                other = wp.tile_load(X[i], shape=({block}, {block}), offset=(j, column), storage="shared")
                wp.tile_matmul(wp.tile_transpose(above), other, right, alpha=-1.0)
            wp.tile_lower_solve_inplace(wp.tile_transpose(diagonal), right)
            wp.tile_store(X[i], right, offset=(k, column))
""",
    "blocked_solve": """
    for r in range(0, A.shape[1], {block}):
        forward = wp.tile_load(B[i], shape=({block}, 1), offset=(r, 0))
        for j in range(0, r, {block}):
            left = wp.tile_load(A[i], shape=({block}, {block}), offset=(r, j))
            y = wp.tile_load(X[i], shape=({block}, 1), offset=(j, 0))
            wp.tile_matmul(left, y, forward, alpha=-1.0)
        lower = wp.tile_load(A[i], shape=({block}, {block}), offset=(r, r))
        wp.tile_lower_solve_inplace(lower, forward)
        wp.tile_store(X[i], forward, offset=(r, 0))
    for r in range(A.shape[1] - {block}, -1, -{block}):
        backward = wp.tile_load(X[i], shape=({block}, 1), offset=(r, 0))
        for j in range(r + {block}, A.shape[1], {block}):
            under = wp.tile_load(A[i], shape=({block}, {block}), offset=(j, r))
            x = wp.tile_load(X[i], shape=({block}, 1), offset=(j, 0))
            wp.tile_matmul(wp.tile_transpose(under), x, backward, alpha=-1.0)
        corner = wp.tile_load(A[i], shape=({block}, {block}), offset=(r, r))
        wp.tile_upper_solve_inplace(wp.tile_transpose(corner), backward)
        wp.tile_store(X[i], backward, offset=(r, 0))
""",
}
PRODUCT_ROWS = 64  # of A, of products
# products of clients that opt out of MathDx: A^T B, and J^T D J as MuJoCo Warp writes it
_PRODUCTS = {
    "transposed_product": """    x = wp.tile_zeros(shape=({n}, {n}), dtype=A.dtype, storage="shared")
    for k in range(0, A.shape[1], 16):
        left = wp.tile_load(A[i], shape=(16, {n}), offset=(k, 0))
        right = wp.tile_load(A[i], shape=(16, {n}), offset=(k, 0))
        x += wp.tile_matmul(wp.tile_transpose(left), right)
    wp.tile_store(X[i], x)""",
    "weighted_product": """    x = wp.tile_zeros(shape=({n}, {n}), dtype=A.dtype, storage="shared")
    for k in range(0, A.shape[1], 16):
        rows = wp.tile_load(A[i], shape=(16, {n}), offset=(k, 0))
        weights = wp.tile_load(B[i], shape=16, offset=k)
        weighted = wp.tile_map(wp.mul, wp.tile_transpose(rows), wp.tile_broadcast(weights, shape=({n}, 16)))
        x += wp.tile_matmul(weighted, rows)
    wp.tile_store(X[i], x)""",
}


@dataclass(frozen=True)
class Cell:
    """One kernel.

    Attributes:
        function: The solver function, or the product.
        types: ``fp32`` or ``fp64``.
        n: Rows of the matrix, or of the result of a product.
        columns: Columns of the right-hand side; 0 for a vector.
        threads: Threads of a block.
        block: Rows of a block, if the function works in blocks; 0 if the matrix is one tile.
        batch: The number of matrices.
    """

    function: str
    types: str
    n: int
    columns: int
    threads: int
    block: int = 0
    batch: int = BATCH

    def build(self, side: str) -> Build[Cell]:
        """Its build by a side, which is that of any number of matrices."""
        return Build(replace(self, batch=BATCH), side)

    @property
    def allowed(self) -> float:
        """The largest difference of two correct results, relative to the largest element."""
        return LARGEST_DIFFERENCE[DTYPES[self.types]] * max(1, self.n / max(SIZES))

    @property
    def is_product(self) -> bool:
        """True if X is a product of A with itself."""
        return self.function in _PRODUCTS

    @property
    def is_factor(self) -> bool:
        return "cholesky" in self.function and "cholesky_solve" not in self.function

    @property
    def name(self) -> str:
        """Its name in results."""
        columns = f" columns{self.columns}" if self.columns else ""
        block = f" block{self.block}" if self.block else ""
        batch = f" batch{self.batch}" if self.batch != BATCH else ""
        return f"{self.function} {self.types} n{self.n}{columns}{block} t{self.threads}{batch}"

    def text(self, side: str) -> str:
        """The Python module with the kernel ``run``. For ``native`` options request Warp's native path."""
        options: dict[str, object] = {"block_dim": self.threads, "enable_backward": False}
        if side == "native":
            options |= {"enable_mathdx_solver": False, "enable_mathdx_gemm": False}
        shape = f"({self.n}, {self.columns})" if self.columns else f"{self.n}"
        rhs_rank = 3 if self.columns else 2
        if self.is_product:
            body = _PRODUCTS[self.function]
        elif self.block:
            body = _BLOCKED[self.function]
        else:
            body = _MATRIX + _BODIES[self.function]
        return _TEXT.format(
            options=options,
            dtype=DTYPES[self.types],
            rhs_rank=rhs_rank,
            rank=3 if self.is_factor or self.is_product else rhs_rank,
            body=body.format(shape=shape, n=self.n, block=self.block),
        )


def cells() -> Iterator[Cell]:
    vectors = ("cholesky", "cholesky_solve", "lower_solve", "upper_solve")
    for types, n, threads in itertools.product(DTYPES, SIZES, THREADS):
        yield from (Cell(function, types, n, 0, threads) for function in vectors)
        if threads in (64, 128):
            yield Cell("lower_solve", types, n, n, threads)
    functions = (*_PRODUCTS, "cholesky_inplace", "lower_solve_inplace", "cholesky_solve_inplace")
    for function, n, threads in itertools.product(functions, SIZES[4:], THREADS[:3]):
        yield Cell(function, "fp32", n, 0, threads)
    for function, types, n, block, batch in itertools.product(_BLOCKED, DTYPES, BLOCKED_SIZES, BLOCKS, BATCHES):
        columns = int(function == "blocked_solve")
        if batch * n**2 * BYTES[DTYPES[types]] <= LARGEST_BYTES:
            yield Cell(function, types, n, columns, 64 if columns else 128, block, batch)


_kernels: dict[tuple[str, int, str], Any] = {}  # cells of one text differ in sizes alone


def _kernel_of(store: BuildStore, build: Build[Cell]) -> Any:
    key = (build.side, build.limits_of, build.text)
    if key not in _kernels:
        _kernels[key] = load_module(store, build).run
    return _kernels[key]


class Loaded:
    """A finished build on the GPU, with its arrays.

    Args:
        store: The store of the build.
        build: The build.
        batch: The number of matrices.
    """

    def __init__(self, store: BuildStore, build: Build[Cell], batch: int = BATCH) -> None:
        cell, self._batch = build.cell, batch
        random = np.random.default_rng(cell.n)
        dtype = DTYPES[cell.types]
        lower = np.tril(random.uniform(-1, 1, (DRAWN, cell.n, cell.n)) / cell.n**0.5)
        lower += np.eye(cell.n) * random.uniform(1, 2, (DRAWN, cell.n, 1))
        first = lower @ lower.transpose(0, 2, 1) if cell.is_factor else lower
        if cell.function == "upper_solve":
            first = lower.transpose(0, 2, 1)
        if cell.is_product:
            first = random.uniform(-1, 1, (DRAWN, PRODUCT_ROWS, cell.n))
        rhs_shape = (DRAWN, first.shape[1], cell.columns) if cell.columns else (DRAWN, first.shape[1])
        a, b = self._array(first, dtype), self._array(random.uniform(-1, 1, rhs_shape), dtype)
        shape = (cell.n, cell.n) if cell.is_factor or cell.is_product else rhs_shape[1:]
        self._x = wp.zeros((batch, *shape), dtype=a.dtype, device=DEVICE)
        self._command: Any = wp.launch_tiled(
            _kernel_of(store, build), dim=[batch], inputs=[a, b, self._x], block_dim=cell.threads, device=DEVICE,
            record_cmd=True,
        )  # fmt: skip

    def _array(self, values: Any, dtype: str) -> Any:
        """The drawn values again and again."""
        drawn = wp.array(values.astype(dtype)[: self._batch], device=DEVICE)
        found = wp.empty((self._batch, *values.shape[1:]), dtype=drawn.dtype, device=DEVICE)
        for start in range(0, self._batch, len(drawn)):
            wp.copy(found[start : start + len(drawn)], drawn)
        return found

    def run(self) -> None:
        self._command.launch()

    def result(self) -> Any:
        """A sample of X after one launch."""
        self.run()
        return self._x.numpy()[:: 63 if self._batch > 63 else 1]


def measure(cell: Cell, store: BuildStore) -> Row:
    """One row: compare the sides' results, and time them."""
    row: Row = asdict(cell)
    sides: dict[str, Loaded] = {}
    results: dict[str, Any] = {}
    for side in SIDES:
        record = store.record(cell.build(side)) or {"error": "not built"}
        row[side] = {key: record[key] for key in ("seconds", "cubin_bytes") if key in record}
        try:
            if "error" in record:
                raise LookupError(record["error"])
            sides[side] = Loaded(store, cell.build(side), cell.batch)
            results[side] = sides[side].result()
        except Exception as error:
            sides.pop(side, None)
            row[side]["error"] = f"{type(error).__name__}: {error}"[:300]
    ours = results.pop("tiles", None)
    for peer, expected in results.items() if ours is not None else ():
        row[peer]["difference"] = runner.require_close(runner.difference(ours, expected), cell.allowed, peer)
    for side, times in time_alternately({side: Launch(loaded.run) for side, loaded in sides.items()}).items():
        row[side] |= {"median_us": times.median_us, "spread_us": times.spread_us}
    peers = [row[side]["median_us"] for side in ("warp", "native") if side in sides]
    return row | ({"ratio": round(min(peers) / row["tiles"]["median_us"], 3)} if peers and "tiles" in sides else {})


def summary(rows: list[Row]) -> Row:
    """The ratios by function, type and number of matrices, and over all rows."""
    groups: dict[str, list[float]] = {"all": []}
    for row in rows:
        matrix = " of a matrix" if row["columns"] else ""
        batch = f", batch {row['batch']}" if row["block"] else ""
        for name in ("all", f"{row['function']}{matrix} {row['types']}{batch}"):
            groups.setdefault(name, []).extend([row["ratio"]] if "ratio" in row else [])
    return {"summary": {name: runner.summary(found) for name, found in groups.items() if found}}


def line_of(row: Row) -> str:
    times = ", ".join(f"{side} {row[side].get('median_us', row[side].get('error', '')[:60])}" for side in SIDES)
    return f"{times} us, ratio {row.get('ratio')}"


main = runner.command(
    __doc__,
    list(cells()),
    lambda cell, options: measure(cell, options.store),
    lambda options: gpu_record(),
    options={"--sides": {"nargs": "+", "choices": SIDES, "default": SIDES, "help": "sides to build"}},
    builds=lambda cell, options: [cell.build(side) for side in options.sides],
    gpu=True,
    summarize=summary,
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
