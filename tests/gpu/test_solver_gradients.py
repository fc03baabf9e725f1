"""Gradients of all solver builtins on a GPU, with ``solver_gradients="own"``."""

from __future__ import annotations

import pytest
import warp as wp

import warp_tiles
from tests.emulator.test_solver_gradients import check
from tests.gpu.device import DeviceKernels
from tests.integration.helpers import load
from tests.solver_gradients import CALLS, chain_launches, chain_text, draw, launches_of, text_of

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


def kernels_of(text: str, number: int, gpu: str) -> DeviceKernels:
    return DeviceKernels(text, gpu, MODULES[number][1], solver_gradients="own")


def test_every_builtin(gpu: str, number: int) -> None:
    dtype, _ = MODULES[number]
    seeds = range(1000 + number * CASES, 1000 + (number + 1) * CASES)
    cases = [draw(seed, SIZES, COLUMNS) for seed in seeds]
    check(kernels_of(text_of(cases, dtype), number, gpu), launches_of(cases, seeds, dtype), TOLERANCES[dtype])


def test_operands_that_are_used_before_and_after_a_solver_in_place(gpu: str, number: int) -> None:
    dtype, _ = MODULES[number]
    kernels = kernels_of(chain_text(dtype, CHAIN_SHAPES), number, gpu)
    check(kernels, chain_launches(dtype, CHAIN_SHAPES), TOLERANCES[dtype])


def test_a_tape_warns_of_a_gradient_that_warp_lacks(gpu: str) -> None:
    case = draw(CALLS.index("tile_cholesky_solve"), [8], [3])
    module = load(text_of([case], "float32"), block_dim=64)
    values = case.inputs(1, "float32")
    arrays = [wp.array(value, device=gpu, requires_grad=True) for value in values]
    with warp_tiles.enabled(), wp.Tape(), pytest.warns(RuntimeWarning, match="has no gradient: Warp has none"):
        wp.launch_tiled(module.kernel0, dim=1, inputs=arrays, block_dim=64, device=gpu)
