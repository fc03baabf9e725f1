"""What is chosen where the shape of a product leaves a warp or a tensor core without work."""

from __future__ import annotations

import pytest

from tests.bench import deep_variant, variant_of
from tests.emulator.gemm import operand
from warp_tiles.gemm.variant import DType, GemmVariant
from warp_tiles.heuristics.choose import choose


def warps_of(size: int, dtype: str, threads: int) -> tuple[int, int]:
    """Register tiles of C, and warps."""
    config = choose(variant_of(size, dtype, threads))
    return -(-size // config.tile_m) * -(-size // config.tile_n), threads // 32


@pytest.mark.parametrize("size", [12, 16, 24])
def test_both_of_two_warps_work(size: int) -> None:
    tiles, warps = warps_of(size, "float32", 64)
    assert tiles % warps == 0


def test_both_of_two_warps_work_where_one_tile_would_fit() -> None:
    a, b = operand("float32", True, 24, 16), operand("float32", True, 32, 16)
    config = choose(GemmVariant(32, 32, 24, a, b, b, "default", 64, 90))
    assert 32 // config.tile_m * (32 // config.tile_n) == 2


def test_one_of_four_warps_may_work_alone() -> None:
    assert warps_of(16, "float32", 128) == (1, 4)


@pytest.mark.parametrize("threads", [32, 64, 128])
def test_fp64_tiles_may_be_24_wide(threads: int) -> None:
    assert choose(variant_of(24, "float64", threads)).tile_n == 24


def test_16_bit_tiles_are_powers_of_two() -> None:
    config = choose(variant_of(24, "float16", 64))
    assert 24 not in (config.tile_m, config.tile_n)


# ---- where C has fewer register tiles than the block has warps


@pytest.mark.parametrize(("dtype", "result"), [("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
@pytest.mark.parametrize("threads", [64, 128, 256])
def test_warps_share_a_long_sum(dtype: DType, result: DType, threads: int) -> None:
    config = choose(deep_variant(16, 512, dtype, threads, result))
    assert (config.tile_m, config.tile_n) == (16, 16)
    assert config.warps_k > 1


def test_warps_do_not_share_a_sum_whose_result_rounds_it() -> None:
    assert choose(deep_variant(16, 512, "float16", 128, "float16")).warps_k == 1


def test_warps_of_large_blocks_do_not_share_a_sum() -> None:
    assert choose(deep_variant(16, 512, "float16", 512)).warps_k == 1


def test_warps_do_not_share_a_short_sum() -> None:
    assert choose(deep_variant(16, 32, "float64", 128, "float64")).warps_k == 1


def test_lanes_share_sums_without_tensor_cores() -> None:
    config = choose(deep_variant(8, 512, "float32", 128))
    assert (config.lanes_k > 1, config.warps_k) == (True, 1)


def test_sums_are_not_shared_where_each_warp_has_a_tile() -> None:
    assert choose(variant_of(64, "float16", 128)).warps_k == 1
