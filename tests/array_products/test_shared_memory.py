"""The chosen tiles fit the shared memory of every architecture, with all that Warp allocates for a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

import warp_tiles
from tests.nightly import some
from warp_tiles.array_products.kernels import Epilogue, TileKernel, tile_kernel
from warp_tiles.gemm.hardware import multiprocessor
from warp_tiles.gemm.matmul import choose_matmul, shared_bytes
from warp_tiles.gemm.matmul_problem import Gpu, MatmulProblem
from warp_tiles.gemm.pipeline import PipelineOverrides

pytestmark = pytest.mark.usefixtures("enabled")
LARGE = (4096, 4096, 4096, 1)
PROBLEMS = {
    "fp16": MatmulProblem(*LARGE, "float16", "float16", "float16"),
    "fp16 gradient": MatmulProblem(*LARGE, "float16", "float16", "float16", b_transposed=True, has_beta=True),
    "A in parts": MatmulProblem(
        *LARGE, "float16", "float16", "float16", b_transposed=True, split_operand="a", has_beta=True
    ),
    "B in parts": MatmulProblem(
        *LARGE, "bfloat16", "bfloat16", "bfloat16", a_transposed=True, split_operand="b", has_beta=True
    ),
    "tf32 gradient": MatmulProblem(*LARGE, tf32=True, has_beta=True),
    "fp32 gradient": MatmulProblem(*LARGE, has_beta=True),
    "fp64 gradient": MatmulProblem(*LARGE, "float64", "float64", "float64", has_beta=True),
}


# the four sizes of shared memory, and then the other architectures that have them
ARCHS = [75, 90, 80, 86, 89, 100, 120]


@pytest.mark.parametrize("main_loop", ["auto", "blocks=1", "blocks=2"])
@pytest.mark.parametrize("arch", [*some(ARCHS[:4], 2, "slow"), *some(ARCHS[4:], 0)])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_kernel_needs_no_more_than_there_is(name: str, arch: int, main_loop: str) -> None:
    problem = PROBLEMS[name]
    if problem.tf32 and arch < 80:
        problem = replace(problem, tf32=False)  # which sm_75 lacks
    config = choose_matmul(problem, Gpu(arch, 80)).config
    epilogue = Epilogue(problem.out, bias=problem.out, has_beta=problem.has_beta, sums=problem.accumulator)
    kernel = tile_kernel(
        TileKernel(
            problem.a,
            problem.b,
            config.tile,
            problem.a_transposed,
            problem.b_transposed,
            tf32=problem.tf32,
            epilogue=epilogue,
            split_operand=problem.split_operand,
            main_loop=PipelineOverrides.parse(main_loop),
        )
    )
    with warp_tiles.override(main_loop="double_buffered"):
        warp_tiles.plan(kernel, arch=arch, block_dim=config.threads)
        tiles = kernel.adj.get_total_required_shared()
    assert tiles <= shared_bytes(problem, config) <= multiprocessor(arch).block_shared_bytes
    warp_tiles.plan(kernel, arch=arch, block_dim=config.threads)
    assert kernel.adj.get_total_required_shared() <= multiprocessor(arch).block_shared_bytes
