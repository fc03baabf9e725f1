"""The backward pass of :func:`warp_tiles.matmul` on a ``wp.Tape``, and that of kernels which multiply whole arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import warp as wp

from warp_tiles.array_products.arguments import check_overlap, checked
from warp_tiles.array_products.call import MatmulCall, View, contiguous, view_of
from warp_tiles.array_products.elementwise import (
    CHUNK,
    column_sums_kernel,
    gradient_kernel,
    largest_kernel,
    parts_kernel,
    scale_kernel,
)
from warp_tiles.array_products.kernels import types
from warp_tiles.array_products.prepared import PreparedMatmul, add_rows, apply, elementwise, is_prepared, prepared
from warp_tiles.array_products.tape import TapeCall
from warp_tiles.array_products.tensor_matmul import TensorMatmul
from warp_tiles.errors import MatmulError
from warp_tiles.gemm.matmul_question import Operand
from warp_tiles.gemm.problem import DType
from warp_tiles.plan.whole import LEAST_WORK, Argument, WholeOperand, WholeProduct

_NUMBER = contiguous("float32", (1, 1, 1))


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
    _known: dict[bool, PreparedMatmul | TensorMatmul] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self) -> None:
        gradient = self.out.grad
        if gradient is None:
            return
        device = self.out.device
        view = view_of(gradient, self.call.out.dtype)
        before, array = view, gradient
        if self.call.epilogue is not None:
            before, array = self._before_epilogue(view, gradient)
        split, factor = _split(before, array, self.call.a.dtype, device)
        self._add_to_operand(before, split, factor, is_a=True)
        self._add_to_operand(before, split, factor, is_a=False)
        if self.bias is not None and self.bias.grad is not None:
            self._add_to_bias(before, array)
        if self.call.has_beta:
            kernel = scale_kernel(before.dtype, view.dtype, self.call.accumulator)
            apply(kernel, ((before, array), (view, gradient)), view.shape, factor=self.beta)
        elif not getattr(self.out, "retain_grad", False):  # the product overwrote what was there before
            gradient.zero_()

    def _before_epilogue(self, view: View, gradient: Any) -> tuple[View, Any]:
        """The gradient before the epilogue, in an array of its own."""
        call, device = self.call, self.out.device
        sums, value = types(call.accumulator, view.dtype)
        total = wp.empty(view.shape, dtype=sums, device=device)
        result = wp.empty(view.shape, dtype=value, device=device)
        inputs, outputs = contiguous(call.accumulator, view.shape), contiguous(view.dtype, view.shape)
        if self.old is not None:
            kernel = scale_kernel(view.dtype, call.accumulator, call.accumulator)
            apply(kernel, ((view_of(self.old, view.dtype), self.old), (inputs, total)), view.shape)
        again = replace(call, out=inputs, epilogue=None)
        bias = None if self.bias is None else self.bias.ptr
        prepared(again, device).run(self.a.ptr or 0, self.b.ptr or 0, total.ptr, bias, self.alpha, self.beta)
        kernel = gradient_kernel(call.epilogue, view.dtype, call.accumulator)
        apply(kernel, ((inputs, total), (view, gradient), (outputs, result)), view.shape)
        return outputs, result

    def with_copy_of_out(self) -> Backward:
        """The same with a copy of C that no tape records."""
        view = self.call.out
        copy = wp.empty(view.shape, dtype=self.out.dtype, device=self.out.device)
        kernel = scale_kernel(view.dtype, view.dtype, self.call.accumulator)
        apply(kernel, ((view, self.out), (contiguous(view.dtype, view.shape), copy)), view.shape)
        return replace(self, old=copy)

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
        found = [self._product(self.call.out, is_a=is_a) for is_a in (True, False)]
        return [call for call in found if call is not None]

    def _product(self, view: View, *, is_a: bool) -> MatmulCall | None:
        """A.grad += alpha * G @ B^T, or B.grad += alpha * A^T @ G, summed over the batch if it shares the operand."""
        array, transposed = (self.a, self.a_transposed) if is_a else (self.b, self.b_transposed)
        if array.grad is None:
            return None
        target = view_of(array.grad, self.call.a.dtype)
        if transposed:
            target = target.transposed()
        other, dtype = (self.call.b if is_a else self.call.a).transposed(), self.call.a.dtype
        is_split = view.dtype != dtype
        gradient = contiguous(dtype, view.shape) if is_split else view
        left, right = (gradient, other) if is_a else (other, gradient)
        operand: Operand = "a" if is_a else "b"
        return MatmulCall(
            left,
            right,
            target,
            scaled=self.alpha != 1.0,
            has_beta=True,
            tf32=self.call.tf32,
            summed=target.shape[0] < left.shape[0],
            has_factor=is_split and dtype == "float16",
            split_operand=operand if is_split else None,
        )

    def _add_to_operand(self, view: View, gradient: Any, factor: Any, *, is_a: bool) -> None:
        """Adds to the gradient of A or B.

        Args:
            gradient: The array that is multiplied (:func:`_split`).
        """
        target = (self.a if is_a else self.b).grad
        product = self._known.get(is_a)
        if target is None:
            return
        if product is None or not product.is_current():
            call = self._product(view, is_a=is_a)
            if call is None or call.is_empty:
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
        (dtype,) = types(call.accumulator)
        sums = wp.empty((batch * chunks, 1, columns), dtype=dtype, device=device)
        sums_view = contiguous(call.accumulator, sums.shape)
        kernel = column_sums_kernel(before.dtype, call.accumulator)
        apply(kernel, ((before, array), (sums_view, sums)), (batch, chunks, columns), CHUNK)
        assert call.bias is not None
        target = View(call.bias.dtype, (1, 1, columns), (0, 0, self.bias.grad.strides[0]))
        add_rows(sums_view, target, (sums.ptr, self.bias.grad.ptr), device)


# ---- float32 gradients of 16-bit operands


def _split(view: View, array: Any, operands: DType, device: Any) -> tuple[Any, Any]:
    """A gradient as an operand, and an array with the factor of its elements or None.

    A float32 gradient of 16-bit operands is a sum of two arrays of their type, which tensor cores multiply. The second
    parts lie behind the first.
    """
    if view.dtype == operands:
        return array, None
    batch, rows, columns = view.shape
    (half,) = types(operands)
    parts = wp.empty((2 * batch, rows, columns), dtype=half, device=device)
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


def gemm_gradients(
    whole: WholeProduct,
    values: Sequence[Any],
    arguments: Sequence[Argument | None],
    blocks: Sequence[int],
    least_work: int = LEAST_WORK,
) -> Backward | str:
    """The gradients of a launch as two products, or the reason why its adjoint kernel computes them.

    Their kernels are built and loaded, so that a graph can capture the backward pass.

    Args:
        values: The arguments of the launch.
        arguments: Their shapes and integers.
        blocks: Its dimensions, without the threads of a block.
    """
    if reason_unsupported := whole.reason_unsupported(blocks, arguments):
        return reason_unsupported
    work = math.prod(whole.c.shape(arguments)) * whole.a.shape(arguments)[1]
    if work < max(1, least_work):
        return f"{work} multiplications are fewer than {max(1, least_work)}"
    a, b, c = (values[operand.position] for operand in (whole.a, whole.b, whole.c))
    try:
        operands = _as_operand(whole.a, a), _as_operand(whole.b, b)
        precision = "tf32" if whole.tf32 else "default"
        call = checked(*operands, c, precision=precision).call
        for name, operand in zip("ab", operands):
            check_overlap(name, operand, c)
        found = Backward(
            call, a, b, c, None, 1.0, 0.0, a_transposed=whole.a.transposed, b_transposed=whole.b.transposed
        )
        found.check_gradients()
    except (MatmulError, TypeError) as error:
        return str(error)
    if not found.is_prepared():
        if c.device.is_capturing:
            return "its products are not built yet, and a graph is being captured"
        found.prepare()
    return found


def _as_operand(operand: WholeOperand, array: Any) -> Any:
    return array.transpose() if operand.transposed else array
