"""Checks of the arguments of :func:`warp_tiles.matmul`."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeVar

from warp_tiles.array_products.call import Bias, MatmulCall, are_distinct, operand_view, view_of
from warp_tiles.errors import MatmulError
from warp_tiles.gemm.dtypes import DTYPES, DType

PRECISIONS = ("default", "tf32")
_MOST_WORK: Any = 1_000_000  # of NumPy's search for a common address


def factor(name: str, value: Any) -> float:
    """Returns ``alpha`` or ``beta`` as a float.

    Raises:
        TypeError: It is not a number.
    """
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}, and must be a number")
    return float(value)


def result_shape(a: Any, b: Any) -> tuple[int, ...]:
    """The shape of the product of two arrays that were checked."""
    matrix = (a.shape[-2], b.shape[-1])
    if len(a.shape) == len(b.shape) == 2:
        return matrix
    batches = [array.shape[0] for array in (a, b) if len(array.shape) == 3]
    return (next((size for size in batches if size != 1), 1), *matrix)


def check_operands(a: Any, b: Any) -> None:
    """Checks A and B.

    Raises:
        TypeError: One is not a Warp array.
        MatmulError: Their shapes, types or devices do not fit.
    """
    types = [_checked_array("a", a, (2, 3)), _checked_array("b", b, (2, 3))]
    both = f"{_described('a', a)}, and {_described('b', b)}"
    if types[0] != types[1]:
        raise MatmulError(f"a and b have different dtypes: {both}", remedy="convert one of them")
    if a.device != b.device:
        raise MatmulError(f"a and b are on different devices: {both}", remedy="move one of them")
    if a.shape[-1] != b.shape[-2]:
        raise MatmulError(
            f"a has {a.shape[-1]} columns, and b has {b.shape[-2]} rows: {both}",
            remedy="give a of (m, k) and b of (k, n), each also with a batch as the first dimension",
        )
    if len(a.shape) == len(b.shape) == 3 and a.shape[0] != b.shape[0] and 1 not in (a.shape[0], b.shape[0]):
        raise MatmulError(
            f"a and b have different batches: {both}", remedy="give equal batches, or share one matrix (a batch of 1)"
        )


def checked_call(
    a: Any, b: Any, out: Any, *, alpha: float, beta: float, bias: Any, epilogue: Any, precision: Any
) -> MatmulCall:
    """Checks all arguments, with the result in ``out``. A and B must have been checked by :func:`check_operands`.

    Raises:
        TypeError: An argument has a wrong type.
        MatmulError: An argument does not fit the others.
    """
    dtype: DType = a.dtype.__name__
    sums: DType = "float64" if dtype == "float64" else "float32"
    result = view_of(out, _checked_out(a, b, out, dtype, sums))
    batch = result.shape[0]
    call = MatmulCall(
        operand_view(a, dtype).shared(batch),
        operand_view(b, dtype).shared(batch),
        result,
        bias=None if bias is None else _checked_bias(out, bias),
        scaled=alpha != 1.0,
        has_beta=beta != 0.0,
        epilogue=None if epilogue is None else _checked_epilogue(epilogue, sums),
        tf32=_is_tf32(precision, dtype) and bool(out.device.is_cuda),  # the CPU computes in float32
    )
    for name, array in (("a", a), ("b", b), ("bias", bias)):
        if array is not None and array.device != out.device:
            raise MatmulError(
                f"{name} and out are on different devices: {_described(name, array)}, and {_described('out', out)}",
                remedy="move one of them",
            )
    return call


def check_beta(beta: float, out: Any) -> None:
    """Checks that there is a C to scale.

    Raises:
        MatmulError: beta is not 0, and ``out`` is None.
    """
    if beta != 0.0 and out is None:
        raise MatmulError(f"beta is {beta}, and out is None", remedy="give the array that beta scales as out")


def _checked_array(name: str, value: Any, dimensions: tuple[int, ...]) -> DType:
    """Returns the name of the array's dtype."""
    import warp as wp

    if not isinstance(value, wp.array):
        hint = "; copy an indexed array first, e.g. with contiguous()" if isinstance(value, wp.indexedarray) else ""
        raise TypeError(f"{name} is of type {type(value).__name__}, and must be a wp.array{hint}")
    found = getattr(value.dtype, "__name__", "")
    if found not in DTYPES:
        raise MatmulError(
            f"{_described(name, value)}, a dtype without products", remedy=f"use one of {', '.join(DTYPES)}"
        )
    if len(value.shape) not in dimensions:
        raise MatmulError(
            f"{_described(name, value)}, which has {len(value.shape)} dimensions",
            remedy=f"give {' or '.join(map(str, dimensions))} dimensions",
        )
    return found


