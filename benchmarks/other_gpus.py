"""Measures on one H100 or H200 what ``mma.sync`` reaches within the limits of other architectures.

    python benchmarks/other_gpus.py --json benchmarks/results/other_gpus.json --seconds 420
    python -m benchmarks.figures

Each kernel is code for sm_90 with ``main_loop=mma``, as architectures without wgmma have it. It is planned with the
shared memory, threads and blocks of another architecture's multiprocessor. Its blocks are padded with shared memory, so
that as many are resident as there. Clocks, caches, bandwidths and rates of instructions are those of this GPU. So the
result is the share of a bound: the rate of the same instruction from registers alone (:data:`BOUND_PER_CLOCK`), at the
largest clock of the GPU.

A multiprocessor of an RTX 4090 computes a fifth of the fp16 operations in a clock, and reads shared memory as fast. So
``share_at_ratio`` is the share of the same loop if it multiplies each pair of tiles ``passes`` times: tensor cores then
have as much more to do than everything else as there. :data:`FLOPS_PER_CLOCK` has the rates.

Rows are loops over 4096 x 4096 x 4096, whose results are compared with cuBLAS, and products of tiles that stay in
shared memory, compared with NumPy. Rows marked ``chosen`` have the pipelines of the choosers. After them come other
pipelines of the loops that fit: 2, 3 or 4 stages, or double buffers. fp64 rows have the instruction of sm_90, m16n8k8,
and only the limits of sm_80, because sm_89 and sm_120 have few units for fp64. sm_120 has the limits of sm_89, so its
rows repeat those of sm_89.

The last rows are factorizations and solves in blocks. No instruction bounds them, so their bound is the same kernel
with the limits of sm_90, whose results they must equal.

``--build-only`` fills the folder of builds and needs no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner, solvers
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.speed import timing
from benchmarks.speed.builds import ARCH, Build
from benchmarks.speed.cells import BYTES, DTYPES, ENTRIES, PARTS, Cell, Part, Shape, Types, with_threads
from benchmarks.speed.occupancy import Resources, resident_blocks
from benchmarks.speed.sides import Computed, Cublas, Side, compare
from benchmarks.speed.timing import Launch
from tests.array_products.cases import values_of
from warp_tiles.gemm.hardware import multiprocessor, shared_limit

Found = dict[str, Any]
ARCHS = (80, 89)
CHOSEN, OTHERS = "mma", ("mma,stages=2", "mma,stages=3", "mma,stages=4", "double_buffered")
# Operations of tensor cores in a clock of a multiprocessor, with fp32 sums of fp16: of the A100, and of the GeForce RTX
# 3090, 4090 and 5090. Source: peak rates in NVIDIA's architecture papers, by multiprocessors and boost clocks.
FLOPS_PER_CLOCK: dict[int, dict[Types, int]] = {
    80: {"fp16": 2048, "tf32": 1024, "fp64": 128},
    89: {"fp16": 512, "tf32": 256},
}
# of sm_90, in fp32 by fma, with operands that are never reloaded: measured on an H200 (docs/experiments.md)
BOUND_PER_CLOCK: dict[Types, float] = {"fp16": 2466.1, "tf32": 1235.8, "fp32": 223.8, "fp64": 254.1}

_TILES = (
    *with_threads("128x128x32 128x128x64", 128, 256), *with_threads("128x64x32", 64, 128, 256),
    *with_threads("64x64x32 64x64x64", 64, 128), *with_threads("64x128x32", 128, 256),
    *with_threads("128x256x32", 256),
)  # fmt: skip
TILES: dict[Types, tuple[Shape, ...]] = {
    "fp16": _TILES,
    "tf32": (*with_threads("128x128x16", 128), *_TILES),
    "fp32": (*with_threads("128x128x8 128x128x16", 128, 256), *with_threads("64x64x16 64x64x32", 64, 128)),
    "fp64": (
        *with_threads("64x64x16", 64, 128), *with_threads("128x64x16", 128, 256), *with_threads("64x32x16", 64, 128)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A kernel with the limits of an architecture."""

    arch: int
    types: Types
    cell: Cell

    @property
    def build(self) -> Build[Cell]:
        return Build(self.cell, "tiles", self.arch)

    @property
    def passes(self) -> int:
        """How often a loop multiplies, so that the ratio of its work is that of the other architecture."""
        rate = FLOPS_PER_CLOCK[self.arch].get(self.types) if self.cell.form == "loop" else None
        return max(1, round(BOUND_PER_CLOCK[self.types] / rate)) if rate else 1

    @property
    def builds(self) -> list[Build[Cell]]:
        return [self.build, *([replace(self.build, passes=self.passes)] if self.passes > 1 else [])]

    def with_main_loop(self, main_loop: str) -> Row:
        return replace(self, cell=replace(self.cell, main_loop=main_loop))

    @property
    def part(self) -> Part:
        return PARTS[self.cell.form]

    @property
    def name(self) -> str:
        cell = self.cell
        return f"sm_{self.arch} {cell.form} {self.types} {cell.m}x{cell.n}x{cell.k} {cell.threads}, {cell.main_loop}"


