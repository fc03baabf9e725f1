"""The backward passes of :func:`warp_tiles.matmul`, ``cholesky`` and ``solve`` on a ``wp.Tape``, and those of kernels
which multiply whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import warp as wp

from warp_tiles.array_products.call import (
    MatmulCall,
    View,
    are_distinct,
    check_overlap,
    checked,
    contiguous,
    lower_view,
    right_sides,
    view_of,
)
from warp_tiles.array_products.elementwise import (
    CHUNK,
    column_sums_kernel,
    gradient_kernel,
    largest_kernel,
    parts_kernel,
    scale_kernel,
)
from warp_tiles.array_products.prepared import (
    PreparedProduct,
    add_rows,
    apply,
    elementwise,
    is_prepared,
    layout,
    prepared,
)
from warp_tiles.array_products.prepared_solves import SolveCall, prepared_solve
from warp_tiles.array_products.solve_kernels import triangle_kernel
from warp_tiles.codegen.whole import LEAST_WORK, Argument, WholeOperand, WholeProduct
from warp_tiles.errors import MatmulError
from warp_tiles.gemm.problem import DType
from warp_tiles.gemm.rejected import Refused, Rejected, accepted, refuse, rejectable

_NUMBER = contiguous("float32", (1, 1, 1))
Matrix = tuple[View, Any]  # a view, and the array whose memory it has


class TapeCall:
    """A backward pass. A tape calls it. Its attributes with a gradient are the arrays of the call."""

    def check_gradients(self) -> None:
        """Raises a MatmulError if elements of a gradient share memory, because nothing is added atomically."""
        for name, array in vars(self).items():
            gradient = getattr(array, "grad", None)
            if gradient is not None and not are_distinct(gradient):
                raise MatmulError(
                    f"the gradient of {name} has shape {tuple(gradient.shape)} and strides {tuple(gradient.strides)}: "
                    "elements share memory",
                    remedy=f"copy {name} into an array of its own before the call",
                )

    def record_on(self, tape: Any) -> None:
        """Lets a tape's backward pass add the gradients. The tape then zeroes them with its own."""
        for array in vars(self).values():
            if getattr(array, "grad", None) is not None:
                tape.gradients[array] = array.grad
        tape.record_func(self, [])


