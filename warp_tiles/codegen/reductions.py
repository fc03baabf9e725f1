"""Decides which reductions of rows threads compute alone: ``wp.tile_reduce`` and ``wp.tile_sum`` along the second axis.

Warp's warps reduce one row after the other, and wait for an exchange between lanes at each step
(``kernels/module/reductions.cuh``). The functions here are commutative for all operands, so results are equal.
"""

from __future__ import annotations

from collections.abc import Iterator

from warp_tiles.codegen.module_code import RowReduction
from warp_tiles.codegen.operations import REDUCE, SUM, Operation, Scalar, Tile
from warp_tiles.codegen.trace import FunctionTrace
from warp_tiles.gemm.hardware import LANES

_COMMUTATIVE = frozenset({"add", "max", "min", "mul"})
_PART = LANES  # elements that a warp of Warp's reduces together
_LONGEST_ROW = 256  # Warp's block reduces longer rows together, in another order
_FEW_ROWS = 8  # with fewer rows, most threads would have none


def row_reductions(function: FunctionTrace, threads: int) -> Iterator[RowReduction]:
    """Yields the reductions of rows that threads can compute alone, in the order in which Warp adds."""
    if threads % LANES:  # then a part has other elements
        return
    for operation in function.operations():
        builtin, tile = _function_of(operation), next(iter(operation.tiles), None)
        if operation.hook is None or builtin not in _COMMUTATIVE or tile is None or not _is_reduced(tile):
            continue
        axis = operation.operands[-1]
        if isinstance(axis, Scalar) and axis.constant == 1:
            yield RowReduction(operation, builtin)


def _function_of(operation: Operation) -> str:
    """The builtin that a reduction applies; empty for other operations."""
    if operation.name == SUM:
        return "add"
    return operation.operands[0].name if operation.name == REDUCE else ""


def _is_reduced(tile: Tile) -> bool:
    """True for a tile of whole parts that begins at a vector."""
    if not tile.owner or not tile.dense or tile.dtype != "float32" or len(tile.shape) != 2:
        return False
    rows, columns = tile.shape
    return rows >= _FEW_ROWS and columns % _PART == 0 and _PART < columns <= _LONGEST_ROW
