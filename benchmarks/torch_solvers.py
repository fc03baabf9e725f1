"""The torch column of ``benchmarks/solvers.py``: the same batched operations by ``torch.linalg``, on the same GPU.

torch calls cuSOLVER, cuBLAS or MAGMA. Each operation is timed with torch's own choice of a library, and with a
preference for cuSOLVER. The faster one counts. Our kernel has the number of threads that is the fastest in the rows of
the record. It is timed again beside torch: launches of both alternate, one by one, on one stream. Before each launch,
another kernel keeps the GPU busy, so a call of torch is queued before it starts. If a call keeps the host for longer
than ``BUSY_US``, or waits for the GPU, its time includes time of the host.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import machine
from benchmarks.gemm import table_text

if TYPE_CHECKING:
    from benchmarks.solvers import Cell, Loaded

LIBRARIES = ("default", "cusolver")  # values of torch.backends.cuda.preferred_linalg_library
BUSY_US = 1000  # for which the GPU is busy before a launch
_PROBES = 3

# each takes torch, the matrices and the right-hand sides as columns
OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cholesky": lambda torch, a, b: torch.linalg.cholesky_ex(a).L,
    "cholesky_solve": lambda torch, a, b: torch.cholesky_solve(b, a),
    "lower_solve": lambda torch, a, b: torch.linalg.solve_triangular(a, b, upper=False),
    "upper_solve": lambda torch, a, b: torch.linalg.solve_triangular(a, b, upper=True),
}


def find_torch() -> tuple[Any, str]:
    """Returns torch, or None and the reason why there is no torch column."""
    torch, reason = machine.find_torch()
    return torch, f"{reason}, so torch.linalg was not timed" if reason else ""


def facts(torch: Any) -> dict[str, Any]:
    """Versions of torch and CUDA, whether torch has MAGMA, and ``BUSY_US``."""
    magma = bool(getattr(torch.cuda, "has_magma", False))
    return {**machine.torch_versions(torch), "magma": magma, "busy_us": BUSY_US}


def name_of(cell: Cell) -> str:
    """Name of the row of a cell; threads do not matter to torch."""
    return f"{cell.function} {cell.types} n{cell.n}"


def fastest_cells(rows: Iterable[dict[str, Any]], cells: Iterable[Cell]) -> list[Cell]:
    """The cells that torch is compared with: of each function, type and size, the fastest number of threads.

    Args:
        rows: Rows of the record; those without a time of ``tiles`` do not count.
        cells: Cells to choose from. Backward cells, those in blocks, right-hand sides that are matrices, and functions
            that torch lacks are left out.
    """
    times = {row["name"]: row["tiles"]["median_us"] for row in rows if "median_us" in row["tiles"]}
    fastest: dict[str, Cell] = {}
    for cell in cells:
        compares = cell.function in OPERATIONS and not (cell.backward or cell.columns or cell.block)
        if not compares or cell.label not in times:
            continue
        name = name_of(cell)
        if name not in fastest or times[cell.label] < times[fastest[name].label]:
            fastest[name] = cell
    return list(fastest.values())


def compute(torch: Any, function: str, a: Any, b: Any) -> Any:
    """Returns the result of one operation, in the shape of our result.

    Args:
        torch: The module.
        function: Solver function.
        a: Tensor of matrices.
        b: Tensor of right-hand sides, one vector each.
    """
    result = OPERATIONS[function](torch, a, b.unsqueeze(-1))
    return result if function == "cholesky" else result.squeeze(-1)


def difference(values: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected element."""
    return float(np.max(np.abs(values - expected)) / np.max(np.abs(expected)))


def add_ratio(row: dict[str, Any], allowed: float) -> None:
    """Add the faster library, its ratio to our median, and what is wrong with a row, if anything is.

    Args:
        row: Has ``tiles``, and by library a record in ``torch``.
        allowed: Largest difference between two correct results.
    """
    timed = {library: record for library, record in row["torch"].items() if "median_us" in record}
    for library, record in row["torch"].items():
        if "difference" in record and not record["difference"] <= allowed:
            row["wrong"] = f"differs from torch ({library}) by {record['difference']:.3g}"
    if timed and "median_us" in row["tiles"]:
        row["library"] = min(timed, key=lambda library: float(timed[library]["median_us"]))
        row["ratio"] = round(timed[row["library"]]["median_us"] / row["tiles"]["median_us"], 3)


