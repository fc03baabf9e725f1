"""Configurations and times as texts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from warp_tiles.tuning.labels import aligned, common, flat, label, microseconds, shortened


def test_a_dot_joins_nested_names_and_an_x_joins_sizes() -> None:
    config = {"provider": "mma", "tile": {"m": 64, "warps": [2, 4]}, "fast": True, "none": None, "empty": {}}
    assert flat(config) == {
        "provider": "mma", "tile.m": "64", "tile.warps": "2x4", "fast": "true", "none": "null", "empty": "{}",
    }  # fmt: skip
    assert label(config, without=["fast", "none", "empty"]) == "provider=mma tile.m=64 tile.warps=2x4"
    assert label({}) == "-"


def test_aligned_lines_have_their_names_in_columns() -> None:
    lines = aligned([{"m": 16, "n": 8}, {"m": 128, "k": 4}], without=["x"])
    assert lines == ["m=16  n=8    ", "m=128     k=4"]


@pytest.mark.parametrize(
    ("configs", "shared"),
    [
        ([], {}),
        ([{"a": 1}], {}),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 3}], {"b": "2"}),
        ([{"a": 1}, {"b": 1}], {}),
        ([{"t": {"m": 1, "n": 1}}, {"t": {"m": 1, "n": 2}}], {"t.m": "1"}),
    ],
)
def test_what_all_configurations_have_in_common(configs: list[Any], shared: dict[str, str]) -> None:
    assert common(configs) == shared


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(1.23456, "1.235 µs"), (999.0, "999 µs"), (12_345.0, "12.35 ms"), (3e6, "3 s"), (math.nan, "-"), (math.inf, "-")],
)
def test_times_have_the_unit_that_fits(time_us: float, text: str) -> None:
    assert microseconds(time_us) == text


def test_texts_are_shortened_to_one_line() -> None:
    assert shortened("a\nb", 10) == "a b"
    assert shortened("x" * 20, 10) == "x" * 9 + "…"
