"""The configurations of a search."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.errors import TuningError
from warp_tiles.tuning.factory import Limits, Random, Space, checked_configs
from warp_tiles.tuning.record import identity

NUMBERS = [{"x": number} for number in range(40)]


@given(st.lists(st.integers(), min_size=1, max_size=4, unique=True), st.lists(st.integers(), min_size=1, unique=True))
def test_a_space_holds_every_combination_in_order_that_matches_its_constraints(
    first: list[int], second: list[int]
) -> None:
    wanted = [{"a": a, "b": b} for a, b in itertools.product(first, second) if a <= b]
    space = Space(a=first, b=second, constraints=[lambda c: c["a"] <= c["b"]])
    if wanted:
        assert list(space.configs()) == wanted
    else:
        with pytest.raises(TuningError, match="no configuration"):
            space.configs()


def test_a_constraint_can_use_the_limits_of_the_device() -> None:
    space = Space(tile=[32, 64, 128], constraints=[lambda c, limits: c["tile"] ** 2 * 4 <= limits.shared_bytes])
    assert [config["tile"] for config in space.configs(Limits(16_384, registers=65_536))] == [32, 64]
    assert len(space.configs()) == 3


@pytest.mark.parametrize(
    ("values", "text"),
    [
        *(({name: value}, "") for name, value in (("a", []), ("a", [1, 1]), ("a", "text"), ("a", 3))),
        ({}, ""),
        ({"a": range(1001), "b": range(1000)}, ""),
        *(({"a": [1], "constraints": value}, "constraints is") for value in (3, [3], lambda config: True)),
        ({"a": [1], "constraints": [lambda c: c["b"]]}, r"a constraint failed for \{'a': 1\}: KeyError"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_invalid_spaces_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(TuningError, match=text or None):
        Space(**values).configs()


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ([], "are empty"),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], "twice"),
        ([{"a": object()}], "no JSON form"),
        ([{"a": float("nan")}], "no JSON form"),
        ([3], "hold 3"),
        ([{1: 2}], "hold {1: 2}"),
    ],
)
def test_configurations_that_cannot_be_tuned(configs: list[Any], text: str) -> None:
    with pytest.raises(TuningError, match=text):
        checked_configs(configs)


@given(st.integers(1, 60), st.integers(0, 5))
def test_a_random_subset_is_the_same_each_time(n: int, seed: int) -> None:
    chosen = Random(n, seed).candidates(NUMBERS)
    assert chosen == Random(n, seed).candidates(NUMBERS)
    assert len({identity(config) for config in chosen}) == len(chosen) == min(n, len(NUMBERS))
    assert all(config in NUMBERS for config in chosen)


def test_another_seed_picks_other_configurations_and_another_number_is_refused() -> None:
    assert len({tuple(map(identity, Random(5, seed).candidates(NUMBERS))) for seed in range(5)}) > 1
    for n in (0, 1.5, "4"):
        with pytest.raises(TuningError, match="n of the random subset"):
            Random(n)  # type: ignore[arg-type]
