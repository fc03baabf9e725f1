"""A solver variant as a launch, and the check of its result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.emulator.emulator import Answer, Function, Launch
from tests.emulator.gemm import ROUNDOFF
from tests.emulator.tiles import Matrix, Tile, rounded
from warp_tiles.providers.own import header_of, solver_translation_unit
from warp_tiles.solver.variant import SolverConfig, SolverVariant, choose

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
        variant, config: The function and how it is computed.
        seed: Seed of the random matrices.
    """

    variant: SolverVariant
    config: SolverConfig
    seed: int = 1

    def describe(self) -> str:
        """A text with everything that is needed to reproduce the case."""
        return f"{self.variant.symbol}, {self.config}, seed {self.seed}"


def includes(variant: SolverVariant) -> list[str]:
    """Headers that the function needs."""
    return [header_of(variant)]


def launch(case: Case) -> Launch:
    """The case with random values. The triangle that must not be read holds NaN."""
    variant = case.variant
    n, columns = variant.n, variant.columns
    random = np.random.default_rng(case.seed)
    lower = np.tril(random.uniform(-1, 1, (n, n)) / max(1, n) ** 0.5) + np.diag(random.uniform(1, 2, n))
    nothing = np.triu(np.full((n, n), np.nan), 1)
    kind = "cholesky" if variant.function == "cholesky" else "solve"
    first, last = variant.operands[0], variant.operands[-1]
    if kind == "cholesky":
        triangle = np.tril(lower @ lower.T) + nothing
        tiles = (Tile.of(n, n, first), Tile.of(n, n, first), Tile.of(n, n, last))
        values = [triangle, triangle]
    else:
        triangle = lower + nothing
        if variant.function == "upper_solve":
            triangle = lower.T + nothing.T
        rhs = random.uniform(-1, 1, (n, columns))
        tiles = (Tile.of(n, n, first), Tile.of(n, columns, variant.operands[1]), Tile.of(n, columns, last))
        values = [triangle, rhs]
    a, b = (rounded(value, variant.dtype) for value in values)
    unit = solver_translation_unit(variant, case.config).replace('extern "C" __device__ ', "")
    body = unit.split("\n", 1)[1]  # without the include, which precedes the namespace
    call = _CALLS[kind, variant.in_place].format(symbol=variant.symbol)
    declarations = f"{body}\nvoid call(void*, void* a, void* b, void*, void* c) {{ {call}; }}"
    initial = (a if kind == "cholesky" else b) if variant.in_place else None
    return Launch(
        Function(case.describe(), "call", declarations), tiles, variant.threads, variant.arch, (a, b, initial)
    )


def exact_result(case: Case, a: Matrix, b: Matrix) -> Matrix:
    """The result in float64."""
    function = case.variant.function
    if function == "cholesky":
        full = np.tril(a) + np.tril(a, -1).T
        return np.linalg.cholesky(full)
    if function == "upper_solve":
        return np.linalg.solve(np.triu(a), b)
    lower = np.tril(a)
    return np.linalg.solve(lower @ lower.T if function == "cholesky_solve" else lower, b)


def error_of(case: Case, launched: Launch, answer: Answer) -> str:
    """The error of an answer, or "".

    The bounds are of the backward error: A - L L^T and T X - Y are at most (n + 8) u times the products of absolute
    values (Higham, Accuracy and Stability of Numerical Algorithms, theorems 8.5, 10.3 and 10.4, with a reciprocal in
    place of each division), twice that for two solves.
    """
    if answer.error:
        return answer.error
    a, b, _ = launched.values
    tile = launched.tiles[2]
    if tile.gaps(answer.c_bytes) != tile.gaps(tile.pack(np.full((tile.rows, tile.columns), np.nan))):
        return f"{case.describe()}: the gaps of the result changed"
    variant, c = case.variant, answer.c
    unit = (variant.n + 8) * ROUNDOFF[variant.dtype] * 1.01
    if variant.function == "cholesky":
        rest, allowed = c @ c.T - (np.tril(a) + np.tril(a, -1).T), unit * (np.abs(c) @ np.abs(c.T))
        if np.any(np.triu(c, 1)):
            return f"{case.describe()}: there are numbers above the diagonal"
    else:
        triangle = np.triu(a) if variant.function == "upper_solve" else np.tril(a)
        factors = [triangle, triangle.T] if variant.function == "cholesky_solve" else [triangle]
        rest, allowed = c, np.abs(c)
        for factor in reversed(factors):
            rest, allowed = factor @ rest, np.abs(factor) @ allowed
        rest, allowed = rest - b, unit * len(factors) * 2 * allowed
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.abs(rest) / allowed
    if np.all(excess <= 1.0):
        return ""
    where = np.unravel_index(int(np.argmax(np.nan_to_num(excess, nan=np.inf))), excess.shape)
    return (
        f"{case.describe()}: {np.count_nonzero(~(excess <= 1.0))} of {excess.size} elements are wrong; "
        f"the residual at {tuple(map(int, where))} is {excess[where]:.3g} times the bound"
    )


def usual(variant: SolverVariant, seed: int = 1) -> Case:
    """A case with the configuration that is chosen."""
    return Case(variant, choose(variant), seed)
