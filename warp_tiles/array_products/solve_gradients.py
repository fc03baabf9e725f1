"""The backward passes of :func:`warp_tiles.cholesky` and :func:`warp_tiles.solve` on a ``wp.Tape``.

A gradient is that of the triangle that is read: an element below the diagonal counts for both elements of the symmetric
matrix. So it is M + M^T of the lower triangle, and M on the diagonal, where M is the gradient of a full matrix. Upper
triangles are the lower ones of the transposes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import warp as wp

from warp_tiles.array_products.call import MatmulCall, View, contiguous, lower_view, right_sides
from warp_tiles.array_products.elementwise import scale_kernel
from warp_tiles.array_products.prepared import apply, prepared
from warp_tiles.array_products.prepared_solves import SolveCall, prepared_solve
from warp_tiles.array_products.solve_kernels import triangle_kernel
from warp_tiles.array_products.tape import TapeCall

Matrix = tuple[View, Any]  # a view, and the array whose memory it has


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
        dtype = self.factor.dtype.__name__
        factor = lower_view(self.factor, self.upper, dtype), self.factor
        gradient = _triangle((lower_view(given, self.upper, dtype), given), self.factor.device)
        product = _scratch(gradient[0], self.factor.device)
        _multiply(_transposed(factor), gradient, product)
        halved = _triangle(product, self.factor.device, 0.5)
        for _ in range(2):  # L^-T (L^-T P)^T is the transpose of L^-T P L^-1
            _substitute(factor, halved, forward=False)
            halved = _transposed(halved)
        _add_triangle(halved, (lower_view(self.a.grad, self.upper, dtype), self.a.grad), folds=True)
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
        device, dtype = self.x.device, self.x.dtype.__name__
        factor = lower_view(self.factor, self.upper, dtype), self.factor
        x = right_sides(self.x, self.a, dtype), self.x
        view = right_sides(given, self.a, dtype)
        found = _scratch(view, device)
        apply(scale_kernel(dtype, dtype, dtype), ((view, given), found), view.shape)
        _substitute(factor, found, forward=True)
        if self.b.grad is not None:
            kernel = scale_kernel(dtype, dtype, dtype, adds=True)
            apply(kernel, (found, (right_sides(self.b.grad, self.a, dtype), self.b.grad)), view.shape)
        if self.a.grad is not None:
            target = lower_view(self.a.grad, self.upper, dtype), self.a.grad
            product = _scratch(target[0], device)
            _multiply(found, _transposed(x), product, -1.0)
            if self.is_factored:
                lower, both = _triangle(factor, device), _scratch(target[0], device)
                _multiply(product, lower, both)
                _multiply(_transposed(product), lower, both, adds=True)
                _add_triangle(both, target, folds=False)
            else:
                _add_triangle(product, target, folds=True)
        _forget(self.x)


def _scratch(view: View, device: Any) -> tuple[View, Any]:
    """A new array of the shape of a view."""
    new = contiguous(view.dtype, view.shape)
    return new, wp.empty(view.shape, dtype=getattr(wp, view.dtype), device=device)


def _forget(result: Any) -> None:
    """The call overwrote what was in its result before."""
    if not getattr(result, "retain_grad", False):
        result.grad.zero_()


def _transposed(matrix: Matrix) -> Matrix:
    return matrix[0].transposed(), matrix[1]


def _triangle(source: Matrix, device: Any, diagonal: float = 1.0) -> Matrix:
    """A copy of the lower triangle, with a scaled diagonal and zeros above it."""
    result = _scratch(source[0], device)
    apply(triangle_kernel(source[0].dtype, adds=False), (source, result), source[0].shape, factor=diagonal)
    return result


def _add_triangle(source: Matrix, target: Matrix, folds: bool) -> None:
    apply(triangle_kernel(source[0].dtype, adds=True, folds=folds), (source, target), source[0].shape)


def _multiply(a: Matrix, b: Matrix, c: Matrix, alpha: float = 1.0, adds: bool = False) -> None:
    """C = alpha A B, or its sum with C."""
    call = MatmulCall(a[0], b[0], c[0], scaled=alpha != 1.0, has_beta=adds)
    prepared(call, c[1].device).run(a[1].ptr, b[1].ptr, c[1].ptr, None, alpha, float(adds))


def _substitute(factor: Matrix, x: Matrix, forward: bool) -> None:
    """Solves with L^T, and with L first if ``forward``, in place."""
    call = SolveCall(factor[0], x=x[0], is_factored=True, forward=forward)
    prepared_solve(call, x[1].device).run(factor[1], None, None, x[1], None)
