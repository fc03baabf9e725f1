"""Measures the errors of products and solvers, of warp_tiles and of unmodified Warp, on a GPU with the same inputs.

    python benchmarks/numerics.py --json benchmarks/results/numerics.json --doc docs/numerics.md

The error of a product is the difference to float64 over sum |a| |b| of the same element, as in error bounds of sums.
`solver_errors.py` defines the errors of solvers. Rows can be run one by one with `--only`; `--only solvers` runs all
rows of solvers. The file is written after each row and keeps the others. The tables of solvers are also printed.
`--build-only` needs no GPU.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import solver_errors
from benchmarks.machine import ROOT, gpu_record
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
BLOCKS, RUNS = 32, 5
MARKS = {part: (f"<!-- {part}: begin -->", f"<!-- {part}: end -->") for part in ("numerics", "solvers")}


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
        """The name that ``--only`` matches."""
        return f"{self.types}, {self.reduced}" + (f" x {self.calls}" if self.calls > 1 else "")

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


R = TypeVar("R", Row, solver_errors.Row)
ROWS = [Row(types, *size) for types in TYPES for size in ((16,), (64,), (256,), (64, 16))]


def compute(kernel: Any, cell: Cell, calls: int, operands: dict[str, Any], device: str) -> dict[str, Any]:
    """Compute C and, if there is an adjoint, the gradients of A and B, as NumPy arrays in float64."""
    import warp as wp

    from benchmarks.speed.arrays import to_device, to_host

    a, b, gradient = (to_device(operands[name], dtype, device) for name, dtype in zip("abg", (cell.a, cell.b, cell.c)))
    c = wp.empty((BLOCKS, cell.m, cell.n), dtype=getattr(wp, cell.c), device=device)
    c.fill_(float("nan"))
    launch: dict[str, Any] = {"dim": [BLOCKS], "inputs": [a, b, c, calls], "block_dim": cell.threads, "device": device}
    wp.launch_tiled(kernel, **launch)
    results = {"c": to_host(c)}
    if cell.backward:
        a.grad, b.grad, c.grad = wp.zeros_like(a), wp.zeros_like(b), gradient
        wp.launch_tiled(kernel, **launch, adjoint=True, adj_inputs=[a.grad, b.grad, c.grad, calls])
        results |= {"grad_a": to_host(a.grad), "grad_b": to_host(b.grad)}
    return results


def draw_operands(cell: Cell) -> dict[str, Any]:
    """Random A, B and gradient of C, with values that their dtypes represent exactly."""
    from benchmarks.speed.arrays import to_device, to_host

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


def measure_build(
    store: BuildStore, build: Build[Cell], results: tuple[str, ...], calls: int, device: str
) -> dict[str, Any]:
    """Measure the errors of some results of one kernel, or return the reason why there are none."""
    from benchmarks.speed.sides import load_kernel

    record = store.record(build) or {"error": "not built"}
    if "error" in record:
        return {name: {"error": record["error"][:200]} for name in results}
    kernel = load_kernel(store, build, device)
    cell = build.cell
    operands = draw_operands(cell)
    exact = reference(operands, calls)
    sizes = reference({name: abs(values) for name, values in operands.items()}, calls)
    runs = [compute(kernel, cell, calls, operands, device) for _ in range(RUNS)]
    by_warp = ["Warp's cuBLASDx" if record["cublasdx_functions"] else "Warp's scalar path"]
    found = {}
    for name in results:
        error = abs(runs[0][name] - exact[name]) / sizes[name]
        found[name] = {
            "largest": float(np.max(error)),
            "rms": float(np.sqrt(np.mean(error**2))),
            "same_bits": all(np.array_equal(runs[0][name], run[name]) for run in runs[1:]),
            "providers": sorted({built["provider"] for built in record.get("builds", [])}) or by_warp,
        }
    return found


def measure(row: Row, store: BuildStore, device: str) -> dict[str, Any]:
    """Measure one row for both sides."""
    record: dict[str, Any] = {"name": row.name, "types": row.types, "reduced": row.reduced, "calls": row.calls}
    for side in ("tiles", "warp"):
        record[side] = {}
        for build, results in row.builds(side):
            try:
                record[side] |= measure_build(store, build, results, row.calls, device)
            except Exception as error:
                record[side] |= {name: {"error": f"{type(error).__name__}: {error}"[:200]} for name in results}
    return record


# ---- the page


def _shown(found: dict[str, Any], name: str, figure: str) -> str:
    return f"{found[name][figure]:.1e}" if figure in found.get(name, {}) else "refused"


def table(rows: list[dict[str, Any]], figure: str) -> list[str]:
    """The lines of one Markdown table: results by sizes, ours and Warp's."""
    sizes = list(dict.fromkeys((row["reduced"], row["calls"]) for row in rows))
    heads = [f"{reduced}" + (f", {calls} calls" if calls > 1 else "") for reduced, calls in sizes]
    lines = ["| dtypes | result | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(sizes)]
    words = {"c": "C", "grad_a": "adjoint of A", "grad_b": "adjoint of B"}
    for types in dict.fromkeys(row["types"] for row in rows):
        by_size = {(row["reduced"], row["calls"]): row for row in rows if row["types"] == types}
        for name in RESULTS:
            cells = [
                f"{_shown(by_size[size]['tiles'], name, figure)} / {_shown(by_size[size]['warp'], name, figure)}"
                if size in by_size
                else ""
                for size in sizes
            ]
            lines.append(f"| {types} | {words[name]} | " + " | ".join(cells) + " |")
    return lines


def page_lines(data: dict[str, Any]) -> list[str]:
    """The lines of the page about products."""
    rows, run = data["rows"], data["runs"][-1]
    found = [each for row in rows for each in row["tiles"].values() if "same_bits" in each]
    same = sum(each["same_bits"] for each in found)
    return [
        f"{run['gpu']}, driver {run['driver']}, Warp {run['warp']}, warp_tiles {run['warp_tiles']}, "
        f"{run['date'][:10]}; warp_tiles / unmodified Warp.",
        "",
        "Largest error over the sum of |a| |b|, by the elements that are summed:",
        "",
        *table(rows, "largest"),
        "",
        "Root mean square of the same:",
        "",
        *table(rows, "rms"),
        "",
        f"Of {len(found)} results of warp_tiles, {same} had the same bits in {RUNS} runs.",
    ]


def with_lines(text: str, part: str, lines: list[str]) -> str:
    """The text of a page with other lines between the marks of a part."""
    begin, end = MARKS[part]
    before, rest = text.split(begin)
    return "\n".join([before + begin, *lines, end]) + rest.split(end)[1]


def write_page(data: dict[str, Any], page: Path) -> None:
    """Put the tables between the marks of the page."""
    text = page.read_text()
    if data["rows"]:
        text = with_lines(text, "numerics", page_lines(data))
    if data.get("solvers", {}).get("rows"):
        text = with_lines(text, "solvers", solver_errors.page_lines(data["solvers"]))
    page.write_text(text)


def select(rows: Sequence[R], patterns: Sequence[str], part: str) -> list[R]:
    """The rows whose name matches a pattern, or all if a pattern is the name of the part."""
    return [row for row in rows if any(name == part or fnmatch.fnmatch(row.name, name) for name in patterns)]


def run_rows(
    data: dict[str, Any], wanted: Sequence[R], order: Sequence[R], measured: Callable[[R], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Measure rows, and put each into the data in place of the known one.

    Args:
        data: Has ``runs``, whose last one is this, and ``rows``.
        wanted: The rows to measure.
        order: All rows.
        measured: Measures one row.

    Yields:
        Each new row.
    """
    for row in wanted:
        rows = {known["name"]: known for known in data["rows"]}
        rows[row.name] = {**measured(row), "run": len(data["runs"]) - 1}
        data["rows"] = [rows[each.name] for each in order if each.name in rows]
        yield rows[row.name]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--doc", type=Path, help="page whose tables are written")
    parser.add_argument(
        "--only", nargs="+", default=["*"], help='patterns of row names, e.g. "fp16*, 64", or "solvers"'
    )
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--builds", type=Path, default=ROOT / "build" / "benchmarks", help="folder of finished builds")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="compiler processes")
    parser.add_argument("--build-only", action="store_true", help="fill the folder of builds; needs no GPU")
    parser.add_argument("--again", action="store_true", help="try failed builds again")
    parser.add_argument("--doc-only", action="store_true", help="write the page from the file")
    arguments = parser.parse_args()
    data = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"runs": [], "rows": []}
    if not arguments.doc_only:
        products = select(ROWS, arguments.only, "products")
        solvers = select(solver_errors.ROWS, arguments.only, "solvers")
        if not products and not solvers:
            parser.error(f"no row matches {' '.join(arguments.only)}")
        store = BuildStore(arguments.builds, arguments.provider)
        sides: tuple[Side, ...] = ("warp", "tiles")
        builds: list[Build[Any]] = [build for row in products for side in sides for build, _ in row.builds(side)]
        store.fill([*solver_errors.builds(solvers), *builds], arguments.workers, arguments.again)
        if arguments.build_only:
            return 0
        record = gpu_record(arguments.provider)

        def keep(measured: Iterator[dict[str, Any]]) -> None:
            for row in measured:
                arguments.json.write_text(json.dumps(data, indent=1) + "\n")
                print(json.dumps(row), file=sys.stderr, flush=True)

        if products:
            data["runs"].append(record)
            keep(run_rows(data, products, ROWS, lambda row: measure(row, store, "cuda:0")))
        if solvers:
            part = data.setdefault("solvers", {"runs": [], "rows": []})
            part["runs"].append(record)
            keep(run_rows(part, solvers, solver_errors.ROWS, lambda row: solver_errors.measure(row, store, "cuda:0")))
            print("\n".join(solver_errors.page_lines(part)))
    if arguments.doc:
        write_page(data, arguments.doc)
    return 0


if __name__ == "__main__":
    sys.exit(main())
