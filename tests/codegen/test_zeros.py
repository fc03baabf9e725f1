"""A tile holds zeros at the begin of a loop only if every path to it zeroes the tile."""

from __future__ import annotations

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.operations import Effect, Operation
from warp_tiles.codegen.pipelines import fill_before, holds_zeros
from warp_tiles.codegen.trace import Loop, Node

C, D = t.tile("c"), t.tile("d")
HERE = t.loop()


def is_zero(*nodes: Node, before: Loop = HERE) -> bool:
    function = t.function(*nodes)
    return holds_zeros(t.module(function), function, before, C)


def test_zeros_before_the_loop() -> None:
    assert is_zero(t.zeros(C), HERE)
    assert not is_zero(t.zeros(D), HERE)
    assert not is_zero(HERE)
    assert not is_zero(HERE, t.zeros(C)), "the zeros come later"
    assert not is_zero(t.operation("tile_ones", results=(C,)), HERE)


def test_operations_in_between() -> None:
    assert is_zero(t.zeros(C), t.operation("tile_sum", D), HERE)
    assert is_zero(t.zeros(C), t.zeros(D), HERE)
    assert not is_zero(t.zeros(C), t.operation("tile_add_inplace", C), HERE)
    assert not is_zero(t.zeros(C), t.operation("tile_add_inplace", t.view("v", C)), HERE)
    assert not is_zero(t.zeros(C), t.operation("f", t.tile("u", memory=frozenset({"?"}))), HERE)
    assert is_zero(t.zeros(C), t.alias(t.view("v", C), C), HERE), "a view reads and writes nothing"
    assert is_zero(t.operation("tile_add_inplace", C), t.zeros(C), HERE)


def test_zeroing_a_view_does_not_zero_the_tile() -> None:
    assert not is_zero(t.operation("tile_zeros", results=(t.view("v", C),)), HERE)


@pytest.mark.parametrize("block", [t.branch, t.loop])
def test_a_block_before_the_loop(block: type) -> None:
    assert is_zero(t.zeros(C), block(t.operation("tile_sum", D)), HERE)
    assert not is_zero(t.zeros(C), block(t.operation("tile_add_inplace", C)), HERE)
    assert not is_zero(block(t.zeros(C)), HERE), "it may not run"
    assert is_zero(t.zeros(C), block(t.alias(t.view("v", C), C)), HERE)


def test_a_branch_around_the_loop() -> None:
    assert is_zero(t.zeros(C), t.branch(HERE))
    assert is_zero(t.branch(t.zeros(C), HERE))
    assert not is_zero(t.zeros(C), t.branch(t.operation("tile_add_inplace", C), HERE))
    assert not is_zero(t.zeros(C), t.operation("tile_add_inplace", C), t.branch(HERE))


def test_an_outer_loop() -> None:
    assert is_zero(t.loop(t.zeros(C), HERE, t.operation("tile_store", C)))
    assert not is_zero(t.loop(HERE), t.zeros(C))
    assert not is_zero(t.zeros(C), t.branch(t.loop(HERE))), "an earlier iteration may have written it"


@pytest.mark.parametrize("kind", ["range", "while"])
def test_zeros_before_an_outer_loop(kind: str) -> None:
    assert not is_zero(t.zeros(C), t.loop(HERE, t.operation("tile_store", C), kind=kind))  # type: ignore[arg-type]


def test_zeros_before_an_outer_loop_with_a_branch() -> None:
    assert not is_zero(t.zeros(C), t.loop(t.branch(HERE)))


def test_an_unrolled_outer_loop() -> None:
    assert is_zero(t.zeros(C), t.branch(t.loop(HERE, kind="unrolled")))
    assert is_zero(t.zeros(C), t.loop(t.operation("tile_sum", D), HERE, kind="unrolled"))
    assert not is_zero(t.zeros(C), t.loop(t.operation("tile_add_inplace", C), HERE, kind="unrolled"))


# ---- the fill that a loop makes useless


def fill_of(*nodes: Node, before: Loop = HERE) -> Operation | None:
    function = t.function(*nodes)
    return fill_before(t.module(function), function, before, C)


def test_the_fill_right_before_the_loop() -> None:
    fill = t.zeros(C, hook=7)
    assert fill_of(fill, HERE) is fill
    assert fill_of(fill, t.operation("tile_sum", D), HERE) is fill
    assert fill_of(fill, t.zeros(D, hook=8), HERE) is fill
    assert fill_of(t.zeros(C), HERE) is None, "it has no hook"
    assert fill_of(t.zeros(D, hook=7), HERE) is None


def test_fills_that_something_else_may_read() -> None:
    fill = t.zeros(C, hook=7)
    assert fill_of(fill, t.operation("tile_sum", C), HERE) is None
    assert fill_of(fill, t.alias(t.view("v", C), C), HERE) is None
    assert fill_of(fill, t.operation("break"), HERE) is None
    assert fill_of(fill, t.operation("return", effect=Effect.LEAVES), HERE) is None
    assert fill_of(fill, t.branch(), HERE) is None
    assert fill_of(fill, t.loop(), HERE) is None


@pytest.mark.parametrize("block", [t.branch, t.loop])
def test_fills_outside_the_loops_block(block: type) -> None:
    fill = t.zeros(C, hook=7)
    assert fill_of(fill, block(HERE)) is None
    assert fill_of(block(fill, HERE)) is fill
