"""Rows of kernels.py: what a row is, the data of all, and the direct solvers of Newton's SolverKamino."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import warp as wp

KAMINO = "newton._src.solvers.kamino._src"
FACTORIZE = f"{KAMINO}.linalg.factorize"


@dataclass(frozen=True)
class Row:
    """A call that launches kernels with tile functions.

    Attributes:
        kernels: The kernels whose time counts.
        call: Restores arrays that the kernels change in place, and launches the kernels.
        outputs: The arrays that the kernels write. They have their values after each call.
        backward: True if the adjoints of the kernels are meant.
    """

    kernels: tuple[Any, ...]
    call: Callable[[], object]
    outputs: dict[str, Any]
    backward: bool = False


# ---- Data


def array(values: Any, dtype: Any = wp.float32) -> Any:
    """An array on the current device."""
    return wp.array(values, dtype=dtype)


def filled(count: int, value: int) -> Any:
    """An array of equal integers."""
    return array(np.full(count, value), wp.int32)


def offsets(count: int, step: int) -> Any:
    """The offsets of `count` parts of `step` elements."""
    return array(np.arange(count) * step, wp.int32)


def normal(*shape: int) -> np.ndarray:
    """Normally distributed numbers, the same in each call."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def positive_definite(count: int, size: int) -> np.ndarray:
    """Matrices ``m m^T / size + I``."""
    m = normal(count, size, size)
    found: np.ndarray = m @ m.transpose(0, 2, 1) / size + np.eye(size, dtype=np.float32)
    return found


def banded(count: int, size: int) -> np.ndarray:
    """Positive definite matrices of a third of the bandwidth, whose rows and columns are permuted."""
    band = size // 3
    distance = np.subtract.outer(np.arange(size), np.arange(size))
    m = normal(count, size, size) * ((distance >= 0) & (distance < band))
    order = np.random.default_rng(1).permutation(size)
    found = m @ m.transpose(0, 2, 1) / band + np.eye(size, dtype=np.float32)
    return np.ascontiguousarray(found[:, order][:, :, order])


# ---- Direct solvers


def factored(solver: Any, matrices: np.ndarray, **options: Any) -> tuple[Any, Any]:
    """A solver of Kamino's that has factored matrices. Returns it and the matrices on the device."""
    linalg = import_module(f"{KAMINO}.linalg")
    info = linalg.DenseSquareMultiLinearInfo()
    info.finalize(dimensions=[matrices.shape[1]] * len(matrices), dtype=wp.float32, device=wp.get_device())
    matrix = array(matrices.ravel())
    operator = linalg.DenseLinearOperatorData(info=info, mat=matrix)
    made = solver(operator=operator, device=wp.get_device(), **options)
    made.compute(A=matrix)
    return made, matrix


def factorization(solver: Any, matrices: np.ndarray) -> Row:
    """``compute``: the factorization, and what a solver does before it."""
    made, matrix = factored(solver, matrices)
    return Row((made._factorize_kernel,), lambda: made.compute(A=matrix), {"L": made.L})


def solve(solver: Any, matrices: np.ndarray, kernel: str = "_solve_kernel") -> Row:
    """``solve`` with one right-hand side for each matrix."""
    made, _ = factored(solver, matrices)
    b = array(normal(matrices.shape[0] * matrices.shape[1]))
    x = wp.zeros_like(b)
    return Row((getattr(made, kernel),), lambda: made.solve(b=b, x=x), {"x": x})


def solve_inplace(solver: Any, matrices: np.ndarray) -> Row:
    """``solve_inplace`` with one right-hand side for each matrix."""
    made, _ = factored(solver, matrices)
    b = array(normal(matrices.shape[0] * matrices.shape[1]))
    x = wp.zeros_like(b)

    def call() -> None:
        wp.copy(x, b)
        made.solve_inplace(x=x)

    return Row((made._solve_inplace_kernel,), call, {"x": x})


def blocked() -> Any:
    """Kamino's solver with 32x32 tiles."""
    return import_module(f"{KAMINO}.linalg").LLTBlockedSolver


def reordered() -> Any:
    """Kamino's solver with 32x32 tiles that skips zero tiles."""
    return import_module(f"{KAMINO}.linalg").LLTBlockedRCMSolver


def panels(worlds: int) -> Row:
    """The panels of a small batch in parallel: with a separate kernel for diagonal tiles, or at most 16 matrices."""
    rcm = import_module(f"{FACTORIZE}.llt_blocked_rcm")
    made, _ = factored(reordered(), banded(worlds, 128))
    kernels, info = made._parallel_factorize_kernels, made._operator.info

    def call() -> None:
        made.L.zero_()
        rcm.llt_blocked_rcm_factorize_parallel(
            kernels, info.dim, info.mio, made.tile_pattern_offsets, made._A_hat, made.tile_pattern, made.L,
            num_blocks=worlds, max_tiles=4, device=wp.get_device(),
        )  # fmt: skip

    diagonal, panel, fused = kernels
    return Row((fused,) if worlds <= 16 else (diagonal, panel), call, {"L": made.L})


def semi_sparse(worlds: int, part: str) -> Row:
    """``SemiSparseBlockCholeskySolverBatched``, whose tiles are 16x16."""
    sparse, size = import_module(f"{FACTORIZE}.llt_blocked_semi_sparse"), 96
    matrices = banded(worlds, size)
    made = sparse.SemiSparseBlockCholeskySolverBatched(worlds, size, block_size=16, device=wp.get_device())
    made.capture_sparsity_pattern(matrices[:1], np.array([size]), eq_classes=[list(range(worlds))])
    matrix, active, mask = array(matrices), filled(worlds, size), array(np.ones(worlds, bool), wp.bool)
    made.factorize(matrix, active, mask)
    if part == "factorize":
        return Row((made.cholesky_kernel,), lambda: made.factorize(matrix, active, mask), {"L": made.L})
    b = array(normal(worlds, size, 1))
    x = wp.zeros_like(b)
    return Row((made.solve_kernel,), lambda: made.solve(b, x, mask), {"x": x})


def traversal(worlds: int) -> Row:
    """The solve of LOX, over lists of tiles that are not zero."""
    lox = import_module(f"{KAMINO}.solvers.lox.llt")
    return solve(lox.LLTBlockedRCMTraversalSolver, banded(worlds, 128), "_traversal_solve_kernel")
