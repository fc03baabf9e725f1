"""Which operands of a product are copied before it, because their lines are not aligned. It is pure."""

from __future__ import annotations

from dataclasses import dataclass

from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType

ALIGNED = 16  # bytes of the widest async copy
STRIDED = 0  # the alignment of an operand whose rows and columns have gaps between their elements

_LAUNCH_US = 2.5
_MEMORY = 2.0e6  # bytes that a copy reads or writes in 1 us


@dataclass(frozen=True)
class OperandLines:
    """The contiguous lines of an operand in memory, its rows or its columns.

    Attributes:
        dtype: Element type.
        elements: Elements of all matrices.
        alignment: The largest power of two, up to 16, that divides the address of each line; 0 if none is contiguous.
        are_along_k: True if a line has the elements that a product sums.
        tf32: True for tensor cores that round float32 to tf32.
    """

    dtype: DType
    elements: int
    alignment: int
    are_along_k: bool
    tf32: bool = False


def is_copied(lines: OperandLines, product_us: float) -> bool:
    """True if a copy with aligned lines takes less time than it saves.

    Args:
        lines: The operand.
        product_us: Estimated time of the product with aligned operands, in microseconds.
    """
    copy_us = _LAUNCH_US + 2 * lines.elements * DTYPE_BYTES[lines.dtype] / _MEMORY
    return copy_us < _slowdown(lines) * product_us


def _slowdown(lines: OperandLines) -> float:
    """The additional time of a product whose operand is loaded as it is, as a multiple of the product's time."""
    if lines.alignment == ALIGNED:
        return 0.0
    size = DTYPE_BYTES[lines.dtype]
    if lines.alignment == STRIDED or (size == 2 and lines.alignment < 4):
        return 3.0  # threads load single elements and wait for them
    if size == 4 and not lines.tf32:
        return 0.0 if lines.are_along_k else 0.15  # tiles along K are always copied by single elements
    return 0.3 if size == 8 else 1.0
