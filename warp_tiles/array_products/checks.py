"""Checks of the arguments of :func:`warp_tiles.matmul`, ``cholesky`` and ``solve``."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import warp as wp

from warp_tiles.array_products.call import Bias, MatmulCall, aligned_view, are_distinct, contiguous, view_of
from warp_tiles.array_products.prepared import PreparedProduct
from warp_tiles.errors import MatmulError, unless_signalled
from warp_tiles.gemm.problem import DTYPES, DType, accumulator_of

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


@dataclass
class CheckedCall:
    """A call whose arguments fit each other.

    Attributes:
        spans: First and last bytes of out, a, b and bias, relative to their pointers; empty for a new result.
        product: Its prepared product; None if there is none yet, or if C is empty.
    """

    call: MatmulCall
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    product: PreparedProduct | None = None


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
