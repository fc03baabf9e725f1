"""``warp_tiles.matmul``, ``cholesky`` and ``solve``: checks, caches of prepared calls, and the tape."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import warp as wp

from warp_tiles._warp.intercept import is_planning
from warp_tiles._warp.launch import runtime
from warp_tiles.array_products.call import (
    CheckedCall,
    check_alike,
    check_distinct,
    check_overlap,
    checked,
    checked_array,
    described,
    flag,
    lower_view,
    number,
    right_sides,
)
from warp_tiles.array_products.matmul_problem import ALIGNED
from warp_tiles.array_products.prepared import PreparedProduct, prepared, remember
from warp_tiles.errors import MatmulError

if TYPE_CHECKING:
    from warp_tiles.array_products.prepared_solves import PreparedSolve, SolveCall

_DTYPES = ("float32", "float64")
_MOST_CALLS = 1024  # of each function that are remembered


@dataclass
class _Known:
    """A call whose arguments were checked, and its prepared product; None if there is none yet, or if C is empty."""

    checked: CheckedCall
    product: PreparedProduct | None = None


class _Repeat(NamedTuple):
    """The last call without a bias that had these arrays. If it is repeated, nothing is checked again.

    ``arrays`` keeps no array alive. ``states`` is what the checks saw of each, because an array can be given another
    shape, other strides or other memory. ``options``: alpha and beta are given, the epilogue and the precision.
    """

    arrays: tuple[Any, Any, Any]
    states: tuple[tuple[Any, ...], ...]
    options: tuple[bool, bool, Any, str]
    known: _Known


_products: dict[Any, _Known] = {}
_repeats: dict[tuple[int, int, int], _Repeat] = {}  # by the identities of a, b and out
_solves: dict[Any, PreparedSolve] = {}  # calls with these arrays, without a tape; if repeated, nothing is checked again


def matmul(
    a: wp.array[Any],
    b: wp.array[Any],
    out: wp.array[Any] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: wp.array[Any] | None = None,
    epilogue: wp.Function | Callable[..., Any] | None = None,
    precision: Literal["default", "tf32"] = "default",
) -> wp.array[Any]:
    """Multiplies matrices: ``out = epilogue(alpha * (a @ b) + beta * out + bias)``.

    It launches kernels on the current stream of the arrays' device, and never waits for them. After
    ``warp_tiles.enable()`` their loops are pipelined; without it they have Warp's speed. Inside ``with wp.Tape():`` the
    product is recorded. Its backward pass adds to ``a.grad``, ``b.grad`` and ``bias.grad``, where these arrays require
    gradients, and leaves in ``out.grad`` the gradient of the previous content of ``out``: ``beta`` times the gradient,
    or zeros unless ``out.retain_grad``. Results and gradients are the same in each run.

    Args:
        a: (m, k) or (batch, m, k) elements of float16, bfloat16, float32 or float64, with any strides. A GPU
            may copy an operand first if it has no contiguous rows or columns that begin at multiples of 16 bytes.
        b: (k, n) or (batch, k, n) elements of the same type. A matrix or a batch of 1 is shared by the other's batch.
        out: (m, n) or (batch, m, n) elements of a's type, or of float32. None creates an array of a's type, which
            requires a gradient if a tape is active and an operand requires one. It must not overlap an operand.
        alpha: Factor of the product.
        beta: Factor of the previous content of ``out``, which is not read if this is 0.
        bias: (n,) elements of out's type or of float32, added to each row.
        epilogue: A ``@wp.func``, or a function of Warp such as ``wp.tanh``, of one float32 that returns one (of one
            float64 for float64 operands). It is applied before rounding to out's type.
        precision: ``"tf32"`` rounds float32 operands to tf32, as in ``wp.tile_matmul``; else ``"default"``.

    Returns:
        ``out``, or the new array.

    Raises:
        MatmulError: Shapes, dtypes, devices or memory of the arguments do not fit each other.
        TypeError: An argument has another type than above.
        UnsupportedWarpError: The installed Warp lacks a part that recorded launches rely on.
        Exception: Any error of ``wp.launch`` when a module does not build.
    """
    if alpha.__class__ is not float:
        alpha = number("alpha", alpha)
    if beta.__class__ is not float:
        beta = number("beta", beta)
    options = (alpha != 1.0, beta != 0.0, epilogue, precision)
    tape = runtime().tape
    is_kept = not is_planning()  # what is prepared for a plan launches nothing
    is_repeatable = is_kept and bias is None and out is not None and tape is None
    if is_repeatable:
        arrays = (id(a), id(b), id(out))
        repeat = _repeats.get(arrays)
        if repeat is not None:
            first, second, third = repeat.arrays
            if first() is a and second() is b and third() is out and _states(a, b, out) == repeat.states:
                product = repeat.known.product
                if options == repeat.options and product is not None and product.is_current():
                    product.run(a.ptr or 0, b.ptr or 0, out.ptr, None, alpha, beta)
                    return out
    key = _product_key(a, b, out, bias, options) if is_kept else None
    known = None if key is None else _products.get(key)
    if known is None:
        known = _Known(checked(a, b, out, alpha, beta, bias, epilogue, precision))
    call = known.checked.call
    is_new = out is None
    if out is None:
        needs_gradient = tape is not None and any(getattr(array, "requires_grad", False) for array in (a, b, bias))
        out = wp.empty(known.checked.shape, dtype=a.dtype, device=a.device, requires_grad=needs_gradient)
    if not call.is_empty and (known.product is None or not known.product.is_current()):
        known.product = prepared(call, out.device)
    if key is not None:
        remember(_products, key, known, _MOST_CALLS)
    product = known.product
    if product is None:
        return out
    if not is_new:
        _check_memory(known.checked.spans, a, b, bias, out)
    if is_repeatable:
        references = (weakref.ref(a), weakref.ref(b), weakref.ref(out))
        repeat = _Repeat(references, _states(a, b, out), options, known)
        remember(_repeats, arrays, repeat, _MOST_CALLS)
    backward = None if tape is None else _backward(call, a, b, out, bias, alpha, beta)
    product.run(a.ptr or 0, b.ptr or 0, out.ptr, None if bias is None else bias.ptr, alpha, beta)
    if backward is not None:
        backward.record_on(tape)
    return out


def _states(a: Any, b: Any, out: Any) -> tuple[tuple[Any, ...], ...]:
    return (
        (a.ptr, a.shape, a.strides, a.dtype),
        (b.ptr, b.shape, b.strides, b.dtype),
        (out.ptr, out.shape, out.strides, out.dtype),
    )


def _product_key(a: Any, b: Any, out: Any, bias: Any, options: tuple[Any, ...]) -> Any:
    """The key of a call whose checks may be known; None if the checks will raise an error."""
    try:
        key = (
            *(type(a), a.dtype, a.shape, a.strides, a.device.alias),
            *(type(b), b.dtype, b.shape, b.strides, b.device.alias),
            None if out is None else (type(out), out.dtype, out.shape, out.strides, out.device.alias),
            (a.ptr or 0) % ALIGNED,
            (b.ptr or 0) % ALIGNED,
            None if bias is None else (type(bias), bias.dtype, bias.shape, bias.strides, bias.device.alias),
            *options,
        )
        hash(key)
    except (AttributeError, TypeError):  # not an array, or not hashable
        return None
    return key


def _check_memory(spans: tuple[tuple[int, int], ...], a: Any, b: Any, bias: Any, out: Any) -> None:
    """Raises if ``out`` overlaps an operand. Most arrays lie apart, which their first and last bytes show."""
    (low, high), *others = spans
    low, high = low + out.ptr, high + out.ptr
    for name, array, (first, last) in zip(("a", "b", "bias"), (a, b, bias), others):
        pointer = array.ptr
        if pointer and pointer + first < high and low < pointer + last:
            check_overlap(name, array, out)


def _backward(call: Any, a: Any, b: Any, out: Any, bias: Any, alpha: float, beta: float) -> Any:
    """The backward pass, or None if there is no gradient to add. A copy of ``out`` is made only if it needs one."""
    targets = [array for array in (a, b, bias) if array is not None and array.grad is not None]
    if out.grad is None or not (targets or call.has_beta):
        return None
    from warp_tiles.array_products.backward import Backward

    backward = Backward(call, a, b, out, bias, alpha, beta)
    backward.check_gradients()
    return backward.with_copy_of_out() if call.has_beta and call.epilogue is not None else backward


# ---- positive definite systems


def cholesky(
    a: wp.array[Any],
    out: wp.array[Any] | None = None,
    *,
    upper: bool = False,
    info: wp.array[Any] | None = None,
) -> wp.array[Any]:
    """Factors positive definite matrices: ``a = L @ L^T``, or ``a = U^T @ U`` if ``upper``.

    It launches ordinary Warp kernels on the current stream of the array's device, and never waits for them. Inside
    ``with wp.Tape():`` the factorization is recorded. Its backward pass adds to ``a.grad`` the gradient of the triangle
    that is read, and zeros to the rest of it, as Warp's ``tile_cholesky`` does.

    Args:
        a: (n, n) or (batch, n, n) elements of float32 or float64, with any strides. Only one triangle is read.
        out: The factor, of a's shape and type, with zeros in the other triangle. It may be ``a`` itself, and must not
            overlap it otherwise. None creates an array, which requires a gradient if a tape is active and ``a`` does.
        upper: True to read the upper triangle and to return U; else the lower one and L.
        info: (batch,) elements of int32, or (1,) for one matrix. Each gets what LAPACK's potrf returns: 0, or the
            order of the first leading minor that is not positive. The factor of such a matrix is undefined.

    Returns:
        ``out``, or the new array.

    Raises:
        MatmulError: Shapes, dtypes, devices or memory of the arguments do not fit each other.
        TypeError: An argument has another type than above.
        Exception: Any error of ``wp.launch`` when a module does not build.
    """
    if upper.__class__ is not bool:
        upper = flag("upper", upper)
    tape = runtime().tape
    key = _solve_key("cholesky", upper, tape, a, out, info)
    known = _solves.get(key)
    if known is not None and known.is_current():
        known.run(a, out, None, None, info)
        return out
    from warp_tiles.array_products.prepared_solves import SolveCall  # products need no kernels of solvers

    _check_matrix(a)
    _check_info(info, a)
    out = _result("a", a, out, tape is not None and a.requires_grad)
    call = SolveCall(lower_view(a, upper), lower_view(out, upper), has_info=info is not None)
    if math.prod(a.shape) == 0:
        if info is not None:
            info.zero_()
        return out
    backward = None
    if tape is not None and a.grad is not None and out.grad is not None:
        from warp_tiles.array_products.backward import CholeskyBackward

        _require_apart(a, out)
        backward = CholeskyBackward(a, out, upper)
        backward.check_gradients()
    _remembered(key, call, a.device).run(a, out, None, None, info)
    if backward is not None:
        backward.record_on(tape)
    return out


def solve(
    a: wp.array[Any],
    b: wp.array[Any],
    out: wp.array[Any] | None = None,
    *,
    upper: bool = False,
    factored: bool = False,
    info: wp.array[Any] | None = None,
) -> wp.array[Any]:
    """Solves ``a @ out = b`` with positive definite matrices, or with their factors if ``factored``.

    Like :func:`cholesky`, it launches ordinary Warp kernels and never waits for them. Inside ``with wp.Tape():`` it is
    recorded, and the factor is kept on the tape. Its backward pass adds to ``a.grad``, as :func:`cholesky` does, and to
    ``b.grad``.

    Args:
        a: (n, n) or (batch, n, n) elements of float32 or float64, with any strides. Only one triangle is read.
        b: A vector (n,) or a matrix (n, columns), with the batch of ``a`` as the first dimension.
        out: The solution, of b's shape and type. It may be ``b`` itself, and must not overlap the others otherwise.
            None creates an array, which requires a gradient if a tape is active and an operand does.
        upper: True to read the upper triangle of ``a``.
        factored: True if ``a`` is the result of :func:`cholesky` with the same ``upper``.
        info: See :func:`cholesky`. The solution of a matrix that is not positive definite is undefined.

    Returns:
        ``out``, or the new array.

    Raises:
        MatmulError: Shapes, dtypes, devices or memory of the arguments do not fit each other.
        TypeError: An argument has another type than above.
        Exception: Any error of ``wp.launch`` when a module does not build.
    """
    if upper.__class__ is not bool or factored.__class__ is not bool:
        upper, factored = flag("upper", upper), flag("factored", factored)
    tape = runtime().tape
    key = _solve_key("factored" if factored else "solve", upper, tape, a, b, out, info)
    known = _solves.get(key)
    if known is not None and known.is_current():
        known.run(a, None, b, out, info)
        return out
    from warp_tiles.array_products.prepared_solves import SolveCall, prepared_solve

    _check_matrix(a)
    _check_right_sides(a, b)
    if factored and info is not None:
        raise MatmulError("info is given, and a is factored", remedy="give info to cholesky()")
    _check_info(info, a)
    out = _result("b", b, out, tape is not None and (a.requires_grad or b.requires_grad))
    check_overlap("a", a, out)
    if math.prod(b.shape) == 0:
        if math.prod(a.shape) and info is not None:  # without right-hand sides
            call = SolveCall(lower_view(a, upper), has_info=True)
            prepared_solve(call, a.device).run(a, None, None, None, info)
        elif info is not None:
            info.zero_()
        return out
    factor, is_factored = a, factored
    backward = None
    if tape is not None and out.grad is not None and (a.grad is not None or b.grad is not None):
        from warp_tiles.array_products.backward import SolveBackward

        _require_apart(b, out)
        factor = a if factored else wp.empty(a.shape, dtype=a.dtype, device=a.device)
        backward = SolveBackward(a, b, out, factor, upper, factored)
        backward.check_gradients()
        if not factored:
            is_factored = True
            call = SolveCall(lower_view(a, upper), lower_view(factor, upper), has_info=info is not None)
            prepared_solve(call, a.device).run(a, factor, None, None, info)
    call = SolveCall(
        lower_view(factor, upper),
        b=None if _is_same(b, out) else right_sides(b, factor),
        x=right_sides(out, factor),
        is_factored=is_factored,
        has_info=info is not None and not is_factored,
    )
    _remembered(key, call, a.device).run(factor, None, b, out, None if is_factored else info)
    if backward is not None:
        backward.record_on(tape)
    return out


def _solve_key(function: str, upper: bool, tape: Any, *arrays: Any) -> Any:
    """The key of a call with these arrays; None for one that is not remembered. The last array may be None."""
    *needed, info = arrays
    if tape is not None or is_planning() or not all(isinstance(array, wp.array) for array in needed):
        return None
    given = needed if info is None else arrays
    try:
        return function, upper, *((x.ptr, x.shape, x.strides, x.dtype, x.device.alias) for x in given)
    except AttributeError:  # info is no array
        return None


def _remembered(key: Any, call: SolveCall, device: Any) -> PreparedSolve:
    from warp_tiles.array_products.prepared_solves import prepared_solve

    prepared = prepared_solve(call, device)
    if key is not None:
        remember(_solves, key, prepared, _MOST_CALLS)
    return prepared


# ---- checks of matrices and right-hand sides


def _check_matrix(a: Any) -> None:
    if checked_array("a", a, (2, 3)) not in _DTYPES:
        raise MatmulError(f"{described('a', a)}", remedy=f"use {' or '.join(_DTYPES)}")
    if a.shape[-1] != a.shape[-2]:
        raise MatmulError(f"{described('a', a)}: its matrices are not square", remedy="give (n, n) or (batch, n, n)")


def _check_right_sides(a: Any, b: Any) -> None:
    check_alike(a, b, (a.ndim - 1, a.ndim))
    if tuple(b.shape[: a.ndim - 1]) != tuple(a.shape[:-1]):
        raise MatmulError(
            f"a and b do not fit each other: {described('a', a)}, and {described('b', b)}",
            remedy="give b of (n,) or (n, columns), with the batch of a as the first dimension",
        )


def _result(name: str, like: Any, out: Any, requires_grad: bool) -> Any:
    """A new array, or the given one if it has an operand's shape, dtype and device, and lies apart or in its place."""
    if out is None:
        return wp.empty(like.shape, dtype=like.dtype, device=like.device, requires_grad=requires_grad)
    checked_array("out", out, (like.ndim,))
    if (tuple(out.shape), out.dtype, out.device) != (tuple(like.shape), like.dtype, like.device):
        raise MatmulError(
            f"{described('out', out)}, and the result {described('', like).strip()}",
            remedy="give an array of this shape, dtype and device",
        )
    check_distinct(out)
    if not _is_same(like, out):
        check_overlap(name, like, out)
    return out


def _check_info(info: Any, a: Any) -> None:
    if info is None:
        return
    if not isinstance(info, wp.array):
        raise TypeError(f"info is of type {type(info).__name__}, and must be a wp.array")
    shape = (a.shape[0] if a.ndim == 3 else 1,)
    if info.dtype is not wp.int32 or tuple(info.shape) != shape or not info.is_contiguous or info.device != a.device:
        raise MatmulError(
            f"{described('info', info)}, and {described('a', a)}",
            remedy=f"give a contiguous array of shape {shape} and dtype int32 on {a.device}",
        )


def _is_same(array: Any, out: Any) -> bool:
    """True if both are views of the same elements in the same order."""
    return (array.ptr, array.shape, array.strides) == (out.ptr, out.shape, out.strides)


def _require_apart(array: Any, out: Any) -> None:
    """A result in place of its operand has no gradient, because both would have one gradient array."""
    if array.ptr == out.ptr:
        raise MatmulError(
            f"{described('out', out)}, and lies in place of an operand, and a tape records the call",
            remedy="give out memory of its own, or pause the tape",
        )
