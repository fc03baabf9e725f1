"""Configurations and times as texts."""

from __future__ import annotations

import math

import pytest

from warp_tiles.cli.tune import label, microseconds


def test_a_dot_joins_nested_names_and_an_x_joins_sizes() -> None:
    config = {"provider": "mma", "tile": {"m": 64, "warps": [2, 4]}, "fast": True, "none": None, "empty": {}}
    assert label(config) == "provider=mma tile.m=64 tile.warps=2x4 fast=true none=null empty={}"
    assert label({}) == "-"


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(1.23456, "1.235 µs"), (999.0, "999 µs"), (12_345.0, "12.35 ms"), (3e6, "3 s"), (math.nan, "-"), (math.inf, "-")],
)
def test_times_have_the_unit_that_fits(time_us: float, text: str) -> None:
    assert microseconds(time_us) == text
