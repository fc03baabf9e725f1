"""Loops that keep accumulators in registers, decided from hand-written traces."""

from typing import Any

import pytest

from tests.codegen import traces as t
from tests.codegen.decisions import FEW_ACCUMULATORS, A, B, C, D, body, decide_loop, outcome
from warp_tiles.codegen.emit_loops import Macros, emit_loops
from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.module_code import LoopAccumulators
from warp_tiles.codegen.operations import Operation, Tile
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.rejected import Rejected

# ---- accumulators in registers


NOT_ADDED, ADDED = Rejected("new_tile"), Rejected("new_tile_in_sum")


def returned(*nodes: Node, target: Tile = D) -> tuple[Node, ...]:
    """The body of a loop of ``d += wp.tile_matmul(a, b)``, and more nodes."""
    return (t.load(A), t.load(B), t.fresh_product(A, B, C), t.addition(target, C), *nodes)


BETA, SHARED = Rejected("beta"), Rejected("c_overlaps")
USES_C = Rejected("used", ("tile_sum", "C")).at(9)
USES_NEW = Rejected("new_tile_used", ("tile_sum",)).at(9)
FIRST, SECOND, FRESH = t.load(A), t.load(B), t.fresh_product(A, B, C)


def uses(tile: Tile) -> Node:
    return t.operation("tile_sum", tile, line=9)


def factors(**fields: Any) -> Node:
    return t.loop(FIRST, SECOND, t.product(A, B, C, **fields))


# a reshape of C, added to a tile of its shape
V = t.view("v", C, shape=(256,))
FLAT = t.tile("e", shape=(256,))
RESHAPED = t.alias(V, C, "tile_reshape", line=9)


def flat(*nodes: Node) -> Node:
    """A loop of ``v = wp.tile_reshape(wp.tile_matmul(a, b), shape=(256,))`` and more nodes."""
    return t.loop(FIRST, SECOND, FRESH, RESHAPED, *nodes)


NEW_TILES: dict[str, tuple[tuple[Node, ...], Rejected]] = {
    "a fresh product": ((t.loop(FIRST, SECOND, FRESH),), NOT_ADDED),
    "it is added under a condition": ((t.loop(FIRST, SECOND, FRESH, t.branch(t.addition(D, C))),), ADDED),
    "the sum is added to it": ((t.loop(FIRST, SECOND, FRESH, t.addition(C, D)),), NOT_ADDED),
    "it is added to itself": ((t.loop(FIRST, SECOND, FRESH, t.addition(C, C)),), ADDED),
    "an addition without a hook": ((t.loop(FIRST, SECOND, FRESH, t.addition(D, C, hook=None)),), ADDED),
    "an addition before it": ((t.loop(FIRST, SECOND, t.addition(D, C), FRESH),), ADDED),
    "another use of it in the loop": ((t.loop(*returned(uses(C))),), USES_NEW),
    "another use of it behind the loop": ((t.loop(*returned()), uses(C)), USES_NEW),
    "its reshape is added under a condition": ((flat(t.branch(t.addition(FLAT, V))),), ADDED),
    "the sum is added to its reshape": ((flat(t.addition(V, FLAT)),), NOT_ADDED),
    "its reshape is added to itself": ((flat(t.addition(V, V)),), ADDED),
    "its reshape is added, and it is used": ((flat(t.addition(FLAT, V), uses(C)),), USES_NEW),
    "its reshape is added, and used behind the loop": ((flat(t.addition(FLAT, V)), uses(V)), USES_NEW),
    "it is added, and reshaped": ((flat(t.addition(D, C)),), Rejected("new_tile_used", ("tile_reshape",)).at(9)),
    "its transpose is added": ((t.loop(FIRST, SECOND, FRESH, t.alias(V, C), t.addition(FLAT, V)),), ADDED),
    "a view of it is added": ((t.loop(FIRST, SECOND, FRESH, t.alias(V, C, "tile_view"), t.addition(FLAT, V)),), ADDED),
}
ONE_TILE: dict[str, tuple[tuple[Node, ...], Rejected]] = {
    "beta is 0": ((factors(beta=0.0),), BETA),
    "a variable beta": ((factors(beta=None),), BETA),
    "C is A": ((t.loop(t.product(C, B, C)),), SHARED),
    "C is B": ((t.loop(t.product(A, C, C)),), SHARED),
    "A is a view of C": ((t.loop(t.product(t.view("v", C), B, C)),), SHARED),
    "B is a view of C": ((t.loop(t.product(A, t.view("v", C), C)),), SHARED),
    "a use of a view of C": ((t.loop(*body(), t.branch(uses(t.view("v", C)))),), USES_C),
    "a use of unknown memory": ((t.loop(*body(), t.branch(uses(t.tile("u", memory=frozenset({"?"}))))),), USES_C),
}


@pytest.mark.parametrize("name", [*NEW_TILES, *ONE_TILE])
def test_loops_that_keep_no_sums(name: str) -> None:
    nodes, reason = {**NEW_TILES, **ONE_TILE}[name]
    decision = decide_loop(t.zeros(D if name in NEW_TILES else C), *nodes)
    assert outcome(decision) == ("as_warp", reason)
    assert decision.accumulations == ()


