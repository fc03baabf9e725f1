"""Pipelined loops, decided from hand-written traces, and the placement of double buffers."""

from typing import Any

import pytest

from tests.codegen import traces as t
from tests.codegen.decisions import FEW_ACCUMULATORS, A, B, C, D, body, decide_loop, decide_loops, outcome
from tests.gemm.test_main_loop import fp32
from warp_tiles.codegen.emit_loops import Macros, emit_loops
from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.module_code import LoopDecision
from warp_tiles.codegen.operations import Effect, Operation, Scalar
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import PlannedLoop

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


@pytest.mark.parametrize(
    ("effect", "code"),
    [
        (Effect.NONE, ""),
        (Effect.ORDERED, ""),
        (Effect.TILES, "constant_works_on_tile"),
        (Effect.WRITES, "writes_array"),
        (Effect.UNKNOWN, "constant_unknown_effects"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_other_operations_of_the_loop(effect: Effect, code: str, nested: bool) -> None:
    other: Node = t.operation("other", effect=effect, line=9)
    loop = t.loop(*body(), t.branch(other) if nested else other)
    assert outcome(decide_loop(t.zeros(C), loop)) == (
        ("register_accumulators", Rejected(code, ("other",)).at(9)) if code else ("pipelined",)
    )


def test_a_loaded_tile_that_is_used_before() -> None:
    use, loop = t.operation("tile_sum", A, line=9), t.loop(t.load(A, line=5), t.load(B), t.product(A, B, C))
    assert outcome(decide_loop(use, t.zeros(C), loop)) == ("register_accumulators", USED_TOO)


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


def decide_computed(*nodes: Node, **options: Any) -> LoopDecision:
    return decide_loop(t.zeros(C), t.loop(*nodes, **options), target=ENOUGH)


def test_loads_arrive_before_an_operand_is_computed() -> None:
    decision = decide_computed(FIRST, SECOND, LOAD_E, SCALED, INTO_C)
    assert decision.arrival == 70
    assert decision.loads_ahead == (FIRST, SECOND, LOAD_E)
    assert [one.tile.name for one in decision.buffers] == ["a"]  # the others are read before the next loads
    plan = PlannedLoop(**vars(decision))
    assert (plan.state, plan.stages) == ("pipelined", 2)
    assert "arrive before other statements on tiles" in plan.reason


@pytest.mark.parametrize(
    "nodes",
    [
        (FIRST, SECOND, LOAD_E, t.arithmetic(), t.branch(SCALED, wait=70), INTO_C),
        (FIRST, SECOND, LOAD_E, t.loop(SCALED, wait=70), INTO_C),
        (FIRST, SECOND, LOAD_E, SCALED, t.alias(OF_R, R), t.product(A, OF_R, C)),
        (FIRST, SECOND, t.load(t.register("e")), SCALED, INTO_C),
        (FIRST, SECOND, LOAD_E, t.call("scaled", B, E, wait=70), PRODUCT),
        (FIRST, SECOND, LOAD_E, t.operation("neg", B, results=(t.tile("n"),), wait=70), PRODUCT, SCALED, INTO_C),
    ],
    ids=["in a branch", "in a loop", "a view of it", "from registers", "by a function", "between products"],
)
def test_statements_that_may_compute_operands(nodes: tuple[Node, ...]) -> None:
    decision = decide_computed(*nodes)
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
    assert outcome(decide_computed(*nodes)) == ("register_accumulators", reason)


def test_an_inner_loop_that_ends_between_products() -> None:
    inner = t.loop(FIRST, SECOND, PRODUCT, t.loop(t.jump("break")), t.product(A, B, C))
    assert outcome(decide_loop(t.zeros(C), inner)) == ("pipelined",)


# ---- unrolled loops


def unrolled(count: int = 3) -> list[Operation]:
    nodes = []
    for index in range(count):
        a, b = t.tile(f"a{index}", 16, 8), t.tile(f"b{index}", 8, 16)
        nodes += [t.load(a), t.load(b), t.product(a, b, C)]
    return nodes


def test_an_unrolled_iteration_without_loads() -> None:
    nodes = unrolled()
    without = t.loop(*nodes, t.product(A, B, C), kind="unrolled")
    assert outcome(decide_loop(t.zeros(C), without)) == ("register_accumulators", OTHER_LOADS)
    del nodes[3:5]
    assert outcome(decide_loop(t.zeros(C), t.loop(*nodes, kind="unrolled"))) == ("register_accumulators", OTHER_LOADS)


# ---- double buffers


def decide_buffers(a: Any, b: Any, *cs: Any) -> LoopDecision:
    products = (t.product(a, b, c, site) for site, c in enumerate(cs))
    return decide_loop(*map(t.zeros, cs), t.loop(t.load(a), t.load(b), *products))


def test_buffers_are_aligned() -> None:
    a, b = t.tile("a", 3, 5), t.tile("b", 3, 6)  # 60 and 72 bytes
    decision = decide_buffers(a, b, C)
    assert {one.tile.name: one.offset_bytes for one in decision.buffers} == {"b": 0, "a": 80}
    assert PlannedLoop(**vars(decision)).reason == (
        "double buffers of 144 bytes lie in C's memory, which is idle in the loop"
    )


def test_buffers_that_do_not_fit_c_lie_in_extra_memory() -> None:
    a, b = t.tile("a", 16, 9), t.tile("b", 8, 16)  # 576 and 512 bytes
    loop = t.loop(t.load(a), t.load(b), t.product(a, b, C))
    decision = decide_loop(t.zeros(C), loop, target=ENOUGH)
    assert {one.tile.name: (one.c, one.offset_bytes) for one in decision.buffers} == {"a": (C, 0), "b": (None, 0)}
    assert (outcome(decision), decision.extra_bytes) == (("pipelined",), 512)
    assert PlannedLoop(**vars(decision)).reason == (
        "double buffers of 576 bytes lie in C's memory, which is idle in the loop; double buffers of 512 bytes lie in "
        "extra shared memory"
    )


def test_a_start_value_of_c_leaves_extra_memory() -> None:
    decision = decide_loop(t.operation("tile_ones", results=(C,)), t.loop(*body()), target=ENOUGH)
    assert [(one.tile, one.c, one.offset_bytes) for one in decision.buffers] == [(A, None, 0), (B, None, 512)]
    macros = Macros()
    emit_loops(macros, [decision])
    lines = macros.definitions([(Hook.BEGIN, decision.hook), (Hook.END, decision.hook)])
    assert ["alloc(1024)" in line for line in lines] == [True, False]
    assert ["alloc(-1024)" in line for line in lines] == [False, True]
    assert not any("wt_module::zero(" in line for line in lines), "C holds its start value"


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


def test_a_loop_beside_a_solver_has_buffers_in_idle_memory() -> None:
    nodes = t.zeros(C), t.loop(*body()), t.operation("tile_cholesky_inplace", C)
    assert decide_loop(*nodes, target=ENOUGH).state == "pipelined"


def test_buffers_may_lie_in_several_c() -> None:
    a, b = t.tile("a", 16, 12), t.tile("b", 12, 16)  # 768 bytes each
    assert outcome(decide_buffers(a, b, C)) == ("register_accumulators", FEW_ACCUMULATORS)
    decision = decide_buffers(a, b, C, D)
    assert decision.state == "pipelined"
    assert {(one.tile.name, one.c.name, one.offset_bytes) for one in decision.buffers} == {("a", "c", 0), ("b", "d", 0)}


def test_buffers_lie_only_in_a_c_that_holds_zeros() -> None:
    first, second, product = body()
    loop = t.loop(first, second, product, t.product(A, B, D, 1))
    decision = decide_loop(t.operation("tile_load", results=(C,), hook=t.number()), t.zeros(D), loop)
    assert {one.c for one in decision.buffers} == {D}
    ones = (t.operation("tile_ones", results=(c,)) for c in (C, D))
    assert outcome(decide_loop(*ones, loop)) == ("register_accumulators", FEW_ACCUMULATORS)


def test_a_c_with_gaps_holds_no_buffers() -> None:
    strided = t.tile("c", dense=False)
    assert outcome(decide_buffers(A, B, strided)) == ("register_accumulators", FEW_ACCUMULATORS)


# ---- two loops with buffers in one C


def test_two_loops_have_buffers_in_one_c() -> None:
    a, b = t.tile("a1", 16, 8), t.tile("b1", 8, 16)
    second = t.loop(t.load(a), t.load(b), t.product(a, b, C))
    outer = t.loop(t.loop(*body()), second)
    decisions = decide_loops(t.zeros(C), outer)
    assert [decision.state for decision in decisions] == ["pipelined", "pipelined"]
    assert len({one.home for decision in decisions for one in decision.accumulations}) == 1
    macros = Macros()
    emit_loops(macros, decisions)
    home = decisions[0].accumulations[0].home
    lines = macros.definitions(t.function(t.zeros(C), outer).hooks())
    (end,) = (line for line in lines if line.startswith(f"#define WT_END_{home} "))
    assert end.count("wt_module::zero(") == 1
    assert end.index("wt_module::zero(") < end.index("_finish(")
    assert end.count("_finish(") == 1, "the loops share their accumulators"
