"""Which operands of a product are copied before it, because their lines are not aligned. It is pure."""

from __future__ import annotations

from dataclasses import dataclass

from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType

ALIGNED = 16  # bytes of the widest async copy
STRIDED = 0  # the alignment of an operand whose lines have gaps between their elements

_COPY_US = 4.0  # of a launch, on the GPU and on the host
_COPIED = 2.0e6  # bytes that a copy reads or writes in 1 us
_VECTOR_US = 0.55  # of a thread that loads the elements of 16 bytes one by one, on an H100 (not on record)
_MOST_BYTES = 2**31  # of a matrix, because strides have 32 bits


@dataclass(frozen=True)
class OperandLines:
    """The lines of an operand in memory: its rows, or its columns if these are contiguous.

    Attributes:
        dtype: Element type.
        matrices: The number of different matrices.
        lines: Lines of a matrix.
        length: Elements of a line.
        alignment: The largest power of two, up to 16, that divides the address of each line; 0 if the elements of a
            line have gaps.
        are_along_k: True if a line has the elements that a product sums.
        tf32: True for tensor cores that round float32 to tf32.
    """

    dtype: DType
    matrices: int
    lines: int
    length: int
    alignment: int
    are_along_k: bool
    tf32: bool = False

    @property
    def copy_bytes(self) -> int:
        """Size of a copy of one matrix, whose lines are aligned."""
        return self.lines * -(-self.length * DTYPE_BYTES[self.dtype] // ALIGNED) * ALIGNED


def is_copied(lines: OperandLines, steps_us: float, vectors: float) -> bool:
    """True if a copy with aligned lines takes less time than it saves.

    Args:
        lines: The operand.
        steps_us: Estimated time of the product's loops with aligned operands, in microseconds.
        vectors: Pieces of 16 bytes of the operand that a thread loads, in all blocks that follow one another.
    """
    if lines.copy_bytes >= _MOST_BYTES:
        return False
    copy_us = _COPY_US + 2 * lines.matrices * lines.copy_bytes / _COPIED
    return copy_us < _added_us(lines, steps_us, vectors)


def _added_us(lines: OperandLines, steps_us: float, vectors: float) -> float:
    """The additional time of loops that load the operand as it is."""
    if lines.alignment == ALIGNED:
        return 0.0
    size = DTYPE_BYTES[lines.dtype]
    if size == 4 and not lines.tf32 and lines.are_along_k:  # always copied by single elements, to transpose tiles
        return steps_us if lines.alignment == STRIDED else 0.0
    if lines.alignment == STRIDED or (size == 2 and lines.alignment < 4):
        return vectors * _VECTOR_US  # threads wait for them
    return steps_us * {2: 1.0, 4: 1.0 if lines.tf32 else 0.15, 8: 0.3}[size]
