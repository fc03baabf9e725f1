"""The backward pass of :func:`warp_tiles.matmul` on a ``wp.Tape``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

from warp_tiles.errors import MatmulError
from warp_tiles.heuristics.matmul_problem import Operand
from warp_tiles.matmul.arguments import MatmulCall
from warp_tiles.matmul.device_functions import types
from warp_tiles.matmul.elementwise import CHUNK, column_sums_kernel, gradient_kernel, scale_kernel
from warp_tiles.matmul.keys import Epilogue
from warp_tiles.matmul.launches import launch
from warp_tiles.matmul.multiply import Multiplication, Reduction, multiply, prepared
from warp_tiles.matmul.parts import Gradient, GradientLayout, as_operand, layout_of, prepare_operand
from warp_tiles.matmul.views import View, are_distinct, contiguous, view_of

_MOST_PREPARED = 1024
_prepared: set[tuple[str, MatmulCall | None, MatmulCall | None]] = set()  # by Backward.prepare()


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
    # the products of A's gradient (True) and of B's, because a pass is often repeated. Warp refuses gradients with
    # another type or other strides than their arrays, so the same products add to a gradient that replaces one.
    _known: dict[bool, Multiplication] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self) -> None:
        gradient = self.out.grad
        if gradient is None:
            return
        device = self.out.device
        view = view_of(gradient, self.call.out.dtype)
        before, array = view, gradient
        if self.call.epilogue is not None:
            before, array = self._before_epilogue(view, gradient)
        operand = as_operand(before, array, self.call.a.dtype, device)
        self._add_to_operand(operand, is_a=True)
        self._add_to_operand(operand, is_a=False)
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

    def check_gradients(self) -> None:
        """Checks that each element of a gradient has memory of its own, because nothing is added atomically.

        Raises:
            MatmulError: Elements of a gradient share memory.
        """
        for name, array in (("a", self.a), ("b", self.b), ("bias", self.bias)):
            gradient = None if array is None else array.grad
            if gradient is not None and not are_distinct(gradient):
                raise MatmulError(
                    f"the gradient of {name} has shape {tuple(gradient.shape)} and strides {tuple(gradient.strides)}: "
                    "elements share memory",
                    remedy=f"copy {name} into an array of its own before the product",
                )

    def is_prepared(self) -> bool:
        """True if :meth:`prepare` was called for the same layouts, and for gradients of the same operands."""
        return self._products(self.call.out) in _prepared

    def prepare(self) -> None:
        """Builds and loads the kernels of a backward pass without epilogue and bias."""
        device, view = self.out.device, self.call.out  # Warp demands gradients with the strides of their arrays
        prepare_operand(view, self.call.a.dtype, device)
        products = self._products(view)
        for call in products[1:]:
            if call is not None:
                prepared(call, device)
        if len(_prepared) >= _MOST_PREPARED:
            _prepared.clear()
        _prepared.add(products)

    def _products(self, view: View) -> tuple[str, MatmulCall | None, MatmulCall | None]:
        """The device, and the products that add to A's and B's gradients. ``view`` is the gradient of C."""
        layout = layout_of(view, self.call.a.dtype)
        return self.out.device.alias, self._product(layout, is_a=True), self._product(layout, is_a=False)

    def _product(self, gradient: GradientLayout, *, is_a: bool) -> MatmulCall | None:
        """A.grad += alpha * G @ B^T, or B.grad += alpha * A^T @ G, summed over the batch if it shares the operand."""
        array, transposed = (self.a, self.a_transposed) if is_a else (self.b, self.b_transposed)
        if array.grad is None:
            return None
        target = view_of(array.grad, self.call.a.dtype)
        if transposed:
            target = target.transposed()
        other = (self.call.b if is_a else self.call.a).transposed()
        left, right = (gradient.view, other) if is_a else (other, gradient.view)
        parts: Operand = "a" if is_a else "b"
        return MatmulCall(
            left,
            right,
            target,
            scaled=self.alpha != 1.0,
            has_beta=True,
            tf32=self.call.tf32,
            summed=target.shape[0] < left.shape[0],
            has_factor=gradient.has_factor,
            in_parts=parts if gradient.is_in_parts else None,
        )

    def _add_to_operand(self, gradient: Gradient, *, is_a: bool) -> None:
        target = (self.a if is_a else self.b).grad
        product = None if target is None else self._multiplication(gradient.layout, is_a=is_a)
        if product is None:
            return
        left, right = (gradient.array, self.b) if is_a else (self.a, gradient.array)
        product.run(left.ptr or 0, right.ptr or 0, target.ptr, None, self.alpha, 1.0, gradient.factor_pointer)

    def _multiplication(self, gradient: GradientLayout, *, is_a: bool) -> Multiplication | None:
        """The product that adds to the gradient of A or B. None if it has no elements."""
        product = self._known.get(is_a)
        if product is None or not product.is_current():
            call = self._product(gradient, is_a=is_a)
            if call is None or call.is_empty:
                return None
            self._known[is_a] = product = prepared(call, self.out.device)
        return product

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
