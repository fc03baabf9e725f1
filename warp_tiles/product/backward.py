"""The backward pass of :func:`warp_tiles.matmul` on a ``wp.Tape``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from warp_tiles.gemm.dtypes import DType
from warp_tiles.product.arguments import MatmulCall, Operand
from warp_tiles.product.elementwise import (
    column_sums_kernel,
    gradient_kernel,
    largest_kernel,
    parts_kernel,
    scale_kernel,
)
from warp_tiles.product.kernels import types
from warp_tiles.product.keys import Epilogue
from warp_tiles.product.launches import launch
from warp_tiles.product.multiply import Reduction, multiply
from warp_tiles.product.views import View, contiguous, view_of

CHUNK = 128  # rows of a gradient that one thread adds


@dataclass(frozen=True)
class Backward:
    """Adds the gradients of one product. A tape calls it.

    Attributes:
        call: The product.
        a, b, out, bias: Its arrays.
        alpha, beta: Its factors.
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

    def __call__(self) -> None:
        gradient = self.out.grad
        if gradient is None:
            return
        device = self.out.device
        view = view_of(gradient, self.call.out.dtype)
        before, array = view, gradient
        if self.call.epilogue is not None:
            before, array = self._before_epilogue(view, gradient)
        gradients = _Gradient(before, array)
        if before.dtype != self.call.a.dtype:
            gradients = _in_parts(before, array, self.call.a.dtype, device)
        self._add_to_operand(self.a, gradients, is_a=True)
        self._add_to_operand(self.b, gradients, is_a=False)
        if self.bias is not None and self.bias.grad is not None:
            self._add_to_bias(before, array)
        if self.call.has_beta:
            kernel = scale_kernel(before.dtype, view.dtype, self.call.sums)
            launch(kernel, (before, view), (array.ptr, gradient.ptr), view.shape, device, factor=self.beta)
        elif not getattr(self.out, "retain_grad", False):  # the product overwrote what was there before
            gradient.zero_()

    def _before_epilogue(self, view: View, gradient: Any) -> tuple[View, Any]:
        """The gradient before the epilogue, in an array of its own."""
        import warp as wp

        call, device = self.call, self.out.device
        sums, value = types(call.sums, view.dtype)
        total = wp.empty(view.shape, dtype=sums, device=device)
        result = wp.empty(view.shape, dtype=value, device=device)
        inputs, outputs = contiguous(call.sums, view.shape), contiguous(view.dtype, view.shape)
        if self.old is not None:
            old = view_of(self.old, view.dtype)
            kernel = scale_kernel(view.dtype, call.sums, call.sums)
            launch(kernel, (old, inputs), (self.old.ptr, total.ptr), view.shape, device)
        again = replace(call, out=inputs, epilogue=None)
        bias = None if self.bias is None else self.bias.ptr
        multiply(again, device, (self.a.ptr, self.b.ptr, total.ptr, bias), self.alpha, self.beta)
        kernel = gradient_kernel(call.epilogue, view.dtype, call.sums)
        launch(kernel, (inputs, view, outputs), (total.ptr, gradient.ptr, result.ptr), view.shape, device)
        return outputs, result

    def _add_to_operand(self, operand: Any, gradient: _Gradient, *, is_a: bool) -> None:
        """A.grad += alpha * G @ B^T, or B.grad += alpha * A^T @ G, summed over the batch if it shares the operand."""
        if operand.grad is None:
            return
        target = view_of(operand.grad, self.call.a.dtype)
        if self.a_transposed if is_a else self.b_transposed:
            target = target.transposed()
        other, other_array = (self.call.b, self.b) if is_a else (self.call.a, self.a)
        left, right = (gradient.view, other.transposed()) if is_a else (other.transposed(), gradient.view)
        first, second = (gradient.array, other_array) if is_a else (other_array, gradient.array)
        parts: Operand = "a" if is_a else "b"
        call = MatmulCall(
            left,
            right,
            target,
            scaled=self.alpha != 1.0,
            has_beta=True,
            tf32=self.call.tf32,
            summed=target.shape[0] < left.shape[0],
            has_factor=gradient.factor is not None,
            in_parts=parts if gradient.is_in_parts else None,
        )
        factor = None if gradient.factor is None else gradient.factor.ptr
        multiply(call, self.out.device, (first.ptr, second.ptr, operand.grad.ptr, None), self.alpha, 1.0, factor)

    def _add_to_bias(self, before: View, array: Any) -> None:
        """bias.grad += the sums of the gradient's columns, of chunks of rows first."""
        import warp as wp

        device, call = self.out.device, self.call
        batch, rows, columns = before.shape
        chunks = -(-rows // CHUNK)
        (dtype,) = types(call.sums)
        sums = wp.empty((batch * chunks, 1, columns), dtype=dtype, device=device)
        sums_view = contiguous(call.sums, sums.shape)
        launch(
            column_sums_kernel(before.dtype, call.sums),
            (before, sums_view),
            (array.ptr, sums.ptr),
            (batch, chunks, columns),
            device,
            CHUNK,
        )
        assert call.bias is not None
        target = View(call.bias.dtype, (1, 1, columns), (0, 0, self.bias.grad.strides[0]))
        _add_rows(sums_view, target, (sums.ptr, self.bias.grad.ptr), device)


@dataclass(frozen=True)
class _Gradient:
    """The gradient of a product, as an operand of its operands' gradients.

    Attributes:
        view, array: The array. If it is in parts, the second ones lie behind the view.
        factor: An array with a factor of the gradient, or None.
        is_in_parts: True if the gradient is a sum of two numbers.
    """

    view: View
    array: Any
    factor: Any = None
    is_in_parts: bool = False


def _in_parts(view: View, array: Any, dtype: DType, device: Any) -> _Gradient:
    """A float32 gradient as sums of two 16-bit numbers, so that tensor cores multiply it with 16-bit operands."""
    import warp as wp

    batch, rows, columns = view.shape
    (half,) = types(dtype)
    parts = wp.empty((2 * batch, rows, columns), dtype=half, device=device)
    numbers = wp.zeros((2, 1, 1), dtype=float, device=device)  # the largest magnitude, and the factor
    number, largest, factor = contiguous("float32", (1, 1, 1)), numbers[0], numbers[1]
    is_scaled = dtype == "float16"
    if is_scaled:
        chunks = -(-rows // CHUNK)
        grid = (batch, chunks, columns)
        launch(largest_kernel(), (view, number), (array.ptr, largest.ptr), grid, device, CHUNK)
    launch(
        parts_kernel(dtype),
        (view, number, contiguous(dtype, (2 * batch, rows, columns)), number),
        (array.ptr, largest.ptr, parts.ptr, factor.ptr),
        view.shape,
        device,
        batch,
    )
    return _Gradient(contiguous(dtype, view.shape), parts, factor if is_scaled else None, is_in_parts=True)


@functools.lru_cache(maxsize=128)
def _holder(sums: View, target: View, alias: str) -> list[Reduction]:
    import warp as wp

    return [_reduction(sums, target, wp.get_device(alias))]


def _reduction(sums: View, target: View, device: Any) -> Reduction:
    epilogue = Epilogue(target.dtype, has_beta=True, sums=sums.dtype)
    return Reduction(epilogue, sums, target, 0, sums.shape[0], device)


def _add_rows(sums: View, target: View, pointers: tuple[int, int], device: Any) -> None:
    """Adds all rows of ``sums`` to ``target`` in order."""
    holder = _holder(sums, target, device.alias)
    if not holder[0].is_current():
        holder[0] = _reduction(sums, target, device)
    holder[0].run(*pointers, None, 1.0, 1.0)


def copied(call: MatmulCall, out: Any) -> Any:
    """A copy of C that no tape records."""
    import warp as wp

    found = wp.empty(call.out.shape, dtype=out.dtype, device=out.device)
    kernel = scale_kernel(call.out.dtype, call.out.dtype, call.sums)
    views = (call.out, contiguous(call.out.dtype, call.out.shape))
    launch(kernel, views, (out.ptr, found.ptr), call.out.shape, out.device)
    return found


def record_on_tape(tape: Any, backward: Backward) -> None:
    """Lets a tape's backward pass add the gradients. The tape then zeroes them with its own."""
    for array in (backward.a, backward.b, backward.bias, backward.out):
        if array is not None and array.grad is not None:
            tape.gradients[array] = array.grad
    tape.record_func(backward, [])
