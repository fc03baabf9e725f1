"""The lanes of a solver, and the variants that the templates do not serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.gemm.hardware import LANES, STATIC_SHARED_BYTES, THREAD_REGISTERS
from warp_tiles.gemm.problem import DType, Operand
from warp_tiles.solver.variant import (
    MAX_ROWS,
    OPERANDS,
    Function,
    SolverVariant,
    choose,
    reason_unsupported,
    register_limit,
)


def variant(function: Function, n: int = 16, columns: int = 4, dtype: DType = "float32", threads: int = 64,
            arch: int = 90) -> SolverVariant:  # fmt: skip
    operands = (Operand(dtype, "row_major", n, 4),) * len(OPERANDS[function])
    return SolverVariant(function, n, columns if "solve" in function else n, operands, False, threads, arch)


variants = st.builds(
    variant,
    function=st.sampled_from(get_args(Function)),
    n=st.integers(1, MAX_ROWS),
    columns=st.integers(1, 300),
    dtype=st.sampled_from(["float32", "float64"]),
    threads=st.integers(1, 32).map(lambda warps: warps * LANES),
    arch=st.sampled_from([75, 80, 90, 120]),
)


# ---- refused variants


@pytest.mark.parametrize("function", get_args(Function))
def test_a_usual_variant_is_served(function: Function) -> None:
    assert reason_unsupported(variant(function)) == ""


@pytest.mark.parametrize("function", get_args(Function))
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arch": 70}, "arch=70: sm_75 is the oldest"),
        ({"threads": 48}, "threads=48: the block has to consist of whole warps: change block_dim"),
        ({"threads": 16}, "threads=16: the block has to consist of whole warps: change block_dim"),
        ({"threads": 2048}, "threads=2048: the block has to consist of whole warps: change block_dim"),
        ({"n": 257}, "n=257: shared memory does not hold a triangle of so many rows: use a smaller matrix"),
    ],
)
def test_a_rejection_names_the_field_and_its_value(function: Function, changes: dict[str, int], words: str) -> None:
    assert reason_unsupported(replace(variant(function), **changes)) == words


def test_the_scratch_memory_of_an_adjoint_is_limited() -> None:
    assert reason_unsupported(variant("cholesky_adjoint", n=110)) == ""
    assert reason_unsupported(variant("cholesky_adjoint", n=111)) == (
        f"n=111: its scratch memory has {111 * 112 * 4} of at most {STATIC_SHARED_BYTES} bytes: use a smaller matrix"
    )
    assert reason_unsupported(variant("cholesky_adjoint", n=80, dtype="float64")) != ""
    assert reason_unsupported(variant("lower_solve_adjoint", n=64, columns=189)) == ""
    assert reason_unsupported(variant("lower_solve_adjoint", n=64, columns=190)) != ""
    assert reason_unsupported(variant("cholesky", n=MAX_ROWS)) == ""


# ---- lanes


@given(variants)
def test_lanes_are_a_power_of_two_within_a_warp(variant: SolverVariant) -> None:
    assert choose(variant).lanes in (1, 2, 4, 8, 16, 32)


@given(variants)
def test_no_lane_is_without_a_row(variant: SolverVariant) -> None:
    lanes = choose(variant).lanes
    assert lanes == 1 or lanes // 2 < variant.n


def test_a_factor_has_one_lane_per_column() -> None:
    assert {choose(variant("cholesky", n=n)).lanes for n in (1, 8, 32, 64, 256)} == {1}


def test_few_columns_get_several_lanes_and_many_one() -> None:
    assert choose(variant("lower_solve", n=32, columns=1)).lanes > 1
    assert choose(variant("lower_solve", n=32, columns=64)).lanes == 1


# ---- registers


@given(variants)
def test_a_register_limit_is_a_number_that_the_linker_takes(variant: SolverVariant) -> None:
    assert 32 <= register_limit(variant) <= THREAD_REGISTERS


@pytest.mark.parametrize(
    ("function", "changes", "limit"),
    [
        ("cholesky", {"n": 32}, 56),
        ("cholesky", {"n": 96}, 255),
        ("cholesky", {"n": 64, "threads": 128}, 80),
        ("cholesky_solve", {"n": 64, "threads": 128}, 56),
        ("lower_solve", {"n": 64, "columns": 64, "threads": 128}, 128),
        ("cholesky_adjoint", {"n": 32, "threads": 256}, 72),
        ("lower_solve_adjoint", {"n": 64, "threads": 256}, 72),
        ("cholesky", {"n": 16, "dtype": "float64"}, 56),
    ],
)
def test_a_register_limit_follows_from_the_tiles_in_shared_memory(
    function: Function, changes: dict[str, Any], limit: int
) -> None:
    assert register_limit(variant(function, **changes)) == limit
