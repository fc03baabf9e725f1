"""Drawn kernels with the panel step of a blocked factorization, on the emulator: values, and every access.

A kernel factors matrices in square blocks, as Kamino (lower) and MuJoCo Warp (upper) do. Some solve with the factors.
In one of two launches, all elements that the kernel need not read are NaN. Both launches must give the same bits.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.integration.helpers import load
from tests.nightly import some

COUNT = 400
# each with 64 threads and more than one panel; together they have all other values of DIMENSIONS
FIRST = (32, 69, 112, 184, 225, 274, 372, 398)
WORLDS = 2
BEFORE = -7.0  # what outputs hold before a launch
TOLERANCES = {"float32": 2e-5, "float64": 1e-12}
DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "float64"),
    "n": (4, 6, 8, 12, 16, 20, 24, 32),  # rows of a block
    "panels": (1, 2, 3, 4),  # blocks in a row of the matrix, whose rows are an argument of the kernel
    "spare": (0, 0, 1, 2),  # blocks by which the arrays' rows are longer
    "upper": (False, True),  # A = U^T U, else A = L L^T
    "product": ("alpha=-1.0", "alpha=alpha", "-="),  # how a product is subtracted
    "factors_in_place": (False, True),
    "solves_in_place": (False, True),  # in the panel
    "stores_last": (False, True),  # the block on the diagonal is stored after its panel
    "storage": ("", ', storage="shared"'),  # of loads
    "in_function": (False, True),  # the kernel calls a wp.func
    "columns": (0, 1, 2, 3),  # right-hand sides; without any, the kernel only factors
    "views": (False, True),  # one tile has all right-hand sides, and the kernel solves with views of it
    "threads": (32, 64, 128),
}
transposed = "wp.tile_transpose({})".format


def draw(seed: int) -> SimpleNamespace:
    """The kernel of a seed: a value of each of :data:`DIMENSIONS`, and the rows of a matrix and of the arrays."""
    one = random.Random(seed)
    drawn = SimpleNamespace(**{name: one.choice(values) for name, values in DIMENSIONS.items()})
    drawn.size, drawn.most = drawn.n * drawn.panels, drawn.n * (drawn.panels + drawn.spare)
    return drawn


def text_of(drawn: SimpleNamespace) -> str:
    """The source of the kernel ``run``, after ``import warp as wp``."""
    arrays = ", ".join(f"{name}: wp.array3d(dtype=wp.{drawn.dtype})" for name in "AbFx")
    parameters = f"{arrays}, size: int, alpha: wp.{drawn.dtype}"
    kernel = f"@wp.kernel(enable_backward=False)\ndef run({parameters}):\n    world = wp.tid()"
    body = (factorization(drawn) + (substitution(drawn) if drawn.columns else "")).replace("\n", "\n    ")
    if not drawn.in_function:
        return f"{kernel}{body}\n"
    function = f"@wp.func\ndef work({parameters.replace('3d', '2d')}):{body.replace('[world]', '')}\n"
    return f"{function}\n\n{kernel}\n    work(A[world], b[world], F[world], x[world], size, alpha)\n"


def loaded(drawn: SimpleNamespace, array: str, row: str, column: str, columns: int = 0) -> str:
    shape = f"({drawn.n}, {columns or drawn.n})"
    return f"wp.tile_load({array}[world], shape={shape}, offset=({row}, {column}){drawn.storage})"


def subtract(drawn: SimpleNamespace, c: str, a: str, b: str) -> str:
    if drawn.product == "-=":
        return f"{c} -= wp.tile_matmul({a}, {b})"
    return f"wp.tile_matmul({a}, {b}, {c}, {drawn.product})"


def factorization(drawn: SimpleNamespace) -> str:
    n, upper = drawn.n, drawn.upper
    mode = ', fill_mode="upper"' if upper else ""
    diagonal, factor = "diagonal", f"factor = wp.tile_cholesky(diagonal{mode})"
    if drawn.factors_in_place:
        diagonal, factor = "factor", f"wp.tile_cholesky_inplace(factor{mode})"
    # Kamino solves with a transposed right-hand side, MuJoCo Warp with a transposed triangle.
    triangle, rhs = (transposed("factor"), "block") if upper else ("factor", transposed("block"))
    solve, solved = f"panel = wp.tile_lower_solve({triangle}, {rhs})", "panel"
    if drawn.solves_in_place:
        solved = "block" if upper else "panel"
        solve = f"{'' if upper else f'panel = {rhs}; '}wp.tile_lower_solve_inplace({triangle}, {solved})"
    store = "wp.tile_store(F[world], factor, offset=(k, k))"

    def block(array: str, row: str, column: str) -> str:
        return loaded(drawn, array, *((column, row) if upper else (row, column)))

    def product(c: str, left: str, right: str) -> str:
        return subtract(drawn, c, *((transposed(right), left) if upper else (left, transposed(right))))

    return f"""
