"""Tile configurations survive a round trip through JSON. Invalid JSON is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.gemm.tile_config import Instruction, TileConfig

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
