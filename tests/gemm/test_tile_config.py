"""Tile configurations: JSON both ways, and those that the templates refuse."""

import json
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import deep_problem
from tests.emulator.gemm import operand
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import Instruction, TileConfig, fits

CONFIG = TileConfig("fma", 16, 8, lanes_m=8, lanes_n=4, k_vector=4, transposed=True)
_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.sampled_from(get_args(Instruction)), "bool": st.booleans(), "int": st.integers(1, 128),
}  # fmt: skip
configs = st.builds(
    TileConfig, **{item.name: _STRATEGIES[type(getattr(CONFIG, item.name)).__name__] for item in fields(TileConfig)}
)


@given(configs)
def test_json_round_trip(config: TileConfig) -> None:
    assert TileConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


_JSON = CONFIG.to_json()


@pytest.mark.parametrize("name", _JSON)
def test_a_field_that_is_missing_or_of_another_type_is_refused(name: str) -> None:
    changes = ({name: value} for value in (None, 1.0, [1], "x"))
    for data in ({key: _JSON[key] for key in _JSON if key != name}, *({**_JSON, **change} for change in changes)):
        with pytest.raises(ValueError, match="not a tile configuration"):
            TileConfig.from_json(data)


@pytest.mark.parametrize(
    "data",
    [None, [], "fma", 3, {}, *({**_JSON, **one} for one in ({"colour": 1}, {"tile_m": True}, {"transposed": 1}))],
)
def test_other_json_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="not a tile configuration"):
        TileConfig.from_json(data)


def test_the_description_is_short() -> None:
    assert CONFIG.describe() == "fma 16x8, lanes 8x4x1"
    assert TileConfig("mma_m16n8k16", 32, 64).describe() == "mma_m16n8k16 32x64"
    assert TileConfig("mma_m16n8k8", 16, 8, warps_k=4).describe() == "mma_m16n8k8 16x8, 4 warps along K"


# ---- limits


ROWS, COLUMNS = operand("float16", True, 64, 16), operand("float16", False, 64, 16)
HALF = GemmProblem(64, 64, 64, ROWS, ROWS, ROWS, "default", 128, 90)
FLOAT = replace(HALF, a=operand("float32", True, 64, 16), b=operand("float32", True, 64, 16))
DEEP, SHORT = deep_problem(16, 96, "float16", 128), deep_problem(16, 96, "float16", 128, "float16")


@pytest.mark.parametrize("problem", [HALF, FLOAT, replace(HALF, c=COLUMNS), replace(HALF, a=COLUMNS, b=COLUMNS)])
def test_the_chosen_configuration_fits(problem: GemmProblem) -> None:
    assert fits(problem, choose(problem))


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (HALF, {"instruction": "mma_m8n8k4"}),
        (HALF, {"tile_m": 0}),
        (HALF, {"tile_n": 8, "swizzle_b": 1, "swizzle_c": 4}),
        (HALF, {"k_vector": 3}),
        (HALF, {"k_vector": 16}),
        (HALF, {"swizzle_c": 8}),
        (HALF, {"lanes_k": 64}),
        (HALF, {"tile_m": 24}),
        (HALF, {"k_vector": 2}),
        (HALF, {"tile_m": 128, "tile_n": 128}),  # registers
        (FLOAT, {"lanes_k": 64}),
        (HALF, {"warps_k": 3}),
        (HALF, {"warps_k": 8}),
        (HALF, {"warps_k": 2, "c_first": False}),
        (DEEP, {"warps_k": 4, "tile_n": 16, "k_vector": 8}),
        (DEEP, {"warps_k": 2, "k_vector": 4, "c_first": True}),
        (SHORT, {"warps_k": 2, "k_vector": 4, "c_first": False}),  # sums would be rounded
        (FLOAT, {"lanes_m": 32, "lanes_n": 1, "lanes_k": 1, "tile_m": 16}),
    ],
    ids=str,
)
def test_other_configurations_do_not_fit(problem: GemmProblem, changes: dict[str, Any]) -> None:
    assert not fits(problem, replace(choose(problem), **changes))


def test_the_swizzle_must_divide_the_reads_of_a_lane() -> None:
    narrow = replace(HALF, b=operand("float16", True, 8, 4), n=8, threads=32)
    config = replace(choose(narrow), tile_n=8, k_vector=4, swizzle_a=1)
    assert fits(narrow, replace(config, swizzle_b=4))
    thin = replace(narrow, b=operand("float64", True, 8, 8), a=operand("float64", True, 64, 8), arch=80)
    wide = replace(choose(thin), tile_n=8, k_vector=1, swizzle_a=1)
    assert fits(thin, replace(wide, swizzle_b=1))
    assert not fits(thin, replace(wide, swizzle_b=2))
