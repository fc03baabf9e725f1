"""The tables of docs/which_tile.md: what the choosers choose for tiles, by architecture."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.other_gpus import TILES, fits
from benchmarks.result_values import table
from benchmarks.speed.cells import BYTES, DTYPES, Cell, Types
from warp_tiles.gemm.hardware import multiprocessor
from warp_tiles.gemm.main_loop import loop_problem
from warp_tiles.gemm.pipeline import LoopMemory
from warp_tiles.gemm.problem import Role, Target, TileOperand, products
from warp_tiles.gemm.rejected import Rejected

GPUS = {
    80: "A100", 86: "RTX 30, A40", 87: "Orin", 88: "unknown", 89: "RTX 40, L40", 90: "H100, H200", 100: "B200",
    103: "B300", 107: "unknown", 110: "Thor", 120: "RTX 50, RTX PRO", 121: "Spark",
}  # fmt: skip
THREADS = 128  # of a block, at least
SHOWN: tuple[Types, ...] = ("fp16", "tf32", "fp32", "fp64")  # bf16 has the pipelines of fp16


def pipeline_text(cell: Cell, arch: int) -> str:
    """The pipeline of a loop with contiguous rows of A, B and C: stages and resident blocks, or what it has instead."""
    if not fits(cell, arch):
        return "does not fit"
    shapes = ((cell.m, cell.k, cell.a), (cell.k, cell.n, cell.b), (cell.m, cell.n, cell.c))
    a, b, c = (TileOperand(dtype, (m, n), (n, 1), "row_major", True) for m, n, dtype in shapes)  # type: ignore[arg-type]
    a_bytes, b_bytes, c_bytes = (m * n * BYTES[dtype] for m, n, dtype in shapes)
    found = products(a, b, c, precision="tf32" if cell.tf32 else "default", target=Target(arch, cell.threads))
    tiles = a_bytes + b_bytes + c_bytes  # all of them are idle in the loop
    memory = LoopMemory(a_bytes + b_bytes, tiles, tiles)
    problem = loop_problem([(found.problems[Role.FORWARD], ("a", "b"))], ("wgmma", "mma"), memory, arrays=(0,))
    plan = problem.plan_alone()
    if isinstance(plan, Rejected):
        return "double buffers"
    loop = plan.loop
    return f"{'`wgmma`, ' if loop.instruction == 'wgmma' else ''}{loop.stages} stages, {loop.blocks}"


def _columns(cells: list[Cell]) -> Iterator[tuple[list[int], list[str]]]:
    """The architectures that choose the same for all cells, and the texts of the cells."""
    chosen = {arch: [pipeline_text(cell, arch) for cell in cells] for arch in GPUS}
    for texts in dict.fromkeys(map(tuple, chosen.values())):
        yield [arch for arch in GPUS if tuple(chosen[arch]) == texts], list(texts)


def limits() -> Iterator[list[str]]:
    """The limits of multiprocessors, architectures with equal ones in one row."""
    found = {arch: multiprocessor(arch) for arch in GPUS}
    for limit in dict.fromkeys(found.values()):
        archs = [arch for arch in GPUS if found[arch] == limit]
        kilobytes = [f"{size // 1024} KB" for size in (limit.block_shared_bytes, limit.shared_bytes)]
        names = [", ".join(f"sm_{arch}" for arch in archs), "; ".join(GPUS[arch] for arch in archs)]
        yield [*names, *kilobytes, f"{limit.threads:,}", str(limit.blocks)]


def which_tiles() -> dict[str, str]:
    """The limits of architectures, and a table of pipelines for each type of operands."""
    head = ["architecture", "GPUs", "shared memory of a block", "of a multiprocessor", "its threads", "its blocks"]
    found = {"multiprocessors": table(head, limits())}
    for types in SHOWN:
        ab, c = DTYPES[types]
        cells = [Cell("loop", ab, ab, c, *tile, types == "tf32") for tile in TILES[types] if tile[3] >= THREADS]
        columns = list(_columns(cells))
        heads = [", ".join(f"sm_{arch}" for arch in archs) for archs, _ in columns]
        rows = zip(*(texts for _, texts in columns))
        found[f"tiles {types}"] = table(
            ["tile of C, step, threads", *heads],
            ([f"{cell.m}x{cell.n}, {cell.k}, {cell.threads}", *texts] for cell, texts in zip(cells, rows)),
        )
    return found


PARTS = (which_tiles,)