@dataclass(frozen=True)
class SolverRow:
    """A factorization or solve in blocks, with the limits of an architecture and with those of this GPU."""

    arch: int
    cell: solvers.Cell

    @property
    def name(self) -> str:
        return f"sm_{self.arch} {self.cell.name}"

    @property
    def builds(self) -> list[Build[solvers.Cell]]:
        return [Build(self.cell, "tiles", arch) for arch in (self.arch, ARCH)]


def solver_rows() -> Iterator[SolverRow]:
    """Blocks of 16, 32 and 64 rows in matrices of 256."""
    for arch, types, block in itertools.product(ARCHS, solvers.DTYPES, (16, 32, 64)):
        for function, columns, threads in (("blocked_cholesky", 0, 128), ("blocked_solve", 1, 64)):
            if 4 * block**2 * BYTES[solvers.DTYPES[types]] <= shared_limit(arch, threads):
                yield SolverRow(arch, solvers.Cell(function, types, 256, columns, threads, block=block))


def fits(cell: Cell, arch: int) -> bool:
    """True if the tiles of a kernel fit the shared memory of a block."""
    sizes = ((cell.m * cell.k, cell.a), (cell.k * cell.n, cell.b), (cell.m * cell.n, cell.c))
    return sum(elements * BYTES[dtype] for elements, dtype in sizes) <= shared_limit(arch, cell.threads)


def chosen_rows() -> Iterator[Row]:
    """The rows with the pipelines of the chooser."""
    for arch in ARCHS:
        for types in TILES:  # bf16 has the code of fp16, apart from the instruction
            ab, c = DTYPES[types]
            loops = [Cell("loop", ab, ab, c, *tile, types == "tf32") for tile in TILES[types]]
            resident = [entry.ours for entry in ENTRIES if (entry.part, entry.types) == ("resident", types)]
            if types != "fp64" or arch == 80:
                cells = (replace(cell, main_loop=CHOSEN) for cell in (*loops, *resident))
                yield from (Row(arch, types, cell) for cell in cells if fits(cell, arch))


def is_as_asked(main_loop: str, record: Found) -> bool:
    """True if a build has the pipeline that it asks for."""
    loop, asked = record["loops"][0], main_loop.rpartition("stages=")[2]
    return bool(loop["instruction"]) and str(loop["stages"]) == asked if asked.isdigit() else not loop["instruction"]


# ---- measurements


class Expected:
    """The product of one pair of resident tiles, by NumPy."""

    rounds_to_half = False

    def __init__(self, ours: Side) -> None:
        self.cell, self.part = ours.cell, ours.part
        self._product = values_of(ours.a)[0] @ values_of(ours.b)[0]

    def results(self, calls: int) -> dict[str, Any]:
        """The sum of so many products, which is that of each sampled tile."""
        return {"c": calls * self._product[None]}


def planned(row: Row, record: Found) -> Found:
    """What a row's build says: its pipeline, or the instruction of its product, and its resources."""
    ((function, resources),) = record["kernels"].items()
    found = {"launched_bytes": record["launched_bytes"][f"{function}_smem_bytes"], **resources}
    found["blocks"] = resident_blocks(Resources(**resources), multiprocessor(row.arch))
    if row.cell.form == "resident":
        (product,) = record["builds"]
        return found | {"instruction": (product["tile_config"] or {}).get("instruction", "")}
    (loop,) = record["loops"]
    names = ("state", "stages", "instruction", "accumulators", "shared_bytes", "reason")
    return found | {name: loop[name] for name in names} | {"planned_blocks": loop["resident_blocks"]}


