"""What is chosen where the shape of a product leaves a warp or a tensor core without work."""

from __future__ import annotations

import pytest

from tests.bench import variant_of
from warp_tiles.choose import choose


def warps_of(size: int, dtype: str, threads: int) -> tuple[int, int]:
    """Register tiles of C, and warps."""
    config = choose(variant_of(size, dtype, threads))
    return -(-size // config.tile_m) * -(-size // config.tile_n), threads // 32


@pytest.mark.parametrize("size", [12, 16, 24, 32])
def test_both_of_two_warps_work(size: int) -> None:
    tiles, warps = warps_of(size, "float32", 64)
    assert tiles % warps == 0


def test_one_of_four_warps_may_work_alone() -> None:
    assert warps_of(16, "float32", 128) == (1, 4)


@pytest.mark.parametrize("threads", [32, 64, 128])
def test_three_times_a_power_of_two_fills_tiles_of_tensor_cores(threads: int) -> None:
    config = choose(variant_of(24, "float64", threads))
    assert 24 % config.tile_n == 0
