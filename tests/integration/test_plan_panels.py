"""Panel steps in the plans of blocked factorizations and solves. Nothing is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.solvers import Cell
from tests.integration.helpers import gemm_loop
from tests.integration.plans import plan
from tests.integration.solvers import PANEL, solver
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.reports.functions import panel_rows

pytestmark = pytest.mark.usefixtures("enabled")


def text_of(function: str) -> str:
    solves = function == "blocked_solve"
    return Cell(function, "fp32", 256, int(solves), 64 if solves else 128, block=16).text("tiles")


def parts(found: ModulePlan) -> list[list[tuple[str, str, str]]]:
    """The kind, size and treatment of each part of each step."""
    return [[(part.kind, part.size, part.how) for part in step.parts] for step in found.panel_steps]


@pytest.mark.parametrize("function", ["blocked_cholesky", "blocked_cholesky_upper"])
def test_a_blocked_factorization_is_one_step(function: str) -> None:
    found = plan(text_of(function), block_dim=128)
    first, second = (loop.describe() for loop in found.loops)
    assert parts(found) == [
        [
            ("products", "", first),
            ("factor", "cholesky 16x16, in place", "mma"),
            ("products", "", second),
            ("solve", "lower_solve 16x16, 16 columns, in place", "mma"),
        ]
    ]
    (step,) = found.panel_steps
    lines = [line.strip() for line in Path(step.file).read_text().splitlines()]
    assert (step.kernel, lines[step.line - 1]) == ("run", "for k in range(0, A.shape[1], 16):")
    assert [part.line for part in step.parts][::2] == [loop.line for loop in found.loops]
    assert [lines[part.line - 1].partition("(")[0] for part in step.parts][1::2] == [
        "wp.tile_cholesky_inplace",
        "wp.tile_lower_solve_inplace",
    ]


def test_a_blocked_solve_is_two_steps() -> None:
    found = plan(text_of("blocked_solve"))
    first, second = (loop.describe() for loop in found.loops)
    assert parts(found) == [
        [("products", "", first), ("solve", "lower_solve 16x16, 1 column, in place", "mma")],
        [("products", "", second), ("solve", "upper_solve 16x16, 1 column, in place", "mma")],
    ]


def test_a_kernel_of_one_panel_is_one_step() -> None:
    found = plan(PANEL)
    (loop,) = found.loops
    assert parts(found) == [[("products", "", loop.describe()), ("factor", "cholesky 16x16", "mma")]]
    assert found.panel_steps[0].line == loop.line


def test_a_solver_of_warp_is_named_by_its_call() -> None:
    found = plan(PANEL, enable_mathdx_solver=False)
    assert parts(found)[0][1] == ("factor", "tile_cholesky", "scalar")


@pytest.mark.parametrize("text", [gemm_loop(), solver("tile_cholesky"), gemm_loop() + solver("tile_cholesky")])
def test_products_and_solvers_of_different_kernels_are_no_step(text: str) -> None:
    assert plan(text).panel_steps == ()


def test_the_plan_shows_a_step_as_one_row() -> None:
    found = plan(PANEL)
    module, (step,) = found.to_json(), found.panel_steps
    assert [part["text"] for part in module["panel_steps"][0]["parts"]] == [part.describe() for part in step.parts]
    ((kernel, line, cell),) = panel_rows(module)
    assert (kernel, line.rpartition(":")[2]) == ("run", str(step.line))
    assert cell.splitlines() == [part.describe() for part in step.parts]
    assert f"panel step in {step.file}:{step.line}, run: {'; '.join(cell.splitlines())}" in str(found)


def test_a_step_in_a_function_is_listed_for_each_kernel_that_calls_it() -> None:
    text = """import warp as wp


@wp.func
def factor(A: wp.array2d(dtype=float)):
    for k in range(0, A.shape[0], 16):
        block = wp.tile_load(A, shape=(16, 16), offset=(k, k), storage="shared")
        for j in range(0, k, 16):
            row = wp.tile_load(A, shape=(16, 16), offset=(k, j), storage="shared")
            wp.tile_matmul(row, wp.tile_transpose(row), block, alpha=-1.0)
        wp.tile_cholesky_inplace(block)
        wp.tile_store(A, block, offset=(k, k))


@wp.kernel(enable_backward=False)
def one(A: wp.array2d(dtype=float)):
    factor(A)


@wp.kernel(enable_backward=False)
def two(A: wp.array2d(dtype=float)):
    factor(A)
"""
    found = plan(text)
    first, second = found.panel_steps
    assert {first.kernel, second.kernel} == {"one", "two"}
    assert (first.line, first.parts) == (second.line, second.parts)
    assert [part.kind for part in first.parts] == ["products", "factor"]
