"""Gradients of all solver builtins on a GPU through ``wp.Tape``, with ``solver_gradients="own"``."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.integration.helpers import load
from tests.solver_gradients import CALLS, Launch, chain_launches, chain_text, draw, launches_of, text_of

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


def check(gpu: str, module: ModuleType, threads: int, launches: Iterable[Launch], dtype: str) -> None:
    """Launch kernels on a tape and compare the gradients of their inputs."""
    for launch in launches:
        arrays = [wp.array(value, device=gpu, requires_grad=True) for value in launch.arrays]
        with wp.Tape() as tape:
            kernel = getattr(module, launch.kernel)
            wp.launch_tiled(kernel, dim=1, inputs=arrays, block_dim=threads, device=gpu)
        tape.backward(grads={array: wp.array(seed, device=gpu) for array, seed in zip(arrays[2:], launch.seeds)})
        for array, expected in zip(arrays, launch.expected):
            atol = TOLERANCES[dtype] * max(np.max(np.abs(expected)), 1e-3)
            np.testing.assert_allclose(array.grad.numpy(), expected, rtol=0, atol=atol, err_msg=launch.title)


def test_every_builtin(gpu: str, number: int) -> None:
    dtype, threads = MODULES[number]
    seeds = range(1000 + number * CASES, 1000 + (number + 1) * CASES)
    cases = [draw(seed, SIZES, COLUMNS) for seed in seeds]
    with warp_tiles.enabled(), warp_tiles.override(solver_gradients="own"):
        module = load(text_of(cases, dtype), block_dim=threads)
        check(gpu, module, threads, launches_of(cases, seeds, dtype), dtype)


def test_operands_that_are_used_before_and_after_a_solver_in_place(gpu: str, number: int) -> None:
    dtype, threads = MODULES[number]
    with warp_tiles.enabled(), warp_tiles.override(solver_gradients="own"):
        module = load(chain_text(dtype, CHAIN_SHAPES), block_dim=threads)
        check(gpu, module, threads, chain_launches(dtype, CHAIN_SHAPES), dtype)


def test_a_tape_warns_of_a_gradient_that_warp_lacks(gpu: str) -> None:
    case = draw(CALLS.index("tile_cholesky_solve"), [8], [3])
    module = load(text_of([case], "float32"), block_dim=64)
    values = case.inputs(1, "float32")
    arrays = [wp.array(value, device=gpu, requires_grad=True) for value in values]
    with warp_tiles.enabled(), wp.Tape(), pytest.warns(RuntimeWarning, match="has no gradient: Warp has none"):
        wp.launch_tiled(module.kernel0, dim=1, inputs=arrays, block_dim=64, device=gpu)
