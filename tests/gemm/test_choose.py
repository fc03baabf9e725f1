"""The chooser: shapes that would leave a warp or a tensor core idle, split-K, and limits.

The weights are fitted to times on an H200 (docs/templates.md). ``tests/golden`` has what they choose for its products.
"""

from dataclasses import replace

import pytest

from tests.bench import deep_problem, problem_of
from tests.emulator.gemm import operand
from warp_tiles.array_products.matmul_choice import loop_candidate
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig, MatmulProblem
from warp_tiles.gemm.choose import candidates, choose, cost
from warp_tiles.gemm.problem import DType, GemmProblem, dense_operand
from warp_tiles.gemm.tile_config import TileConfig, registers


def warp_tiles_and_warps(size: int, dtype: str, threads: int) -> tuple[int, int]:
    """The number of warp tiles of C, and the number of warps."""
    config = choose(problem_of(size, dtype, threads))
    return -(-size // config.tile_m) * -(-size // config.tile_n), threads // 32


@pytest.mark.parametrize("size", [12, 16, 24])
def test_both_warps_of_a_block_have_a_tile(size: int) -> None:
    tiles, warps = warp_tiles_and_warps(size, "float32", 64)
    assert tiles % warps == 0


def test_both_warps_have_a_tile_even_if_one_tile_would_cover_c() -> None:
    a, b = operand("float32", True, 24, 16), operand("float32", True, 32, 16)
    config = choose(GemmProblem(32, 32, 24, a, b, b, "default", 64, 90))
    assert 32 // config.tile_m * (32 // config.tile_n) == 2


def test_one_of_four_warps_may_have_the_only_tile() -> None:
    assert warp_tiles_and_warps(16, "float32", 128) == (1, 4)


@pytest.mark.parametrize(
    ("m", "n", "k", "b_row_major", "tile", "lanes_k"),
    [
        (28, 28, 16, True, (16, 16), 1),  # two tiles of 16x32 took 1.3 times as long on an H100
        (16, 16, 128, True, (8, 16), 4),  # lanes that share no sums took 1.6 times as long
        (32, 32, 32, False, (32, 32), 1),  # four tiles took 1.2 times as long
    ],
)
def test_four_warps_without_tensor_cores(
    m: int, n: int, k: int, b_row_major: bool, tile: tuple[int, int], lanes_k: int
) -> None:
    b = operand("float32", b_row_major, n if b_row_major else k, 16)
    a, c = operand("float32", True, k, 16), operand("float32", True, n, 16)
    config = choose(GemmProblem(m, n, k, a, b, c, "default", 128, 90))
    assert ((config.tile_m, config.tile_n), config.lanes_k) == (tile, lanes_k)


@pytest.mark.parametrize("threads", [32, 64, 128])
def test_fp64_tiles_may_be_24_wide(threads: int) -> None:
    assert choose(problem_of(24, "float64", threads)).tile_n == 24


def test_16_bit_tiles_are_powers_of_two() -> None:
    config = choose(problem_of(24, "float16", 64))
    assert 24 not in (config.tile_m, config.tile_n)


# ---- split-K: C has fewer warp tiles than the block has warps


@pytest.mark.parametrize(
    ("problem", "is_split"),
    [
        *(
            (deep_problem(16, 512, dtype, threads, result), True)
            for dtype, result in (("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64"))
            for threads in (64, 128, 256)
        ),
        (deep_problem(16, 512, "float16", 128, "float16"), False),  # C would round the sums
        (deep_problem(16, 512, "float16", 512), False),  # a large block
        (deep_problem(16, 32, "float64", 128, "float64"), False),  # a short K
        (problem_of(64, "float16", 128), False),  # each warp has a tile
    ],
    ids=lambda value: getattr(value, "symbol", value),
)
def test_a_long_k_is_split(problem: GemmProblem, is_split: bool) -> None:
    config = choose(problem)
    assert (config.warps_k > 1) == is_split
    assert not is_split or (config.tile_m, config.tile_n) == (16, 16)


def test_lanes_share_sums_without_tensor_cores() -> None:
    config = choose(deep_problem(8, 512, "float32", 128))
    assert (config.lanes_k > 1, config.warps_k) == (True, 1)


# ---- Products that are sensitive to limits and weights


HALF: tuple[DType, DType, DType] = ("float16", "float16", "float16")
FLOAT: tuple[DType, DType, DType] = ("float32", "float32", "float32")
BFLOAT: tuple[DType, DType, DType] = ("bfloat16", "bfloat16", "float32")


def product(m: int, n: int, k: int, dtypes: tuple[DType, DType, DType], threads: int, arch: int = 90) -> GemmProblem:
    """A product of dense row-major operands."""
    a, b, c = (dense_operand(dtype, *size) for dtype, size in zip(dtypes, ((m, k), (k, n), (m, n))))
    return GemmProblem(m, n, k, a, b, c, "default", threads, arch)


def test_a_slice_of_k_has_at_least_32_elements() -> None:
    for k in (32, 48, 64, 96, 512):
        found = {config.warps_k for config in candidates(product(16, 16, k, BFLOAT, 256))}
        assert found == {split for split in (1, 2, 4, 8) if split == 1 or k // split >= 32}


def test_lanes_hold_three_times_a_power_of_two_only_if_it_divides_c() -> None:
    for size in (16, 24, 40, 48):
        found = candidates(product(size, size, 16, FLOAT, 128))
        shares = {share for one in found for share in (one.tile_m // one.lanes_m, one.tile_n // one.lanes_n)}
        assert {share for share in shares if share % 3 == 0} == ({3, 6, 12} if size % 3 == 0 else set())


def test_tensor_cores_are_left_if_no_warp_tile_fits_the_registers() -> None:
    problem = product(8, 8, 64, HALF, 1024, 75)
    assert choose(problem).instruction == "fma"


def test_registers_beyond_those_of_a_thread_take_no_other_block_away() -> None:
    """The estimate of registers exceeds 255 here; a thread has no more, so that many blocks fit."""
    view = product(32, 32, 4, FLOAT, 32)
    large = TileConfig("fma", 32, 128, 2, 16, 1, k_vector=4)
    assert registers(view, large) > 212  # times 1.2 registers in use
    assert cost(view, large) == pytest.approx(475.5, abs=0.1)


def test_the_estimate_of_a_whole_product() -> None:
    """3.5 us of a launch, 1.5 us until a block starts, 0.2 us beside another one, steps, stores. Limits overlap."""
    gpu, small = Gpu(90, 132), MatmulConfig(32, 32, 32, 128)
    large = loop_candidate(MatmulProblem(4096, 4096, 4096), replace(small, tile_m=128, tile_n=64), gpu)
    assert loop_candidate(MatmulProblem(32, 32, 32), small, gpu).time_us == pytest.approx(6.110, abs=0.001)
    assert large.time_us == pytest.approx(3404.9, abs=0.1)
