"""Which loads are asynchronous, and where the block waits for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.loads import Loads, is_asynchronous, plan_loads
from warp_tiles.codegen.trace import Effect, Node, Operation

A, B, C = t.tile("a"), t.tile("b"), t.tile("c")


def planned(*nodes: Node, pipelined: Collection[int] = (), **fields: Any) -> Loads:
    return plan_loads(t.function(*nodes, **fields), pipelined)


def work(*tiles: Any, **fields: Any) -> Operation:
    return t.operation("tile_sum", *(tiles or (A,)), **fields)


def test_loads_go_side_by_side_until_a_tile_is_used() -> None:
    first, second, use = t.load(A), t.load(B), work()
    found = planned(first, second, use)
    assert found.asynchronous == {first.hook: True, second.hook: False}
    assert found.waits == {use.wait}


def test_behind_a_wait_a_new_group_begins() -> None:
    first, use, second, last = t.load(A), work(), t.load(B), work()
    found = planned(first, use, second, last)
    assert found.asynchronous == {first.hook: True, second.hook: True}
    assert found.waits == {use.wait, last.wait}


def test_one_wait_is_enough() -> None:
    load, use = t.load(A), work()
    assert planned(load, use, work(), work()).waits == {use.wait}
    assert planned(work(), t.zeros(C)) == Loads()


def test_the_function_ends_behind_a_wait() -> None:
    load = t.load(A)
    assert planned(load, end_wait=77).waits == {77}
    assert planned(work(), end_wait=77).waits == set()


@pytest.mark.parametrize("effect", list(Effect))
def test_which_statements_wait(effect: Effect) -> None:
    load, other = t.load(A), t.operation("other", effect=effect)
    waits = effect not in (Effect.NONE, Effect.ALIAS)
    assert planned(load, other, end_wait=77).waits == {other.wait if waits else 77}


@pytest.mark.parametrize("kind", ["break", "continue"])
def test_jumps_wait(kind: Literal["break", "continue"]) -> None:
    load, jump = t.load(A), t.jump(kind)
    assert planned(t.loop(load, jump)).waits == {jump.wait}


@pytest.mark.parametrize("block", [t.loop, t.branch])
def test_blocks_begin_and_end_behind_waits(block: Any) -> None:
    first, second = t.load(A), t.load(B)
    inside = block(second)
    found = planned(first, inside)
    assert found.asynchronous == {first.hook: True, second.hook: True}
    assert found.waits == {inside.wait, inside.end_wait}
    assert planned(block(t.arithmetic()), first, end_wait=7).waits == {7}


def test_an_unrolled_loop_is_one_statement_behind_the_other() -> None:
    first, second, use = t.load(A), t.load(B), work()
    found = planned(first, t.loop(second, kind="unrolled"), use)
    assert found.asynchronous == {first.hook: True, second.hook: False}
    assert found.waits == {use.wait}


@pytest.mark.parametrize("kind", ["range", "while"])
def test_a_pipelined_loop_loads_by_itself(kind: Literal["range", "while"]) -> None:
    before, inside, behind = t.load(A), t.load(B), t.load(C)
    loop = t.loop(inside, work(), kind=kind)
    found = planned(before, loop, behind, end_wait=7, pipelined={loop.hook})
    assert found.asynchronous == {before.hook: True, behind.hook: True}
    assert found.waits == {loop.wait, 7}
    assert inside.hook in planned(loop, pipelined={loop.hook + 1}).asynchronous


def test_a_pipelined_unrolled_loop_loads_by_itself() -> None:
    inside = t.load(B)
    loop = t.loop(inside, work(), kind="unrolled")
    assert planned(loop, pipelined={loop.hook}) == Loads()
    assert planned(t.load(A), loop, pipelined={loop.hook}) == Loads(), "there is no place to wait before it"


@pytest.mark.parametrize(
    "tile",
    [
        t.register("r"),
        t.view("v", A),
        t.parameter("p"),
        t.tile("u", memory=frozenset({"?"})),
        replace(t.tile("line"), shape=(16,)),
    ],
)
def test_loads_of_other_tiles_are_left_to_warp(tile: Any) -> None:
    first, other = t.load(A), t.load(tile)
    assert not is_asynchronous(other)
    found = planned(first, other, t.load(B), end_wait=7)
    assert other.hook not in found.asynchronous
    assert found.waits == {other.wait, 7}, "it is a statement that may look at a tile"


def test_other_operations_that_give_a_tile_are_no_loads() -> None:
    assert is_asynchronous(t.load(A))
    assert not is_asynchronous(t.zeros(A))
    assert not is_asynchronous(t.load(A, results=()))


def test_a_load_without_a_hook_is_left_to_warp() -> None:
    bare = t.load(A, hook=None)
    assert planned(bare, work()) == Loads()
    first = t.load(B)
    assert planned(first, bare, work()).waits == {bare.wait}


@pytest.mark.parametrize(
    "rest",
    [
        (work(wait=None),),
        (t.branch(wait=None),),
        (t.loop(wait=None),),
        (t.loop(t.load(B), end_wait=None), work()),
        (t.branch(t.load(B), end_wait=None), work()),
    ],
)
def test_without_a_place_to_wait_all_is_left_to_warp(rest: tuple[Node, ...]) -> None:
    assert planned(t.load(A), *rest) == Loads()


def test_the_functions_end_without_a_place_to_wait() -> None:
    assert planned(t.load(A), end_wait=None) == Loads()
    use = work()
    assert planned(t.load(A), use, end_wait=None).waits == {use.wait}
