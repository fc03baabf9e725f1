"""Solver functions on a GPU: results and gradients of whole kernels, and matrices without a factor."""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.solver_kernels import BODIES, DIFFERENTIABLE, REFERENCES, gradients, inputs, kernels_text

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1), (5, 0), (8, 8), (24, 3), (33, 40), (64, 0)]
TOLERANCES = {"float32": {"rtol": 5e-4, "atol": 1e-4}, "float64": {"rtol": 1e-10, "atol": 1e-11}}


@pytest.fixture(scope="module", params=[("float32", 32), ("float32", 256), ("float64", 64), ("float64", 96)], ids=str)
def kernels(request: pytest.FixtureRequest) -> tuple[str, int, ModuleType]:
    dtype, threads = request.param
    return dtype, threads, load(kernels_text(dtype, SHAPES), block_dim=threads)


def launch(kernel: Any, threads: int, arrays: list[Any], **options: Any) -> None:
    wp.launch_tiled(kernel, dim=1, inputs=arrays[:2], outputs=arrays[2:], block_dim=threads, **options)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients(
    gpu: str, kernels: tuple[str, int, ModuleType], shape: tuple[int, int], body: str
) -> None:
    dtype, threads, module = kernels
    kernel = getattr(module, f"kernel{SHAPES.index(shape) * len(BODIES) + list(BODIES).index(body)}")
    values = inputs(*shape, dtype)
    random_numbers = np.random.default_rng(1)
    seeds = tuple(random_numbers.uniform(-1, 1, value.shape).astype(dtype) for value in values)
    with warp_tiles.enabled():
        arrays = [wp.array(value, device=gpu, requires_grad=True) for value in (*values, *map(np.zeros_like, values))]
        with wp.Tape() if body in DIFFERENTIABLE else nullcontext() as tape:
            launch(kernel, threads, arrays, device=gpu)
        if tape is not None:
            tape.backward(grads=dict(zip(arrays[2:], (wp.array(seed, device=gpu) for seed in seeds))))
    exact = [value.astype(float) for value in values]
    for array, expected in zip(arrays[2:], REFERENCES[body](*exact)):
        np.testing.assert_allclose(array.numpy(), expected, **TOLERANCES[dtype])
    if body in DIFFERENTIABLE:
        for array, expected in zip(arrays, gradients(body, *exact, seeds)):
            np.testing.assert_allclose(array.grad.numpy(), expected, **TOLERANCES[dtype])


@pytest.mark.parametrize("n", [4, 12, 48])
@pytest.mark.parametrize("pivot", [0.0, -1.0, np.nan])
def test_a_matrix_without_a_factor(gpu: str, n: int, pivot: float) -> None:
    """As on Warp's native path, the columns before a bad pivot are right, and no later diagonal is a number."""
    module = load(kernels_text("float32", [(n, 0)]), block_dim=64)
    matrix, rhs = np.eye(n, dtype=np.float32) * 4, np.ones(n, dtype=np.float32)
    matrix[n // 2, n // 2] = pivot
    matrix[n // 2 + 1 :, n // 2] = matrix[n // 2, n // 2 + 1 :] = 0.5
    with warp_tiles.enabled():
        arrays = [wp.array(value, device=gpu) for value in (matrix, rhs, matrix * 0, rhs * 0)]
        launch(module.kernel0, 64, arrays, device=gpu)
        factor = arrays[2].numpy()
    assert np.array_equal(np.diag(factor)[: n // 2], np.full(n // 2, 2.0))
    assert not np.any(np.isfinite(np.diag(factor)[n // 2 + 1 :]))
    assert not np.any(np.triu(factor, 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_singular_triangle(gpu: str, kernels: tuple[str, int, ModuleType], shape: tuple[int, int]) -> None:
    """As with libmathdx, a zero on the diagonal makes its row infinite."""
    dtype, threads, module = kernels
    kernel = getattr(module, f"kernel{SHAPES.index(shape) * len(BODIES) + list(BODIES).index('solve alone')}")
    a, b = inputs(*shape, dtype)
    a[-1, -1] = 0
    with warp_tiles.enabled():
        arrays = [wp.array(value, device=gpu) for value in (a, b, a * 0, b * 0)]
        launch(kernel, threads, arrays, device=gpu)
    found = arrays[3].numpy()
    assert np.all(np.isfinite(found[:-1]))
    assert np.all(np.isinf(found[-1]))
