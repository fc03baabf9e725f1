"""Compares warp_tiles.matmul with torch, in one run on a GPU.

    python benchmarks/matmul.py --json benchmarks/results/matmul.json

Both have the same arrays and a result of the operands' type, and are called as a user calls them. Calls alternate.
Times are medians by CUDA events. `us` and `to_torch` are those of the GPU: a kernel that spins keeps it busy until the
call has launched its kernels. `call_us` has the times of a call on an idle GPU, which contain what the host does, and
`call_to_torch` is their ratio. Results are compared with float64, relative to the largest element. The kinds of rows,
and what torch computes:

    product     torch.matmul into a given array, or torch.bmm for a batch
    drawn       the same for random sizes, types and layouts, as users may have them; always the same ones
    drawn_batch the same for batches
    backward    two torch.matmul for the gradients of both operands; warp_tiles.matmul's tape also adds to the gradients
    layer       gelu(linear(x, w, bias)): eager and by torch.compile
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.speed.clock import gelu
from benchmarks.speed.timing import row_of, time_calls

# differences of correct results
ALLOWED = {"float16": 1e-3, "bfloat16": 8e-3, "tf32": 4e-3, "float32": 1e-4, "float64": 1e-12}


@dataclass(frozen=True)
class Row:
    """One comparison: m x k by k x n elements, batch times.

    Attributes:
        kind: ``product``, ``drawn``, ``drawn_batch``, ``skinny``, ``backward`` or ``layer``.
        layout: ``t`` in place of ``n`` for an operand whose columns are contiguous in memory, A first.
    """

    kind: str
    dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "nn"

    @property
    def stored(self) -> str:
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def name(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        layout = f" {self.layout}" if self.layout != "nn" else ""
        return f"{self.kind} {self.dtype} {batch}{self.m}x{self.n}x{self.k}{layout}"

    @property
    def flops(self) -> int:
        return (4 if self.kind == "backward" else 2) * self.m * self.n * self.k * self.batch


WIDE = 4096  # the long side of skinny products
DRAWN, DRAWN_BATCHES = 140, 60
DRAWN_FLOPS = (1e9, 1e12)  # shorter products measure the host


def drawn_rows(seed: int = 0) -> Iterator[Row]:
    """Yields products of random types, layouts and sizes.

    Sizes are 64 to 8192, and 8 to 512 in batches. A third of them are multiples of 64, and another third of 8; those of
    batches are multiples of 8, or of 1.
    """
    random = Random(seed)

    def drawn(least: int, most: int, parts: tuple[int, ...], batch: int = 1) -> Row:
        dtype = random.choice(("float16", "bfloat16", "tf32", "float32", "float64"))
        m, n, k = (round(2 ** random.uniform(least, most) / part) * part for part in random.choices(parts, k=3))
        kind = "drawn" if batch == 1 else "drawn_batch"
        return Row(kind, dtype, m, n, k, batch, random.choice(("nn", "nt", "tn", "tt")))

    def useful(rows: Iterator[Row]) -> Iterator[Row]:
        return (row for row in rows if DRAWN_FLOPS[0] <= row.flops <= DRAWN_FLOPS[1])

    yield from islice(useful(drawn(6, 13, (1, 8, 64)) for _ in count()), DRAWN)
    batches = (drawn(3, 9, (1, 8), round(2 ** random.uniform(1, 11))) for _ in count())  # at least 2 matrices
    yield from islice(useful(batches), DRAWN_BATCHES)


ROWS = (
    *(Row("product", dtype, size, size, size) for dtype in ("float16", "bfloat16") for size in (2048, 4096, 8192)),
    *(Row("product", dtype, 4096, 4096, 4096) for dtype in ("tf32", "float32", "float64")),
    Row("product", "tf32", 4096, 4096, 4096, layout="nt"),  # both operands are contiguous along K
    Row("backward", "float16", 4096, 4096, 4096),
    *(Row("product", dtype, width, width, width, 1024) for dtype in ("float16", "float32") for width in (64, 128, 256)),
    *(
        Row("skinny", "float16", *((side, WIDE) if number % 2 else (WIDE, side)), k)
        for number, k in enumerate((1024, 4096, 8192, 16384))
        for side in (16, 32, 64, 128, 256)
    ),
    *drawn_rows(),
    Row("layer", "float16", 8192, 4096, 4096),  # the last: processes of torch.compile may slow the host down
)


@dataclass(frozen=True)
class Sides:
    """The functions of a row whose times are compared, and its results.

    Attributes:
        runs: ``tiles``, and torch's functions by name.
        check: Returns the greatest difference from float64 after one call of ``tiles``.
    """

    runs: Mapping[str, Callable[[], object]]
    check: Callable[[], float]


def operands(torch: Any, row: Row) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    batch = (row.batch,) if row.batch > 1 else ()
    dtype = getattr(torch, row.stored)
    a, b = (
        torch.randn((*batch, *(shape if letter == "n" else shape[::-1])), device="cuda", dtype=dtype) / 8
        for shape, letter in zip(((row.m, row.k), (row.k, row.n)), row.layout, strict=True)
    )
    a, b = (x.mT if letter == "t" else x for x, letter in zip((a, b), row.layout, strict=True))
    return a, b, torch.empty((*batch, row.m, row.n), device="cuda", dtype=dtype)


def product(torch: Any, row: Row) -> Sides:
    import warp as wp

    import warp_tiles

    a, b, out = operands(torch, row)
    c = torch.empty_like(out)
    x, y, z = (wp.from_torch(array) for array in (a, b, c))
    precision: Literal["tf32", "default"] = "tf32" if row.dtype == "tf32" else "default"
    peer = torch.bmm if row.batch > 1 else torch.matmul
    runs = {"tiles": lambda: warp_tiles.matmul(x, y, z, precision=precision), "torch": lambda: peer(a, b, out=out)}
    return Sides(runs, lambda: runner.difference(c.double(), torch.matmul(a.double(), b.double())))


def backward(torch: Any, row: Row) -> Sides:
    """The gradients of both operands."""
    import warp as wp

    import warp_tiles

    a, b, g = operands(torch, row)
    g.normal_().div_(8)
    of_a, of_b = torch.zeros_like(a), torch.zeros_like(b)
    pairs = ((a, of_a), (b, of_b), (torch.empty_like(g), g))
    x, y, out = (wp.from_torch(array, requires_grad=True, grad=gradient) for array, gradient in pairs)
    out.retain_grad = True
    with wp.Tape() as tape:
        warp_tiles.matmul(x, y, out)
    other_a, other_b = torch.empty_like(a), torch.empty_like(b)

    def both() -> None:
        torch.matmul(g, b.T, out=other_a)
        torch.matmul(a.T, g, out=other_b)

    added_a, added_b = torch.zeros_like(a), torch.zeros_like(b)

    def both_added() -> None:  # as the tape does
        added_a.addmm_(g, b.T)
        added_b.addmm_(a.T, g)

    def check() -> float:
        pairs = ((of_a, g.double() @ b.double().T), (of_b, a.double().T @ g.double()))
        return max(runner.difference(found.double(), expected) for found, expected in pairs)

    return Sides({"tiles": tape.backward, "torch": both, "torch adding": both_added}, check)


def layer(torch: Any, row: Row) -> Sides:
    import warp as wp

    import warp_tiles

    functional = torch.nn.functional
    x, _, out = operands(torch, row)
    w, bias = (
        torch.randn((row.n, row.k), device="cuda", dtype=x.dtype) / 8,
        torch.randn(row.n, device="cuda").to(x.dtype),
    )
    arrays = [wp.from_torch(array) for array in (x, w, out, bias)]
    left, right, result, added = arrays[0], arrays[1].transpose(), arrays[2], arrays[3]

    def eager() -> Any:
        return functional.gelu(functional.linear(x, w, bias))

    compiled = torch.compile(eager)
    runs = {
        "tiles": lambda: warp_tiles.matmul(left, right, result, bias=added, epilogue=gelu),
        "torch": eager,
        "torch.compile": compiled,
    }

    def check() -> float:
        return runner.difference(
            out.double(), functional.gelu(functional.linear(x.double(), w.double(), bias.double()))
        )

    return Sides(runs, check)


KINDS = {
    "product": product,
    "drawn": product,
    "drawn_batch": product,
    "skinny": product,
    "backward": backward,
    "layer": layer,
}


def beside_torch(sides: Sides, allowed: float, flops: float | None = None) -> runner.Row:
    """The difference from float64, and the times of all sides."""
    sides.runs["tiles"]()
    found: runner.Row = {"difference": runner.require_close(sides.check(), allowed, "float64")}
    torch_with_warp().cuda.empty_cache()
    found |= row_of(time_calls(sides.runs), flops)
    found["call_us"] = row_of(time_calls(sides.runs, queued=False))["us"]
    ours = found["us"]["tiles"]
    found["to_torch"] = {name: round(us / ours, 3) for name, us in found["us"].items() if name != "tiles"}
    return found


def measure(row: Row, options: argparse.Namespace) -> runner.Row:
    torch = torch_with_warp()
    torch.backends.cuda.matmul.allow_tf32 = row.dtype == "tf32"
    found = asdict(row) | beside_torch(KINDS[row.kind](torch, row), ALLOWED[row.dtype], row.flops)
    return found | {"call_to_torch": round(found["call_us"]["torch"] / found["call_us"]["tiles"], 3)}


def summary(rows: list[runner.Row]) -> runner.Row:
    """The ratios of torch's times to ours, by kind."""
    timed = [row for row in rows if "to_torch" in row]
    ratios = {kind: [row["to_torch"]["torch"] for row in timed if row["kind"] == kind] for kind in KINDS}
    return {"summary": {kind: runner.summary(found) for kind, found in ratios.items() if found}}


main = runner.command(
    __doc__,
    ROWS,
    measure,
    lambda options: torch_record(),
    summarize=summary,
    described=lambda row: str(row["to_torch"]),
)


if __name__ == "__main__":
    sys.exit(main())
