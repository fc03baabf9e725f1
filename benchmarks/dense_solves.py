"""Compares warp_tiles.cholesky and warp_tiles.solve with torch, in one run on a GPU.

    python benchmarks/dense_solves.py --json benchmarks/results/dense_solves.json

torch calls cuSOLVER or MAGMA. `torch` is its own choice, and `cusolver` a preference for cuSOLVER, whose batched
routines it then calls for a batch. The faster of the two counts. All sides have the same
arrays, row by row. Calls alternate. Times are medians by CUDA events: `us` of the GPU alone, behind a kernel that spins
until the call is queued, and `call_us` of a call on an idle GPU. A call that waits for the GPU, as MAGMA's do, contains
the host in both. Results are compared with float64. The kinds of rows, with one right-hand
side unless the name has more:

    factor      torch.linalg.cholesky_ex
    solve       torch.linalg.cholesky_ex and torch.cholesky_solve
    factored    torch.cholesky_solve
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.speed.timing import row_of, time_calls

ALLOWED = {"float32": 1e-4, "float64": 1e-12}  # differences of correct results, relative to the largest element
LIBRARIES = {"torch": "default", "cusolver": "cusolver"}  # torch's preferred libraries


@dataclass(frozen=True)
class Row:
    """One comparison: matrices of n x n."""

    kind: str
    dtype: str
    n: int
    batch: int
    columns: int = 1

    @property
    def name(self) -> str:
        columns = f" {self.columns} columns" if self.columns > 1 else ""
        return f"{self.kind} {self.dtype} {self.batch} x {self.n}{columns}"


SMALL = (4, 8, 16, 32, 64, 128)
LARGE = ((256, 1), (256, 32), (512, 1), (512, 32), (1024, 1), (1024, 32), (2048, 1), (4096, 1))
DTYPES = tuple(ALLOWED)
ROWS = (
    *(Row(kind, dtype, n, 1024) for n in SMALL for dtype in DTYPES for kind in ("factor", "solve")),
    *(Row("factor", dtype, n, batch) for n, batch in LARGE for dtype in DTYPES),
    *(Row("solve", dtype, n, batch) for n, batch in LARGE[:6] for dtype in DTYPES),
    *(Row("factored", dtype, n, 1024, columns) for n in (32, 64) for dtype in DTYPES for columns in (1, 32)),
)


def operands(torch: Any, row: Row) -> tuple[Any, Any]:
    torch.manual_seed(0)
    dtype = getattr(torch, row.dtype)
    factors = torch.randn((row.batch, row.n, row.n), device="cuda", dtype=dtype)
    a = factors @ factors.mT / row.n + 2 * torch.eye(row.n, device="cuda", dtype=dtype)
    return a.contiguous(), torch.randn((row.batch, row.n, row.columns), device="cuda", dtype=dtype)


def peers(torch: Any, row: Row, a: Any, b: Any) -> dict[str, Callable[[], object]]:
    """torch's calls, by the names of :data:`LIBRARIES`."""
    factor = torch.linalg.cholesky_ex(a).L

    def call(library: str) -> object:
        torch.backends.cuda.preferred_linalg_library(library)
        if row.kind == "factor":
            return torch.linalg.cholesky_ex(a).L
        return torch.cholesky_solve(b, factor if row.kind == "factored" else torch.linalg.cholesky_ex(a).L)

    return {name: partial(call, library) for name, library in LIBRARIES.items()}


def measure(torch: Any, row: Row) -> dict[str, Any]:
    """The times of a row and its difference from float64."""
    import warp as wp

    import warp_tiles

    a, b = operands(torch, row)
    out, info = torch.empty_like(a if row.kind == "factor" else b), wp.zeros(row.batch, dtype=int, device="cuda")
    x, y, z = (wp.from_torch(array) for array in (a, b, out))
    if row.kind == "factor":
        run = partial(warp_tiles.cholesky, x, z, info=info)
    elif row.kind == "solve":
        run = partial(warp_tiles.solve, x, y, z, info=info)
    else:
        run = partial(warp_tiles.solve, warp_tiles.cholesky(x), y, z, factored=True)
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    expected = torch.linalg.cholesky(a.double())
    if row.kind != "factor":
        expected = torch.cholesky_solve(b.double(), expected)
    difference = runner.require_close(runner.difference(out.double(), expected), ALLOWED[row.dtype], "float64")
    if info.numpy().any():
        raise runner.WrongResultError("matrices are said not to be positive definite")
    runs = peers(torch, row, a, b)
    found = {**asdict(row), "first_call_s": round(first, 2), "difference": difference}
    runs = {"tiles": run, **runs}
    found |= row_of(time_calls(runs))
    found["call_us"] = row_of(time_calls(runs, queued=False))["us"]
    times = found["us"]
    return found | {"to_torch": round(min(times[name] for name in LIBRARIES) / times["tiles"], 3)}


def summary(rows: list[runner.Row]) -> runner.Row:
    """The ratios to the faster of torch's calls, by group."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if "to_torch" in row:
            group = f"{row['kind']}, {'small' if row['n'] <= SMALL[-1] else 'large'}"
            groups.setdefault(group, []).append(row["to_torch"])
    return {"summary": {group: runner.summary(ratios) for group, ratios in groups.items()}}


def conditions(options: argparse.Namespace) -> runner.Row:
    return torch_record() | {"magma": bool(getattr(torch_with_warp().cuda, "has_magma", False))}


main = runner.command(
    __doc__,
    ROWS,
    lambda row, _: measure(torch_with_warp(), row),
    conditions,
    summarize=summary,
    described=lambda row: str(row["us"]),
)


if __name__ == "__main__":
    sys.exit(main())
