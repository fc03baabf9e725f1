"""The device code of factorizations and solves on the emulator, which finds races and wrong bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.array_products.solve_cases import factor_of, matrices, read_triangle, spoiled
from tests.emulator.conftest import compiler, machine  # noqa: F401  fixtures
from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.module import Machine
from tests.integration.helpers import WARP_VERSION
from warp_tiles.array_products.solve_kernels import (
    SolveKernel,
    block_kernel,
    diagonal_kernel,
    panel_kernel,
    substitution_kernel,
)

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")
BLOCK, N = 64, 150  # no multiple of a block
DTYPES = {"float32": 1e-5, "float64": 1e-13}


class Emulated:
    """A kernel on the emulator. A call launches it, and returns the arrays afterwards."""

    def __init__(self, machine: Machine, kernel: Any, threads: int, folder: Path) -> None:  # noqa: F811
        wp.set_module_options({"block_dim": threads}, module=kernel.module)
        self._kernels = EmulatedKernels(machine, generate(kernel.module, folder, 90, threads))
        self._kernel, self._threads = kernel, threads

    def __call__(self, dim: tuple[int, ...], *arguments: Any) -> dict[str, Any]:
        dim = (*dim, self._threads)  # kernels ask for the thread
        outcome = self._kernels.forward(self._kernel, dim, arguments, tiled=False)
        assert outcome.error == ""
        return outcome.arrays


@pytest.mark.parametrize(("dtype", "upper"), [("float32", False), ("float64", True)])
def test_one_block_for_a_matrix(machine: Machine, tmp_path: Path, dtype: str, upper: bool) -> None:  # noqa: F811
    n, rows = 37, 40
    a, b = spoiled(matrices(1, n, 3), [0, 20, 0]), np.random.default_rng(2).normal(size=(3, n, 5))
    kernel = block_kernel(SolveKernel(dtype, rows, 4, 0, 32, upper, True, True), True, True, True, True)
    none = np.full((3, n, n), np.nan)
    given = [values.astype(dtype) for values in (read_triangle(a, upper), none, b, np.full(b.shape, np.nan))]
    found = Emulated(machine, kernel, 32, tmp_path / "m")((3,), n, *given, np.full(3, 7, dtype=np.int32))
    assert found["Info"].tolist() == [0, 20, 0]
    for z in (0, 2):
        np.testing.assert_allclose(found["L"][z], factor_of(a[z], upper), rtol=0, atol=DTYPES[dtype])
        np.testing.assert_allclose(found["X"][z], np.linalg.solve(a[z], b[z]), rtol=0, atol=DTYPES[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "upper"), [("float32", False), ("float64", True)])
def test_panels_and_substitutions(machine: Machine, tmp_path: Path, dtype: str, upper: bool) -> None:  # noqa: F811
    a, b = matrices(1, N, 1), np.random.default_rng(2).normal(size=(1, N, 20))
    step = 32 if dtype == "float32" else 16
    key = SolveKernel(dtype, BLOCK, 16, step, 128, upper, True, True)
    array, info = read_triangle(a, upper, 0.0).astype(dtype), np.full(1, 7, dtype=np.int32)
    factor, solve = (
        Emulated(machine, made(key), 128, tmp_path / made.__name__) for made in (diagonal_kernel, panel_kernel)
    )
    for k in range(0, N, BLOCK):
        found = factor((1,), N, 0, k, array, info)
        array, info = found["L"], found["Info"]
        below = (N - 1) // BLOCK - k // BLOCK
        if below:
            array = solve((1, below), N, 0, k, array)["L"]
    assert info.tolist() == [0]
    np.testing.assert_allclose(array, factor_of(a, upper), rtol=0, atol=DTYPES[dtype])
    x = b.astype(dtype)
    for forward in (True, False):
        x = Emulated(machine, substitution_kernel(key, forward), 128, tmp_path / f"m{forward}")(
            (1, 2), N, 0, N, array, x
        )["X"]
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=DTYPES[dtype])
