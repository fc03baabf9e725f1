"""The exact results with which gradients of solvers are compared agree with complex steps."""

from typing import Any

import numpy as np
import pytest

from tests.solver_gradients import exact
from tests.solver_kernels import cholesky, complex_steps, inputs, solve

BODIES: dict[str, Any] = {
    "cholesky": lambda a, b: (cholesky(a), b),
    "cholesky_solve": lambda a, b: (a, solve(np.tril(a) @ np.tril(a).T, b)),
    "lower_solve": lambda a, b: (a, solve(np.tril(a), b)),
    "upper_solve": lambda a, b: (a, solve(np.triu(a), b)),
}


@pytest.mark.parametrize("function", BODIES)
def test_exact_results_agree_with_complex_steps(function: str) -> None:
    a, b = inputs(8, 0, "float64")
    if function != "cholesky":
        a = cholesky(a, upper=function == "upper_solve")
    g = np.random.default_rng(1).uniform(-1, 1, a.shape if function == "cholesky" else b.shape)
    found = exact(function, a, b, g)
    seeds = (g, np.zeros_like(b)) if function == "cholesky" else (np.zeros_like(a), g)
    result = BODIES[function](a, b)[function != "cholesky"]
    np.testing.assert_allclose(found["x"], result, rtol=1e-11, atol=1e-12)
    for name, expected in zip(("grad_a", "grad_b"), complex_steps(BODIES[function], a, b, seeds)):
        if name in found:
            np.testing.assert_allclose(found[name], expected, rtol=1e-11, atol=1e-12)
