"""Which reductions of rows threads compute alone."""

from typing import Any

import pytest

from tests.codegen.traces import function, number, operation, register, tile, view
from warp_tiles.codegen.operations import Operation, Scalar, Tile
from warp_tiles.codegen.stores import row_reductions

ROWS = tile("x", 64, 64)


def reduction(of: Tile = ROWS, builtin: str = "", axis: int = 1, **fields: Any) -> Operation:
    name, operands = ("tile_reduce", (Scalar(builtin),)) if builtin else ("tile_sum", ())
    results = (register("y", shape=of.shape[:1]),)
    return operation(name, *operands, of, Scalar("axis", axis), results=results, hook=number(), **fields)


def builtins(one: Operation, threads: int = 128) -> list[str]:
    return [found.reduction for found in row_reductions(function(one), threads)]


def test_sums() -> None:
    assert builtins(reduction()) == ["add"]


@pytest.mark.parametrize(
    "one",
    [
        reduction(builtin="sub"),
        reduction(builtin="mul"),  # which could fuse with a later sum
        reduction(builtin="max()"),  # a function of the user
        reduction(axis=0),
        reduction(tile("x", 64, 48)),
        reduction(tile("x", 64, 32)),
        reduction(tile("x", 64, 512)),
        reduction(tile("x", 4, 64)),
        reduction(tile("x", 64, 64, "float64")),
        reduction(tile("x", shape=(2, 64, 64))),
        reduction(tile("x", 64, 64, dense=False)),
        reduction(tile("x", 64, 64, parameter=True)),
        reduction(view("x", tile("z", 128, 64), shape=(64, 64))),
    ],
    ids=lambda one: f"{one.name} {one.tiles[0].shape} {one.tiles[0].dtype}",
)
def test_others_are_left_to_warp(one: Operation) -> None:
    assert builtins(one) == []


def test_blocks_of_whole_warps() -> None:
    assert builtins(reduction(), 48) == []