def measure(row: Row, options: argparse.Namespace) -> Found | None:
    """The time, the shares of the bound and of cuBLAS's speed, and the difference from the expected result.

    None for another pipeline that does not fit.
    """
    cell, part, store = row.cell, row.part, options.store
    found: Found = {"arch": row.arch, "types": row.types, **asdict(cell), "chosen": cell.main_loop == CHOSEN}
    record = store.record(row.build) or {"error": "not built"}
    if not found["chosen"] and ("error" in record or not is_as_asked(cell.main_loop, record)):
        return None
    if "error" in record:
        return found | {"error": record["error"][:300]}
    found |= planned(row, record)
    side = Side(store, row.build, part)
    launches = {"tiles": side.launch(part.calls, False)}
    for build in row.builds[1:] if found["instruction"] else []:  # double buffers multiply once
        launches["again"], found["passes"] = Side(store, build, part).launch(part.calls, False), row.passes
    beside: Computed = Expected(side)
    if cell.form == "loop":
        beside = Cublas(torch_with_warp(), side)
        launches["cublas"] = Launch(beside.run)
    found["difference"] = compare(side, beside)["c"]
    times = timing.time_alternately(launches)
    found |= asdict(times["tiles"])
    found["tflops"] = round(part.flops(cell) / times["tiles"].median_us / 1e6, 3)
    found["share"] = round(found["tflops"] * 1e3 / (BOUND_PER_CLOCK[row.types] * options.clocks_per_ns), 4)
    if "again" in times:
        ratio = times["tiles"].median_us / times["again"].median_us
        found["share_at_ratio"] = round(found["share"] * row.passes * ratio, 4)
    if "cublas" in times:
        found["to_cublas"] = round(times["cublas"].median_us / times["tiles"].median_us, 3)
    return found


def measure_solver(row: SolverRow, options: argparse.Namespace) -> Found:
    """The time of a factorization or solve in blocks, and the share of the speed with the limits of this GPU."""
    found: Found = {"arch": row.arch, **asdict(row.cell)}
    records = [options.store.record(build) or {"error": "not built"} for build in row.builds]
    if error := next((record["error"] for record in records if "error" in record), ""):
        return found | {"error": error[:300]}
    sides = [solvers.Loaded(options.store, build) for build in row.builds]
    found["difference"] = runner.require_close(
        runner.difference(*(side.result() for side in sides)), row.cell.allowed, "the same with other limits"
    )
    times = timing.time_alternately({str(number): Launch(side.run) for number, side in enumerate(sides)})
    return found | asdict(times["0"]) | {"share": round(times["1"].median_us / times["0"].median_us, 4)}


# ---- a run


def line_of(found: Found) -> str:
    if "share" not in found:
        return str(found["error"])
    ratio = f", {found['share_at_ratio']:.0%} at its ratio" if "share_at_ratio" in found else ""
    blocks = f", {found['blocks']} blocks, {found['registers']} registers" if "blocks" in found else ""
    return f"{found['share']:.0%} of the bound{ratio}{blocks}"


def cases(_: argparse.Namespace) -> list[Row | SolverRow]:
    chosen = list(chosen_rows())
    others = [row.with_main_loop(other) for row in chosen if row.cell.form == "loop" for other in OTHERS]
    return [*chosen, *others, *solver_rows()]


def conditions(options: argparse.Namespace) -> Found:
    record = torch_record()
    options.clocks_per_ns = record["multiprocessors"] * record["largest_clock_ghz"]
    return record | {"limits": {arch: asdict(multiprocessor(arch)) for arch in (*ARCHS, ARCH)}}


main = runner.command(
    __doc__,
    cases,
    lambda row, options: measure(row, options) if isinstance(row, Row) else measure_solver(row, options),
    conditions,
    builds=lambda row, options: row.builds,
    gpu=True,
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