def _checked_out(a: Any, b: Any, out: Any, dtype: DType, sums: DType) -> DType:
    found = _checked_array("out", out, (2, 3))
    if tuple(out.shape) != result_shape(a, b):
        raise MatmulError(
            f"{_described('out', out)}, and a @ b has shape {result_shape(a, b)}", remedy="give an array of this shape"
        )
    if found not in (dtype, sums):
        raise MatmulError(
            f"{_described('out', out)}, and a is {dtype}",
            remedy=f"give out of dtype {' or '.join(dict.fromkeys((dtype, sums)))}",
        )
    if not are_distinct(out):
        raise MatmulError(
            f"{_described('out', out)}, and its strides are {tuple(out.strides)}: elements share memory",
            remedy="give out memory for each element",
        )
    return found


def _checked_bias(out: Any, bias: Any) -> Bias:
    found = _checked_array("bias", bias, (1,))
    allowed = dict.fromkeys((out.dtype.__name__, "float32"))
    if found not in allowed or tuple(bias.shape) != (out.shape[-1],):
        raise MatmulError(
            f"{_described('bias', bias)}, and {_described('out', out)}",
            remedy=f"give a bias of shape ({out.shape[-1]},) and dtype {' or '.join(allowed)}",
        )
    return Bias(found, bias.strides[0])


def _checked_epilogue(epilogue: Any, sums: DType) -> Any:
    import warp as wp

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
            return epilogue
    raise MatmulError(
        f"epilogue {epilogue.key} takes no single argument of type {sums}",
        remedy=f"write it as a function of one {sums} that returns one, as the sums are {sums}",
    )


def _is_tf32(precision: Any, dtype: DType) -> bool:
    if precision not in PRECISIONS:
        raise MatmulError(f"precision is {precision!r}", remedy=f"give one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and dtype != "float32":
        raise MatmulError(f"precision is 'tf32', and a is {dtype}", remedy="use float32, or leave precision out")
    return bool(precision == "tf32")


def _described(name: str, array: Any) -> str:
    dtype = getattr(array.dtype, "__name__", array.dtype)
    return f"{name} has shape {tuple(array.shape)} and dtype {dtype} on {array.device}"


# ---- memory


def span(array: Any) -> tuple[int, int]:
    """The first byte of an array's elements and the first after them, relative to its pointer."""
    import warp as wp

    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    size_bytes = wp.types.type_size_in_bytes(array.dtype)
    return sum(min(0, step) for step in reach), sum(max(0, step) for step in reach) + size_bytes


def check_overlap(name: str, array: Any, out: Any) -> None:
    """Checks that an operand shares no element with the result. Interleaved arrays are allowed.

    Raises:
        MatmulError: The arrays overlap.
    """
    import numpy as np

    first, second = (np.asarray(_Memory(one)) for one in (array, out))
    try:
        is_shared = np.shares_memory(first, second, max_work=_MOST_WORK)
    except RuntimeError:  # too many elements to compare
        is_shared = True
    if is_shared and math.prod(array.shape):
        raise MatmulError(f"{_described(name, array)}, and overlaps out in memory", remedy="give out memory of its own")


class _Memory:
    """The addresses of an array's bytes for NumPy, which compares them and reads none."""

    def __init__(self, array: Any) -> None:
        import warp as wp

        size_bytes = wp.types.type_size_in_bytes(array.dtype)
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(array.shape),
            "strides": tuple(array.strides),
            "typestr": f"|V{size_bytes}",
            "data": (array.ptr, True),
        }
