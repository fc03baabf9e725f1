"""Strided views of arrays by shape and strides, without their memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType
from warp_tiles.heuristics.operand_copies import ALIGNED, STRIDED


@dataclass(frozen=True)
class View:
    """A batch of matrices in memory.

    Attributes:
        dtype: Element type.
        shape: Matrices, rows and columns.
        strides: Distances in bytes between them. The distance between matrices is 0 for a matrix that a batch shares.
        alignment: The largest power of two, up to 16, that divides the address of the first element.
    """

    dtype: DType
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    alignment: int = ALIGNED

    @property
    def is_transposed(self) -> bool:
        """True if the elements of a column are adjacent in memory, and those of a row are not."""
        (_, rows, columns), (_, down, along), size = self.shape, self.strides, DTYPE_BYTES[self.dtype]
        return rows > 1 and down == size and (columns == 1 or along != size)

    @property
    def line_alignment(self) -> int:
        """The largest power of two, up to 16, that divides the addresses of its contiguous lines: its columns if it is
        transposed, else its rows. 0 if they have gaps between their elements."""
        _, lines, length = self.stored.shape
        far, between, step = self.stored.strides
        if length > 1 and step != DTYPE_BYTES[self.dtype]:
            return STRIDED
        return math.gcd(self.alignment, far if self.shape[0] > 1 else 0, between if lines > 1 else 0)

    @property
    def stored(self) -> View:
        """The view or its transpose, so that the elements of a row are adjacent in memory where possible."""
        return self.transposed() if self.is_transposed else self

    def padded(self) -> View:
        """The view of a copy whose lines are aligned. A matrix that a batch shares is copied once."""
        batch, lines, length = self.stored.shape
        step = DTYPE_BYTES[self.dtype]
        between = -(-length * step // ALIGNED) * ALIGNED
        copy = View(self.dtype, (batch, lines, length), (lines * between if self.strides[0] else 0, between, step))
        return copy.transposed() if self.is_transposed else copy

    def transposed(self) -> View:
        """The view with rows and columns exchanged."""
        (batch, rows, columns), (far, down, along) = self.shape, self.strides
        return replace(self, shape=(batch, columns, rows), strides=(far, along, down))

    def shared(self, batch: int) -> View:
        """A single matrix as a batch of the same matrix."""
        if self.shape[0] == batch:
            return self
        return replace(self, shape=(batch, *self.shape[1:]), strides=(0, *self.strides[1:]))

    def alone(self) -> View:
        """The first matrix."""
        return replace(self, shape=(1, *self.shape[1:]))

    @property
    def rows_can_join(self) -> bool:
        """True if the rows of all matrices are the rows of one matrix."""
        return self.strides[0] == self.shape[1] * self.strides[1]

    def joined_rows(self) -> View:
        """One matrix with the rows of all matrices."""
        (batch, rows, columns), (_, down, along) = self.shape, self.strides
        return replace(self, shape=(1, batch * rows, columns), strides=(batch * rows * down, down, along))


def view_of(array: Any, dtype: DType) -> View:
    """The view of a Warp array with 2 or 3 dimensions. Its first element counts as aligned."""
    if len(array.shape) == 2:
        return View(dtype, (1, *array.shape), (0, *array.strides))
    return View(dtype, array.shape, array.strides)


def operand_view(array: Any, dtype: DType) -> View:
    """The view of an operand, with the alignment of its first element."""
    return replace(view_of(array, dtype), alignment=math.gcd(ALIGNED, array.ptr or 0))


def are_distinct(array: Any) -> bool:
    """True if each element of a Warp array has memory of its own, as far as its strides show."""
    import warp as wp

    if 0 in array.shape:
        return True
    reach = wp.types.type_size_in_bytes(array.dtype)
    for stride, size in sorted((abs(stride), size) for size, stride in zip(array.shape, array.strides) if size > 1):
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def contiguous(dtype: DType, shape: tuple[int, int, int]) -> View:
    """The view of a contiguous array."""
    size_bytes, (_, rows, columns) = DTYPE_BYTES[dtype], shape
    return View(dtype, shape, (rows * columns * size_bytes, columns * size_bytes, size_bytes))
