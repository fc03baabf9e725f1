"""Tile configurations: JSON both ways, and those that the templates refuse."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import deep_variant
from tests.emulator.gemm import operand
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import Instruction, TileConfig, problem_of

CONFIG = TileConfig("fma", 16, 8, lanes_m=8, lanes_n=4, k_vector=4, transposed=True)
_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.sampled_from(get_args(Instruction)), "bool": st.booleans(), "int": st.integers(1, 128),
}  # fmt: skip
configs = st.builds(
    TileConfig,
    **{item.name: _STRATEGIES[type(getattr(CONFIG, item.name)).__name__] for item in fields(TileConfig)},
)


@given(configs)
def test_json_round_trip(config: TileConfig) -> None:
    assert TileConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("name", [item.name for item in fields(TileConfig)])
def test_a_missing_field_is_refused(name: str) -> None:
    data = {key: value for key, value in CONFIG.to_json().items() if key != name}
    with pytest.raises(ValueError, match="not a tile configuration, which has the fields instruction, tile_m"):
        TileConfig.from_json(data)


@pytest.mark.parametrize("name", [item.name for item in fields(TileConfig)])
@pytest.mark.parametrize("value", [None, 1.0, [1], "x"])
def test_a_field_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="not a tile configuration"):
        TileConfig.from_json({**CONFIG.to_json(), name: value})


@pytest.mark.parametrize("data", [None, [], "fma", 3, {}, {**CONFIG.to_json(), "colour": 1}])
def test_json_of_something_else_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a tile configuration"):
        TileConfig.from_json(data)


def test_bools_and_integers_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="another type"):
        TileConfig.from_json({**CONFIG.to_json(), "tile_m": True})
    with pytest.raises(ValueError, match="another type"):
        TileConfig.from_json({**CONFIG.to_json(), "transposed": 1})


def test_the_description_is_short() -> None:
    assert CONFIG.describe() == "fma 16x8, lanes 8x4x1"
    assert TileConfig("mma_m16n8k16", 32, 64).describe() == "mma_m16n8k16 32x64"
    assert TileConfig("mma_m16n8k8", 16, 8, warps_k=4).describe() == "mma_m16n8k8 16x8, 4 warps along K"


# ---- limits


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
