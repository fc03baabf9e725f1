"""Addresses at which the lanes of a warp read A and B and access C. ``kernels/tile`` computes the same addresses.

A lane has g = lane // 4 and q = lane % 4; see ``kernels/tile/operand.cuh`` and ``accumulator.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warp_tiles.gemm.hardware import BANK_LINE_BYTES, LANES
from warp_tiles.gemm.limits import line_bytes, reads_pairs, slots_of
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.gemm.wavefronts import wavefronts_of

Placement = Literal["single", "spread", "pairs_across", "pairs_along", "pairs_spread"]


@dataclass(frozen=True)
class Access:
    """The accesses of a warp to one operand of one warp tile. They all have the same pattern.

    Attributes:
        ideal: The wavefronts of the same bytes without bank conflicts, at 128 bytes each.
    """

    wavefronts: float
    ideal: float


def position(placement: Placement, group: int, member: int) -> int:
    """Row or column of member 0 to 7 of a group of eight, as in ``kernels/tile/placement.cuh``."""
    pair = group // 2
    if placement == "single":
        return 8 * group + member
    if placement == "spread":
        return 8 * group + (member ^ 4 * (pair & 1))
    if placement == "pairs_across":
        return 16 * pair + 4 * (member // 2) + 2 * (group % 2) + member % 2
    if placement == "pairs_along":
        return 16 * pair + 2 * member + group % 2
    return 16 * pair + 2 * (member ^ 4 * (pair // 2 & 1)) + group % 2


def placement_of(operand: Operand, k_major: bool, extent: int, groups: int, vector: int, wide: bool) -> Placement:
    """The placement of the rows of A or the columns of B."""
    if k_major:
        return "pairs_across" if wide and groups % 2 == 0 else "single"
    size = DTYPE_BYTES[operand.dtype]
    if reads_pairs(operand, extent, groups, vector):
        return "pairs_along" if size == 2 else "pairs_spread"
    return "spread" if size == 8 and groups % 4 == 0 else "single"


def operand_access(
    operand: Operand, k_major: bool, extent: int, tile: int, k: int, vector: int, ways: int, wide: bool
) -> Access:
    """The reads of A or B for all of K. A row-major A and a column-major B are K-major."""
    size, line, groups = DTYPE_BYTES[operand.dtype], line_bytes(operand), tile // 8
    placement = placement_of(operand, k_major, extent, groups, vector, wide)
    addresses = []
    if k_major:
        width = min(vector, max(1, operand.alignment // size))
        for lane in range(LANES):
            g, q = divmod(lane, 4)
            block = (g >> _swizzle_shift(line)) & (ways - 1)
            addresses.append(position(placement, 0, g) * line + (4 * vector * block + vector * q) * size)
    else:
        width = 2 if reads_pairs(operand, extent, groups, vector) else 1
        slots = slots_of(operand, extent, groups, vector) // vector
        for lane in range(LANES):
            g, q = divmod(lane, 4)
            source = q & (ways - 1)
            across = position(placement, source % slots * width, g)
            addresses.append((vector * q + source // slots) * line + across * size)
    count = tile * max(k, 4 * vector) / (LANES * width)
    return Access(count * wavefronts_of(tuple(addresses), width * size), count * width * size * LANES / BANK_LINE_BYTES)


def result_access(operand: Operand, rows: Placement, columns: Placement, config: TileConfig, n: int) -> Access:
    """One pass over a row-major C, its reads or its writes."""
    size, line = DTYPE_BYTES[operand.dtype], line_bytes(operand)
    paired = columns not in ("single", "spread")
    elements = 4 if paired else 2
    vectors = config.tile_n // (4 * elements)
    ways = config.swizzle_c if vectors % config.swizzle_c == 0 else 1
    distance = 2 if rows in ("pairs_along", "pairs_spread") else 1
    width = min(elements, max(1, min(16, operand.alignment) // size), n & -n)
    addresses = []
    for lane in range(LANES):
        g, q = divmod(lane, 4)
        vector = (g >> _swizzle_shift(distance * line)) & (ways - 1)
        if paired:
            swizzled = q ^ 2 * (vector // 2 & 1) if columns == "pairs_spread" else q
            column = 16 * vector + 4 * swizzled
        else:
            column = 8 * vector + (2 * q ^ 4 * (vector // 2 & 1) if columns == "spread" else 2 * q)
        addresses.append(position(rows, 0, g) * line + column * size)
    count = config.tile_m * config.tile_n / (LANES * width)
    return Access(count * wavefronts_of(tuple(addresses), width * size), count * width * size * LANES / BANK_LINE_BYTES)


def accesses(view: GemmProblem, config: TileConfig) -> tuple[Access, Access, Access]:
    """The reads of A, B and C for one warp tile on tensor cores and a row-major C. Writes of C equal its reads."""
    k_major_a, k_major_b = view.a.arrangement == "row_major", view.b.arrangement == "col_major"
    wide_a, wide_b = not k_major_a, not k_major_b or DTYPE_BYTES[view.c.dtype] <= 4
    vector = config.k_vector
    a = operand_access(view.a, k_major_a, view.m, config.tile_m, view.k, vector, config.swizzle_a, wide_a)
    b = operand_access(view.b, k_major_b, view.n, config.tile_n, view.k, vector, config.swizzle_b, wide_b)
    rows = placement_of(view.a, k_major_a, view.m, config.tile_m // 8, vector, wide_a)
    columns = placement_of(view.b, k_major_b, view.n, config.tile_n // 8, vector, wide_b)
    return a, b, result_access(view.c, rows, columns, config, view.n)


def _swizzle_shift(line: int) -> int:
    """The number of low bits of a row index that the swizzle skips, as in ``kernels/tile/swizzle.cuh``."""
    return 0 if line % 128 == 0 else 1 if line % 64 == 0 else 2 if line % 32 == 0 else 3