for k in range(0, size, {n}):
    {diagonal} = {block("A", "k", "k")}
    for j in range(0, k, {n}):
        before = {block("F", "k", "j")}
        {product(diagonal, "before", "before")}
    {factor}
    {"" if drawn.stores_last else store}
    for i in range(k + {n}, size, {n}):
        block = {block("A", "i", "k")}
        for j in range(0, k, {n}):
            left = {block("F", "i", "j")}
            right = {block("F", "k", "j")}
            {product("block", "left", "right")}
        {solve}
        wp.tile_store(F[world], {solved if upper else transposed(solved)}, offset={"(k, i)" if upper else "(i, k)"})
    {store if drawn.stores_last else ""}"""


def substitution(drawn: SimpleNamespace) -> str:
    def part(array: str, row: str) -> str:
        view = f"wp.tile_view(rhs, shape=({drawn.n}, {drawn.columns}), offset=({row}, 0))"
        return view if drawn.views else loaded(drawn, array, row, "0", drawn.columns)

    def loop(solve: str, rows: str, others: str, rhs: str, is_transposed: bool) -> str:
        block, corner = (transposed("block"), transposed("corner")) if is_transposed else ("block", "corner")
        return f"""
for r in range({rows}):
    {solve} = {part(rhs, "r")}
    for j in range({others}):
        block = {loaded(drawn, "F", *("jr" if is_transposed else "rj"))}
        known = {part("x", "j")}
        {subtract(drawn, solve, block, "known")}
    corner = {loaded(drawn, "F", "r", "r")}
    wp.tile_{solve}_solve_inplace({corner}, {solve})
    {"" if drawn.views else f"wp.tile_store(x[world], {solve}, offset=(r, 0))"}"""

    n, shape = drawn.n, f"({drawn.most}, {drawn.columns})"
    return (
        (f'\nrhs = wp.tile_load(b[world], shape={shape}, storage="shared")' if drawn.views else "")
        + loop("lower", f"0, size, {n}", f"0, r, {n}", "b", drawn.upper)
        + loop("upper", f"size - {n}, -1, -{n}", f"r + {n}, size, {n}", "x", not drawn.upper)
        + ("\nwp.tile_store(x[world], rhs)" if drawn.views else "")
    )


def problem(seed: int, drawn: SimpleNamespace) -> tuple[Values, Values, Values, Values]:
    """Positive definite matrices and right-hand sides without spare rows, and the outputs F and x in float64."""
    one, size = np.random.default_rng(seed), drawn.size
    a, b = one.normal(size=(WORLDS, size, size)), one.normal(size=(WORLDS, size, max(1, drawn.columns)))
    a, b = (a @ a.swapaxes(1, 2) / size + 2 * np.eye(size)).astype(drawn.dtype), b.astype(drawn.dtype)
    factors = np.full((WORLDS, drawn.most, drawn.most), BEFORE)
    x = np.full((WORLDS, drawn.most, b.shape[2]), 0.0 if drawn.views and drawn.columns else BEFORE)
    blocks = np.arange(size) // drawn.n
    factors[:, :size, :size] = np.where(blocks[:, None] >= blocks, np.linalg.cholesky(a.astype(np.float64)), BEFORE)
    if drawn.columns:
        x[:, :size] = np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
    return a, b, (factors.swapaxes(1, 2) if drawn.upper else factors), x


@pytest.mark.parametrize(
    "seed",
    [*some(FIRST, 1, "slow"), *some((seed for seed in range(COUNT) if seed not in FIRST), 0)],
)
def test_drawn_panels(seed: int, machine: Machine, tmp_path: Path) -> None:
    drawn = draw(seed)
    text = text_of(drawn)
    module: Any = load(text, block_dim=drawn.threads)
    generated = generate(module, tmp_path / "m", 90, drawn.threads)
    for name in ("Cholesky", "TriangularSolve"):
        assert any(f"wt::solver::{name}<" in unit for unit in generated.functions), text
    kernels = EmulatedKernels(machine, generated)
    a, b, factors, x = problem(seed, drawn)
    rhs = np.zeros(x.shape, drawn.dtype)
    rhs[:, : drawn.size] = b
    needed = np.triu(np.ones_like(a)) if drawn.upper else np.tril(np.ones_like(a))
    outcomes = []
    for filling in (a, np.nan):
        given = np.full(factors.shape, np.nan, drawn.dtype)
        given[:, : drawn.size, : drawn.size] = np.where(needed, a, filling)
        outputs = [np.full_like(of, BEFORE, drawn.dtype) for of in (factors, x)]
        arrays = kernels.run(module.run, (WORLDS,), [given, rhs, *outputs, drawn.size, -1.0])
        outcomes.append(arrays)
    for name, right in {"F": factors, "x": x}.items():
        atol = TOLERANCES[drawn.dtype]
        np.testing.assert_allclose(outcomes[0][name], right, rtol=0, atol=atol, err_msg=text)
        np.testing.assert_array_equal(outcomes[1][name], outcomes[0][name], err_msg=text)
