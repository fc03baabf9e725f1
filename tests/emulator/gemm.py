"""A GEMM problem and its tile configuration as a launch, and the check of its result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.emulator.emulator import Function, Launch, Outcome
from tests.emulator.tiles import Matrix, Tile, rounded
from warp_tiles.gemm.problem import DTYPES, DType, GemmProblem, Operand
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.providers.own import OwnProvider, config_struct, problem_struct

INCLUDES = [OwnProvider.header]
# unit roundoff; half the smallest subnormal number
ROUNDOFF = {name: info.roundoff for name, info in DTYPES.items()}
UNDERFLOW: dict[DType, float] = {
    "float16": 2.0**-25,
    "bfloat16": 2.0**-134,
    "float32": 2.0**-150,
    "float64": 2.0**-1075,
}
# relative truncation errors of an fp32 operand that tensor cores read as tf32, or as two parts of tf32
TF32_ERROR = 2.0**-10
TWO_PARTS_ERROR = 2.0**-21


@dataclass(frozen=True)
class Case:
    """One call of ``wt::block_gemm``, or of its parts in a loop.

    Attributes:
        problem, config: The GEMM and its tile configuration.
        alpha, beta: Scalars.
        seed: Seed of the random A, B and C.
        loop: The number of products that a loop adds to C with ``block_gemm_add`` and ``block_gemm_finish``. 0 means
            no loop.
    """

    problem: GemmProblem
    config: TileConfig
    alpha: float = 1.0
    beta: float = 0.0
    seed: int = 1
    loop: int = 0

    def __post_init__(self) -> None:
        if self.loop and (self.alpha, self.beta) != (self.loop, 1.0):
            raise ValueError(f"a loop computes C += {self.loop} * A * B: {self}")

    def describe(self) -> str:
        """A text with everything that is needed to reproduce the case."""
        scalars = f"alpha {self.alpha}, beta {self.beta}, seed {self.seed}, loop {self.loop}"
        return f"{self.problem.symbol}, {self.config}, {scalars}"


def tiles(problem: GemmProblem) -> tuple[Tile, Tile, Tile]:
    """A, B and C in shared memory."""
    m, n, k = problem.m, problem.n, problem.k
    return (Tile.of(m, k, problem.a), Tile.of(k, n, problem.b), Tile.of(m, n, problem.c))


def launch(case: Case) -> Launch:
    """The case with random values. If beta is zero, C is NaN and must not be read."""
    problem = case.problem
    random = np.random.default_rng(case.seed)
    a, b, c = (rounded(random.uniform(-1, 1, (tile.rows, tile.columns)), tile.dtype) for tile in tiles(problem))
    structs = f"struct Gemm {{\n{problem_struct(problem)}\n{config_struct(case.config)}\n}};"
    if case.loop:
        function = Function(case.describe(), "loop", f"{structs}\n{_LOOP.format(count=case.loop)}")
    else:
        function = Function(case.describe(), "wt::block_gemm<Gemm>", structs)
    values = (a, b, c if case.beta else None)
    return Launch(function, tiles(problem), problem.threads, problem.arch, values, case.alpha, case.beta)


_LOOP = """
void loop(void*, void* a, void* b, void*, void* c)
{{
    wt::BlockGemm<Gemm>::Accumulators accumulators = {{}};
    for (int i = 0; i < {count}; ++i) wt::block_gemm_add<Gemm>(accumulators, a, b, i % 2 == 0);
    wt::block_gemm_finish<Gemm>(accumulators, c, {count} % 2 == 0);
}}
"""


def bound(case: Case, a: Matrix, b: Matrix, c: Matrix | None) -> Matrix:
    """The error bound of C, element by element. In a loop, K counts for each product.

    Sums are fp64 if an operand is, else fp32, with unit roundoff u. The error of K products and K additions in any
    order is at most (K + 1) u sum |a| |b| to first order (Higham, Accuracy and Stability of Numerical Algorithms,
    section 3.1). Scaling by alpha and beta and adding both takes three more roundings. Conversion to C's dtype takes
    one. Split-K rounds C once more for each warp. Tensor cores truncate fp32 operands to tf32. If the other operand is
    narrower and the precision is not tf32, they use two parts of tf32.
    """
    problem = case.problem
    dtypes = (problem.a.dtype, problem.b.dtype, problem.c.dtype)
    double = "float64" in dtypes
    u = ROUNDOFF["float64" if double else "float32"]
    truncation = 0.0
    if case.config.instruction != "fma" and not double:
        relative = TF32_ERROR if problem.precision == "tf32" else TWO_PARTS_ERROR
        truncation = dtypes[:2].count("float32") * relative
    products = abs(case.alpha) * (np.abs(a) @ np.abs(b))
    added = np.zeros_like(products) if c is None else abs(case.beta) * np.abs(c)
    roundings = problem.k * max(1, case.loop) + 4
    # 1 % for terms of second order
    error = 1.01 * (products * (roundings * u + truncation) + added * (2 + case.config.warps_k) * u)
    exact = exact_result(case, a, b, c)
    return np.asarray(error + ROUNDOFF[problem.c.dtype] * (np.abs(exact) + error) + UNDERFLOW[problem.c.dtype])


def exact_result(case: Case, a: Matrix, b: Matrix, c: Matrix | None) -> Matrix:
    """The result, computed in long double and rounded to float64."""
    wide = [x.astype(np.longdouble) for x in (a, b)]
    product = case.alpha * (wide[0] @ wide[1])
    return np.asarray(product if c is None else product + case.beta * c.astype(np.longdouble), dtype=np.float64)


def error_of(case: Case, launched: Launch, outcome: Outcome) -> str:
    """The error of an outcome, or ""."""
    if outcome.error:
        return outcome.error
    a, b, c = launched.values
    tile = launched.tiles[2]
    untouched = tile.pack(np.full((tile.rows, tile.columns), np.nan))
    if tile.gaps(outcome.c_bytes) != tile.gaps(untouched):
        return f"{case.describe()}: the gaps of C changed"
    expected, allowed = exact_result(case, a, b, c), bound(case, a, b, c)
    with np.errstate(over="ignore"):
        excess = np.abs(outcome.c - expected) / allowed
    return wrong_elements(case.describe(), excess)


def wrong_elements(description: str, excess: Matrix) -> str:
    """The error of a result whose elements have errors of so many times their bounds, or ""."""
    if np.all(excess <= 1.0):
        return ""
    where = np.unravel_index(int(np.argmax(np.nan_to_num(excess, nan=np.inf))), excess.shape)
    return (
        f"{description}: {np.count_nonzero(~(excess <= 1.0))} of {excess.size} elements are wrong; "
        f"the error at {tuple(map(int, where))} is {excess[where]:.3g} times the bound"
    )


def operand(dtype: DType, row_major: bool, leading_dimension: int, alignment: int) -> Operand:
    """An operand, row-major if the flag is set."""
    return Operand(dtype, "row_major" if row_major else "col_major", leading_dimension, alignment)
