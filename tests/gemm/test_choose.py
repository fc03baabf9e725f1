"""The choice for products whose shape would leave a warp or a tensor core idle."""

from __future__ import annotations

import pytest

from tests.bench import deep_variant, variant_of
from tests.emulator.gemm import operand
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import DType, GemmProblem


def warp_tiles_and_warps(size: int, dtype: str, threads: int) -> tuple[int, int]:
    """The number of warp tiles of C, and the number of warps."""
    config = choose(variant_of(size, dtype, threads))
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


@pytest.mark.parametrize("threads", [32, 64, 128])
def test_fp64_tiles_may_be_24_wide(threads: int) -> None:
    assert choose(variant_of(24, "float64", threads)).tile_n == 24


def test_16_bit_tiles_are_powers_of_two() -> None:
    config = choose(variant_of(24, "float16", 64))
    assert 24 not in (config.tile_m, config.tile_n)


# ---- split-K: C has fewer warp tiles than the block has warps


@pytest.mark.parametrize(("dtype", "result"), [("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
@pytest.mark.parametrize("threads", [64, 128, 256])
def test_a_long_k_is_split(dtype: DType, result: DType, threads: int) -> None:
    config = choose(deep_variant(16, 512, dtype, threads, result))
    assert (config.tile_m, config.tile_n) == (16, 16)
    assert config.warps_k > 1


def test_k_is_not_split_if_c_would_round_the_sums() -> None:
    assert choose(deep_variant(16, 512, "float16", 128, "float16")).warps_k == 1


def test_k_is_not_split_in_large_blocks() -> None:
    assert choose(deep_variant(16, 512, "float16", 512)).warps_k == 1


def test_a_short_k_is_not_split() -> None:
    assert choose(deep_variant(16, 32, "float64", 128, "float64")).warps_k == 1


def test_lanes_share_sums_without_tensor_cores() -> None:
    config = choose(deep_variant(8, 512, "float32", 128))
    assert (config.lanes_k > 1, config.warps_k) == (True, 1)


def test_k_is_not_split_if_each_warp_has_a_tile() -> None:
    assert choose(variant_of(64, "float16", 128)).warps_k == 1
