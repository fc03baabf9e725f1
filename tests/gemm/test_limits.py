"""A tile configuration that does not fit is refused with the name of the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bench import deep_variant
from tests.emulator.gemm import operand
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import problem_of

ROWS, COLUMNS = operand("float16", True, 64, 16), operand("float16", False, 64, 16)
HALF = GemmProblem(64, 64, 64, ROWS, ROWS, ROWS, "default", 128, 90)
FLOAT = replace(HALF, a=operand("float32", True, 64, 16), b=operand("float32", True, 64, 16))
DEEP, SHORT = deep_variant(16, 96, "float16", 128), deep_variant(16, 96, "float16", 128, "float16")


@pytest.mark.parametrize("variant", [HALF, FLOAT, replace(HALF, c=COLUMNS), replace(HALF, a=COLUMNS, b=COLUMNS)])
def test_the_chosen_configuration_is_accepted(variant: GemmProblem) -> None:
    assert not problem_of(variant, choose(variant))


@pytest.mark.parametrize(
    ("variant", "changes", "problem"),
    [
        (HALF, {"instruction": "mma_m8n8k4"}, "instruction is 'mma_m8n8k4', but the operands allow mma_m16n8k16, fma"),
        (HALF, {"tile_m": 0}, "tile_m is 0, not a positive number"),
        (HALF, {"tile_n": 8, "swizzle_b": 1, "swizzle_c": 4}, "swizzle_c is 4, which does not divide the 1 vectors"),
        (HALF, {"k_vector": 3}, "k_vector is 3, not a power of two"),
        (HALF, {"k_vector": 16}, "k_vector is 16, more than 8"),
        (HALF, {"swizzle_c": 8}, "swizzle_c is 8, more than 4"),
        (HALF, {"lanes_k": 64}, "only the instruction fma takes lanes_m, lanes_n and lanes_k"),
        (HALF, {"tile_m": 24}, "tile_m and tile_n must be multiples of 16 and 8"),
        (HALF, {"k_vector": 2}, "four lanes of k_vector 2 do not fill an instruction's 16 elements of K"),
        (HALF, {"tile_m": 128, "tile_n": 128}, "registers per thread, but a block of 128 threads has only 255"),
        (FLOAT, {"lanes_k": 64}, "not 32"),
        (HALF, {"warps_k": 3}, "warps_k is 3, not a power of two"),
        (HALF, {"warps_k": 8}, "warps_k is 8, which does not divide the 4 warps of the block"),
        (HALF, {"warps_k": 2, "c_first": False}, "but 4 warp tiles of C need 8 warps, and the block has 4"),
        (DEEP, {"warps_k": 4, "tile_n": 16, "k_vector": 8}, "warps_k is 4, which does not divide the 3 steps over K"),
        (
            DEEP,
            {"warps_k": 2, "k_vector": 4, "c_first": True},
            "c_first is set, but with split-K 2 warps add to C one after another",
        ),
        (SHORT, {"warps_k": 2, "k_vector": 4, "c_first": False}, "would round its accumulators to float16"),
        (FLOAT, {"lanes_m": 32, "lanes_n": 1, "lanes_k": 1, "tile_m": 16}, "lanes_m must divide tile_m"),
    ],
)
def test_an_unfit_configuration_is_refused(variant: GemmProblem, changes: dict[str, Any], problem: str) -> None:
    assert problem in problem_of(variant, replace(choose(variant), **changes))


def test_the_swizzle_must_divide_the_reads_of_a_lane() -> None:
    narrow = replace(HALF, b=operand("float16", True, 8, 4), n=8, threads=32)
    config = replace(choose(narrow), tile_n=8, k_vector=4, swizzle_a=1)
    assert not problem_of(narrow, replace(config, swizzle_b=4))
    thin = replace(narrow, b=operand("float64", True, 8, 8), a=operand("float64", True, 64, 8), arch=80)
    wide = replace(choose(thin), tile_n=8, k_vector=1, swizzle_a=1)
    problem = problem_of(thin, replace(wide, swizzle_b=2))
    assert problem == "swizzle_b is 2, which does not divide the reads of a lane in a block of K"
