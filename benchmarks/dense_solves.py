"""Compares warp_tiles.cholesky and warp_tiles.solve with torch, in one run on a GPU.

    python benchmarks/dense_solves.py --json benchmarks/results/dense_solves.json

torch calls cuSOLVER or MAGMA. `torch` is its own choice, and `cusolver` a preference for cuSOLVER, whose batched
routines it then calls for a batch. The faster of the two counts. All sides have the same arrays, row by row. Calls
alternate and are timed as in benchmarks/matmul.py. A call that waits for the GPU, as MAGMA's do, contains the host.
Rows `factor` call torch.linalg.cholesky_ex, and rows `solve`, with one right-hand side, torch.cholesky_solve after it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.matmul import Sides, beside_torch

ALLOWED = {"float32": 1e-4, "float64": 1e-12}  # differences of correct results, relative to the largest element
LIBRARIES = {"torch": "default", "cusolver": "cusolver"}  # torch's preferred libraries
SMALL = (4, 8, 16, 32, 64, 128)
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

    runs = {"tiles": run, **{name: partial(peer, library) for name, library in LIBRARIES.items()}}
    found = asdict(row) | beside_torch(Sides(runs, check), ALLOWED[row.dtype])
    return found | {"to_torch": min(found["to_torch"].values())}


def summary(rows: list[runner.Row]) -> runner.Row:
    """The ratios to the faster of torch's calls, by group."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if "to_torch" in row:
            group = f"{row['kind']}, {'small' if row['n'] <= SMALL[-1] else 'large'}"
            groups.setdefault(group, []).append(row["to_torch"])
    return {"summary": {group: runner.summary(ratios) for group, ratios in groups.items()}}


main = runner.command(__doc__, ROWS, measure, lambda options: torch_record(), summarize=summary)


if __name__ == "__main__":
    sys.exit(main())
