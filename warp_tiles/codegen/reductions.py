"""Decides which reductions of rows threads compute alone: ``wp.tile_reduce`` and ``wp.tile_sum`` along the second axis.

Warp's warps reduce one row after the other, and wait for an exchange between lanes at each step
(``kernels/module/reductions.cuh``). The functions here are commutative for all operands, so results are equal.
"""

from __future__ import annotations

from collections.abc import Iterator

from warp_tiles.codegen.module_code import RowReduction
from warp_tiles.codegen.operations import Scalar, Tile
from warp_tiles.codegen.trace import FunctionTrace
from warp_tiles.gemm.hardware import LANES

_PART = LANES  # elements that a warp of Warp's reduces together
_LONGEST_ROW = 256  # Warp's block reduces longer rows together, in another order
_FEW_ROWS = 8  # with fewer rows, most threads would have none


def row_reductions(function: FunctionTrace, threads: int) -> Iterator[RowReduction]:
    """Yields the reductions of rows that threads can compute alone, in the order in which Warp adds."""
    if threads % LANES:  # then a part has other elements
        return
    for operation in function.operations():
        builtin, tile = operation.reduction, next(iter(operation.tiles), None)
        if operation.hook is None or not builtin or tile is None or not tile.owner or not tile.dense:
            continue
        axis = operation.operands[-1]
        if isinstance(axis, Scalar) and axis.constant == 1 and has_whole_parts(tile):
            yield RowReduction(operation, builtin)


def has_whole_parts(tile: Tile) -> bool:
    """True for a tile of rows that Warp reduces in whole parts."""
    if tile.dtype != "float32" or len(tile.shape) != 2:
        return False
    rows, columns = tile.shape
    return rows >= _FEW_ROWS and columns % _PART == 0 and _PART < columns <= _LONGEST_ROW
