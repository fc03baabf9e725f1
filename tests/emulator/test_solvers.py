"""The templates in ``kernels/solver``: drawn functions one by one, and whole kernels with their gradients."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from tests.emulator.emulator import Emulator, Function, Launch, Outcome
from tests.emulator.gemm import ROUNDOFF, wrong_elements
from tests.emulator.generated import Kernels, Runs, build
from tests.emulator.module import Machine
from tests.emulator.tiles import Tile, rounded
from tests.nightly import some
from tests.solver_kernels import BODIES, DIFFERENTIABLE, REFERENCES, gradients, inputs, kernels_text
from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, Operand
from warp_tiles.providers.own import SolverProvider, header_of, solver_translation_unit
from warp_tiles.solver.problem import Function as SolverFunction
from warp_tiles.solver.problem import SolverConfig, SolverProblem, choose

# C++ of a call with (alpha, a, b, beta, c), by function and whether it is in place
_CALLS = {
    ("cholesky", False): "{symbol}(a, c)",
    ("cholesky", True): "{symbol}(c, c)",
    ("solve", False): "{symbol}(a, b, c)",
    ("solve", True): "{symbol}(a, c, c)",
}


@dataclass(frozen=True)
class Case:
    """One call of a solver function.

    Attributes:
        problem, config: The function and how it is computed.
        seed: Seed of the random matrices.
    """

    problem: SolverProblem
    config: SolverConfig
    seed: int = 1

    def describe(self) -> str:
        """A text with everything that is needed to reproduce the case."""
        return f"{self.problem.symbol}, {self.config}, seed {self.seed}"


def includes(problem: SolverProblem) -> list[str]:
    """Headers that the function needs."""
    return [header_of(problem)]


def launch(case: Case) -> Launch:
    """The case with random values. The triangle that must not be read holds NaN."""
    problem = case.problem
    n, columns = problem.n, problem.columns
    random = np.random.default_rng(case.seed)
    lower = np.tril(random.uniform(-1, 1, (n, n)) / max(1, n) ** 0.5) + np.diag(random.uniform(1, 2, n))
    nothing = np.triu(np.full((n, n), np.nan), 1)
    kind = "cholesky" if problem.function == "cholesky" else "solve"
    first, last = problem.operands[0], problem.operands[-1]
    if kind == "cholesky":
        triangle = np.tril(lower @ lower.T) + nothing
        tiles = (Tile.of(n, n, first), Tile.of(n, n, first), Tile.of(n, n, last))
        values = [triangle, triangle]
    else:
        triangle = lower + nothing
        if problem.function == "upper_solve":
            triangle = lower.T + nothing.T
        rhs = random.uniform(-1, 1, (n, columns))
        tiles = (Tile.of(n, n, first), Tile.of(n, columns, problem.operands[1]), Tile.of(n, columns, last))
        values = [triangle, rhs]
    a, b = (rounded(value, problem.dtype) for value in values)
    unit = solver_translation_unit(problem, case.config).replace('extern "C" __device__ ', "")
    body = unit.split("\n", 1)[1]  # without the include, which precedes the namespace
    call = _CALLS[kind, problem.in_place].format(symbol=problem.symbol)
    declarations = f"{body}\nvoid call(void*, void* a, void* b, void*, void* c) {{ {call}; }}"
    initial = (a if kind == "cholesky" else b) if problem.in_place else None
    return Launch(
        Function(case.describe(), "call", declarations), tiles, problem.threads, problem.arch, (a, b, initial)
    )


def error_of(case: Case, launched: Launch, outcome: Outcome) -> str:
    """The error of an outcome, or "".

    The bounds are of the backward error: A - L L^T and T X - Y are at most (n + 8) u times the products of absolute
    values (Higham, Accuracy and Stability of Numerical Algorithms, theorems 8.5, 10.3 and 10.4, with a reciprocal in
    place of each division), twice that for two solves.
    """
    if outcome.error:
        return outcome.error
    a, b, _ = launched.values
    tile = launched.tiles[2]
    if tile.gaps(outcome.c_bytes) != tile.gaps(tile.pack(np.full((tile.rows, tile.columns), np.nan))):
        return f"{case.describe()}: the gaps of the result changed"
    problem, c = case.problem, outcome.c
    unit = (problem.n + 8) * ROUNDOFF[problem.dtype] * 1.01
    if problem.function == "cholesky":
        rest, allowed = c @ c.T - (np.tril(a) + np.tril(a, -1).T), unit * (np.abs(c) @ np.abs(c.T))
        if np.any(np.triu(c, 1)):
            return f"{case.describe()}: there are numbers above the diagonal"
    else:
        triangle = np.triu(a) if problem.function == "upper_solve" else np.tril(a)
        factors = [triangle, triangle.T] if problem.function == "cholesky_solve" else [triangle]
        rest, allowed = c, np.abs(c)
        for factor in reversed(factors):
            rest, allowed = factor @ rest, np.abs(factor) @ allowed
        rest, allowed = rest - b, unit * len(factors) * 2 * allowed
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.abs(rest) / allowed
    return wrong_elements(case.describe(), excess)


def usual(problem: SolverProblem, seed: int = 1) -> Case:
    """A case with the configuration that is chosen."""
    return Case(problem, choose(problem), seed)


CASES = 600
BATCH = 60
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 24, 27, 31, 32, 33, 37, 48, 49, 64, 80, 96, 100, 128]
COLUMNS = [1, 1, 1, 2, 3, 4, 5, 8, 16, 31, 33, 64]
FUNCTIONS: list[SolverFunction] = ["cholesky", "cholesky", "cholesky_solve", "lower_solve", "upper_solve"]


def draw_operand(draw: random.Random, dtype: DType, rows: int, columns: int) -> Operand:
    size = DTYPE_BYTES[dtype]
    arrangement: Arrangement = draw.choice(["row_major", "col_major"])
    dense = columns if arrangement == "row_major" else rows
    leading_dimension = dense + draw.choice([0, 0, 0, 1, 4])
    alignment = draw.choice([size, math.gcd(16, leading_dimension * size)])
    return Operand(dtype, arrangement, leading_dimension, alignment)


def draw_case(seed: int) -> Case:
    """A case of a size, layout, alignment, block and architecture that is drawn; now and then of its own lanes."""
    draw = random.Random(seed)
    function, n, dtype = draw.choice(FUNCTIONS), draw.choice(SIZES), draw.choice(("float32", "float64"))
    in_place = draw.random() < 0.4
    columns = n if function == "cholesky" else draw.choice(COLUMNS)
    triangle = draw_operand(draw, dtype, n, n)
    if function == "cholesky":
        operands = (triangle, triangle if in_place else draw_operand(draw, dtype, n, n))
    else:
        rhs = draw_operand(draw, dtype, n, columns)
        operands = (triangle, rhs, rhs if in_place else draw_operand(draw, dtype, n, columns))
    threads = 32 * draw.choice([1, 1, 2, 3, 4, 8, 16, 32])
    problem = SolverProblem(function, n, columns, operands, in_place, threads, draw.choice([75, 80, 90, 120]))
    case = usual(problem, seed)
    if function != "cholesky" and draw.random() < 0.3:
        return Case(problem, SolverConfig(min(32, case.config.lanes * draw.choice([2, 4]))), seed)
    return case


@pytest.mark.slow
@pytest.mark.parametrize("first", some(range(0, CASES, BATCH), 2))
def test_drawn_functions(emulator: Emulator, first: int) -> None:
    cases = [draw_case(seed) for seed in range(first, first + BATCH)]
    launches = [launch(case) for case in cases]
    errors = [error_of(*one) for one in zip(cases, launches, emulator.run(launches, [SolverProvider.header]))]
    assert [error for error in errors if error] == []


def test_a_wrong_element_is_noticed(emulator: Emulator) -> None:
    """The check of results can fail: here one element of a correct outcome is changed."""
    right = draw_case(next(seed for seed in range(99) if draw_case(seed).problem.function == "lower_solve"))
    launched = launch(right)
    (outcome,) = emulator.run([launched], [SolverProvider.header])
    assert error_of(right, launched, outcome) == ""
    outcome.c[0, 0] += 0.01
    assert "elements are wrong" in error_of(right, launched, outcome)


# ---- whole kernels

SHAPES = [(1, 1), (6, 3), (16, 0), (33, 5)]
TOLERANCES = {"float32": {"rtol": 2e-4, "atol": 5e-5}, "float64": {"rtol": 1e-11, "atol": 1e-12}}


def named(shapes: list[tuple[int, int]]) -> dict[str, str]:
    """Names of the kernels of a text, by shape and body."""
    bodies = itertools.product(shapes, BODIES)
    return {f"{shape} {body}": f"kernel{number}" for number, (shape, body) in enumerate(bodies)}


def check_whole(kernels: Runs, shape: tuple[int, int], body: str, dtype: str, tolerance: dict[str, float]) -> None:
    """Launches a kernel, and its adjoint if Warp has one."""
    a, b = inputs(*shape, dtype)
    exact = [value.astype(float) for value in (a, b)]
    expected = REFERENCES[body](*exact)
    arrays = kernels.run(f"{shape} {body}", (1,), [a, b, np.full_like(a, np.nan), np.full_like(b, np.nan)])
    for name, values in zip("LX", expected):
        np.testing.assert_allclose(arrays[name], values, **tolerance, err_msg=name)
    if body not in DIFFERENTIABLE:
        return
    random_numbers = np.random.default_rng(1)
    seeds = tuple(random_numbers.uniform(-1, 1, value.shape).astype(dtype) for value in (a, b))
    results = [np.ascontiguousarray(values.astype(dtype)) for values in expected]
    after = kernels.run(f"{shape} {body}", (1,), [a, b, *results], [np.zeros_like(a), np.zeros_like(b), *seeds])
    for name, values in zip(("adj_A", "adj_B"), gradients(body, *exact, seeds)):
        np.testing.assert_allclose(after[name], values, **tolerance, err_msg=name)


def check_singular(kernels: Runs, shape: tuple[int, int], dtype: str) -> None:
    """As with libmathdx, a zero on the diagonal divides: the rows before it are right, and its row is infinite."""
    a, b = inputs(*shape, dtype)
    a[-1, -1], above = 0, np.tril(a)[:-1, :-1].astype(float)
    found = kernels.run(f"{shape} solve alone", (1,), [a, b, np.zeros_like(a), np.zeros_like(b)])["X"]
    np.testing.assert_allclose(found[:-1], np.linalg.solve(above, b[:-1].astype(float)), rtol=2e-4, atol=5e-5)
    assert np.all(np.isinf(found[-1]))


def check_bad_pivots(kernels: Runs, shape: tuple[int, int], dtype: str) -> None:
    """Pivots before it are right, and it is zero or NaN. A subnormal pivot counts as zero, whatever its sign."""
    a, b = inputs(*shape, dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    for value, order in itertools.product((0.0, -0.0, tiny, -tiny, -1.0), (0, len(a) // 2, len(a) - 1)):
        spoiled = a.copy()
        spoiled[order, :], spoiled[:, order] = 0, 0
        spoiled[order, order] = value
        arrays = kernels.run(f"{shape} upper factor", (1,), [spoiled, b, np.zeros_like(a), np.zeros_like(b)])
        pivots = np.diagonal(arrays["L"])
        expected = np.linalg.cholesky(a[:order, :order].astype(float))
        np.testing.assert_allclose(pivots[:order], np.diagonal(expected), rtol=1e-5)
        assert pivots[order] == 0 if value > -tiny else np.isnan(pivots[order]), (value, order)


@pytest.fixture(scope="module", params=TOLERANCES)
def emulated(
    request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Kernels]:
    text = kernels_text(request.param, SHAPES)
    return request.param, build(machine, tmp_path_factory.mktemp("generated"), text, names=named(SHAPES))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_kernels(emulated: tuple[str, Kernels], shape: tuple[int, int], body: str) -> None:
    dtype, kernels = emulated
    check_whole(kernels, shape, body, dtype, TOLERANCES[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_singular_triangle_has_no_finite_solution(emulated: tuple[str, Kernels], shape: tuple[int, int]) -> None:
    dtype, kernels = emulated
    check_singular(kernels, shape, dtype)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_a_factor_ends_at_the_first_pivot_that_is_not_positive(
    emulated: tuple[str, Kernels], shape: tuple[int, int]
) -> None:
    dtype, kernels = emulated
    check_bad_pivots(kernels, shape, dtype)
