"""Candidates of a GEMM variant: the chooser's pick is first, all of them fit, and none occurs twice."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench import ALIGNED, deep_variant, variant_of
from tests.tuning.gemm_variants import gemm_variants
from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.heuristics import limits as tile_limits
from warp_tiles.heuristics.choose import choose
from warp_tiles.tuning.gemm_space import candidates, config_of, neighbours, tile_candidates, tile_config_of
from warp_tiles.tuning.record import identity

HALF = variant_of(64, "float16", threads=128)
DEEP = deep_variant(16, 256, "float16", threads=128)


@settings(max_examples=60, deadline=None)
@given(gemm_variants(), st.integers(1, 60))
def test_every_candidate_fits_and_none_occurs_twice(variant: GemmProblem, limit: int) -> None:
    found = tile_candidates(variant, limit)
    assert 1 <= len(found) <= limit
    assert found[0] == choose(variant)
    assert len(set(found)) == len(found)
    for config in found:
        tile_limits.check(variant, config)


@settings(max_examples=20, deadline=None)
@given(gemm_variants())
def test_candidates_depend_on_the_variant_alone(variant: GemmProblem) -> None:
    assert candidates(variant) == candidates(replace(variant))
    assert len({identity(config) for config in candidates(variant)}) == len(candidates(variant))


@settings(max_examples=20, deadline=None)
@given(gemm_variants())
def test_fewer_candidates_are_the_first_of_each_half(variant: GemmProblem) -> None:
    few, many = tile_candidates(variant, 8), tile_candidates(variant, 40)
    assert few[:4] == many[: len(few[:4])]


def test_every_field_varies_among_some_candidates() -> None:
    variants = [HALF, variant_of(64, threads=128), variant_of(64, "float64", threads=128), variant_of(7), DEEP]
    found = [config for variant in variants for config in tile_candidates(variant)]
    for item in fields(TileConfig):
        assert len({getattr(config, item.name) for config in found}) > 1, item.name


def test_neighbours_reach_every_field() -> None:
    mma, lanes = choose(HALF), choose(variant_of(64, threads=128))
    reached = {
        item.name
        for config in (mma, lanes)
        for other in neighbours(config)
        for item in fields(TileConfig)
        if getattr(other, item.name) != getattr(config, item.name)
    }
    assert reached == {item.name for item in fields(TileConfig)} - {"instruction"}


def test_cublasdx_comes_last() -> None:
    found = candidates(HALF, 5)
    assert found[0] == config_of("mma", choose(HALF))
    assert found[-1] == {"provider": "cublasdx"}
    assert [config["provider"] for config in found[:-1]] == ["mma"] * 5


def test_a_variant_of_one_provider_has_candidates_of_that_one() -> None:
    narrow = replace(HALF, c=replace(HALF.c, dtype="bfloat16"))
    assert {config["provider"] for config in candidates(narrow)} == {"mma"}
    odd = replace(ALIGNED, threads=48)
    assert candidates(odd) == ({"provider": "cublasdx"},)


def test_a_variant_that_no_provider_serves_is_refused() -> None:
    with pytest.raises(UnsupportedVariant, match="arch=70"):
        candidates(replace(ALIGNED, arch=70))


@given(st.sampled_from(tile_candidates(HALF)))
def test_a_configuration_is_read_back(config: TileConfig) -> None:
    assert tile_config_of(config_of("mma", config)) == config


@pytest.mark.parametrize("config", [{"provider": "mma"}, {"provider": "mma", "tile_config": {"tile_m": 3}}])
def test_a_damaged_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a tile configuration"):
        tile_config_of(config)


def test_another_provider_has_no_tile_configuration() -> None:
    assert tile_config_of({"provider": "cublasdx"}) is None
