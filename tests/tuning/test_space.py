"""The configurations of a search."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.errors import TuningError
from warp_tiles.tuning.record import identity
from warp_tiles.tuning.space import Limits, Random, Space, checked_configs

NUMBERS = [{"x": number} for number in range(40)]


def test_a_space_holds_every_combination_in_order() -> None:
    assert Space(a=[1, 2], b=["x", "y"]).configs() == (
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    )


@given(st.lists(st.integers(), min_size=1, max_size=6, unique=True), st.lists(st.integers(), min_size=1, unique=True))
def test_constraints_keep_matching_configurations(first: list[int], second: list[int]) -> None:
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


def test_a_constraint_that_fails_is_named_with_its_configuration() -> None:
    with pytest.raises(TuningError, match=r"a constraint failed for \{'a': 1\}: KeyError"):
        Space(a=[1], constraints=[lambda c: c["b"]]).configs()


@pytest.mark.parametrize(
    "values", [{}, {"a": []}, {"a": [1, 1]}, {"a": "text"}, {"a": 3}, {"a": range(1001), "b": range(1000)}], ids=str
)
def test_invalid_spaces_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(TuningError):
        Space(**values)


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


def test_another_seed_picks_other_configurations() -> None:
    assert len({tuple(map(identity, Random(5, seed).candidates(NUMBERS))) for seed in range(5)}) > 1


@pytest.mark.parametrize("constraints", [3, [3], lambda config: True])
def test_constraints_that_are_not_a_list_of_predicates(constraints: Any) -> None:
    with pytest.raises(TuningError, match="constraints is"):
        Space(a=[1], constraints=constraints)


@pytest.mark.parametrize("n", [0, 1.5, "4"])
def test_a_subset_of_another_number_is_refused(n: Any) -> None:
    with pytest.raises(TuningError, match="n of the random subset"):
        Random(n)