@pytest.mark.parametrize(
    ("target", "is_direct"),
    [
        (t.view("v", D), True),
        (t.view("v", D, dense=False), False),  # e.g. its transpose
        (t.view("v", t.tile("wide", 32)), False),  # it may begin anywhere
        (t.view("v", D, t.tile("e")), False),
        (t.tile("d", dtype="float64"), False),
    ],
)
def test_accumulators_are_subtracted_from_memory_that_is_like_c(target: Tile, is_direct: bool) -> None:
    subtraction = t.operation("sub_inplace", target, C, hook=t.number())
    loop = t.loop(FIRST, SECOND, FRESH, subtraction)
    decision = decide_loop(t.zeros(D), t.zeros(t.tile("wide", 32)), t.load(target), loop)
    (kept,) = decision.accumulations
    assert (kept.destination, kept.factor) == ((target, -1.0) if is_direct else (C, 1.0))


def operator(name: str, *operands: Tile) -> Operation:
    """``r = d + c`` or ``r = d - c``."""
    return t.operation(name, *operands, results=(t.register("r"),), hook=t.number())


def assigned(target: Tile = D, source: Tile | None = None) -> Operation:
    """``d = r``."""
    return t.operation("assign", target, source or t.register("r"), hook=t.number())


@pytest.mark.parametrize(
    "nodes",
    [
        (operator("sub", C, D), assigned()),
        (operator("mul", D, C), assigned()),
        (operator("add", C, C), assigned(C)),
        (operator("sub", D, C), assigned(A)),
        (operator("sub", D, C), assigned(), uses(t.register("r"))),
        (operator("sub", D, C), t.branch(assigned())),
        (operator("sub", D, C), t.branch(t.jump("break")), assigned()),
        (operator("sub", D, C), assigned(D, t.view("v", D))),
        (operator("sub", D, C),),
    ],
    ids=["swapped", "product", "of C", "elsewhere", "read", "branch", "jump", "other source", "unassigned"],
)
def test_other_operators_keep_no_sums(nodes: tuple[Node, ...]) -> None:
    decision = decide_loop(t.load(D), t.loop(FIRST, SECOND, FRESH, *nodes))
    (first, *_) = nodes
    is_sum = isinstance(first, Operation) and first.name in ("add", "sub") and first.tiles[1] is C
    assert outcome(decision) == ("as_warp", ADDED if is_sum else NOT_ADDED)


def test_another_use_of_a_sum_in_registers_keeps_no_sums() -> None:
    r = t.register("r", memory=frozenset())
    other = t.operation("tile_sum", r, line=9)
    decision = decide_loop(t.zeros(r), t.loop(*returned(other, target=r)))
    assert outcome(decision) == ("as_warp", Rejected("used", ("tile_sum", "the sum")).at(9))
    assert decide_loop(t.zeros(r), t.loop(*returned(target=r)), other).state == "pipelined"


def test_all_products_of_c_keep_their_sums_or_none() -> None:
    first, second, product = body()
    other = t.product(A, B, C, 1, beta=2.0, line=9)
    decision = decide_loop(t.zeros(C), t.loop(first, second, product, other))
    assert outcome(decision) == ("as_warp", BETA.at(9).at(1), BETA.at(9))


def test_products_of_different_c_are_independent() -> None:
    first, second, product = body()
    other = t.product(A, B, D, 1, beta=2.0, line=9)
    decision = decide_loop(t.zeros(C), t.zeros(D), t.loop(first, second, product, other))
    assert outcome(decision) == ("register_accumulators", BETA.at(9), Rejected("others_keep_accumulators"))
    assert [one.operation for one in decision.accumulations] == [product]
    assert decision.products == 2


def test_an_earlier_iteration_of_the_outer_loop_may_have_written_c() -> None:
    nodes = t.loop(t.loop(*body()), t.operation("tile_store", C))
    assert outcome(decide_loop(t.zeros(C), nodes)) == ("register_accumulators", FEW_ACCUMULATORS)


# ---- beside solvers


@pytest.mark.parametrize(
    ("ctype", "rows", "recomputes"),
    [("wp::float64", 32, True), ("wp::float64", 16, False), ("wp::float32", 32, False), ("wp::float64", 0, False)],
)
def test_addresses_are_recomputed_beside_a_large_factor_of_float64(ctype: str, rows: int, recomputes: bool) -> None:
    factor = [t.operation("tile_cholesky_inplace", t.tile("f", rows, rows))] if rows else []
    accumulators = {0: LoopAccumulators("f", ctype, 4)}
    decision = decide_loop(t.zeros(C), t.loop(*body()), *factor, accumulators=accumulators)
    macros = Macros()
    emit_loops(macros, [decision])
    (product,) = decision.accumulations
    assert product.recomputes == recomputes
    (added,) = macros.definitions([(Hook.AT, product.operation.own_hook)])
    (finished,) = macros.definitions([(Hook.END, product.home)])
    for line, function in ((added, "f_add("), (finished, "f_finish(")):
        assert f", {str(recomputes).lower()});" in line[line.index(function) :]
