"""The instruction with which a block multiplies tiles in stage buffers, and its warps. All functions are pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from warp_tiles.gemm.hardware import ASYNC_COPIES_ARCH, LANES, accumulator_registers, has_wgmma
from warp_tiles.gemm.pipeline import AUTO, InstructionFamily, MmaPlan, PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand, accumulator_of
from warp_tiles.gemm.rejected import refuse, rejectable
from warp_tiles.gemm.tile_config import instructions

WARPGROUP = 4 * LANES  # threads
WGMMA_ROWS = 64  # of an instruction of wgmma: rows of C, or of its transpose
_REGISTER_OPERAND_K = 16  # of K in an iteration, if an operand is in registers


def _panel_elements(operand: Operand, columns: int) -> int:
    """Elements in a row of a panel of a stage buffer, by the contiguous elements of its tile (``BufferLayout``)."""
    size = DTYPE_BYTES[operand.dtype]
    return next(width for width in (128, 64, 32) if columns * size % width == 0) // size


@rejectable
def staged_product(
    variant: GemmProblem,
    families: Collection[InstructionFamily],
    choice: PipelineOverrides = AUTO,
) -> MmaPlan:
    """How a block multiplies tiles in stage buffers, or the reason why it cannot.

    Args:
        variant: The forward product, with its operands as they lie in stage buffers.
        choice: What the settings fix.
    """
    refuse(variant.arch < ASYNC_COPIES_ARCH, "no_async_copies", variant.arch)
    dtype, c = variant.a.dtype, variant.c
    refuse(variant.b.dtype != dtype, "two_dtypes")
    total = accumulator_of(dtype)
    refuse(c.dtype != total or c.arrangement != "row_major" or not variant.is_dense, "unsuitable_c", total)
    step = 16 if DTYPE_BYTES[dtype] == 2 else 8
    refuse(bool(variant.m % 16 or variant.n % 16 or variant.k % step), "unsuitable_size", variant.size, step)
    accumulators, available = accumulators_of(variant), accumulator_registers(variant.arch, variant.threads)
    refuse(accumulators > available, "many_accumulators", variant.size, accumulators, available)
    plans = _ways(variant, families)
    refuse(not plans, "no_grid" if uses_fma(variant) else "no_tensor_core_grid", variant.threads, variant.size)
    fitting = [product for product in plans if choice.warps_m in (None, product.warps_m)]
    grids = ", ".join(dict.fromkeys(str(product.warps_m) for product in plans))
    refuse(not fitting, "warps_m", choice.warps_m, variant.size, grids)
    return fitting[0]


def uses_fma(variant: GemmProblem) -> bool:
    """True for products whose stages are multiplied without tensor cores."""
    return variant.a.dtype == "float32" and variant.precision != "tf32"


def _ways(variant: GemmProblem, families: Collection[InstructionFamily]) -> list[MmaPlan]:
    """The ways to multiply, the best one first."""
    if variant.threads % LANES:
        return []
    if uses_fma(variant):
        return list(_fma_products(variant))
    plans = list(_warpgroup_products(variant)) if "wgmma" in families else []
    if plans or "mma" not in families:
        return plans
    mma = instructions(variant)[0]
    return [MmaPlan(mma, *grid, accumulators_of(variant)) for grid in _warp_grids(variant)]


def accumulators_of(variant: GemmProblem) -> int:
    return variant.m * variant.n // variant.threads * (DTYPE_BYTES[variant.c.dtype] // 4)


def _warpgroup_products(variant: GemmProblem) -> Iterator[MmaPlan]:
    """Products by wgmma, the one with the widest instructions first.

    wgmma reads 16-bit operands of any layout from shared memory, and tf32 operands if they are contiguous along K. If
    no grid gives each group a multiple of 64 rows of C, wgmma computes C^T = B^T A^T, whose rows are C's columns.
    """
    if not has_wgmma(variant.arch) or variant.threads % WARPGROUP:
        return
    groups = variant.threads // WARPGROUP
    grids = [(groups_x, groups // groups_x) for groups_x in range(groups, 0, -1) if groups % groups_x == 0]
    a_k_major, b_k_major = variant.a.arrangement == "row_major", variant.b.arrangement == "col_major"
    if variant.a.dtype == "float32" and not (a_k_major and b_k_major):
        yield from _products_through_registers(variant, grids)
    elif DTYPE_BYTES[variant.a.dtype] <= 4:
        straight = list(_products_from_buffers(variant, grids, swapped=False))
        yield from straight or _products_from_buffers(variant, grids, swapped=True)


def _products_through_registers(variant: GemmProblem, grids: Sequence[tuple[int, int]]) -> Iterator[MmaPlan]:
    """Products of two tf32 operands, one contiguous along K and the other along M or N.

    The latter is the instruction's A in registers: A itself, or B in C^T = B^T A^T. If neither is contiguous along K,
    there are none.
    """
    a_k_major, b_k_major = variant.a.arrangement == "row_major", variant.b.arrangement == "col_major"
    if not (a_k_major or b_k_major) or variant.k % _REGISTER_OPERAND_K:
        return
    through: Literal["a", "b"] = "b" if a_k_major else "a"
    for groups_m, groups_n in reversed(grids) if through == "b" else grids:
        if variant.m % groups_m or variant.n % groups_n:
            continue
        m, n = variant.m // groups_m, variant.n // groups_n
        lines, width = (n, m) if through == "b" else (m, n)
        if lines % WGMMA_ROWS == 0 and width % 16 == 0:
            yield MmaPlan("wgmma", groups_m, groups_n, accumulators_of(variant), through)


def _products_from_buffers(
    variant: GemmProblem, grids: Sequence[tuple[int, int]], *, swapped: bool
) -> Iterator[MmaPlan]:
    """Products whose operands both lie in shared memory.

    Args:
        grids: Numbers of groups along the instruction's rows and along its columns.
        swapped: True if the instruction computes the transpose of C, whose rows are C's columns.
    """
    lines, width = (variant.n, variant.m) if swapped else (variant.m, variant.n)
    y = variant.a if swapped else variant.b  # the instruction's B
    is_k_major = y.arrangement == ("row_major" if swapped else "col_major")
    for groups_x, groups_y in grids:
        if lines % (WGMMA_ROWS * groups_x) or width % (16 * groups_y):
            continue
        if not is_k_major and width // groups_y % _panel_elements(y, width):
            continue  # a group's columns begin in the middle of a panel
        groups_m, groups_n = (groups_y, groups_x) if swapped else (groups_x, groups_y)
        yield MmaPlan("wgmma", groups_m, groups_n, accumulators_of(variant), swapped=swapped)


def _warp_grids(variant: GemmProblem) -> list[tuple[int, int]]:
    """Grids of warps, the one that reads the least shared memory first."""
    warps = variant.threads // LANES
    # a vector of tf32 that is contiguous along M or N has lines of four fragments
    tf32 = variant.a.dtype == "float32"
    rows = 32 if tf32 and variant.a.arrangement == "col_major" else 16
    columns = 32 if tf32 and variant.b.arrangement == "row_major" else 16
    grids = [
        (warps_m, warps // warps_m)
        for warps_m in range(1, warps + 1)
        if warps % warps_m == 0 and variant.m % (rows * warps_m) == 0
        if variant.n % (columns * (warps // warps_m)) == 0
    ]
    return sorted(grids, key=lambda grid: variant.m // grid[0] + variant.n // grid[1])


def _fma_products(variant: GemmProblem) -> Iterator[MmaPlan]:
    """Products without tensor cores, the one whose lanes and warps read the fewest values first."""
    warps = variant.threads // LANES
    grids = []
    for warps_m, lanes_m in itertools.product([w for w in range(1, warps + 1) if warps % w == 0], (4, 8)):
        warps_n, lanes_n = warps // warps_m, LANES // lanes_m
        if variant.m % (warps_m * lanes_m) or variant.n % (warps_n * lanes_n):
            continue
        rows, columns = variant.m // (warps_m * lanes_m), variant.n // (warps_n * lanes_n)  # of a lane
        # A vector of an operand that is contiguous along M or N has four lines, and a warp reads whole panels of it. A
        # warp reads whole swizzling patterns of the other one, which repeat after eight lines.
        a = (4, _panel_elements(variant.a, variant.m)) if variant.a.arrangement == "col_major" else (1, 8)
        b = (4, _panel_elements(variant.b, variant.n)) if variant.b.arrangement == "row_major" else (1, 8)
        if not (rows % a[0] or rows * lanes_m % a[1] or columns % b[0] or columns * lanes_n % b[1]):
            of_warp = rows * lanes_m + columns * lanes_n
            operands = _fma_operands(rows, a[0] == 1) + _fma_operands(columns, b[0] == 1)
            grids.append((rows + columns, of_warp, -rows, warps_m, lanes_m, operands))
    for *_, warps_m, lanes_m, operands in sorted(grids):
        yield MmaPlan("fma", warps_m, warps // warps_m, accumulators_of(variant), lanes_m=lanes_m, operands=operands)


def _fma_operands(lines: int, along_k: bool) -> int:
    """Registers of a lane that hold an operand of fma, as ``FmaProduct`` has them: one or two sets of vectors."""
    depth = 4 if along_k else 1
    return (2 if lines <= 8 or not along_k else 1) * lines * depth