@functools.cache
def _slot(device: str) -> Any:
    import warp as wp

    return wp.zeros(1, dtype=wp.float64, device=device)


def _keep_busy(device: str) -> None:
    """Start a kernel that keeps the GPU busy for ``BUSY_US``."""
    import warp as wp

    from benchmarks.speed.clock import read_clock

    wp.launch(read_clock, dim=1, inputs=[_slot(device), 0, BUSY_US * 1000], device=device)


def host_time(run: Callable[[], object], device: str) -> float:
    """Microseconds for which one call keeps the host while the GPU is busy; at least ``BUSY_US`` if it waits for it."""
    import warp as wp

    found = []
    for _ in range(_PROBES):
        wp.synchronize_device(device)
        _keep_busy(device)
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e6)
    wp.synchronize_device(device)
    return round(min(found), 1)


def measure(cell: Cell, loaded: Loaded, torch: Any, allowed: float, device: str) -> dict[str, Any]:
    """One row: compare torch's results with ours, and time both.

    Args:
        cell: Our kernel.
        loaded: The same, with its arrays, which torch reads too.
        torch: The module.
        allowed: Largest difference between two correct results, relative to the largest element.
        device: Name of the device.
    """
    import warp as wp

    from benchmarks.speed.sides import Launch
    from benchmarks.speed.timing import time_alternately

    row: dict[str, Any] = {"name": name_of(cell), "kind": cell.kind, "function": cell.function, "types": cell.types}
    row |= {"n": cell.n, "threads": cell.threads, "tiles": {}, "torch": {library: {} for library in LIBRARIES}}
    ours = loaded.results()["x"]
    prefer = torch.backends.cuda.preferred_linalg_library
    run = functools.partial(compute, torch, cell.function, wp.to_torch(loaded.a), wp.to_torch(loaded.b))

    def prepare(library: str | None = None) -> None:
        if library:
            prefer(library)
        _keep_busy(device)

    launches = {"tiles": Launch(loaded.run, prepare)}
    with torch.no_grad(), torch.cuda.stream(wp.stream_to_torch(device)):
        for library, record in row["torch"].items():
            try:
                prefer(library)
                record["difference"] = difference(run()[::63].cpu().numpy(), ours)
                record["host_us"] = host_time(run, device)
                launches[library] = Launch(run, functools.partial(prepare, library))
            except Exception as error:
                record["error"] = f"{type(error).__name__}: {error}"[:300]
        for name, times in time_alternately(launches, device).items():
            record = row["tiles"] if name == "tiles" else row["torch"][name]
            record |= {"median_us": times.median_us, "spread_us": times.spread_us}
    prefer("default")
    add_ratio(row, allowed)
    return row


def line_of(row: dict[str, Any]) -> str:
    """One line for the terminal."""
    sides = {"tiles": row["tiles"], **{f"torch {library}": record for library, record in row["torch"].items()}}
    times = ", ".join(
        f"{side} {record.get('median_us', record.get('error', '')[:60])}" for side, record in sides.items()
    )
    wrong = f" WRONG: {row['wrong']}" if "wrong" in row else ""
    return f"{row['name']} t{row['threads']}: {times} us, ratio {row.get('ratio')}{wrong}"


def merged(
    known: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows by name, new ones in place of known ones, in the order of ``names``."""
    rows = {row["name"]: row for row in (*known, *new)}
    return [rows[name] for name in names if name in rows]


def with_column(text: str, column: dict[str, Any] | None, note: str) -> str:
    """The JSON text of an object with the torch column, each row on its own line.

    Args:
        text: JSON text of the object.
        column: The column with its ``rows``, or None.
        note: Why there is no column.
    """
    if column is None:
        added = f' "torch": null,\n "torch_note": {json.dumps(note)}'
    else:
        head = {key: value for key, value in column.items() if key != "rows"}
        added = f' "torch": {table_text(head, column["rows"])}'
    return f"{text.rstrip().removesuffix('}')},\n{added}\n}}"
