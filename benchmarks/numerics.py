"""Measures the errors of products and solvers, of warp_tiles and of unmodified Warp, on a GPU with the same inputs.

    python benchmarks/numerics.py --json benchmarks/results/numerics.json --doc docs/tables.md

The error of a product is the difference to float64 over sum |a| |b| of the same element, as in error bounds of sums.
`solver_errors.py` defines the errors of solvers, whose rows are `--only "*condition*"`. `--build-only` needs no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import warp as wp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner, solver_errors
from benchmarks.machine import gpu_record
from benchmarks.runner import DEVICE
from benchmarks.solver_errors import Found, measured_build
from benchmarks.speed.arrays import to_device, to_host
from benchmarks.speed.builds import Build, BuildStore
from benchmarks.speed.cells import Cell, Side

H, B, F, D = "float16", "bfloat16", "float32", "float64"
TYPES: dict[str, tuple[str, str, str, bool]] = {  # dtypes of A, B and C; True if tf32 is requested
    "fp16, fp32 result": (H, H, F, False),
    "fp16": (H, H, H, False),
    "bf16, fp32 result": (B, B, F, False),
    "bf16": (B, B, B, False),
    "tf32": (F, F, F, True),
    "fp32": (F, F, F, False),
    "fp64": (D, D, D, False),
    "fp16 x bf16, fp32 result": (H, B, F, False),
    "fp32 x fp16, fp16 result": (F, H, H, False),
    "fp32 x fp16, fp32 result": (F, H, F, False),
}
RESULTS = ("c", "grad_a", "grad_b")
SIDES: tuple[Side, ...] = ("warp", "tiles")
BLOCKS = 32


@dataclass(frozen=True)
class Row:
    """One table row: dtypes, the elements of a sum, and the number of calls that add to one result.

    Attributes:
        types: Name in ``TYPES``.
        reduced: Elements that one call sums.
        calls: Calls on the same tiles.
    """

    types: str
    reduced: int
    calls: int = 1

    @property
    def name(self) -> str:
        return f"{self.types}, {self.reduced}" + (f" x {self.calls}" if self.calls > 1 else "")

    def measured(self, store: BuildStore) -> Found:
        """The errors of both sides."""
        found: Found = {"types": self.types, "reduced": self.reduced, "calls": self.calls}
        for side in SIDES:
            found[side] = {}
            for build, results in self.builds(side):
                operands = draw_operands(build.cell)
                expected = reference(operands, self.calls)
                sizes = reference({name: abs(values) for name, values in operands.items()}, self.calls)
                found[side] |= measured_build(
                    store, build, [results],
                    lambda module, names, cell=build.cell, given=operands: compute(module, cell, self.calls, given),  # type: ignore[misc]
                    lambda name, runs, expected=expected, sizes=sizes: figures(runs, expected[name], sizes[name]),  # type: ignore[misc]
                    lambda record: "Warp's cuBLASDx" if record["cublasdx_functions"] else "Warp's scalar path",
                )  # fmt: skip
        return found

    @property
    def all_builds(self) -> list[Build[Cell]]:
        return [build for side in SIDES for build, _ in self.builds(side)]

    def cells(self) -> Iterator[tuple[Cell, tuple[str, ...]]]:
        """Kernels, each with its results. For sums of 256 elements, a cube does not fit, so there are three kernels."""
        a, b, c, tf32 = TYPES[self.types]
        if self.reduced <= 64:
            size = self.reduced
            yield Cell("resident", a, b, c, size, size, size, 128, tf32, True), RESULTS
        else:
            edge, long = 16, self.reduced
            yield Cell("resident", a, b, c, edge, edge, long, 128, tf32), ("c",)
            yield Cell("resident", a, b, c, edge, long, edge, 128, tf32, True), ("grad_a",)
            yield Cell("resident", a, b, c, long, edge, edge, 128, tf32, True), ("grad_b",)

    def builds(self, side: Side) -> Iterator[tuple[Build[Cell], tuple[str, ...]]]:
        """The builds of one side, each with its results. Warp refuses the adjoint of bfloat16."""
        for cell, results in self.cells():
            if side == "warp" and B in (cell.a, cell.b):
                if "c" in results:
                    yield Build(replace(cell, backward=False), side), ("c",)
            else:
                yield Build(cell, side), results


ROWS = [Row(types, *size) for types in TYPES for size in ((16,), (64,), (256,), (64, 16))]


def compute(module: Any, cell: Cell, calls: int, operands: dict[str, Any], device: str = DEVICE) -> dict[str, Any]:
    """Compute C and, if there is an adjoint, the gradients of A and B, as NumPy arrays in float64."""
    a, b, gradient = (to_device(operands[name], dtype, device) for name, dtype in zip("abg", (cell.a, cell.b, cell.c)))
    c = wp.empty((BLOCKS, cell.m, cell.n), dtype=getattr(wp, cell.c), device=device)
    c.fill_(float("nan"))
    launch: dict[str, Any] = {"dim": [BLOCKS], "inputs": [a, b, c, calls], "block_dim": cell.threads, "device": device}
    wp.launch_tiled(module.gemm, **launch)
    results = {"c": to_host(c)}
    if cell.backward:
        a.grad, b.grad, c.grad = wp.zeros_like(a), wp.zeros_like(b), gradient
        wp.launch_tiled(module.gemm, **launch, adjoint=True, adj_inputs=[a.grad, b.grad, c.grad, calls])
        results |= {"grad_a": to_host(a.grad), "grad_b": to_host(b.grad)}
    return results


def draw_operands(cell: Cell) -> dict[str, Any]:
    """Random A, B and gradient of C, with values that their dtypes represent exactly."""
    random = np.random.default_rng(7)
    shapes = {"a": (cell.m, cell.k), "b": (cell.k, cell.n), "g": (cell.m, cell.n)}
    dtypes = {"a": cell.a, "b": cell.b, "g": cell.c}
    values = {name: random.uniform(-1, 1, (BLOCKS, *shape)) for name, shape in shapes.items()}
    return {name: to_host(to_device(values[name], dtypes[name], "cpu")) for name in shapes}


def reference(operands: dict[str, Any], calls: int) -> dict[str, Any]:
    """All three results in float64."""
    a, b, g = (operands[name] for name in "abg")
    results = {"c": a @ b, "grad_a": g @ b.swapaxes(1, 2), "grad_b": a.swapaxes(1, 2) @ g}
    return {name: calls * values for name, values in results.items()}


def figures(runs: Sequence[Any], expected: Any, sizes: Any) -> Found:
    """Errors of the first of several runs, and whether all have the same bits."""
    error = abs(runs[0] - expected) / sizes
    return {
        "largest": float(np.max(error)),
        "rms": float(np.sqrt(np.mean(error**2))),
        "same_bits": all(np.array_equal(runs[0], run) for run in runs[1:]),
    }


CASES: list[Row | solver_errors.Row] = [*ROWS, *solver_errors.ROWS]
main = runner.command(
    __doc__,
    CASES,
    lambda row, options: row.measured(options.store),
    lambda options: gpu_record(),
    required=True,
    builds=lambda row, options: row.all_builds,
)


if __name__ == "__main__":
    sys.exit(main())
