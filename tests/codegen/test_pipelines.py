"""Pipelined loops, decided from hand-written traces, and the placement of double buffers."""

import pytest

from tests.codegen import traces as t
from tests.codegen.decisions import FEW_ACCUMULATORS, A, B, C, D, body, decide_loop, decide_loops, outcome
from tests.gemm.test_main_loop import fp32
from warp_tiles.codegen.emit_loops import Macros, emit_loops
from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.operations import Effect, Scalar
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.rejected import Rejected

ENOUGH = LoopTarget(dict.fromkeys(range(3), fp32(16, 16, 8, 32, "rr")))  # a thread has 8 accumulators

# ---- loops that load ahead


FIRST, SECOND, PRODUCT = body()
LOADS_NOTHING, OTHER_LOADS = Rejected("no_loaded_operand"), Rejected("unrolled_without_loads")
IN_REGISTERS = Rejected("loaded_to_registers").at(9)
USED_TOO = Rejected("loaded_tile_used", (9,)).at(5)
REASONS: dict[str, tuple[Node, Rejected]] = {
    "no load": (t.loop(PRODUCT), LOADS_NOTHING),
    "a load of another tile": (t.loop(t.load(D), PRODUCT), LOADS_NOTHING),
    "a view": (t.loop(FIRST, SECOND, t.load(t.view("r", D), line=9), PRODUCT), IN_REGISTERS),
    "a tile that is loaded twice": (t.loop(t.load(A, line=5), t.load(A, line=9), SECOND, PRODUCT), USED_TOO),
    "unrolled, a load after the last product": (t.loop(FIRST, PRODUCT, SECOND, kind="unrolled"), OTHER_LOADS),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_loads_that_stay_where_they_are(name: str) -> None:
    loop, reason = REASONS[name]
    assert outcome(decide_loop(t.zeros(C), loop)) == ("register_accumulators", reason)


def test_a_view_of_a_loaded_tile_that_is_used_elsewhere() -> None:
    transposed = t.view("v", A)
    loop = t.loop(t.load(A, line=5), t.load(B), t.alias(transposed, A), t.product(A, B, C))
    use = t.operation("tile_sum", transposed, line=9)
    assert outcome(decide_loop(t.zeros(C), loop, use)) == ("register_accumulators", USED_TOO)
    after = t.alias(transposed, A, line=9)
    plain = t.loop(t.load(A, line=5), t.load(B), t.product(A, B, C))
    assert decide_loop(t.zeros(C), plain, after).reasons == (USED_TOO,)


# ---- statements on tiles between loads and products

E, R = t.tile("e", 16, 1), t.tile("r", 8, 16)
LOAD_E, SCALED = t.load(E), t.compute("mul", E, B, result=R, line=9, wait=70)
INTO_C, WORKS = t.product(A, R, C), Rejected("works_on_tile", ("mul",)).at(9)
OF_R = t.view("v", R)


@pytest.mark.parametrize(
    "nodes",
    [
        (FIRST, SECOND, LOAD_E, SCALED, t.alias(OF_R, R), t.product(A, OF_R, C)),
        (FIRST, SECOND, LOAD_E, t.operation("neg", B, results=(t.tile("n"),), wait=70), PRODUCT, SCALED, INTO_C),
    ],
    ids=["a view of it", "between products"],
)
def test_statements_that_may_compute_operands(nodes: tuple[Node, ...]) -> None:
    decision = decide_loop(t.zeros(C), t.loop(*nodes), target=ENOUGH)
    assert (decision.state, decision.arrival) == ("pipelined", 70)


MOVED = t.operation("tile_view", R, Scalar("var_k"), effect=Effect.ALIAS, results=(OF_R,), line=9)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ((FIRST, SECOND, SCALED, LOAD_E, INTO_C), WORKS),
        ((SCALED, FIRST, SECOND, LOAD_E, INTO_C), WORKS),
        ((FIRST, SECOND, LOAD_E, INTO_C, SCALED), WORKS),
        (
            (FIRST, SECOND, PRODUCT, t.operation("add_inplace", B, B, line=9), t.product(A, B, C)),
            Rejected("works_on_tile", ("add_inplace",)).at(9),
        ),
        ((FIRST, SECOND, LOAD_E, SCALED, MOVED, t.product(A, OF_R, C)), Rejected("moving_view", ("tile_view",)).at(9)),
        (
            (FIRST, SECOND, t.operation("solve", B, solver=1, line=9), PRODUCT),
            Rejected("works_on_tile", ("solve",)).at(9),
        ),
        (
            (FIRST, SECOND, t.operation("other", B, effect=Effect.UNKNOWN, line=9), PRODUCT),
            Rejected("unknown_effects", ("other",)).at(9),
        ),
        ((t.load(t.register("a"), line=9), SCALED, INTO_C), Rejected("no_loaded_operand")),
    ],
    ids=["between loads", "before", "after", "in place", "a view", "a solver", "unknown", "no shared load"],
)
def test_statements_that_may_not_compute_operands(nodes: tuple[Node, ...], reason: Rejected) -> None:
    decision = decide_loop(t.zeros(C), t.loop(*nodes), target=ENOUGH)
    assert outcome(decision) == ("register_accumulators", reason)


# ---- double buffers


@pytest.mark.parametrize("is_home", [True, False])
def test_the_last_products_read_extra_memory_before_other_code_does(is_home: bool) -> None:
    inner = t.loop(*body())
    nodes = t.operation("tile_ones", results=(C,)), inner if is_home else t.loop(inner)
    decision = decide_loops(*nodes, target=ENOUGH)[-1]
    assert (decision.accumulations[0].home == inner.hook) == is_home
    macros = Macros()
    emit_loops(macros, [decision])
    (end,) = macros.definitions([(Hook.END, inner.hook)])
    assert ("WP_TILE_SYNC(); wp::tile_shared_storage_t::alloc(-1024)" in end) != is_home


def test_a_c_with_gaps_holds_no_buffers() -> None:
    strided = t.tile("c", dense=False)
    decision = decide_loop(t.zeros(strided), t.loop(t.load(A), t.load(B), t.product(A, B, strided)))
    assert outcome(decision) == ("register_accumulators", FEW_ACCUMULATORS)
