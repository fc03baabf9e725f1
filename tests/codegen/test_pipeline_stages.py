"""Loops that load into stages, decided from hand-written traces: where the stages lie, and hazards."""

from typing import Any

import pytest

from tests.codegen import traces as t
from tests.gemm.test_main_loop import problem_of
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.module_code import LoopDecision, Ring
from warp_tiles.codegen.operations import Array, Effect, Operation, Tile
from warp_tiles.codegen.pipelines import LoopTarget, constant_arrays
from warp_tiles.codegen.trace import FunctionTrace, Node
from warp_tiles.plan.planning import PlannedLoop

M, N, K = 64, 64, 32
A, B = t.tile("a", M, K, "float16"), t.tile("b", K, N, "float16")
C, D = t.tile("c", M, N), t.tile("d", M, N)
PROBLEM = problem_of(M, N, K, 128)
TARGET = LoopTarget({0: PROBLEM, 1: PROBLEM}, ("wgmma", "mma"))
STAGE = 2 * K * (M + N)


def body(c: Tile = C, site: int = 0) -> tuple[Operation, Operation, Operation]:
    return t.load(A), t.load(B), t.product(A, B, c, site)


def decided(
    *nodes: Node, tiles: tuple[Tile, ...] = (C, A, B), target: LoopTarget = TARGET, **fields: Any
) -> LoopDecision:
    """The decision about the last loop of a kernel."""
    return decide(t.context(t.function(*nodes, tiles=tiles, **fields)), t.accumulators_of(0, 1), target)[-1]


def ring_of(*nodes: Node, tiles: tuple[Tile, ...] = (C, A, B)) -> Ring:
    ring = decided(*nodes, tiles=tiles).ring
    assert ring is not None
    return ring


def rejection(decision: LoopDecision) -> str:
    assert decision.ring is None
    (found,) = (one.code for one in decision.reasons if one.before == "not more stages: ")
    return found


# ---- where the stages lie


def test_a_tile_that_is_used_only_after_the_loop_is_idle() -> None:
    after = t.load(D)
    assert ring_of(t.zeros(C), t.loop(*body()), after, tiles=(C, A, B, D)).plan.loop.extra_bytes == 0
    before = ring_of(t.load(D), t.zeros(C), t.loop(*body()), t.operation("tile_store", D), tiles=(C, A, B, D))
    assert before.plan.loop.extra_bytes >= 4 * STAGE, "D follows, so extra memory does not continue the idle tiles"
    assert before.first is None


def test_the_new_tile_of_a_sum_is_idle() -> None:
    nodes = t.load(A), t.load(B), t.fresh_product(A, B, C), t.addition(D, C)
    ring = ring_of(t.zeros(D), t.loop(*nodes), tiles=(C, A, B, D))
    assert (ring.first, ring.products[0].has_start) == (C if ring.plan.loop.extra_bytes == 0 else None, False)


def test_memory_around_a_function_counts() -> None:
    huge = t.tile("huge", 1024, 50)
    helper = t.function(t.zeros(C), t.loop(*body()), label="helper", tiles=(C, A, B))
    caller = t.function(t.call("helper"), tiles=(huge,))

    def stages(*functions: FunctionTrace, reverse: frozenset[str] = frozenset()) -> int:
        decision = decide(t.context(*functions, reversed=reverse), t.accumulators_of(0), TARGET)[-1]
        return PlannedLoop(**vars(decision)).stages

    assert stages(helper) == 4
    alone, differentiated = stages(helper, caller), stages(helper, caller, reverse=frozenset({"k"}))
    assert alone >= 3
    assert differentiated == 2, "204,800 bytes and their gradients leave no room for stages"


def test_arrays_that_are_constant_in_a_loop() -> None:
    given, before, inside, changed, unknown = (
        Array(name, name == "given") for name in ["given", "before", "inside", "changed", "unknown"]
    )
    loop = t.loop(
        t.operation("view", given, effect=Effect.NONE, results=(inside,)),
        *(t.load(A, array) for array in (given, before, inside, changed, unknown)),
        t.operation("assign", changed, inside, effect=Effect.NONE),
    )
    made = [t.operation("view", given, effect=Effect.NONE, results=(array,)) for array in (before, changed)]
    assert constant_arrays(t.function(*made, loop), loop) == {"given", "before"}


# ---- reasons


PART, WIDE = t.view("part", A, rows=M, cols=K, dtype="float16"), t.tile("a", M, 2 * K, "float16")


@pytest.mark.parametrize(
    "nodes",
    [
        (t.load(A), t.load(B), t.alias(PART, A, "tile_view"), t.product(PART, B, C)),
        (t.load(WIDE), t.load(B), t.product(WIDE, B, C)),
    ],
    ids=["a view", "a larger tile"],
)
def test_operands_that_are_a_part_of_a_loaded_tile(nodes: tuple[Node, ...]) -> None:
    assert rejection(decided(t.zeros(C), t.loop(*nodes))) == "operand_not_loaded_whole"
