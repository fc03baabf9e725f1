"""Adjoints that wait for each other, and products that a reverse loop need not repeat."""

from typing import Any

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.adjoints import lost_results, sites_without_replay
from warp_tiles.codegen.operations import Effect, Scalar
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.rejected import Rejected

A, B, C, D = (t.tile(name) for name in "abcd")
UNKNOWN = t.tile("u", memory=frozenset({"?"}))
P, Q = t.parameter("p"), t.parameter("q")


# ---- products that the reverse loop need not repeat


def unreplayed_sites(*nodes: Node, **fields: Any) -> frozenset[int]:
    return sites_without_replay(t.module(t.function(*nodes, **fields)))


def product() -> Node:
    return t.product(A, B, C)


@pytest.mark.parametrize("tile", [C, t.view("v", C), UNKNOWN])
def test_a_product_that_the_reverse_pass_reads_is_repeated(tile: Any) -> None:
    use = t.operation("tile_map", tile)
    assert unreplayed_sites(t.zeros(C), t.loop(product(), use)) == set()
    assert unreplayed_sites(t.zeros(C), t.loop(use, product())) == set()
    assert unreplayed_sites(t.zeros(C), t.loop(t.loop(product()), t.branch(use))) == set()
    assert unreplayed_sites(t.zeros(C), use, t.loop(product())) == set()
    assert unreplayed_sites(t.zeros(C), t.loop(product()), use) == {0}, "its adjoint comes before"


def test_products_that_add_to_c_do_not_read_it() -> None:
    assert unreplayed_sites(t.loop(product(), t.product(A, B, C, 1))) == {0, 1}
    assert unreplayed_sites(t.loop(product(), t.product(C, D, t.tile("e"), 1))) == {1}
    assert unreplayed_sites(t.loop(product(), t.product(D, C, t.tile("e"), 1))) == {1}
    assert unreplayed_sites(t.loop(product(), t.product(C, D, A, 1))) == set(), "each reads what the other computes"


def test_a_fresh_product_into_c_reads_it() -> None:
    assert unreplayed_sites(t.loop(product(), t.fresh_product(A, B, C, 1))) == set()


@pytest.mark.parametrize("c", [UNKNOWN, t.view("v", C, D), t.tile("n", memory=frozenset())])
def test_a_c_of_unknown_memory_is_repeated(c: Any) -> None:
    assert unreplayed_sites(t.loop(t.product(A, B, c))) == set()


# ---- parameters: every call counts


def sites_of_callee(*nodes: Node, body: tuple[Node, ...] | None = None) -> frozenset[int]:
    inner = t.function(*((t.loop(t.product(A, B, P)),) if body is None else body), label="f", parameters=("p",))
    return sites_without_replay(t.module(inner, t.function(*nodes)))


def test_a_parameter_that_no_caller_reads() -> None:
    assert sites_of_callee(t.zeros(C), t.call("f", C), t.operation("tile_store", C)) == {0}
    assert sites_of_callee(t.zeros(C), t.call("f", C), t.operation("tile_map", C)) == {0}
    assert sites_of_callee(t.operation("tile_map", C), t.call("f", C)) == set()
    assert sites_of_callee(t.call("f", C), t.operation("tile_map", D), t.call("f", D)) == set()
    assert sites_of_callee() == set(), "a function without calls may get any tile"


def test_the_argument_must_be_a_tile() -> None:
    assert sites_of_callee(t.call("f", Scalar("x"))) == set()


def test_a_function_that_reads_its_parameter() -> None:
    read = t.operation("tile_map", P)
    assert sites_of_callee(t.call("f", C), body=(read, t.loop(t.product(A, B, P)))) == set()
    # a later call reads what this one added; its adjoint runs before
    assert sites_of_callee(t.call("f", C), body=(t.loop(t.product(A, B, P)), read)) == set()


def test_a_call_of_another_function() -> None:
    inner = t.function(t.loop(t.product(A, B, P)), label="f", parameters=("p",))
    for use, expected in (
        (t.operation("tile_store", Q), {0}),
        (t.operation("tile_map", Q), set()),
        (t.operation("tile_map", t.view("v", Q)), set()),
    ):
        other = t.function(use, label="g", parameters=("q",))
        kernel = t.function(t.call("g", C), t.call("f", C))
        assert sites_without_replay(t.module(inner, other, kernel)) == expected
    unknown = t.function(t.call("native", C, effect=Effect.UNKNOWN), t.call("f", C))
    assert sites_without_replay(t.module(inner, unknown)) == set()


# ---- solvers in place


def test_a_call_that_returns_a_number_may_change_the_result_of_a_solver() -> None:
    """Also if the function that changes the tile is called by another one."""
    solve, number = t.operation("tile_lower_solve_inplace", A, C, solver=0), Scalar("n")
    outer = t.function(t.call("f", P, results=(number,)), label="g", parameters=("p",))
    kernel = t.function(t.load(C), solve, t.call("g", C, results=(number,)))
    for use, lost in ((t.addition(P, D), {0: Rejected("result_changed", (1,))}), (t.arithmetic(), {})):
        inner = t.function(use, label="f", parameters=("p",))
        assert lost_results(t.module(inner, outer, kernel), {0}) == lost
