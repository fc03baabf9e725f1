"""Positive definite matrices, what LAPACK says about others, and gradients in float64, for tests on two machines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.array_products.cases import Values


def matrices(seed: int, n: int, *batch: int) -> Values:
    """Positive definite matrices."""
    factors = np.random.default_rng(seed).normal(size=(*batch, n, n))
    return factors @ factors.swapaxes(-1, -2) / max(1, n) + 2 * np.eye(n)


def read_triangle(a: Values, upper: bool, other: float = np.nan) -> Values:
    """The triangle that is read, with ``other`` elsewhere."""
    is_read = np.triu(np.ones(a.shape, bool)) if upper else np.tril(np.ones(a.shape, bool))
    return np.where(is_read, a, other)


def factor_of(a: Values, upper: bool) -> Values:
    """The factor of symmetric matrices."""
    lower: Values = np.linalg.cholesky(a)
    return lower.swapaxes(-1, -2) if upper else lower


def spoiled(a: Values, orders: list[int]) -> Values:
    """Matrices whose first leading minor that is not positive has this order; 0 for none."""
    found = a.copy()
    for matrix, order in zip(found, orders):
        if order:
            matrix[order - 1, order - 1] = -1.0
    return found


def info_of(a: Values) -> list[int]:
    """What LAPACK's potrf returns. A pivot of Gaussian elimination is the quotient of two leading minors."""
    found = []
    for matrix in a:
        rest, order = matrix.copy(), 0
        while order < len(rest) and rest[order, order] > 0:
            rest -= np.outer(rest[:, order], rest[order]) / rest[order, order]
            order += 1
        found.append(0 if order == len(rest) else order + 1)
    return found


def gradient(function: Callable[[Values], float], at: Values, step: float = 1e-5) -> Values:
    """Central differences of a function at an array, element by element."""
    found = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        sides = []
        for sign in (1, -1):
            moved = at.copy()
            moved[index] += sign * step
            sides.append(function(moved))
        found[index] = (sides[0] - sides[1]) / (2 * step)
    return found


def symmetric(a: Values, upper: bool) -> Values:
    """The symmetric matrices of one triangle."""
    lower = np.triu(a).swapaxes(-1, -2) if upper else np.tril(a)
    diagonal = lower * np.eye(a.shape[-1])
    return lower + lower.swapaxes(-1, -2) - diagonal


def folded(full: Values, upper: bool) -> Values:
    """The gradient of a triangle from that of the whole symmetric matrix."""
    both = full + full.swapaxes(-1, -2)
    both = both - full * np.eye(full.shape[-1])
    return np.triu(both) if upper else np.tril(both)


def cholesky_gradient(lower: Values, gradient_of_lower: Values) -> Values:
    """That of the lower triangle of A: Murray (2016), eq. 10."""
    product = np.tril(lower.swapaxes(-1, -2) @ np.tril(gradient_of_lower))
    product = product - product * np.eye(lower.shape[-1]) / 2
    inverse = np.linalg.inv(lower)
    return folded(inverse.swapaxes(-1, -2) @ product @ inverse, upper=False)
