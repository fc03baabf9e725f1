"""The alignment of the operands of a call, and the part of it that is promised to cuBLASDx."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gemm.tiles import dtypes, layouts, operand_tiles, product, tile
from warp_tiles.gemm.dispatch import Tile, operand_of
from warp_tiles.gemm.problem import DTYPE_BYTES, Arrangement, DType, Role
from warp_tiles.providers.cublasdx import promised


def alignments_of(a: Tile, b: Tile, c: Tile) -> tuple[int, int, int]:
    return product(a, b, c).variants[Role.FORWARD].alignments


def test_rows_of_a_multiple_of_16_bytes_are_aligned() -> None:
    assert alignments_of(tile(8, 8), tile(8, 8), tile(8, 8)) == (16, 16, 16)


@pytest.mark.parametrize(("columns", "alignment"), [(5, 4), (6, 8), (7, 4), (10, 8)])
def test_other_rows_are_aligned_to_the_largest_power_of_two_that_divides_them(columns: int, alignment: int) -> None:
    assert alignments_of(tile(8, columns), tile(columns, 8), tile(8, 8)) == (alignment, 16, 16)


def test_cublasdx_gets_a_promise_only_for_rows_of_a_multiple_of_16_bytes() -> None:
    found = product(tile(8, 6), tile(6, 8), tile(8, 8)).variants[Role.FORWARD]
    assert found.alignments == (8, 16, 16)
    assert promised(found).alignments == (4, 16, 16)


def test_the_column_length_decides_if_columns_are_contiguous() -> None:
    assert alignments_of(tile(6, 8, layout="col_major"), tile(8, 8), tile(6, 8)) == (8, 16, 16)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_with_a_base_of_unknown_alignment_only_elements_are_aligned(position: int) -> None:
    tiles = [tile(8, 8), tile(8, 8), tile(8, 8)]
    tiles[position] = tile(8, 8, aligned=False)
    expected = [16, 16, 16]
    expected[position] = 4
    assert list(alignments_of(tiles[0], tiles[1], tiles[2])) == expected


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_explicit_leading_dimension_affects_only_its_operand(position: int) -> None:
    tiles = [tile(8, 8), tile(8, 8), tile(8, 8)]
    tiles[position] = tile(8, 8, ld=12)
    assert alignments_of(tiles[0], tiles[1], tiles[2]) == (16, 16, 16)
    tiles[position] = tile(8, 8, ld=10)
    expected = [16, 16, 16]
    expected[position] = 8
    assert list(alignments_of(tiles[0], tiles[1], tiles[2])) == expected


def test_a_16_bit_result_is_aligned_like_an_operand() -> None:
    half = tile(8, 8, "float16")
    found = product(half, half, half).variants
    assert {v.alignments for v in found.values()} == {(16, 16, 16)}


@pytest.fixture(scope="module")
def warps_rule() -> Callable[..., tuple[int, int, int]]:
    """Warp's own rule. The first import of Warp takes longer than Hypothesis allows for an example."""
    build = pytest.importorskip("warp._src.build")
    if not hasattr(build, "_gemm_operand_alignments"):
        pytest.skip("this Warp has no _gemm_operand_alignments")
    rule: Callable[..., tuple[int, int, int]] = build._gemm_operand_alignments
    return rule


@given(operand_tiles(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_the_promise_to_cublasdx_follows_warps_rule(
    warps_rule: Callable[..., tuple[int, int, int]], tiles: tuple[Tile, Tile, Tile], bases: tuple[bool, bool, bool]
) -> None:
    a, b, c = (replace(each, aligned_base=base) for each, base in zip(tiles, bases))
    variant = product(a, b, c).variants[Role.FORWARD]
    leading_dimensions = (0, 0, 0) if variant.is_dense else variant.leading_dimensions
    by_warp = warps_rule(variant.dense_leading_dimensions, leading_dimensions, variant.element_alignments, bases)
    expected = list(variant.element_alignments) if by_warp == (0, 0, 0) else list(by_warp)
    assert list(promised(variant).alignments) == expected


def test_each_product_has_the_alignments_of_its_own_operands() -> None:
    found = product(tile(8, 8, aligned=False), tile(8, 8), tile(8, 8)).variants
    assert {role: v.alignments for role, v in found.items()} == {
        Role.FORWARD: (4, 16, 16),
        Role.ADJOINT_A: (16, 16, 4),
        Role.ADJOINT_B: (4, 16, 16),
    }


@given(dtypes, st.integers(1, 64), layouts, st.booleans())
def test_an_alignment_holds_for_every_row_and_column(dtype: DType, ld: int, layout: Arrangement, base: bool) -> None:
    size = DTYPE_BYTES[dtype]
    operand = operand_of(tile(1, 1, dtype, layout, ld=ld, aligned=base), layout, ld)
    assert operand.alignment == (math.gcd(16, ld * size) if base else size)
    starts = [(0 if base else size) + line * ld * size for line in range(8)]
    assert all(start % operand.alignment == 0 for start in starts)
