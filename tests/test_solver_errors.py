"""Errors of solver functions: rows, inputs and exact results, without a GPU."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from benchmarks import solver_errors, solvers
from tests.solver_kernels import cholesky, complex_steps, solve


def test_rows_have_unique_names_and_few_kernels() -> None:
    names = [row.name for row in solver_errors.ROWS]
    assert len(set(names)) == len(names) == 8 * 2 * 5 * 2
    builds = {build for row in solver_errors.ROWS for build in row.all_builds}
    in_place = 4 * 5 * 2  # which only one side has
    assert len({build.module for build in builds}) == len(builds) == 3 * (4 * 5 * 2 + 3) - 3 + in_place
    for row in solver_errors.ROWS:
        results = {
            side: [name for _, names in row.builds(side) for name in names] for side in ("tiles", "warp", "native")
        }
        assert results["tiles"] == list(row.results)
        if row.function not in ("cholesky", "lower_solve"):
            assert results["warp"] == results["native"] == ([] if row.function in solver_errors.IN_PLACE else ["x"])
            continue
        assert results["native"] == results["tiles"]
        if (row.function, row.types, row.n) in [
            ("cholesky", "fp32", 96),
            ("cholesky", "fp64", 64),
            ("cholesky", "fp64", 96),
        ]:
            assert results["warp"] == ["x"]
        else:
            assert results["warp"] == results["tiles"]


@pytest.mark.parametrize("function", solver_errors.FUNCTIONS)
@pytest.mark.parametrize("types", ["fp32", "fp64"])
def test_inputs_have_their_condition_number(function: str, types: str) -> None:
    for condition in solver_errors.CONDITIONS[types]:
        row = solver_errors.Row(function, types, 32, condition)
        inputs = solver_errors.draw(row)
        assert {values.dtype.name for values in inputs.values()} == {solvers.DTYPES[types]}
        assert solver_errors.condition_of(row, inputs["a"]) == pytest.approx(condition, rel=0.05)
        assert all(np.array_equal(values, solver_errors.draw(row)[name]) for name, values in inputs.items())
    a = inputs["a"].swapaxes(1, 2) if function == "upper_solve" else inputs["a"]
    assert np.array_equal(a, a.swapaxes(1, 2)) if function == "cholesky" else np.array_equal(a, np.tril(a))


@pytest.mark.parametrize("function", solver_errors.FUNCTIONS)
def test_exact_results_solve_their_equations(function: str) -> None:
    inputs = solver_errors.draw(solver_errors.Row(function, "fp64", 16, 1e2))
    a, b, g = (inputs[name].astype(np.longdouble) for name in "abg")
    x = solver_errors.exact(function, a, b, g)["x"]
    assert x.dtype == np.longdouble
    transposed = a.swapaxes(1, 2)
    if function == "cholesky":
        assert np.array_equal(x, np.tril(x))
        np.testing.assert_allclose(x @ x.swapaxes(1, 2), a, atol=1e-17)
    else:
        system = a @ transposed if function == "cholesky_solve" else a
        np.testing.assert_allclose((system @ x[..., None])[..., 0], b, atol=1e-15)


@pytest.mark.parametrize(
    ("function", "body"),
    [
        ("cholesky", lambda a, b: (cholesky(a), b)),
        ("cholesky_solve", lambda a, b: (a, solve(np.tril(a) @ np.tril(a).T, b))),
        ("lower_solve", lambda a, b: (a, solve(np.tril(a), b))),
        ("upper_solve", lambda a, b: (a, solve(np.triu(a), b))),
    ],
)
def test_exact_adjoints_agree_with_complex_steps(function: str, body: Any) -> None:
    inputs = solver_errors.draw(solver_errors.Row(function, "fp64", 8, 1e2))
    found = solver_errors.exact(function, *(inputs[name] for name in "abg"))
    for index in range(2):
        a, b, g = (inputs[name][index] for name in "abg")
        seeds = (g, np.zeros_like(b)) if function == "cholesky" else (np.zeros_like(a), g)
        expected = dict(zip(("grad_a", "grad_b"), complex_steps(body, a, b, seeds)))
        for name in solver_errors.ADJOINTS[function]:
            np.testing.assert_allclose(found[name][index], expected[name], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("function", solver_errors.FUNCTIONS)
def test_exact_results_have_enough_digits(function: str) -> None:
    """Compared with 60 decimal digits, their error is far below that of fp64 on the same ill-conditioned inputs."""
    assert np.finfo(np.longdouble).nmant >= 63
    inputs = {name: values[:2] for name, values in solver_errors.draw(
        solver_errors.Row(function, "fp64", 8, 1e12)
    ).items()}  # fmt: skip
    with localcontext() as context:
        context.prec = 60
        decimals = [np.vectorize(Decimal, otypes=[object])(inputs[name]) for name in "abg"]
        expected = solver_errors.exact(function, *decimals)
    wide = solver_errors.exact(function, *(inputs[name].astype(np.longdouble) for name in "abg"))
    narrow = solver_errors.exact(function, *(inputs[name] for name in "abg"))
    for name, values in expected.items():
        # the 64 bits of the mantissa are kept: as the sum of two doubles
        high = values.astype(np.float64)
        low = (values - np.vectorize(Decimal, otypes=[object])(high)).astype(np.float64)
        rounded = high.astype(np.longdouble) + low
        exact, usual = (solver_errors.errors(found[name], rounded).max() for found in (wide, narrow))
        assert exact < usual / 100


def test_figures_of_results() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 5.0]], dtype=np.longdouble)
    off = np.array([[3.0, 4.5], [0.0, 5.0]])
    found = solver_errors.figures([off, off.copy()], expected)
    assert (found["largest"], found["same_bits"]) == (0.1, True)
    assert found["rms"] == pytest.approx(0.1 / 2**0.5)
    assert not solver_errors.figures([off, expected.astype(float)], expected)["same_bits"]
    assert solver_errors.figures([off * np.nan], expected) == {"error": "2 of 2 results are not finite"}
    assert "zero" in solver_errors.figures([off * 0], expected)["error"]
