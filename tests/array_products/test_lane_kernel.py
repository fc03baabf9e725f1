"""The kernel of float32 and float64: which products it computes, its tiles, memory and source."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.nightly import some
from warp_tiles import settings
from warp_tiles.array_products.lane_kernel import TILES, LaneKernel
from warp_tiles.array_products.matmul_choice import candidates, choose_matmul, kernel_rejection, launch_candidate
from warp_tiles.array_products.matmul_problem import Gpu, MatmulProblem
from warp_tiles.array_products.tensor_kernel import Slices
from warp_tiles.array_products.tensor_matmul import built_kernel
from warp_tiles.build.engine import Engine
from warp_tiles.gemm.hardware import LANES, multiprocessor
from warp_tiles.gemm.problem import DTYPE_BYTES, DType
from warp_tiles.gemm.rejected import Rejected

H200 = Gpu(90, 132, "GPU")
SINGLE = MatmulProblem(4096, 4096, 4096)
FLOAT64: dict[str, Any] = {"a": "float64", "b": "float64", "out": "float64"}
DOUBLE = replace(SINGLE, **FLOAT64)
KERNELS = [
    LaneKernel(dtype, dtype, *sides, *along)
    for dtype, tiles in TILES.items()
    for sides in tiles
    for along in ((), (True, True))
]


@pytest.mark.parametrize(("problem", "instruction"), [(SINGLE, "fma"), (DOUBLE, "mma")], ids=str)
def test_large_products_have_it(problem: MatmulProblem, instruction: str) -> None:
    plan = choose_matmul(problem, H200)
    kernel, shown = plan.chosen.kernel, plan.to_json()
    assert isinstance(kernel, LaneKernel)
    assert shown["config"]["threads"] == kernel.threads
    assert shown["instruction"] == instruction
    assert shown["resident_blocks"] == kernel.resident_blocks
    assert {(way.config.cluster_m, way.config.cluster_n) for way in candidates(problem, H200)} == {(1, 1)}


# sizes for which a launch like that was faster than the loop on an H200 (docs/experiments.md)
@pytest.mark.parametrize(("problem", "sizes", "layout", "tile", "slices"), [
    (SINGLE, (4096, 4096, 4096), "nn", (256, 128), 2),
    (SINGLE, (4096, 4096, 4096), "nt", (256, 128), 2),
    (SINGLE, (4096, 4096, 4096), "tn", (128, 128), 2),
    (SINGLE, (3739, 5512, 128), "nt", (256, 128), 1),
    (SINGLE, (1688, 2496, 3832), "nt", (64, 128), 5),
    (SINGLE, (2240, 768, 3456), "tt", (64, 128), 5),
    (SINGLE, (768, 456, 2870), "tn", (64, 64), 4),
    (SINGLE, (400, 368, 3792), "nn", (64, 64), 6),
    (DOUBLE, (4096, 4096, 4096), "tn", (128, 128), 2),
    (DOUBLE, (648, 2362, 2312), "nn", (96, 64), 1),
    (DOUBLE, (552, 384, 6394), "nn", (64, 64), 7),
    (DOUBLE, (864, 96, 7080), "tt", (64, 32), 12),
], ids=str)  # fmt: skip
def test_the_launch_with_the_least_estimated_time(
    problem: MatmulProblem, sizes: tuple[int, int, int], layout: str, tile: tuple[int, int], slices: int
) -> None:
    m, n, k = sizes
    problem = replace(problem, m=m, n=n, k=k, a_transposed=layout[0] == "t", b_transposed=layout[1] == "t")
    plan = choose_matmul(problem, H200)
    config = plan.chosen.config
    assert isinstance(plan.chosen.kernel, LaneKernel)
    assert (config.tile_m, config.tile_n, config.split_k) == (*tile, slices)


@pytest.mark.parametrize("sizes", [(512, 512, 512), (64, 64, 1 << 16)], ids=str)
@pytest.mark.parametrize(("problem", "factor"), [(SINGLE, "1.05"), (DOUBLE, "0.85")], ids=str)
def test_loops_compute_products_of_few_tiles(problem: MatmulProblem, factor: str, sizes: tuple[int, int, int]) -> None:
    """They have smaller tiles, or more slices of K."""
    m, n, k = sizes
    plan = choose_matmul(replace(problem, m=m, n=n, k=k), H200)
    assert plan.rejection == Rejected("loop_faster", (factor,))
    assert f"no kernel with tensor copies: its estimated time is more than {factor} times the loop's" in plan.reason


def test_stores_of_elements_take_longest_without_another_block() -> None:
    def longer_us(*tile: int) -> float:
        vectors, elements = (
            launch_candidate(replace(SINGLE, c_alignment=alignment), (tile[0], tile[1]), 1, H200).time_us
            for alignment in (16, 8)
        )
        return elements - vectors

    assert longer_us(256, 128) > 2 * longer_us(64, 64) > 0


def test_blocks_that_start_later_are_not_spread_evenly() -> None:
    kernel = LaneKernel("float32", "float32", 64, 64, True, True)

    def time_us(blocks: int) -> float:
        return kernel.launch_us(Slices(blocks), 4096, (0, 0), 0, 132)

    assert kernel.resident_blocks == 4
    assert time_us(5 * 132) - time_us(4 * 132) > time_us(132) - time_us(0) > time_us(2 * 132) - time_us(132)


@pytest.mark.parametrize(("change", "rejected"), [
    ({"c_alignment": 0}, Rejected("kernel_alignment")),
    ({"bias": "float32", "has_function": True}, None),
    ({"c_alignment": 4, "has_beta": True}, None),
    ({"k": 128}, None),
    ({"k": 127}, Rejected("kernel_depth", ("float32", 128))),
    ({"out": "float64"}, Rejected("kernel_dtypes", ("float32",))),
    ({**FLOAT64, "bias": "float64", "has_function": True, "c_alignment": 8, "has_beta": True}, None),
    ({**FLOAT64, "k": 127}, Rejected("kernel_depth", ("float64", 128))),
    ({**FLOAT64, "b": "float32"}, Rejected("kernel_dtypes", ("float64",))),
], ids=str)  # fmt: skip
def test_which_products_it_computes(change: dict[str, Any], rejected: Rejected | None) -> None:
    assert kernel_rejection(replace(SINGLE, **change), 90) == rejected


@pytest.mark.parametrize(("problem", "n", "c_alignment", "has_map"), [
    (SINGLE, 64, 16, True), (SINGLE, 66, 16, False), (SINGLE, 64, 8, False), (DOUBLE, 66, 16, True),
    (DOUBLE, 65, 16, False),
])  # fmt: skip
def test_c_is_stored_in_vectors_if_its_rows_have_whole_ones(
    problem: MatmulProblem, n: int, c_alignment: int, has_map: bool
) -> None:
    problem = replace(problem, n=n, c_alignment=c_alignment)
    assert {way.kernel.has_map for way in candidates(problem, H200) if way.kernel} == {has_map}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_blocks_fit_a_multiprocessor(kernel: LaneKernel) -> None:
    memory = multiprocessor(90)
    blocks = kernel.resident_blocks
    assert blocks * (kernel.shared_bytes + memory.reserved_bytes) <= memory.shared_bytes
    assert blocks * kernel.threads <= memory.threads
    assert kernel.stages >= 3, "a stage is loaded while the one before is transposed and the one before that multiplied"
    rows, columns = kernel.tile_m // kernel.warps[0], kernel.tile_n // kernel.warps[1]
    accumulators = rows * columns // LANES * DTYPE_BYTES[kernel.a] // 4  # registers
    multiplying = LANES * math.prod(kernel.warps)
    assert accumulators <= memory.registers // (blocks * multiplying) // 2, "operands need registers too"


def test_an_operand_along_k_arrives_permuted() -> None:
    kernel = LaneKernel("float32", "float32", 128, 256, False, True)
    assert (kernel.boxes, kernel.swizzles) == (((32, 128), (32, 32)), (128, 0))
    double = LaneKernel("float64", "float64", 128, 64, True, False)
    assert (double.boxes, double.swizzles) == (((16, 16), (16, 64)), (128, 128))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_workspace_has_the_sums_of_slices(dtype: DType) -> None:
    kernel = LaneKernel(dtype, dtype, 64, 64, has_slices=True)
    assert kernel.workspace_bytes(Slices(5, 7, 3)) == 7 * 3 * 64 * 64 * DTYPE_BYTES[dtype]


def test_equal_constants_give_equal_sources_and_others_do_not() -> None:
    kernel = LaneKernel("float32", "float32", 128, 64, True, False, True, "float16")
    assert kernel.name == "lane_matmul_float32_float32_mk_128x64_c_float16"
    assert (
        "LaneConfig<float, wt::f16, void, 128, 64, 2, 2, false, 3, true, false, true, false, false, 8, 16>"
        in kernel.source()
    )
    changes: list[dict[str, Any]] = [
        {"tile_m": 64}, {"tile_n": 128}, {"a_along_m": False}, {"b_along_n": True}, {"has_beta": False}, {"bias": None},
        {"bias": "float32"}, {"has_slices": True}, {"has_map": False}, {"a": "float64", "out": "float64"},
    ]  # fmt: skip
    kernels = [kernel, *(replace(kernel, **change) for change in changes)]
    assert len({kernel.source() for kernel in kernels}) == len({kernel.name for kernel in kernels}) == 11


@pytest.mark.usefixtures("toolchain")
@pytest.mark.parametrize("kernel", some([
    LaneKernel("float32", "float32", 64, 64, False, True),
    LaneKernel("float64", "float64", 64, 64, True, True, has_slices=True),
    LaneKernel("float32", "float32", 128, 128, True, False, True, "float32", has_map=False),
], 2, "slow"), ids=lambda kernel: kernel.name)  # fmt: skip
def test_it_compiles(kernel: LaneKernel, tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path):
        engine = Engine()
        try:
            assert kernel.name.encode() in built_kernel(engine, kernel, settings.current())[0].payload
        finally:
            engine.close()
