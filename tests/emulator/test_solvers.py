"""The templates in ``kernels/solver``: drawn functions one by one, and whole kernels with their gradients."""

from __future__ import annotations

import math
import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.emulator.emulator import Emulator
from tests.emulator.generated import EmulatedKernels, build
from tests.emulator.module import Machine
from tests.emulator.solver import Case, error_of, launch, usual
from tests.nightly import some
from tests.solver_kernels import BODIES, DIFFERENTIABLE, REFERENCES, gradients, inputs, kernels_text
from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, Operand
from warp_tiles.providers.own import SolverProvider
from warp_tiles.solver.variant import Function, SolverConfig, SolverVariant

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

CASES = 600
BATCH = 60
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 24, 27, 31, 32, 33, 37, 48, 49, 64, 80, 96, 100, 128]
COLUMNS = [1, 1, 1, 2, 3, 4, 5, 8, 16, 31, 33, 64]
FUNCTIONS: list[Function] = ["cholesky", "cholesky", "cholesky_solve", "lower_solve", "upper_solve"]


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
    variant = SolverVariant(function, n, columns, operands, in_place, threads, draw.choice([75, 80, 90, 120]))
    case = usual(variant, seed)
    if function != "cholesky" and draw.random() < 0.3:
        return Case(variant, SolverConfig(min(32, case.config.lanes * draw.choice([2, 4]))), seed)
    return case


@pytest.mark.slow
@pytest.mark.parametrize("first", some(range(0, CASES, BATCH), 2))
def test_drawn_functions(emulator: Emulator, first: int) -> None:
    cases = [draw_case(seed) for seed in range(first, first + BATCH)]
    launches = [launch(case) for case in cases]
    errors = [error_of(*one) for one in zip(cases, launches, emulator.run(launches, [SolverProvider.header]))]
    assert [error for error in errors if error] == []


def test_a_wrong_element_is_noticed(emulator: Emulator) -> None:
    """The check of results can fail: here one element of a correct answer is changed."""
    right = draw_case(next(seed for seed in range(99) if draw_case(seed).variant.function == "lower_solve"))
    launched = launch(right)
    (answer,) = emulator.run([launched], [SolverProvider.header])
    assert error_of(right, launched, answer) == ""
    answer.c[0, 0] += 0.01
    assert "elements are wrong" in error_of(right, launched, answer)


# ---- whole kernels

SHAPES = [(1, 1), (6, 3), (16, 0), (33, 5)]


@pytest.fixture(scope="module", params=["float32", "float64"])
def emulated(
    request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ModuleType, EmulatedKernels]:
    built = build(machine, tmp_path_factory.mktemp("generated"), kernels_text(request.param, SHAPES))
    return request.param, built.module, built.emulated


def kernel_of(module: ModuleType, shape: tuple[int, int], body: str) -> Any:
    """The kernel with one of :data:`BODIES` and one of :data:`SHAPES`."""
    return getattr(module, f"kernel{SHAPES.index(shape) * len(BODIES) + list(BODIES).index(body)}")


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_kernels(emulated: tuple[str, ModuleType, EmulatedKernels], shape: tuple[int, int], body: str) -> None:
    dtype, module, kernels = emulated
    kernel = kernel_of(module, shape, body)
    a, b = inputs(*shape, dtype)
    random_numbers = np.random.default_rng(1)
    expected = REFERENCES[body](a.astype(float), b.astype(float))
    outcome = kernels.forward(kernel, (1,), [a, b, np.full_like(a, np.nan), np.full_like(b, np.nan)])
    assert outcome.error == ""
    tolerance = {"rtol": 2e-4, "atol": 5e-5} if dtype == "float32" else {"rtol": 1e-11, "atol": 1e-12}
    for name, values in zip("LX", expected):
        np.testing.assert_allclose(outcome.arrays[name], values, **tolerance, err_msg=name)
    if body not in DIFFERENTIABLE:
        return
    seeds = tuple(random_numbers.uniform(-1, 1, value.shape).astype(dtype) for value in (a, b))
    results = [np.ascontiguousarray(values.astype(dtype)) for values in expected]
    outcome = kernels.backward(kernel, (1,), [a, b, *results], [np.zeros_like(a), np.zeros_like(b), *seeds])
    assert outcome.error == ""
    for name, values in zip(("adj_A", "adj_B"), gradients(body, a.astype(float), b.astype(float), seeds)):
        np.testing.assert_allclose(outcome.arrays[name], values, **tolerance, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_singular_triangle_has_no_finite_solution(
    emulated: tuple[str, ModuleType, EmulatedKernels], shape: tuple[int, int]
) -> None:
    """As with libmathdx, a zero on the diagonal divides: the rows before it are right, and its row is infinite."""
    dtype, module, kernels = emulated
    kernel = kernel_of(module, shape, "solve alone")
    a, b = inputs(*shape, dtype)
    a[-1, -1], above = 0, np.tril(a)[:-1, :-1].astype(float)
    outcome = kernels.forward(kernel, (1,), [a, b, np.zeros_like(a), np.zeros_like(b)])
    assert outcome.error == ""
    found = outcome.arrays["X"]
    np.testing.assert_allclose(found[:-1], np.linalg.solve(above, b[:-1].astype(float)), rtol=2e-4, atol=5e-5)
    assert np.all(np.isinf(found[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_a_factor_ends_at_the_first_pivot_that_is_not_positive(
    emulated: tuple[str, ModuleType, EmulatedKernels], shape: tuple[int, int]
) -> None:
    """Pivots before it are right, and it is zero or NaN. A subnormal pivot counts as zero, whatever its sign."""
    dtype, module, kernels = emulated
    kernel = kernel_of(module, shape, "upper factor")
    a, b = inputs(*shape, dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    for value in (0.0, -0.0, tiny, -tiny, -1.0):
        for order in (0, len(a) // 2, len(a) - 1):
            spoiled = a.copy()
            spoiled[order, :], spoiled[:, order] = 0, 0
            spoiled[order, order] = value
            outcome = kernels.forward(kernel, (1,), [spoiled, b, np.zeros_like(a), np.zeros_like(b)])
            assert outcome.error == ""
            pivots = np.diagonal(outcome.arrays["L"])
            expected = np.linalg.cholesky(a[:order, :order].astype(float))
            np.testing.assert_allclose(pivots[:order], np.diagonal(expected), rtol=1e-5)
            assert pivots[order] == 0 if value > -tiny else np.isnan(pivots[order]), (value, order)
