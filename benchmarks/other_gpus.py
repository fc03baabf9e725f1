"""Measures on one H100 or H200 what ``mma.sync`` reaches within the limits of other architectures.

    python benchmarks/other_gpus.py --json benchmarks/results/other_gpus.json --seconds 420
    python -m benchmarks.figures

Each kernel is code for sm_90 with ``main_loop=mma``, as architectures without wgmma have it. It is planned with the
shared memory, threads and blocks of another architecture's multiprocessor. Its blocks are padded with shared memory, so
that as many are resident as there. Clocks, caches, bandwidths and rates of instructions are those of this GPU. So the
result is the share of a bound that the same run measures: the rate of the same instruction from registers alone.

A multiprocessor of an RTX 4090 computes a fifth of the fp16 operations in a clock, and reads shared memory as fast. So
``share_at_ratio`` is the share of the same loop if it multiplies each pair of tiles ``passes`` times: tensor cores then
have as much more to do than everything else as there. :data:`FLOPS_PER_CLOCK` has the rates.

Rows are loops over 4096 x 4096 x 4096, whose results are compared with cuBLAS. Rows marked ``chosen`` have the
pipelines of the choosers. After them come other pipelines that fit: 2, 3 or 4 stages, or double buffers. fp64 rows have
the instruction of sm_90, m16n8k8, and only the limits of sm_80, because sm_89 and sm_120 have few units for fp64.
sm_120 has the limits of sm_89, so its rows repeat those of sm_89.

``--build-only`` fills the folder of builds and needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import torch_record, torch_with_warp
from benchmarks.speed import rates, timing
from benchmarks.speed.builds import ARCH, Build
from benchmarks.speed.cells import BYTES, DTYPES, PARTS, Cell, Part, Shape, Types, with_threads
from benchmarks.speed.occupancy import Resources, resident_blocks
from benchmarks.speed.sides import Cublas, Side, compare
from benchmarks.speed.timing import Launch
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
_HERE: dict[Types, int] = {"fp16": 2464, "tf32": 1234, "fp64": 254}  # by mma.sync, on an H200

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
        rate = FLOPS_PER_CLOCK[self.arch].get(self.types)
        return max(1, round(_HERE[self.types] / rate)) if rate else 1

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
            if types != "fp64" or arch == 80:
                cells = (replace(cell, main_loop=CHOSEN) for cell in loops)
                yield from (Row(arch, types, cell) for cell in cells if fits(cell, arch))


def other_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """Other pipelines for the loops among chosen rows."""
    for row in rows:
        yield from (row.with_main_loop(other) for other in OTHERS)


def is_as_asked(main_loop: str, record: Found) -> bool:
    """True if a build has the pipeline that it asks for."""
    loop, asked = record["loops"][0], main_loop.rpartition("stages=")[2]
    return bool(loop["instruction"]) and str(loop["stages"]) == asked if asked.isdigit() else not loop["instruction"]


# ---- measurements


def planned(row: Row, record: Found) -> Found:
    """What a row's build says: its pipeline and its resources."""
    ((function, resources),) = record["kernels"].items()
    (loop,) = record["loops"]
    names = ("state", "stages", "instruction", "accumulators", "shared_bytes", "reason")
    return {
        "launched_bytes": record["launched_bytes"][f"{function}_smem_bytes"],
        **resources,
        "blocks": resident_blocks(Resources(**resources), multiprocessor(row.arch)),
        **{name: loop[name] for name in names},
        "planned_blocks": loop["resident_blocks"],
    }


def instruction_of(row: Row, instruction: str) -> str:
    """The instruction whose rate bounds a row. A loop with double buffers does not name its own."""
    return instruction or {"fp32": "fma", "fp16": "mma_m16n8k16"}.get(row.types, "mma_m16n8k8")


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
    cublas = Cublas(torch_with_warp(), side)
    launches["cublas"] = Launch(cublas.run)
    found["difference"] = compare(side, cublas)["c"]
    times = timing.time_alternately(launches)
    found |= asdict(times["tiles"])
    found["tflops"] = round(part.flops(cell) / times["tiles"].median_us / 1e6, 3)
    bound = options.rates[row.types][instruction_of(row, found["instruction"])]
    found["share"] = round(found["tflops"] / bound["tflops"], 4)
    if "again" in times:
        ratio = times["tiles"].median_us / times["again"].median_us
        found["share_at_ratio"] = round(found["share"] * row.passes * ratio, 4)
    return found | {"to_cublas": round(times["cublas"].median_us / times["tiles"].median_us, 3)}


# ---- a run


def line_of(found: Found) -> str:
    if "share" not in found:
        return str(found["error"])
    ratio = f", {found['share_at_ratio']:.0%} at its ratio" if "share_at_ratio" in found else ""
    return f"{found['share']:.0%} of the bound{ratio}, {found['blocks']} blocks, {found['registers']} registers"


def cases(options: argparse.Namespace) -> list[Row]:
    chosen = list(chosen_rows())
    return [*chosen, *([] if options.chosen else other_rows(chosen))]


def conditions(options: argparse.Namespace) -> Found:
    """Those of the GPU, the limits of the architectures, and the measured bounds."""
    record = torch_record()
    timing.warm_up()
    options.rates = rates.measured()
    for types, of_types in options.rates.items():
        print(types, *(f"{name}: {rate['tflops']:.1f} TFLOP/s" for name, rate in of_types.items()), flush=True)
    limits = {arch: asdict(multiprocessor(arch)) for arch in (*ARCHS, ARCH)}
    return {**record, "limits": limits, "bounds": options.rates}


main = runner.command(
    __doc__,
    cases,
    measure,
    conditions,
    options={
        "--chosen": {"action": "store_true", "help": "leave out other pipelines than the chooser's"},
    },
    builds=lambda row, options: row.builds,
    gpu=True,
    described=line_of,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