@dataclass(frozen=True)
class Backward(TapeCall):
    """Adds the gradients of one product.

    Attributes:
        old: The content of ``out`` before the product, if the epilogue's gradient needs it.
        a_transposed, b_transposed: True if the array is the transpose of the operand in ``call``.
    """

    call: MatmulCall
    a: Any
    b: Any
    out: Any
    bias: Any
    alpha: float
    beta: float
    old: Any = None
    a_transposed: bool = False
    b_transposed: bool = False
    # the products of A's gradient (True) and of B's, because a pass is often repeated. Warp refuses gradients with
    # another type or other strides than their arrays, so the same products add to a gradient that replaces one.
    _known: dict[bool, PreparedProduct] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self) -> None:
        gradient = self.out.grad
        if gradient is None:
            return
        view = view_of(gradient)
        before, array = (view, gradient) if self.call.epilogue is None else self._before_epilogue((view, gradient))
        split, factor = _split(before, array, self.call.a.dtype)
        self._add_to_operand(before, split, factor, is_a=True)
        self._add_to_operand(before, split, factor, is_a=False)
        if self.bias is not None and self.bias.grad is not None:
            self._add_to_bias(before, array)
        if self.call.has_beta:
            _copy((before, array), (view, gradient), self.beta)
        else:
            _forget(self.out)

    def _before_epilogue(self, given: Matrix) -> Matrix:
        """The gradient before the epilogue, in an array of its own."""
        call, device = self.call, self.out.device
        total = _scratch(contiguous(call.accumulator, given[0].shape), device)
        if self.old is not None:
            _copy((view_of(self.old), self.old), total)
        again = replace(call, out=total[0], epilogue=None)
        bias = None if self.bias is None else self.bias.ptr
        prepared(again, device).run(self.a.ptr or 0, self.b.ptr or 0, total[1].ptr, bias, self.alpha, self.beta)
        result = _scratch(given[0], device)
        apply(gradient_kernel(call.epilogue, given[0].dtype), total, given, result)
        return result

    def with_copy_of_out(self) -> Backward:
        """The same with a copy of C that no tape records."""
        copy = _scratch(self.call.out, self.out.device)
        _copy((self.call.out, self.out), copy)
        return replace(self, old=copy[1])

    def is_prepared(self) -> bool:
        """True if the kernels of a backward pass without epilogue and bias are built and loaded."""
        return all(is_prepared(call, self.out.device) for call in self._products())

    def prepare(self) -> None:
        """Builds and loads these kernels."""
        _split_launches(self.call.out, self.call.a.dtype, self.out.device)
        for call in self._products():
            prepared(call, self.out.device)

    def _products(self) -> list[MatmulCall]:
        """The products that add to the gradients. Warp demands gradients with the strides of their arrays."""
        operands = ((True, self.a), (False, self.b))
        return [self._product(self.call.out, is_a=is_a) for is_a, array in operands if array.grad is not None]

    def _product(self, view: View, *, is_a: bool) -> MatmulCall:
        """A.grad += alpha * G @ B^T, or B.grad += alpha * A^T @ G, summed over the batch if it shares the operand."""
        array, transposed = (self.a, self.a_transposed) if is_a else (self.b, self.b_transposed)
        target = view_of(array.grad)
        if transposed:
            target = target.transposed()
        other_operand, dtype = (self.call.b if is_a else self.call.a).transposed(), self.call.a.dtype
        is_split = view.dtype != dtype
        gradient = contiguous(dtype, view.shape) if is_split else view
        left, right = (gradient, other_operand) if is_a else (other_operand, gradient)
        return MatmulCall(
            left,
            right,
            target,
            scaled=self.alpha != 1.0,
            has_beta=True,
            tf32=self.call.tf32,
            summed=target.shape[0] < left.shape[0],
            has_factor=is_split and dtype == "float16",
            split_operand=None if not is_split else "a" if is_a else "b",
        )

    def _add_to_operand(self, view: View, gradient: Any, factor: Any, *, is_a: bool) -> None:
        """Adds to the gradient of A or B. ``gradient`` is the array that is multiplied (:func:`_split`)."""
        target = (self.a if is_a else self.b).grad
        product = self._known.get(is_a)
        if target is None:
            return
        if product is None or not product.is_current():
            call = self._product(view, is_a=is_a)
            if call.is_empty:
                return
            self._known[is_a] = product = prepared(call, self.out.device)
        left, right = (gradient, self.b) if is_a else (self.a, gradient)
        pointer = None if factor is None else factor.ptr
        product.run(left.ptr or 0, right.ptr or 0, target.ptr, None, self.alpha, 1.0, pointer)

    def _add_to_bias(self, before: View, array: Any) -> None:
        """bias.grad += the sums of the gradient's columns, of chunks of rows first."""
        device, call = self.out.device, self.call
        batch, rows, columns = before.shape
        chunks = -(-rows // CHUNK)
        view, sums = _scratch(contiguous(call.accumulator, (batch * chunks, 1, columns)), device)
        kernel, dim = column_sums_kernel(before.dtype), (batch, chunks, columns)
        elementwise(kernel, (before, view), dim, device, CHUNK).run_at((array.ptr, sums.ptr), 1.0)
        assert call.bias is not None
        target = View(call.bias.dtype, (1, 1, columns), (0, 0, self.bias.grad.strides[0]))
        add_rows(view, target, (sums.ptr, self.bias.grad.ptr), device)


def _scratch(view: View, device: Any) -> Matrix:
    """A new contiguous array of the shape and type of a view."""
    dtype, shape, _ = layout(view)
    return contiguous(view.dtype, view.shape), wp.empty(shape, dtype=dtype, device=device)


def _copy(source: Matrix, target: Matrix, factor: float = 1.0) -> None:
    apply(scale_kernel(source[0].dtype, target[0].dtype), source, target, factor=factor)


def _forget(result: Any) -> None:
    """The call overwrote what was in its result before."""
    if not getattr(result, "retain_grad", False):
        result.grad.zero_()


# ---- float32 gradients of 16-bit operands


def _split(view: View, array: Any, operands: DType) -> tuple[Any, Any]:
    """A gradient as an operand, and an array with the factor of its elements or None.

    A float32 gradient of 16-bit operands is a sum of two arrays of their type, which tensor cores multiply. The second
    parts lie behind the first.
    """
    if view.dtype == operands:
        return array, None
    (batch, rows, columns), device = view.shape, array.device
    _, parts = _scratch(contiguous(operands, (2 * batch, rows, columns)), device)
    numbers = wp.zeros((2, 1, 1), dtype=float, device=device)  # the largest magnitude, and the factor
    largest, factor = numbers[0], numbers[1]
    *scan, halve = _split_launches(view, operands, device)
    for launch in scan:
        launch.run_at((array.ptr, largest.ptr), 1.0)
    halve.run_at((array.ptr, largest.ptr, parts.ptr, factor.ptr), 1.0)
    return parts, factor if scan else None


def _split_launches(view: View, operands: DType, device: Any) -> list[Any]:
    """The launches that split a gradient: float16 needs the largest magnitude first. They are built and loaded."""
    if view.dtype == operands:
        return []
    batch, rows, columns = view.shape
    parts = contiguous(operands, (2 * batch, rows, columns))
    launches = [elementwise(parts_kernel(operands), (view, _NUMBER, parts, _NUMBER), view.shape, device, batch)]
    if operands == "float16":
        chunks = (batch, -(-rows // CHUNK), columns)
        launches.insert(0, elementwise(largest_kernel(), (view, _NUMBER), chunks, device, CHUNK))
    return launches


# ---- kernels that are a product of whole arrays


@rejectable
def gemm_gradients(
    whole: WholeProduct,
    values: Sequence[Any],
    arguments: Sequence[Argument | None],
    blocks: Sequence[int],
    least_work: int = LEAST_WORK,
) -> Backward:
    """The gradients of a launch as two products, or the reason why its adjoint kernel computes them.

    Their kernels are built and loaded, so that a graph can capture the backward pass.

    Args:
        values: The arguments of the launch.
        arguments: Their shapes and integers.
        blocks: Its dimensions, without the threads of a block.
    """
    accepted(whole.reason_unsupported(blocks, arguments))
    work, least = math.prod(whole.c.shape(arguments)) * whole.a.shape(arguments)[1], max(1, least_work)
    refuse(work < least, "little_work", work, least)
    a, b, c = (values[operand.position] for operand in (whole.a, whole.b, whole.c))
    try:
        operands = _as_operand(whole.a, a), _as_operand(whole.b, b)
        precision = "tf32" if whole.tf32 else "default"
        call = checked(*operands, c, precision=precision).call
        for name, operand in zip("ab", operands):
            check_overlap(name, operand, c)
        backward = Backward(
            call, a, b, c, None, 1.0, 0.0, a_transposed=whole.a.transposed, b_transposed=whole.b.transposed
        )
        backward.check_gradients()
    except (MatmulError, TypeError) as error:
        raise Refused(Rejected("unsuitable_arguments", (str(error),))) from error
    if not backward.is_prepared():
        refuse(c.device.is_capturing, "capturing")
        backward.prepare()
    return backward


def _as_operand(operand: WholeOperand, array: Any) -> Any:
    return array.transpose() if operand.transposed else array


# ---- factorizations and solves

# A gradient is that of the triangle that is read: an element below the diagonal counts for both elements of the
# symmetric matrix. So it is M + M^T of the lower triangle, and M on the diagonal, where M is the gradient of a full
# matrix. Upper triangles are the lower ones of the transposes.


@dataclass(frozen=True)
class CholeskyBackward(TapeCall):
    """Adds L^-T Phi(L^T G) L^-1 to the gradient of A, with the gradient G of L. Phi takes the lower triangle, and half
    of the diagonal. Murray, Differentiation of the Cholesky decomposition (2016), eq. 10."""

    a: Any
    factor: Any
    upper: bool

    def __call__(self) -> None:
        given = self.factor.grad
        if given is None or self.a.grad is None:
            return
        factor = lower_view(self.factor, self.upper), self.factor
        gradient = _triangle((lower_view(given, self.upper), given))
        product = _scratch(gradient[0], self.factor.device)
        _multiply(_transposed(factor), gradient, product)
        halved = _triangle(product, 0.5)
        for _ in range(2):  # L^-T (L^-T P)^T is the transpose of L^-T P L^-1
            _substitute(factor, halved, forward=False)
            halved = _transposed(halved)
        _add_triangle(halved, (lower_view(self.a.grad, self.upper), self.a.grad), folds=True)
        _forget(self.factor)


@dataclass(frozen=True)
class SolveBackward(TapeCall):
    """Adds H = A^-1 G to the gradient of B, and -H X^T to that of A, with the gradient G of X. Giles, Collected matrix
    derivative results for forward and reverse mode algorithmic differentiation (2008), 2.3.1.

    The gradient of a factor is (M + M^T) L, where M is that of A.
    """

    a: Any
    b: Any
    x: Any
    factor: Any
    upper: bool
    is_factored: bool

    def __call__(self) -> None:
        given = self.x.grad
        if given is None:
            return
        device = self.x.device
        factor = lower_view(self.factor, self.upper), self.factor
        x = right_sides(self.x, self.a), self.x
        view = right_sides(given, self.a)
        gradient = _scratch(view, device)
        _copy((view, given), gradient)
        _substitute(factor, gradient, forward=True)
        if self.b.grad is not None:
            kernel = scale_kernel(view.dtype, view.dtype, adds=True)
            apply(kernel, gradient, (right_sides(self.b.grad, self.a), self.b.grad))
        if self.a.grad is not None:
            target = lower_view(self.a.grad, self.upper), self.a.grad
            product = _scratch(target[0], device)
            _multiply(gradient, _transposed(x), product, -1.0)
            if self.is_factored:
                lower, both = _triangle(factor), _scratch(target[0], device)
                _multiply(product, lower, both)
                _multiply(_transposed(product), lower, both, adds=True)
                _add_triangle(both, target, folds=False)
            else:
                _add_triangle(product, target, folds=True)
        _forget(self.x)


def _transposed(matrix: Matrix) -> Matrix:
    return matrix[0].transposed(), matrix[1]


def _triangle(source: Matrix, diagonal: float = 1.0) -> Matrix:
    """A copy of the lower triangle, with a scaled diagonal and zeros above it."""
    result = _scratch(source[0], source[1].device)
    apply(triangle_kernel(source[0].dtype, adds=False), source, result, factor=diagonal)
    return result


def _add_triangle(source: Matrix, target: Matrix, folds: bool) -> None:
    apply(triangle_kernel(source[0].dtype, adds=True, folds=folds), source, target)


def _multiply(a: Matrix, b: Matrix, c: Matrix, alpha: float = 1.0, adds: bool = False) -> None:
    """C = alpha A B, or its sum with C."""
    call = MatmulCall(a[0], b[0], c[0], scaled=alpha != 1.0, has_beta=adds)
    prepared(call, c[1].device).run(a[1].ptr, b[1].ptr, c[1].ptr, None, alpha, float(adds))


def _substitute(factor: Matrix, x: Matrix, forward: bool) -> None:
    """Solves with L^T, and with L first if ``forward``, in place."""
    call = SolveCall(factor[0], x=x[0], is_factored=True, forward=forward)
    prepared_solve(call, x[1].device).run(factor[1], None, None, x[1], None)
