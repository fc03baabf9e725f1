"""Kernels of solver functions, and what they compute, in NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]

KERNEL = """
@wp.kernel
def kernel{index}(A: wp.array2d(dtype=wp.{dtype}), B: wp.array{rank}d(dtype=wp.{dtype}),
                  L: wp.array2d(dtype=wp.{dtype}), X: wp.array{rank}d(dtype=wp.{dtype})):
    a = wp.tile_load(A, shape=({n}, {n}))
    b = wp.tile_load(B, shape={shape})
    {body}
    wp.tile_store(L, l)
    wp.tile_store(X, x)
"""
BODIES = {
    "factor and solve": "l = wp.tile_cholesky(a)\n    x = wp.tile_lower_solve(l, b)",
    "upper factor": 'l = wp.tile_cholesky(a, fill_mode="upper")\n    x = b',
    "factor of a transpose": "l = wp.tile_cholesky(wp.tile_transpose(a))\n    x = wp.tile_lower_solve(l, b)",
    "solve alone": "l = a\n    x = wp.tile_lower_solve(a, b)",
    "both solves": "l = wp.tile_cholesky(a)\n    y = wp.tile_lower_solve(l, b)\n    "
    "x = wp.tile_upper_solve(wp.tile_transpose(l), y)",
    "in place": 'wp.tile_cholesky_inplace(a, fill_mode="upper")\n    l = a\n    '
    'wp.tile_cholesky_solve_inplace(a, b, fill_mode="upper")\n    '
    "wp.tile_lower_solve_inplace(wp.tile_transpose(a), b)\n    wp.tile_upper_solve_inplace(a, b)\n    x = b",
}


def kernels_text(dtype: str, shapes: list[tuple[int, int]]) -> str:
    bodies = [(shape, body) for shape in shapes for body in BODIES.values()]
    return "".join(kernel_text(index, dtype, shape, body) for index, (shape, body) in enumerate(bodies))


def kernel_text(index: int, dtype: str, shape: tuple[int, int], body: str) -> str:
    n, columns = shape
    return KERNEL.format(
        index=index, dtype=dtype, rank=2 if columns else 1, n=n, shape=shape if columns else n, body=body
    )


def inputs(n: int, columns: int, dtype: str) -> tuple[Values, Values]:
    random_numbers = np.random.default_rng(n)
    lower = np.tril(random_numbers.uniform(-1, 1, (n, n))) / n**0.5 + np.diag(random_numbers.uniform(1, 2, n))
    rhs = random_numbers.uniform(-1, 1, (n, columns) if columns else n)
    return (lower @ lower.T).astype(dtype), rhs.astype(dtype)


def cholesky(a: Values, upper: bool = False) -> Values:
    """L of the lower triangle of A, or U of the upper one; of complex numbers too, without conjugates."""
    rest, n = (a.T if upper else a).copy(), len(a)
    factor = np.zeros_like(rest)
    for j in range(n):
        factor[j:, j] = rest[j:, j] / np.sqrt(rest[j, j])
        rest[j + 1 :, j + 1 :] -= np.outer(factor[j + 1 :, j], factor[j + 1 :, j])
    return factor.T if upper else factor


def solve(triangle: Values, b: Values) -> Values:
    return np.linalg.solve(triangle, b)


# the bodies in NumPy; each takes A and B and returns L and X
REFERENCES = {
    "factor and solve": lambda a, b: (factor := cholesky(a), solve(factor, b)),
    "upper factor": lambda a, b: (cholesky(a, upper=True), b),
    "factor of a transpose": lambda a, b: (factor := cholesky(a.T), solve(factor, b)),
    "solve alone": lambda a, b: (a, solve(np.tril(a), b)),
    "both solves": lambda a, b: (factor := cholesky(a), solve(factor.T, solve(factor, b))),
    "in place": lambda a, b: (
        factor := cholesky(a, upper=True),
        solve(factor, solve(factor.T, solve(factor, solve(factor.T, b)))),
    ),
}
DIFFERENTIABLE = [body for body in BODIES if body not in ("both solves", "in place")]  # by Warp


def gradients(body: str, a: Values, b: Values, seeds: tuple[Values, Values]) -> tuple[Values, Values]:
    """Gradients of A and B by complex steps."""
    return complex_steps(REFERENCES[body], a, b, seeds)


def complex_steps(
    function: Callable[[Values, Values], tuple[Values, Values]], a: Values, b: Values, seeds: tuple[Values, Values]
) -> tuple[Values, Values]:
    """Gradients of A and B, exact but for rounding. Squire and Trapp, SIAM Review 40 (1998)."""
    step = 1e-30
    found = []
    for position, values in enumerate((a, b)):
        gradient = np.zeros(values.shape)
        for index in np.ndindex(values.shape):
            changed = [a.astype(complex), b.astype(complex)]
            changed[position][index] += 1j * step
            results = function(*changed)
            gradient[index] = sum(np.sum(seed * result.imag) for seed, result in zip(seeds, results)) / step
        found.append(gradient)
    return found[0], found[1]
