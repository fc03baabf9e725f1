"""Errors of solver functions: rows, inputs, exact results and tables, without a GPU."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import numerics, page_values, solver_errors, solvers
from benchmarks.speed.builds import Build, import_kernels
from tests.solver_kernels import cholesky, complex_steps, solve

RUN = {"gpu": "GPU", "driver": "1", "warp": "1.19.0", "warp_tiles": "0.1.0", "date": "2026-01-01T00:00:00"}


def test_rows_have_unique_names_and_few_kernels() -> None:
    names = [row.name for row in solver_errors.ROWS]
    assert len(set(names)) == len(names) == 8 * 2 * 5 * 2
    builds = solver_errors.builds(solver_errors.ROWS)
    in_place = 4 * 5 * 2  # which only one side has
    assert len({build.module for build in builds}) == len(builds) == 3 * (4 * 5 * 2 + 3) - 3 + in_place
    assert builds[0].cell.backward
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


@pytest.mark.slow
@pytest.mark.parametrize("function", solver_errors.FUNCTIONS)
def test_kernels_of_warp_on_the_cpu(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures a row on the CPU, where all sides are Warp's native path."""

    class Store:
        def record(self, build: Build[solvers.Cell]) -> dict[str, Any]:
            return {"builds": [{"provider": "own"}]} if build.side == "tiles" else {"seconds": 1}

    def load(store: Store, build: Build[solvers.Cell], device: str) -> Any:
        path = tmp_path / f"{build.module}.py"
        path.write_text(build.text)
        return import_kernels(path, build.module).run

    monkeypatch.setattr(solver_errors, "_load", load)
    rows = []
    for condition in solver_errors.CONDITIONS["fp64"]:
        row = solver_errors.Row(function, "fp64", 8, condition)
        rows.append(solver_errors.measure(row, Store(), "cpu"))  # type: ignore[arg-type]
    for row in rows:
        for side, provider in zip(solvers.SIDES, ("own", "Warp with libmathdx", "Warp's native path")):
            assert set(row[side]) == {"x", *solver_errors.ADJOINTS[function]}
            has_gradient = function in ("cholesky", "lower_solve")
            for found in row[side].values() if has_gradient else [row[side]["x"]]:
                assert found["same_bits"]
                assert found["providers"] == [provider]
                assert 1e-17 < found["rms"] <= found["largest"] < (1e-14 if row["condition"] == 1e2 else 1e-3)


def test_the_table_names_what_has_no_figure() -> None:
    assert page_values._error({"rms": 1e-5}, "rms") == "1.0e-05"
    assert page_values._error({"error": "1 of 32 results are not finite"}, "rms") == "not finite"
    assert page_values._error({"error": "not built"}, "rms") == "refused"
    assert page_values._error({"error": solver_errors.NO_GRADIENT}, "rms") == "none"


def test_rows_of_products_and_solvers_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "numerics.json"
    monkeypatch.setattr(numerics, "BuildStore", lambda *_: SimpleNamespace(fill=lambda *_: None))
    monkeypatch.setattr(numerics, "gpu_record", lambda: dict(RUN))
    monkeypatch.setattr(numerics, "measure", lambda row, *_: {"reduced": row.reduced})
    monkeypatch.setattr(solver_errors, "measure", lambda row, *_: {"n": row.n})
    for only in ("upper_solve fp32, 16, *", "fp64, 16", "upper_solve fp32, 8, *"):
        assert numerics.main(["--json", str(path), "--only", only]) == 0
    data = json.loads(path.read_text())
    assert len(data["runs"]) == 3
    assert [(row.get("n"), row["run"]) for row in data["rows"]] == [(None, 1), (8, 2), (8, 2), (16, 0), (16, 0)]
