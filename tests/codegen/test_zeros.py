"""What a tile holds where a loop begins: zeros only if every way there says so."""

from __future__ import annotations

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.trace import Loop, Node
from warp_tiles.codegen.zeros import holds_zeros

C, D = t.tile("c"), t.tile("d")
HERE = t.loop()


def zero(*nodes: Node, before: Loop = HERE) -> bool:
    function = t.function(*nodes)
    return holds_zeros(t.module(function), function, before, C)


def test_zeros_before_it() -> None:
    assert zero(t.zeros(C), HERE)
    assert not zero(t.zeros(D), HERE)
    assert not zero(HERE)
    assert not zero(HERE, t.zeros(C)), "they come later"
    assert not zero(t.operation("tile_ones", results=(C,)), HERE)


def test_what_stands_between() -> None:
    assert zero(t.zeros(C), t.operation("tile_sum", D), HERE)
    assert zero(t.zeros(C), t.zeros(D), HERE)
    assert not zero(t.zeros(C), t.operation("tile_add_inplace", C), HERE)
    assert not zero(t.zeros(C), t.operation("tile_add_inplace", t.view("v", C)), HERE)
    assert not zero(t.zeros(C), t.operation("f", t.tile("u", memory=frozenset({"?"}))), HERE)
    assert zero(t.zeros(C), t.alias(t.view("v", C), C), HERE), "another name reads and writes nothing"
    assert zero(t.operation("tile_add_inplace", C), t.zeros(C), HERE)


def test_zeros_of_a_view_are_not_those_of_the_tile() -> None:
    assert not zero(t.operation("tile_zeros", results=(t.view("v", C),)), HERE)


@pytest.mark.parametrize("block", [t.branch, t.loop])
def test_what_a_block_before_it_does(block: type) -> None:
    assert zero(t.zeros(C), block(t.operation("tile_sum", D)), HERE)
    assert not zero(t.zeros(C), block(t.operation("tile_add_inplace", C)), HERE)
    assert not zero(block(t.zeros(C)), HERE), "it may not run"
    assert zero(t.zeros(C), block(t.alias(t.view("v", C), C)), HERE)


def test_a_branch_around_it() -> None:
    assert zero(t.zeros(C), t.branch(HERE))
    assert zero(t.branch(t.zeros(C), HERE))
    assert not zero(t.zeros(C), t.branch(t.operation("tile_add_inplace", C), HERE))
    assert not zero(t.zeros(C), t.operation("tile_add_inplace", C), t.branch(HERE))


def test_a_loop_around_it() -> None:
    assert zero(t.loop(t.zeros(C), HERE, t.operation("tile_store", C)))
    assert not zero(t.loop(HERE), t.zeros(C))
    assert not zero(t.zeros(C), t.branch(t.loop(HERE))), "an earlier iteration may have written it"


@pytest.mark.parametrize("kind", ["range", "while"])
def test_zeros_before_a_loop_around_it(kind: str) -> None:
    assert not zero(t.zeros(C), t.loop(HERE, t.operation("tile_store", C), kind=kind))  # type: ignore[arg-type]


def test_zeros_before_a_loop_around_a_branch_around_it() -> None:
    assert not zero(t.zeros(C), t.loop(t.branch(HERE)))


def test_an_unrolled_loop_around_it() -> None:
    assert zero(t.zeros(C), t.branch(t.loop(HERE, kind="unrolled")))
    assert zero(t.zeros(C), t.loop(t.operation("tile_sum", D), HERE, kind="unrolled"))
    assert not zero(t.zeros(C), t.loop(t.operation("tile_add_inplace", C), HERE, kind="unrolled"))
