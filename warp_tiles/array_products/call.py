"""The calls of :func:`warp_tiles.matmul`, ``cholesky`` and ``solve``: strided views, a product of them in its canonical
form, and checks of their arguments.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import warp as wp

from warp_tiles.array_products.matmul_problem import ALIGNED, STRIDED, MatmulProblem, Operand
from warp_tiles.errors import MatmulError, unless_signalled
from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, DType, accumulator_of


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


# ---- checks of arguments

PRECISIONS = ("default", "tf32")
_MOST_WORK: Any = 1_000_000  # of NumPy's search for a common address


def number(name: str, value: Any) -> float:
    """Returns ``alpha`` or ``beta`` as a float.

    Raises:
        TypeError: It is not a number.
        MatmulError: It is an integer that no float holds.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, and must be a number")
    try:
        return float(value)
    except OverflowError as error:
        raise MatmulError(f"{name} is too large for a float", remedy=f"give {name} as a float") from error


def flag(name: str, value: Any) -> bool:
    """An argument as True or False. Raises a TypeError for others, such as a text, whose truth value would count."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}, and must be True or False")
    return bool(value)


@dataclass(frozen=True)
class CheckedCall:
    """A call whose arguments fit each other.

    ``spans`` are the first and last bytes of out, a, b and bias, relative to their pointers; empty for a new result.
    """

    call: MatmulCall
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


def checked(
    a: Any,
    b: Any,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    epilogue: Any = None,
    precision: Any = "default",
) -> CheckedCall:
    """Checks all arguments. ``out`` is None for a new array of A's type.

    Raises:
        TypeError: An argument has a wrong type.
        MatmulError: An argument does not fit the others.
    """
    shape, dtype = _checked_operands(a, b)
    accumulator = accumulator_of(dtype)
    if out is None and beta != 0.0:
        raise MatmulError(f"beta is {beta}, and out is None", remedy="give the array that beta scales as out")
    out_dtype = dtype if out is None else _checked_out(out, shape, (dtype, accumulator))
    vector = None if bias is None else _checked_bias(shape, out_dtype, bias)
    if epilogue is not None:
        _check_epilogue(epilogue, accumulator)
    device = (a if out is None else out).device
    tf32 = _is_tf32(precision, dtype) and bool(device.is_cuda)  # the CPU computes in float32
    for name, array in (("a", a), ("b", b), ("bias", bias)):
        if array is not None and array.device != device:
            raise MatmulError(
                f"{name} and out are on different devices: {described(name, array)}, and out is on {device}",
                remedy="move one of them",
            )
    result = contiguous(dtype, (1, *shape)[-3:]) if out is None else view_of(out)  # type: ignore[arg-type]
    left, right = (aligned_view(operand).shared(result.shape[0]) for operand in (a, b))
    call = MatmulCall(left, right, result, vector, alpha != 1.0, beta != 0.0, epilogue, tf32)
    arrays = () if out is None else (out, a, b, *([] if bias is None else [bias]))
    return CheckedCall(call, shape, tuple(map(span, arrays)))


def _checked_operands(a: Any, b: Any) -> tuple[tuple[int, ...], DType]:
    """Returns the shape of the product of A and B, and their dtype."""
    dtype = checked_array("a", a, (2, 3))
    check_alike(a, b, (2, 3))
    both = f"{described('a', a)}, and {described('b', b)}"
    if a.shape[-1] != b.shape[-2]:
        raise MatmulError(
            f"a has {a.shape[-1]} columns, and b has {b.shape[-2]} rows: {both}",
            remedy="give a of (m, k) and b of (k, n), each also with a batch as the first dimension",
        )
    batches = [array.shape[0] for array in (a, b) if len(array.shape) == 3]
    batch = next((size for size in batches if size != 1), 1)
    if any(size not in (1, batch) for size in batches):
        raise MatmulError(
            f"a and b have different batches: {both}", remedy="give equal batches, or share one matrix (a batch of 1)"
        )
    return (*([batch] if batches else []), a.shape[-2], b.shape[-1]), dtype


def check_alike(a: Any, b: Any, dimensions: tuple[int, ...]) -> None:
    """Refuses a B that is no array of A's dtype on its device."""
    dtype, both = checked_array("b", b, dimensions), f"{described('a', a)}, and {described('b', b)}"
    if dtype != a.dtype.__name__:
        raise MatmulError(f"a and b have different dtypes: {both}", remedy="convert one of them")
    if a.device != b.device:
        raise MatmulError(f"a and b are on different devices: {both}", remedy="move one of them")


