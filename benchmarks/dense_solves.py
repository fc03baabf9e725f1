"""Compares warp_tiles.cholesky and warp_tiles.solve with torch, in one run on a GPU.

    python benchmarks/dense_solves.py --json benchmarks/results/dense_solves.json

torch calls cuSOLVER or MAGMA. `torch` is its own choice, and `cusolver` a preference for cuSOLVER, whose batched
routines it then calls for a batch. The faster of the two counts. All sides have the same arrays, row by row. Calls
alternate and are timed as in benchmarks/matmul.py. A call that waits for the GPU, as MAGMA's do, contains the host.
Rows `factor` call torch.linalg.cholesky_ex, and rows `solve`, with one right-hand side, torch.cholesky_solve after it.
Rows of at most 16 rows and many matrices have a side `block`, a block for each matrix in place of a thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.matmul import Sides, beside_torch

ALLOWED = {"float32": 1e-4, "float64": 1e-12}  # differences of correct results, relative to the largest element
LIBRARIES = {"torch": "default", "cusolver": "cusolver"}  # torch's preferred libraries
SMALL = (4, 8, 16, 32, 64, 128)
MANY = ((4, 16_384), (8, 16_384), *((n, 262_144) for n in (4, 8, 12, 16)))  # a thread for each matrix
LARGE = ((256, 1), (256, 32), (512, 1), (512, 32), (1024, 1), (1024, 32), (2048, 1), (4096, 1))


@dataclass(frozen=True)
class Row:
    """One comparison: matrices of n x n."""

    kind: str
    dtype: str
    n: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {self.batch} x {self.n}"


ROWS = (
    *(Row(kind, dtype, n, 1024) for n in SMALL for dtype in ALLOWED for kind in ("factor", "solve")),
    *(Row(kind, dtype, *sizes) for sizes in MANY for dtype in ALLOWED for kind in ("factor", "solve")),
    *(Row("factor", dtype, n, batch) for n, batch in LARGE for dtype in ALLOWED),
    *(Row("solve", dtype, n, batch) for n, batch in LARGE[:6] for dtype in ALLOWED),
)


def measure(row: Row, options: argparse.Namespace) -> runner.Row:
    """The times of a row and its difference from float64."""
    import warp as wp

    import warp_tiles

    torch = torch_with_warp()
    torch.manual_seed(0)
    dtype, solves = getattr(torch, row.dtype), row.kind == "solve"
    factors = torch.randn((row.batch, row.n, row.n), device="cuda", dtype=dtype)
    a = (factors @ factors.mT / row.n + 2 * torch.eye(row.n, device="cuda", dtype=dtype)).contiguous()
    b = torch.randn((row.batch, row.n, 1), device="cuda", dtype=dtype)
    out, info = torch.empty_like(b if solves else a), wp.zeros(row.batch, dtype=int, device="cuda")
    x, y, z = (wp.from_torch(array) for array in (a, b, out))
    run = partial(warp_tiles.solve, x, y, z, info=info) if solves else partial(warp_tiles.cholesky, x, z, info=info)

    def peer(library: str) -> object:
        torch.backends.cuda.preferred_linalg_library(library)
        factor = torch.linalg.cholesky_ex(a).L
        return torch.cholesky_solve(b, factor) if solves else factor

    def check() -> float:
        if info.numpy().any():
            raise runner.WrongResultError("matrices are said not to be positive definite")
        expected = torch.linalg.cholesky(a.double())
        expected = torch.cholesky_solve(b.double(), expected) if solves else expected
        return runner.difference(out.double(), expected)

    runs: dict[str, Callable[[], object]] = {"tiles": run}
    runs |= {name: partial(peer, library) for name, library in LIBRARIES.items()}
    is_many = (row.n, row.batch) in MANY
    if is_many:
        runs["block"] = in_blocks(x, y, z, info, solves)
    found = asdict(row) | beside_torch(Sides(runs, check), ALLOWED[row.dtype])
    to_block = {"to_block": found["to_torch"].pop("block")} if is_many else {}
    return found | {"to_torch": min(found["to_torch"].values())} | to_block


def in_blocks(a: Any, b: Any, out: Any, info: Any, solves: bool) -> Callable[[], object]:
    """The call with a block for each matrix."""
    from warp_tiles.array_products.call import lower_view, right_sides
    from warp_tiles.array_products.prepared_solves import SolveCall, prepare_solve

    matrix = lower_view(a, upper=False)
    if solves:
        call = SolveCall(matrix, b=right_sides(b, a), x=right_sides(out, a), has_info=True)
        return partial(prepare_solve(call, a.device, form="block").run, a, None, b, out, info)
    call = SolveCall(matrix, lower_view(out, upper=False), has_info=True)
    return partial(prepare_solve(call, a.device, form="block").run, a, out, None, None, info)


def summary(rows: list[runner.Row]) -> runner.Row:
    """The ratios to the faster of torch's calls, by group."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if "to_torch" in row:
            size = "many" if (row["n"], row["batch"]) in MANY else "small" if row["n"] <= SMALL[-1] else "large"
            group = f"{row['kind']}, {size}"
            groups.setdefault(group, []).append(row["to_torch"])
    return {"summary": {group: runner.summary(ratios) for group, ratios in groups.items()}}


main = runner.command(__doc__, ROWS, measure, lambda options: torch_record(), summarize=summary)


if __name__ == "__main__":
    sys.exit(main())
