"""Gradients of all solver builtins on a GPU through ``wp.Tape``, with ``solver_gradients="own"``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.solver_gradients import CALLS, CHAINS, chain_gradients, chain_text, draw, text_of
from tests.solver_kernels import Values, inputs

pytestmark = pytest.mark.gpu

SIZES = [1, 5, 8, 16, 24, 33, 64]
COLUMNS = [0, 1, 3, 16, 33]
TOLERANCES = {"float32": 3e-4, "float64": 1e-11}  # of the largest element
CASES = 2 * len(CALLS)  # of a module
CHAIN_SHAPES = [(5, 0), (16, 3), (33, 8)]
MODULES = [("float32", 64), ("float64", 64), ("float32", 256), ("float64", 32)]


@pytest.fixture(scope="module", params=range(len(MODULES)), ids=[f"{dtype}-{threads}" for dtype, threads in MODULES])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def backward(gpu: str, kernel: Any, threads: int, values: list[Values], gradients: dict[int, Values]) -> list[Values]:
    """The gradients of all arrays, given those of some."""
    arrays = [wp.array(value, device=gpu, requires_grad=True) for value in values]
    with wp.Tape() as tape:
        wp.launch_tiled(kernel, dim=1, inputs=arrays, block_dim=threads, device=gpu)
    tape.backward(grads={arrays[index]: wp.array(value, device=gpu) for index, value in gradients.items()})
    return [array.grad.numpy() for array in arrays]


def check(found: Values, expected: Values, dtype: str, name: str) -> None:
    largest = max(np.max(np.abs(expected)), 1e-3)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCES[dtype] * largest, err_msg=name)


def test_every_builtin(gpu: str, number: int) -> None:
    dtype, threads = MODULES[number]
    seeds = range(1000 + number * CASES, 1000 + (number + 1) * CASES)
    cases = [draw(seed, SIZES, COLUMNS) for seed in seeds]
    with warp_tiles.enabled(), warp_tiles.override(solver_gradients="own"):
        module: ModuleType = load(text_of(cases, dtype), block_dim=threads)
        for index, (case, seed) in enumerate(zip(cases, seeds)):
            t, y, gradient = case.inputs(seed, dtype)
            kernel = getattr(module, f"kernel{index}")
            found = backward(gpu, kernel, threads, [t, y, np.zeros_like(gradient)], {2: gradient})
            for expected, values in zip(case.gradients(*(each.astype(float) for each in (t, y, gradient))), found):
                check(values, expected, dtype, str(case))


def test_operands_that_are_used_before_and_after_a_solver_in_place(gpu: str, number: int) -> None:
    dtype, threads = MODULES[number]
    with warp_tiles.enabled(), warp_tiles.override(solver_gradients="own"):
        module: ModuleType = load(chain_text(dtype, CHAIN_SHAPES), block_dim=threads)
        for index, (shape, name) in enumerate((shape, name) for shape in CHAIN_SHAPES for name in CHAINS):
            a, b = inputs(*shape, dtype)
            random_numbers = np.random.default_rng(index)
            seeds = tuple(random_numbers.uniform(-1, 1, each.shape).astype(dtype) for each in (a, b))
            kernel = getattr(module, f"kernel{index}")
            found = backward(
                gpu, kernel, threads, [a, b, np.zeros_like(a), np.zeros_like(b)], {2: seeds[0], 3: seeds[1]}
            )
            for expected, values in zip(chain_gradients(name, a.astype(float), b.astype(float), seeds), found):
                check(values, expected, dtype, f"{name} {shape}")


def test_a_tape_warns_of_a_gradient_that_warp_lacks(gpu: str) -> None:
    case = draw(CALLS.index("tile_cholesky_solve"), [8], [3])
    module = load(text_of([case], "float32"), block_dim=64)
    values = case.inputs(1, "float32")
    arrays = [wp.array(value, device=gpu, requires_grad=True) for value in values]
    with warp_tiles.enabled(), wp.Tape(), pytest.warns(RuntimeWarning, match="has no gradient: Warp has none"):
        wp.launch_tiled(module.kernel0, dim=1, inputs=arrays, block_dim=64, device=gpu)
