"""Asynchronous loads, and the statements that wait for them."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.module_code import Loads
from warp_tiles.codegen.operations import Effect, Operation
from warp_tiles.codegen.trace import Node
from warp_tiles.codegen.waits import is_asynchronous, plan_loads

A, B, C = t.tile("a"), t.tile("b"), t.tile("c")


def loads_of(*nodes: Node, pipelined: Collection[int] = (), homes: Collection[int] = (), **fields: Any) -> Loads:
    return plan_loads([t.function(*nodes, **fields)], pipelined, homes)


def work(*tiles: Any, **fields: Any) -> Operation:
    return t.operation("tile_sum", *(tiles or (A,)), **fields)


def test_loads_overlap_until_a_tile_is_used() -> None:
    first, second, use = t.load(A), t.load(B), work()
    found = loads_of(first, second, use)
    assert found.asynchronous == {first.hook: True, second.hook: False}
    assert found.waits == {use.wait}


def test_a_new_group_begins_after_a_wait() -> None:
    first, use, second, last = t.load(A), work(), t.load(B), work()
    found = loads_of(first, use, second, last)
    assert found.asynchronous == {first.hook: True, second.hook: True}
    assert found.waits == {use.wait, last.wait}


def test_one_wait_is_enough() -> None:
    load, use = t.load(A), work()
    assert loads_of(load, use, work(), work()).waits == {use.wait}
    assert loads_of(work(), t.zeros(C)) == Loads()


def test_the_function_waits_at_its_end() -> None:
    load = t.load(A)
    assert loads_of(load, end_wait=77).waits == {77}
    assert loads_of(work(), end_wait=77).waits == set()


@pytest.mark.parametrize("effect", list(Effect))
def test_statements_wait_by_their_effect(effect: Effect) -> None:
    load, other = t.load(A), t.operation("other", effect=effect)
    waits = effect not in (Effect.NONE, Effect.ALIAS)
    assert loads_of(load, other, end_wait=77).waits == {other.wait if waits else 77}


@pytest.mark.parametrize("kind", ["break", "continue"])
def test_jumps_wait(kind: Literal["break", "continue"]) -> None:
    load, jump = t.load(A), t.jump(kind)
    assert loads_of(t.loop(load, jump)).waits == {jump.wait}


def test_a_branch_waits_at_its_begin_and_end() -> None:
    first, second = t.load(A), t.load(B)
    inside = t.branch(second)
    found = loads_of(first, inside)
    assert found.asynchronous == {first.hook: True, second.hook: False}, "no statement accesses a tile after the wait"
    assert found.waits == {inside.wait, inside.end_wait}
    assert loads_of(t.branch(t.arithmetic()), first, end_wait=7).waits == {7}


@pytest.mark.parametrize("between", [work, t.arithmetic])
def test_a_loop_that_begins_with_another_statement_waits_before_it(between: Any) -> None:
    first, second = t.load(A), t.load(B)
    loop = t.loop(between(), second, work())
    begins_with_load = between is t.arithmetic
    assert (loop.wait in loads_of(first, loop).waits) != begins_with_load


def test_a_load_before_a_loop_is_in_flight_with_the_first_load_inside() -> None:
    before, inside, use, after = t.load(A), t.load(B), work(), work()
    loop = t.loop(inside, use)
    found = loads_of(before, loop, after)
    assert found.asynchronous == {before.hook: True, inside.hook: True}, "an earlier iteration may still read B"
    assert found.waits == {use.wait, after.wait}, "the loop may have no iterations"
    assert found.ends == frozenset()


@pytest.mark.parametrize("reads", [True, False])
def test_a_load_needs_no_barrier_after_a_product(reads: bool) -> None:
    before, inside, product = t.load(C), t.load(A), t.product(A, B, C)
    body = (inside, product, work(B)) if reads else (inside, product)
    assert loads_of(before, t.loop(*body), work()).asynchronous == {before.hook: True, inside.hook: reads}
    assert loads_of(t.product(A, B, C), before, work()).asynchronous == {before.hook: False}


@pytest.mark.parametrize("in_flight", [True, False])
def test_the_block_waits_after_a_loop_whose_accumulators_are_added_to_c(in_flight: bool) -> None:
    before, inside, product, after = t.load(C), t.load(A), t.product(A, B, C), t.load(B)
    loop = t.loop(inside, product)
    first = (before,) if in_flight else (before, work())
    found = loads_of(*first, loop, after, end_wait=7, homes={loop.hook})
    assert found.ends == ({loop.hook} if in_flight else frozenset())
    assert found.asynchronous[after.hook], "other threads may still add to C"
    assert after.wait not in found.waits


def test_a_later_iteration_of_the_outer_loop_decides_about_loads_of_the_inner_one() -> None:
    first, inside = t.load(A), t.load(B)
    inner = t.loop(inside, t.product(A, B, C))
    found = loads_of(t.product(A, B, C), t.loop(first, inner, work()), work())
    assert found.asynchronous == {first.hook: True, inside.hook: False}


@pytest.mark.parametrize("kind", ["break", "continue"])
@pytest.mark.parametrize("jumps", [True, False])
def test_statements_before_a_jump_may_be_the_last_ones_of_an_iteration(
    kind: Literal["break", "continue"], jumps: bool
) -> None:
    before, inside, after = t.load(C), t.load(A), t.load(B)
    jump = (work(A), t.branch(t.jump(kind))) if jumps else ()
    loop = t.loop(inside, t.product(A, B, C), *jump, t.product(A, B, C))
    found = loads_of(before, loop, after, work())
    assert found.asynchronous == {before.hook: True, inside.hook: jumps, after.hook: jumps}


def test_the_condition_of_a_while_loop_is_its_last_statement() -> None:
    before, inside = t.load(C), t.load(A)
    loop = t.loop(inside, t.product(A, B, C), kind="while")
    assert loads_of(before, loop, work()).asynchronous[inside.hook]


def test_adjoints_follow_the_statements_of_an_iteration_in_the_reverse_pass() -> None:
    before, inside = t.load(C), t.load(A)
    function = t.function(before, t.loop(inside, t.product(A, B, C)), work())
    found = [plan_loads([function], replayed=replayed).asynchronous[inside.hook] for replayed in (False, True)]
    assert found == [False, True]


def test_the_block_waits_after_an_unrolled_loop_whose_accumulators_are_added_to_c() -> None:
    before, inside = t.load(C), t.load(A)
    inner = t.loop(inside, t.product(A, B, C))
    outer = t.loop(inner, kind="unrolled")
    found = loads_of(before, outer, work(), homes={outer.hook})
    assert found.ends == {outer.hook}


def test_an_unrolled_loop_is_a_sequence_of_statements() -> None:
    first, second, use = t.load(A), t.load(B), work()
    found = loads_of(first, t.loop(second, kind="unrolled"), use)
    assert found.asynchronous == {first.hook: True, second.hook: False}
    assert found.waits == {use.wait}


@pytest.mark.parametrize("kind", ["range", "while"])
def test_loads_of_a_pipelined_loop_are_left_out(kind: Literal["range", "while"]) -> None:
    before, inside, after = t.load(A), t.load(B), t.load(C)
    loop = t.loop(inside, work(), kind=kind)
    found = loads_of(before, loop, after, end_wait=7, pipelined={loop.hook})
    assert found.asynchronous == {before.hook: True, after.hook: True}
    assert found.waits == {loop.wait, 7}
    assert inside.hook in loads_of(loop, pipelined={loop.hook + 1}).asynchronous


def test_loads_of_a_pipelined_unrolled_loop_are_left_out() -> None:
    inside = t.load(B)
    loop = t.loop(inside, work(), kind="unrolled")
    assert loads_of(loop, pipelined={loop.hook}) == Loads()
    assert loads_of(t.load(A), loop, pipelined={loop.hook}) == Loads(), "no hook can wait before it"


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
    found = loads_of(first, other, t.load(B), end_wait=7)
    assert other.hook not in found.asynchronous
    assert found.waits == {other.wait, 7}, "this load may read a tile"


def test_other_operations_with_a_tile_as_result_are_not_loads() -> None:
    assert is_asynchronous(t.load(A))
    assert not is_asynchronous(t.zeros(A))
    assert not is_asynchronous(t.load(A, results=()))


def test_a_load_without_a_hook_is_left_to_warp() -> None:
    bare = t.load(A, hook=None)
    assert loads_of(bare, work()) == Loads()
    first = t.load(B)
    assert loads_of(first, bare, work()).waits == {bare.wait}


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
def test_without_a_waiting_hook_all_loads_are_left_to_warp(rest: tuple[Node, ...]) -> None:
    assert loads_of(t.load(A), *rest) == Loads()


def test_the_end_of_the_function_without_a_waiting_hook() -> None:
    assert loads_of(t.load(A), end_wait=None) == Loads()
    use = work()
    assert loads_of(t.load(A), use, end_wait=None).waits == {use.wait}
