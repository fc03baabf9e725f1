"""The templates in ``kernels/solver``: drawn functions one by one, and whole kernels with their gradients."""

from __future__ import annotations

import math
import random
from types import ModuleType

import numpy as np
import pytest

from tests.emulator.emulator import Emulator
from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.emulator.solver import Case, error_of, launch, usual
from tests.integration.helpers import load
from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType
from warp_tiles.gemm.variant import Arrangement, Operand
from warp_tiles.providers.solver_source import SOURCE
from warp_tiles.solver.config import SolverConfig
from warp_tiles.solver.variant import Function, SolverVariant

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
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_drawn_functions(emulator: Emulator, first: int) -> None:
    cases = [draw_case(seed) for seed in range(first, first + BATCH)]
    launches = [launch(case) for case in cases]
    errors = [error_of(*one) for one in zip(cases, launches, emulator.run(launches, [SOURCE]))]
    assert [error for error in errors if error] == []


def test_a_wrong_lane_count_is_noticed(emulator: Emulator) -> None:
    """The check of results can fail: a column shared by too few lanes lacks rows."""
    right = draw_case(next(seed for seed in range(99) if draw_case(seed).variant.function == "lower_solve"))
    launched = launch(right)
    (answer,) = emulator.run([launched], [SOURCE])
    assert error_of(right, launched, answer) == ""
    answer.c[0, 0] += 0.01
    assert "elements are wrong" in error_of(right, launched, answer)


# ---- whole kernels

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
SHAPES = [(1, 1), (6, 3), (16, 0), (33, 5)]
THREADS = 64


def kernels_text(dtype: str, shapes: list[tuple[int, int]]) -> str:
    texts = []
    for index, ((n, columns), body) in enumerate((shape, body) for shape in shapes for body in BODIES.values()):
        rank = 2 if columns else 1
        texts.append(
            KERNEL.format(
                index=index, dtype=dtype, rank=rank, n=n, shape=f"({n}, {columns})" if columns else n, body=body
            )
        )
    return "".join(texts)


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
    """Gradients of A and B by complex steps: exact but for rounding. Squire and Trapp, SIAM Review 40 (1998)."""
    step = 1e-30
    found = []
    for position, values in enumerate((a, b)):
        gradient = np.zeros(values.shape)
        for index in np.ndindex(values.shape):
            changed = [a.astype(complex), b.astype(complex)]
            changed[position][index] += 1j * step
            results = REFERENCES[body](*changed)
            gradient[index] = sum(np.sum(seed * result.imag) for seed, result in zip(seeds, results)) / step
        found.append(gradient)
    return found[0], found[1]


@pytest.fixture(scope="module", params=["float32", "float64"])
def emulated(
    request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ModuleType, EmulatedKernels]:
    module = load(kernels_text(request.param, SHAPES), block_dim=THREADS)
    folder = tmp_path_factory.mktemp("generated")
    return request.param, module, EmulatedKernels(machine, generate(module, folder, 90, THREADS))


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_kernels(emulated: tuple[str, ModuleType, EmulatedKernels], shape: tuple[int, int], body: str) -> None:
    dtype, module, kernels = emulated
    kernel = getattr(module, f"kernel{SHAPES.index(shape) * len(BODIES) + list(BODIES).index(body)}")
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
