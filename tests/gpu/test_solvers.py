"""Solver functions on a GPU: results and gradients of whole kernels, and matrices without a factor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.test_solvers import check_singular, check_whole, named
from tests.gpu.device import DeviceKernels
from tests.solver_kernels import BODIES, kernels_text

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1), (5, 0), (8, 8), (24, 3), (33, 40), (64, 0)]
TOLERANCES = {"float32": {"rtol": 5e-4, "atol": 1e-4}, "float64": {"rtol": 1e-10, "atol": 1e-11}}


@pytest.fixture(scope="module", params=[("float32", 32), ("float32", 256), ("float64", 64), ("float64", 96)], ids=str)
def kernels(request: pytest.FixtureRequest, gpu: str) -> tuple[str, DeviceKernels]:
    dtype, threads = request.param
    return dtype, DeviceKernels(kernels_text(dtype, SHAPES), gpu, threads, names=named(SHAPES))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients(kernels: tuple[str, DeviceKernels], shape: tuple[int, int], body: str) -> None:
    dtype, built = kernels
    check_whole(built, shape, body, dtype, TOLERANCES[dtype])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_singular_triangle(kernels: tuple[str, DeviceKernels], shape: tuple[int, int]) -> None:
    check_singular(kernels[1], shape, kernels[0])


@pytest.mark.parametrize("n", [4, 12, 48])
@pytest.mark.parametrize("pivot", [0.0, -1.0, np.nan])
def test_a_matrix_without_a_factor(gpu: str, n: int, pivot: float) -> None:
    """As on Warp's native path, the columns before a bad pivot are right, and no later diagonal is a number."""
    kernels = DeviceKernels(kernels_text("float32", [(n, 0)]), gpu)
    matrix, rhs = np.eye(n, dtype=np.float32) * 4, np.ones(n, dtype=np.float32)
    matrix[n // 2, n // 2] = pivot
    matrix[n // 2 + 1 :, n // 2] = matrix[n // 2, n // 2 + 1 :] = 0.5
    factor = kernels.run("kernel0", (1,), [matrix, rhs, matrix * 0, rhs * 0])["L"]
    assert np.array_equal(np.diag(factor)[: n // 2], np.full(n // 2, 2.0))
    assert not np.any(np.isfinite(np.diag(factor)[n // 2 + 1 :]))
    assert not np.any(np.triu(factor, 1))
