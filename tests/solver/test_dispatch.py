"""From the tiles of a solver call to its variants: layouts, factors above and below the diagonal, vectors, adjoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from warp_tiles.gemm.dispatch import Target, Tile
from warp_tiles.gemm.problem import Operand, Role
from warp_tiles.solver.variant import OPERANDS, Function, SolverVariant, solvers

TARGET = Target(90, 64)
SOLVES: list[Function] = ["cholesky_solve", "lower_solve", "upper_solve"]


def tile(rows: int, columns: int, *, transposed: bool = False, pad: int = 0, aligned: bool = True) -> Tile:
    """A dense tile, or one with padded rows (columns of a transposed one)."""
    if transposed:
        return Tile("float32", (rows, columns), (1, rows + pad), "col_major", aligned)
    return Tile("float32", (rows, columns), (columns + pad, 1), "row_major", aligned)


def solved(function: Function, *tiles: Tile, target: Target = TARGET, **changes: Any) -> dict[Role, SolverVariant]:
    found = solvers(function, tiles, target, **changes)
    assert isinstance(found, dict)
    return found


def factored(a: Tile, result: Tile, **changes: Any) -> dict[Role, SolverVariant]:
    return solved("cholesky", a, result, **changes)


def arrangements(variant: SolverVariant) -> str:
    return "".join(operand.arrangement[0] for operand in variant.operands)


# ---- Cholesky


def test_a_factor_and_its_adjoint() -> None:
    found = factored(tile(8, 8), tile(8, 8, transposed=True))
    a, factor = Operand("float32", "row_major", 8, 16), Operand("float32", "col_major", 8, 16)
    assert found == {
        Role.FORWARD: SolverVariant("cholesky", 8, 8, (a, factor), False, 64, 90),
        Role.ADJOINT: SolverVariant("cholesky_adjoint", 8, 8, (factor, factor, a), False, 64, 90),
    }


@pytest.mark.parametrize("a", [False, True])
@pytest.mark.parametrize("factor", [False, True])
def test_an_upper_factor_is_the_transpose_of_a_lower_one(a: bool, factor: bool) -> None:
    upper = factored(tile(8, 8, transposed=a), tile(8, 8, transposed=factor), upper=True)
    lower = factored(tile(8, 8, transposed=not a), tile(8, 8, transposed=not factor))
    assert upper == lower


def test_a_factor_in_place_has_no_adjoint() -> None:
    a = tile(8, 8)
    found = factored(a, a, in_place=True)
    assert set(found) == {Role.FORWARD}
    assert found[Role.FORWARD].in_place
    assert len(set(found[Role.FORWARD].operands)) == 1


# ---- solves


@pytest.mark.parametrize("function", SOLVES)
@pytest.mark.parametrize("code", ["rrr", "crr", "rcr", "rrc", "ccc"])
def test_every_layout_of_a_solve(function: Function, code: str) -> None:
    shapes = ((8, 8), (8, 5), (8, 5))
    tiles = [tile(*shape, transposed=letter == "c") for shape, letter in zip(shapes, code)]
    forward = solved(function, *tiles)[Role.FORWARD]
    assert arrangements(forward) == code
    assert [operand.leading_dimension for operand in forward.operands] == [
        8, *(8 if letter == "c" else 5 for letter in code[1:])
    ]  # fmt: skip
    assert (forward.function, forward.n, forward.columns, forward.threads, forward.arch) == (function, 8, 5, 64, 90)


@pytest.mark.parametrize("function", SOLVES)
def test_a_vector_is_one_column(function: Function) -> None:
    vector = tile(8, 1, transposed=True)
    forward = solved(function, tile(8, 8), vector, vector)[Role.FORWARD]
    assert (forward.columns, arrangements(forward)) == (1, "rcc")


def test_only_a_cholesky_solve_knows_upper_factors() -> None:
    rhs = tile(8, 5)
    upper = solved("cholesky_solve", tile(8, 8), rhs, rhs, upper=True)
    assert arrangements(upper[Role.FORWARD]) == "crr"
    assert upper == solved("cholesky_solve", tile(8, 8, transposed=True), rhs, rhs)


def test_the_adjoint_of_a_lower_solve() -> None:
    found = solved("lower_solve", tile(8, 8), tile(8, 5, transposed=True), tile(8, 5))
    adjoint = found[Role.ADJOINT]
    triangle, y, x = found[Role.FORWARD].operands
    # a gradient lies as its tile does
    expected = {"l": triangle, "x": x, "gx": x, "gy": y, "gl": triangle}
    assert dict(zip(OPERANDS["lower_solve_adjoint"], adjoint.operands)) == expected
    assert (adjoint.n, adjoint.columns, adjoint.in_place) == (8, 5, False)


@pytest.mark.parametrize("function", ["cholesky_solve", "upper_solve"])
def test_warp_differentiates_no_other_solve(function: Function) -> None:
    assert set(solved(function, tile(8, 8), tile(8, 5), tile(8, 5))) == {Role.FORWARD}


@pytest.mark.parametrize("function", SOLVES)
def test_a_solve_in_place_has_no_adjoint(function: Function) -> None:
    rhs = tile(8, 5)
    found = solved(function, tile(8, 8), rhs, rhs, in_place=True)
    assert set(found) == {Role.FORWARD}
    forward = found[Role.FORWARD]
    assert (forward.in_place, forward.operands[1]) == (True, forward.operands[2])


# ---- leading dimensions and alignment


def test_a_view_has_its_own_leading_dimension_and_no_alignment() -> None:
    forward = factored(tile(8, 8, pad=3, aligned=False), tile(8, 8))[Role.FORWARD]
    assert forward.operands == (Operand("float32", "row_major", 11, 4), Operand("float32", "row_major", 8, 16))


@pytest.mark.parametrize(("columns", "alignment"), [(1, 4), (2, 8), (3, 4), (4, 16), (6, 8)])
def test_the_leading_dimension_limits_the_alignment(columns: int, alignment: int) -> None:
    rhs = tile(8, columns)
    assert solved("upper_solve", tile(8, 8), rhs, rhs)[Role.FORWARD].operands[1].alignment == alignment


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (16, 2), (2, 16), (1, 4)])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_other_strides_are_refused_with_the_tile_and_its_strides(position: int, strides: tuple[int, int]) -> None:
    tiles = [tile(8, 8), tile(8, 8), tile(8, 8)]
    tiles[position] = replace(tiles[position], strides=strides)
    name = ("the triangle", "the right-hand side", "the result")[position]
    reason = f"{name} with shape=(8, 8) strides={strides} cannot be expressed as a leading dimension"
    assert solvers("lower_solve", tiles, TARGET) == reason


def test_other_strides_of_a_matrix_that_is_factored_are_refused() -> None:
    found = solvers("cholesky", [replace(tile(8, 8), strides=(16, 2)), tile(8, 8)], TARGET)
    assert "the triangle" in str(found)
