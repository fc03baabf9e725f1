"""The plan of a product's kernels: pipelined loops, the pipeline that a product fixes, and shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import square
from tests.integration.plans import needs_tf32
from tests.nightly import some
from warp_tiles.array_products import prepared
from warp_tiles.array_products.call import checked
from warp_tiles.array_products.kernels import Epilogue, TileKernel, reduce_kernel, tile_kernel
from warp_tiles.array_products.matmul_choice import candidates, choose_matmul, shared_bytes
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig, MatmulProblem
from warp_tiles.gemm.hardware import multiprocessor
from warp_tiles.gemm.pipeline import PipelineOverrides

pytestmark = pytest.mark.usefixtures("enabled")
LARGE = MatmulConfig(128, 256, 64, 256)
HALF = ("float16", "bfloat16")


def loop_of(key: TileKernel, threads: int, arch: int = 90) -> dict[str, Any]:
    """The single loop of a kernel, from its plan."""
    (loop,) = warp_tiles.plan(tile_kernel(key).module, arch=arch, block_dim=threads).to_json()["loops"]
    return dict(loop)


def tiles(*problems: MatmulProblem, arch: int = 90) -> list[MatmulConfig]:
    """All tiles of loops that the chooser can choose."""
    found = [candidate.config for problem in problems for candidate in candidates(problem, Gpu(arch, 132))]
    return list({config.tile: config for config in found if not config.tensor_copies}.values())


def epilogues(dtype: Any) -> dict[str, Epilogue | None]:
    return {
        "slices": None,
        "plain": Epilogue("float32"),
        "rounded": Epilogue(dtype),
        "bias": Epilogue(dtype, bias=dtype),
        "beta": Epilogue(dtype, has_beta=True),
        "function": Epilogue(dtype, function=wp.tanh),
        "all": Epilogue(dtype, bias="float32", has_beta=True, function=square),
    }


@pytest.mark.parametrize("dtype", some(HALF, 1))
@pytest.mark.parametrize("name", epilogues("float16"))
def test_every_epilogue_and_layout(dtype: Any, name: str) -> None:
    for a_transposed, b_transposed in itertools.product((False, True), repeat=2):
        key = TileKernel(
            dtype, dtype, LARGE.tile, a_transposed, b_transposed, False, epilogues(dtype)[name],
            scaled=name != "plain",
        )  # fmt: skip
        loop = loop_of(key, LARGE.threads)
        assert (loop["state"], loop["instruction"]) == ("pipelined", "wgmma"), loop
        assert loop["stages"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "arch"), some([("float16", 80), ("bfloat16", 90), ("float16", 86), ("float16", 90), ("float16", 100)], 2)
)
def test_every_tile(dtype: Any, arch: int) -> None:
    sizes = (16, 48, 4096)
    shapes = itertools.product(sizes, sizes, (16, 4096))
    problems = [MatmulProblem(m, n, k, a=dtype, b=dtype, out=dtype) for m, n, k in shapes]
    for number, config in enumerate(tiles(*problems, arch=arch)):
        layout = bool(number % 2), bool(number % 3)
        loop = loop_of(
            TileKernel(dtype, dtype, config.tile, *layout, False, Epilogue(dtype, bias=dtype)),
            config.threads,
            arch,
        )
        assert loop["state"] == "pipelined", (config, loop)
        assert loop["instruction"], (config, loop)


@pytest.mark.parametrize("b_transposed", [False, True], ids=["", "b transposed"])
@pytest.mark.parametrize(
    ("dtype", "tf32"), [("float32", False), pytest.param("float32", True, marks=needs_tf32), ("float64", False)]
)
def test_loops_of_other_types_load_ahead(dtype: Any, tf32: bool, b_transposed: bool) -> None:
    problem = MatmulProblem(4096, 4096, 4096, a=dtype, b=dtype, out=dtype, tf32=tf32, b_transposed=b_transposed)
    for config in tiles(problem):
        epilogue = Epilogue(dtype, sums=dtype)
        loop = loop_of(TileKernel(dtype, dtype, config.tile, False, b_transposed, tf32, epilogue), config.threads)
        small = tf32 and (config.tile_m, config.tile_n) == (32, 32)  # 128 threads share too few of its sums
        assert loop["state"] in ("pipelined", *(["register_accumulators"] if small else [])), (config, loop)


def test_kernels_without_adjoints_and_without_unused_functions() -> None:
    key = TileKernel("float16", "float16", LARGE.tile, False, False, False, Epilogue("float16"))
    plan = warp_tiles.plan(tile_kernel(key).module, arch=90, block_dim=256)
    assert [(planned.role.value, planned.provider) for planned in plan.functions if planned.needed] == [
        ("forward", "stages")
    ]
    assert plan.needed == ()
    reduced = warp_tiles.plan(reduce_kernel(Epilogue("float16")).module, arch=90, block_dim=256)
    assert reduced.functions == ()


CONFIG = MatmulConfig(64, 64, 64, 128)
KEY = TileKernel("float16", "float16", (64, 64, 64), False, True, False, Epilogue("float16", bias="float16"))
STAGES = {"auto": 4, "blocks=1": 12, "blocks=2": 6, "stages=3": 3}


GPU: Any = SimpleNamespace(is_cuda=True, arch=90, sm_count=132, name="NVIDIA H200")


def main_loop() -> str:
    arrays = (wp.empty(shape, dtype=wp.float16, device="cpu") for shape in ((256, 4096), (4096, 256), (256, 256)))
    call = checked(*arrays).call
    return prepared.planned(call, GPU, CONFIG)[2].main_loop.text


@pytest.mark.parametrize("order", [list(STAGES), list(reversed(STAGES))], ids=str)
def test_kernels_that_differ_only_in_it_have_modules_of_their_own(order: Sequence[str]) -> None:
    keys = {text: replace(KEY, main_loop=PipelineOverrides.parse(text)) for text in order}
    assert len({tile_kernel(key).module.name for key in keys.values()}) == len(STAGES)
    for text in (*order, *order):
        assert loop_of(keys[text], CONFIG.threads)["stages"] == STAGES[text], text


def test_a_hash_does_not_depend_on_the_kernels_made_before() -> None:
    fresh = [replace(KEY, tile=(64, 64, 32), main_loop=PipelineOverrides.parse(text)) for text in ("blocks=1", "auto")]
    kernels = [tile_kernel(key) for order in permutations(fresh) for key in order]
    assert len({kernel.module.name for kernel in kernels}) == 2


def test_a_product_of_few_blocks_asks_for_it() -> None:
    assert main_loop() == "blocks=1"


@pytest.mark.parametrize(("always_loops", "largest"), [(False, 128), (True, 64)])
def test_float64_has_smaller_tiles_if_warp_always_writes_a_loop(
    always_loops: bool, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "always_loops", lambda: always_loops)
    a = wp.empty((2048, 2048), dtype=wp.float64, device="cpu")
    out = wp.empty_like(a)
    call = checked(a, a, out).call
    config = prepared.planned(call, GPU)[2].config
    assert max(config.tile_m, config.tile_n) == largest


@pytest.mark.parametrize("chosen", ["auto", "mma", "stages=3"])
def test_the_users_choice_counts(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warp_tiles.override(main_loop=chosen):
        assert main_loop() == "auto"
    monkeypatch.setenv("WARP_TILES_MAIN_LOOP", chosen)
    assert main_loop() == "auto"


# ---- shared memory, with all that Warp allocates for a kernel

SIZES = (4096, 4096, 4096, 1)
PROBLEMS = {
    "fp16": MatmulProblem(*SIZES, "float16", "float16", "float16"),
    "fp16 gradient": MatmulProblem(*SIZES, "float16", "float16", "float16", b_transposed=True, has_beta=True),
    "A in parts": MatmulProblem(
        *SIZES, "float16", "float16", "float16", b_transposed=True, split_operand="a", has_beta=True
    ),
    "B in parts": MatmulProblem(
        *SIZES, "bfloat16", "bfloat16", "bfloat16", a_transposed=True, split_operand="b", has_beta=True
    ),
    "tf32 gradient": MatmulProblem(*SIZES, tf32=True, has_beta=True),
    "fp32 gradient": MatmulProblem(*SIZES, has_beta=True),
    "fp64 gradient": MatmulProblem(*SIZES, "float64", "float64", "float64", has_beta=True),
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
