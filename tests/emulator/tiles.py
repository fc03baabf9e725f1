"""Conversions between matrices and the bytes of a tile, in every dtype, bfloat16 included, which NumPy lacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, Operand

Matrix = npt.NDArray[np.float64]
_NUMPY_DTYPES: dict[DType, str] = {"float16": "<f2", "bfloat16": "<u2", "float32": "<f4", "float64": "<f8"}


@dataclass(frozen=True)
class Tile:
    """One operand in emulated shared memory.

    Attributes:
        rows, columns: Shape in elements.
        dtype: Element type.
        arrangement: ``row_major`` when elements of a row are contiguous.
        leading_dimension: Elements between the starts of two rows (``row_major``) or columns.
        alignment: Exact alignment of the base and of every row or column, in bytes.
    """

    rows: int
    columns: int
    dtype: DType
    arrangement: Arrangement
    leading_dimension: int
    alignment: int

    @classmethod
    def of(cls, rows: int, columns: int, operand: Operand) -> Tile:
        """The tile of an operand of a problem."""
        return cls(rows, columns, operand.dtype, operand.arrangement, operand.leading_dimension, operand.alignment)

    @classmethod
    def dense(cls, rows: int, columns: int, dtype: DType) -> Tile:
        """A packed row-major tile with the alignment of its elements."""
        return cls(rows, columns, dtype, "row_major", columns, DTYPE_BYTES[dtype])

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def span(self) -> int:
        """Size in bytes, from the first row or column to the end of the last gap."""
        lines = self.rows if self.arrangement == "row_major" else self.columns
        return lines * self.leading_dimension * self.element_bytes

    def pack(self, values: Matrix) -> bytes:
        """The tile's bytes, with NaN in the gaps.

        Args:
            values: ``rows`` x ``columns`` numbers, which are rounded to the dtype.
        """
        lines = values if self.arrangement == "row_major" else values.T
        stored = np.full((lines.shape[0], self.leading_dimension), np.nan)
        stored[:, : lines.shape[1]] = lines
        return to_bytes(stored, self.dtype)

    def unpack(self, data: bytes) -> Matrix:
        """The elements without the gaps, ``rows`` x ``columns``."""
        lines = from_bytes(data, self.dtype).reshape(-1, self.leading_dimension)
        row_major = self.arrangement == "row_major"
        lines = lines[:, : self.columns if row_major else self.rows]
        return lines if row_major else lines.T

    def gaps(self, data: bytes) -> bytes:
        """The bytes of the gaps, one row or column after the other."""
        length = (self.columns if self.arrangement == "row_major" else self.rows) * self.element_bytes
        lines = np.frombuffer(data, np.uint8).reshape(-1, self.leading_dimension * self.element_bytes)
        return lines[:, length:].tobytes()


def to_bytes(values: Matrix, dtype: DType) -> bytes:
    """Values rounded to nearest even, in little-endian bytes."""
    if dtype != "bfloat16":
        return values.astype(_NUMPY_DTYPES[dtype]).tobytes()
    narrow = values.astype(np.float32)
    bits = narrow.view(np.uint32)
    # if rounding to float32 made a tie, the exact value decides
    towards = np.where(narrow == values, 0, np.where(np.abs(narrow) > np.abs(values), -1, 1))
    tie = (bits & 0xFFFF) == 0x8000
    up = np.where(tie & (towards != 0), towards > 0, (bits & 0xFFFF) + ((bits >> 16) & 1) > 0x8000)
    rounded = (bits >> 16) + up
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16).tobytes()


def from_bytes(data: bytes, dtype: DType) -> Matrix:
    """The elements in float64."""
    stored = np.frombuffer(data, _NUMPY_DTYPES[dtype])
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return stored.astype(np.float64)


def rounded(values: Matrix, dtype: DType) -> Matrix:
    """Values rounded to the dtype."""
    return from_bytes(to_bytes(values, dtype), dtype).reshape(values.shape)
