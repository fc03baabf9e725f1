"""The problem of :func:`warp_tiles.matmul`: strided views, a product of them, and its canonical form. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import warp as wp

from warp_tiles.array_products.matmul_problem import ALIGNED, STRIDED, MatmulProblem, Operand
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, accumulator_of


@dataclass(frozen=True)
class View:
    """A batch of matrices in memory.

    Attributes:
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

    def padded(self, alignment: int = ALIGNED) -> View:
        """The view of a copy whose lines begin at multiples of so many bytes. A matrix that a batch shares is copied
        once."""
        batch, lines, length = self.stored.shape
        step = DTYPE_BYTES[self.dtype]
        between = -(-length * step // alignment) * alignment
        copy = View(self.dtype, (batch, lines, length), (lines * between if self.strides[0] else 0, between, step))
        return copy.transposed() if self.is_transposed else copy

    def transposed(self) -> View:
        (batch, rows, columns), (far, down, along) = self.shape, self.strides
        return replace(self, shape=(batch, columns, rows), strides=(far, along, down))

    def shared(self, batch: int) -> View:
        """A single matrix as a batch of the same matrix."""
        if self.shape[0] == batch:
            return self
        return replace(self, shape=(batch, *self.shape[1:]), strides=(0, *self.strides[1:]))

    def joined_rows(self) -> View | None:
        """One matrix with the rows of all matrices; None if they do not follow one another."""
        (batch, rows, columns), (far, down, along) = self.shape, self.strides
        if far != rows * down:
            return None
        return replace(self, shape=(1, batch * rows, columns), strides=(batch * far, down, along))


def view_of(array: Any) -> View:
    """The view of a Warp array with 2 or 3 dimensions. Its first element counts as aligned."""
    if len(array.shape) == 2:
        return View(array.dtype.__name__, (1, *array.shape), (0, *array.strides))
    return View(array.dtype.__name__, array.shape, array.strides)


def aligned_view(array: Any) -> View:
    return replace(view_of(array), alignment=math.gcd(ALIGNED, array.ptr or 0))


def lower_view(array: Any, upper: bool) -> View:
    """The matrices whose lower triangles count: those of the array, or their transposes."""
    return aligned_view(array).transposed() if upper else aligned_view(array)


def right_sides(array: Any, matrix: Any) -> View:
    """Vectors or matrices as (batch, n, columns)."""
    if array.ndim == matrix.ndim:
        return aligned_view(array)
    batch, strides = (1, 0) if array.ndim == 1 else (array.shape[0], array.strides[0])
    strides = strides, array.strides[-1], wp.types.type_size_in_bytes(array.dtype)
    alignment = math.gcd(ALIGNED, array.ptr or 0)
    return View(array.dtype.__name__, (batch, array.shape[-1], 1), strides, alignment)


def are_distinct(array: Any) -> bool:
    """True if each element of a Warp array has memory of its own, as far as its strides show."""
    if 0 in array.shape:
        return True
    reach = wp.types.type_size_in_bytes(array.dtype)
    for stride, size in sorted((abs(stride), size) for size, stride in zip(array.shape, array.strides) if size > 1):
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def contiguous(dtype: DType, shape: tuple[int, int, int]) -> View:
    size_bytes, (_, rows, columns) = DTYPE_BYTES[dtype], shape
    return View(dtype, shape, (rows * columns * size_bytes, columns * size_bytes, size_bytes))


@dataclass(frozen=True)
class Bias:
    """A vector that is added to each row of C. Its stride is in bytes."""

    dtype: DType
    stride: int


@dataclass(frozen=True)
class MatmulCall:
    """C = epilogue(alpha * factor * (A @ B) + beta * C + bias), without the memory of the arrays.

    Attributes:
        a, b, out: The matrices. A batch has the same size in all three, unless ``summed``.
        scaled: False if alpha is 1.
        has_beta: False if beta is 0, so that C is not read.
        tf32: True for tensor cores that round float32 to tf32.
        summed: True if C is one matrix, the sum over the batch of A and B.
        has_factor: True if a kernel computed the factor and stored it in an array; else the factor is 1.
        split_operand: The operand that is a sum of two arrays. The second one lies ``batch * strides[0]`` bytes behind
            the first, and has the same strides.
    """

    a: View
    b: View
    out: View
    bias: Bias | None = None
    scaled: bool = False
    has_beta: bool = False
    epilogue: Any = None
    tf32: bool = False
    summed: bool = False
    has_factor: bool = False
    split_operand: Operand | None = None

    @property
    def accumulator(self) -> DType:
        return accumulator_of(self.a.dtype)

    @property
    def is_empty(self) -> bool:
        return 0 in self.out.shape

    @property
    def problem(self) -> MatmulProblem:
        """The problem of a canonical call, for the chooser."""
        (batch, m, k), n = self.a.shape, self.b.shape[2]
        return MatmulProblem(
            *(m, n, k, batch),
            *(self.a.dtype, self.b.dtype, self.out.dtype),
            self.a.is_transposed,
            self.b.is_transposed,
            self.tf32,
            self.summed,
            self.split_operand,
            self.has_beta,
            operand_alignment(self.a, self.split_operand == "a"),
            operand_alignment(self.b, self.split_operand == "b"),
            batch > 1 and self.a.strides[0] == 0,
            batch > 1 and self.b.strides[0] == 0,
            bias=None if self.bias is None else self.bias.dtype,
            c_alignment=0 if self.out.is_transposed else self.out.line_alignment,
            has_function=self.epilogue is not None,
        )


def operand_alignment(view: View, is_split: bool) -> int:
    """The alignment of an operand's lines, also of those of the second part."""
    return math.gcd(view.line_alignment, view.strides[0]) if is_split and view.line_alignment else view.line_alignment


def canonicalize(call: MatmulCall) -> tuple[MatmulCall, bool]:
    """The same product with fewer matrices where they can be joined, and with contiguous rows of C where possible.

    True if A and B were exchanged, so that C is the transpose of the caller's.
    """
    if (joined := _joined(call)) is not None:
        return canonicalize(joined)
    if call.bias is not None:
        return call, False
    swapped = _swapped(call)
    if (joined := _joined(swapped)) is not None:
        canonical, is_swapped = canonicalize(joined)
        return canonical, not is_swapped
    return (swapped, True) if call.out.is_transposed else (call, False)


def _swapped(call: MatmulCall) -> MatmulCall:
    """The transpose of C is the product of the transposes of B and A."""
    split: Operand | None = {"a": "b", "b": "a"}.get(call.split_operand or "")  # type: ignore[assignment]
    a, b = call.b.transposed(), call.a.transposed()
    return replace(call, a=a, b=b, out=call.out.transposed(), split_operand=split)


def _joined(call: MatmulCall) -> MatmulCall | None:
    """The call as a single product, if the matrices of its batch lie in one matrix of more rows or a longer K."""
    a, b, out = call.a, call.b, call.out
    if a.shape[0] == 1:
        return None
    if call.summed:
        columns, rows = a.transposed().joined_rows(), b.joined_rows()
        if columns is not None and rows is not None:
            return replace(call, a=columns.transposed(), b=rows, summed=False)
    elif b.strides[0] == 0:
        rows, result = a.joined_rows(), out.joined_rows()
        if rows is not None and result is not None:
            return replace(call, a=rows, b=replace(b, shape=(1, *b.shape[1:])), out=result)
    return None