def checked_array(name: str, value: Any, dimensions: tuple[int, ...]) -> DType:
    if not isinstance(value, wp.array):
        hint = "; copy an indexed array first, e.g. with contiguous()" if isinstance(value, wp.indexedarray) else ""
        raise TypeError(f"{name} is of type {type(value).__name__}, and must be a wp.array{hint}")
    dtype = getattr(value.dtype, "__name__", "")
    if dtype not in DTYPES:
        raise MatmulError(
            f"{described(name, value)}, a dtype without products", remedy=f"use one of {', '.join(DTYPES)}"
        )
    if len(value.shape) not in dimensions:
        raise MatmulError(
            f"{described(name, value)}, which has {len(value.shape)} dimensions",
            remedy=f"give {' or '.join(map(str, dimensions))} dimensions",
        )
    return dtype


def _checked_out(out: Any, shape: tuple[int, ...], allowed: Sequence[DType]) -> DType:
    dtype = checked_array("out", out, (2, 3))
    if tuple(out.shape) != shape:
        raise MatmulError(f"{described('out', out)}, and a @ b has shape {shape}", remedy="give an array of this shape")
    if dtype not in allowed:
        raise MatmulError(
            f"{described('out', out)}, and a is {allowed[0]}",
            remedy=f"give out of dtype {' or '.join(dict.fromkeys(allowed))}",
        )
    check_distinct(out)
    return dtype


def check_distinct(out: Any) -> None:
    if not are_distinct(out):
        raise MatmulError(
            f"{described('out', out)}, and its strides are {tuple(out.strides)}: elements share memory",
            remedy="give out memory for each element",
        )


def _checked_bias(shape: tuple[int, ...], dtype: DType, bias: Any) -> Bias:
    bias_dtype = checked_array("bias", bias, (1,))
    allowed = dict.fromkeys((dtype, "float32"))
    if bias_dtype not in allowed or tuple(bias.shape) != shape[-1:]:
        raise MatmulError(
            f"{described('bias', bias)}, and out has shape {shape} and dtype {dtype}",
            remedy=f"give a bias of shape ({shape[-1]},) and dtype {' or '.join(allowed)}",
        )
    return Bias(bias_dtype, bias.strides[0])


def _check_epilogue(epilogue: Any, sums: DType) -> None:
    if not isinstance(epilogue, wp.Function):
        raise TypeError(f"epilogue is {epilogue!r}, and must be a @wp.func or a function of Warp, e.g. wp.tanh")
    if epilogue.is_builtin():
        overloads = list(epilogue.overloads)
    else:
        overloads = [*epilogue.user_overloads.values(), *epilogue.user_templates.values()]
    accepted = (getattr(wp, sums), Any, *([float] if sums == "float32" else []))  # Warp reads float as float32
    for overload in overloads:
        types = list(overload.input_types.values())
        if len(types) == 1 and (types[0] in accepted or isinstance(types[0], TypeVar)):
            return
    raise MatmulError(
        f"epilogue {epilogue.key} takes no single argument of type {sums}",
        remedy=f"write it as a function of one {sums} that returns one, as the sums are {sums}",
    )


def _is_tf32(precision: Any, dtype: DType) -> bool:
    if not isinstance(precision, str) or precision not in PRECISIONS:  # an array has no truth value
        raise MatmulError(f"precision is {precision!r}", remedy=f"give one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and dtype != "float32":
        raise MatmulError(f"precision is 'tf32', and a is {dtype}", remedy="use float32, or leave precision out")
    return bool(precision == "tf32")


def described(name: str, array: Any) -> str:
    """Shape, dtype and device of an argument, for messages."""
    dtype = getattr(array.dtype, "__name__", array.dtype)
    return f"{name} has shape {tuple(array.shape)} and dtype {dtype} on {array.device}"


# ---- memory


def span(array: Any) -> tuple[int, int]:
    """The first byte of an array's elements and the first after them, relative to its pointer."""
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    size_bytes = wp.types.type_size_in_bytes(array.dtype)
    return sum(min(0, step) for step in reach), sum(max(0, step) for step in reach) + size_bytes


def check_overlap(name: str, array: Any, out: Any) -> None:
    """Refuses an operand that shares an element with the result. Interleaved arrays are allowed."""
    (first, last), (low, high) = span(array), span(out)
    starts = array.ptr or 0, out.ptr or 0
    if not all(starts) or starts[0] + first >= starts[1] + high or starts[1] + low >= starts[0] + last:
        return  # most arrays lie apart
    try:
        is_shared = np.shares_memory(_addresses(array), _addresses(out), max_work=_MOST_WORK)
    except unless_signalled(RuntimeError):  # too many elements to compare
        is_shared = True
    if is_shared and math.prod(array.shape):
        raise MatmulError(f"{described(name, array)}, and overlaps out in memory", remedy="give out memory of its own")


def _addresses(array: Any) -> Any:
    """The addresses of an array's bytes for NumPy, which compares them and reads none."""
    interface = {
        "version": 3,
        "shape": tuple(array.shape),
        "strides": tuple(array.strides),
        "typestr": f"|V{wp.types.type_size_in_bytes(array.dtype)}",
        "data": (array.ptr, True),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
