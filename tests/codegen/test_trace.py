"""Traces: owners of memory, tiles that may overlap, and the order of operations and loops."""

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.operations import Array, Tile
from warp_tiles.codegen.trace import loops, own_operations

A, B = t.tile("a"), t.tile("b")
UNKNOWN = t.tile("u", memory=frozenset({"?"}))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (A, A, True),
        (A, B, False),
        (A, t.view("v", A), True),
        (t.view("v", A), t.view("w", A), True),
        (t.view("v", A), B, False),
        (t.view("v", A, B), B, True),
        (A, UNKNOWN, True),
        (UNKNOWN, A, True),
        (A, t.parameter("p"), False),
    ],
)
def test_overlap_within_a_function(one: Tile, other: Tile, overlap: bool) -> None:
    assert t.context(t.function(parameters=("p",))).may_overlap(one, other) is overlap


P, Q = t.parameter("p"), t.parameter("q")


@pytest.mark.parametrize(
    ("calls", "overlap"),
    [
        ([], False), ([(A, B)], False), ([(A, A)], True), ([(A, B), (B, A)], False), ([(A, B), (B, B)], True),
        ([(A, t.view("v", A))], True), ([(A, UNKNOWN)], True), ([(A,)], True), ([(A, Array("x"))], True),
    ],
)  # fmt: skip
def test_overlap_of_parameters_is_decided_by_every_call(calls: list[tuple[Tile, ...]], overlap: bool) -> None:
    function = t.function(label="f", parameters=("p", "q"))
    kernels = (t.function(t.loop(t.call("f", *passed)), label=f"k{index}") for index, passed in enumerate(calls))
    context = t.context(function, *kernels)
    assert context.may_overlap(P, Q) is overlap
    assert context.may_overlap(Q, P) is overlap
    assert context.may_overlap(t.view("v", P), Q) is overlap
    assert context.may_overlap(P, P)


def test_overlap_of_parameters_that_are_passed_on() -> None:
    inner = t.function(label="f", parameters=("p", "q"))
    outer = t.function(t.call("f", P, Q), label="g", parameters=("p", "q"))
    for second, overlap in ((B, False), (A, True)):
        assert t.context(inner, outer, t.function(t.call("g", A, second))).may_overlap(P, Q) is overlap


def test_loops_have_their_outer_loops() -> None:
    inner = t.loop()
    middle = t.loop(t.branch(inner))
    outer, second = t.loop(middle), t.loop()
    found = list(loops((t.branch(outer), second)))
    assert found == [(outer, ()), (middle, (outer,)), (inner, (outer, middle)), (second, ())]


def test_own_operations_of_a_loop_exclude_inner_loops() -> None:
    own, in_branch, inside = t.arithmetic(1), t.arithmetic(2), t.arithmetic(3)
    assert list(own_operations(t.loop(own, t.branch(in_branch), t.loop(inside)))) == [own, in_branch]
