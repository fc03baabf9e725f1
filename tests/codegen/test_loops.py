"""What is decided about loops, from traces by hand: one test for each reason, and what makes it go away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from tests.codegen import traces as t
from warp_tiles.codegen.loops import LoopDecision, LoopSums, decide
from warp_tiles.codegen.trace import Array, Effect, FunctionTrace, ModuleTrace, Node, Operation, Scalar

A, B = t.tile("a", 16, 8), t.tile("b", 8, 16)  # 512 bytes each
C, D = t.tile("c"), t.tile("d")  # 1024 bytes each
LENT = "second buffers of 1024 bytes lie in C's memory, which is idle in the loop"
OFF = "the setting wide_moves is off"
START = "C holds a start value, and so has no room for second buffers"


def decided(
    *nodes: Node,
    sums: Mapping[int, LoopSums | str] | None = None,
    ahead: bool = True,
    others: tuple[FunctionTrace, ...] = (),
    **fields: Any,
) -> tuple[LoopDecision, ...]:
    function = t.function(*nodes, **fields)
    return decide(t.module(function, *others), function, t.sums_of(0, 1, 2) if sums is None else sums, ahead=ahead)


def only(*nodes: Node, **options: Any) -> LoopDecision:
    (found,) = decided(*nodes, **options)
    return found


def body() -> tuple[Operation, Operation, Operation]:
    return t.load(A), t.load(B), t.product(A, B, C)


def outcome(decision: LoopDecision) -> tuple[str, str]:
    return decision.state, decision.reason


# ---- what is decided at all


def test_the_usual_loop_is_pipelined() -> None:
    first, second, product = body()
    loop = t.loop(first, second, product, line=7)
    decision = only(t.zeros(C), loop)
    assert outcome(decision) == ("pipelined", LENT)
    assert (decision.function, decision.loop, decision.products) == ("k", loop, 1)
    (kept,) = decision.accumulations
    assert (kept.operation, kept.home, kept.array, kept.c) == (product, loop, product.hook, C)
    assert kept.sums == t.sums_of(0)[0]
    assert decision.pipeline is not None
    assert decision.pipeline.loads == (first, second)
    assert decision.pipeline.products == decision.accumulations
    assert [(one.tile, one.load, one.lender) for one in decision.pipeline.buffers] == [(A, first, C), (B, second, C)]


@pytest.mark.parametrize("kind", ["range", "while"])
def test_kinds_of_loops(kind: Literal["range", "while"]) -> None:
    assert only(t.zeros(C), t.loop(*body(), kind=kind)).state == "pipelined"


def test_loops_without_products_are_no_decision() -> None:
    assert decided(t.zeros(C), t.loop(t.load(A)), *body()) == ()


def test_products_of_inner_loops_are_counted_there() -> None:
    inner = t.loop(*body())
    (decision,) = decided(t.zeros(C), t.loop(inner))
    assert decision.loop == inner


def test_loops_in_branches_are_found() -> None:
    assert only(t.zeros(C), t.branch(t.loop(*body()))).state == "pipelined"


def test_products_in_branches_of_the_loop_are_its_own() -> None:
    decision = only(t.zeros(C), t.loop(t.branch(*body())))
    assert (decision.state, decision.products) == ("pipelined", 1)


# ---- sums in registers


def test_a_fresh_product_keeps_no_sums() -> None:
    decision = only(t.loop(t.load(A), t.load(B), t.fresh_product(A, B, C)))
    reason = "the product is a new tile in each iteration; wp.tile_matmul(a, b, c) adds to one tile"
    assert outcome(decision) == ("as_warp", reason)
    assert decision.accumulations == ()


@pytest.mark.parametrize("factors", [{"alpha": 2.0}, {"beta": 0.0}, {"alpha": None}, {"beta": None}])
def test_other_factors_than_one_keep_no_sums(factors: dict[str, Any]) -> None:
    decision = only(t.zeros(C), t.loop(t.load(A), t.load(B), t.product(A, B, C, **factors)))
    assert outcome(decision) == ("as_warp", "alpha and beta are not both the constant 1")


@pytest.mark.parametrize("operands", [(C, B), (A, C), (t.view("v", C), B), (A, t.view("v", C))])
def test_c_among_the_operands_keeps_no_sums(operands: tuple[Any, Any]) -> None:
    decision = only(t.zeros(C), t.loop(t.product(*operands, C)))
    assert outcome(decision) == ("as_warp", "C may share memory with A or B")


def test_without_functions_their_reason_is_given() -> None:
    loop = t.loop(*body())
    assert outcome(only(t.zeros(C), loop, sums={0: "no provider"})) == ("as_warp", "no provider")
    assert outcome(only(t.zeros(C), loop, sums={})) == ("as_warp", "no function was planned for it")


def test_a_return_keeps_no_sums() -> None:
    leaves = t.operation("return", effect=Effect.LEAVES, line=9)
    assert outcome(only(t.zeros(C), t.loop(*body(), t.branch(leaves)))) == (
        "as_warp",
        "line 9 returns from within the loop",
    )


@pytest.mark.parametrize("tile", [C, t.view("v", C), t.tile("u", memory=frozenset({"?"}))])
def test_another_use_of_c_keeps_no_sums(tile: Any) -> None:
    other = t.operation("tile_sum", tile, line=9)
    decision = only(t.zeros(C), t.loop(*body(), t.branch(other)))
    assert outcome(decision) == ("as_warp", "line 9: tile_sum uses C in the loop")


def test_a_use_of_c_as_a_result_counts() -> None:
    decision = only(t.loop(t.zeros(C), *body()))
    assert outcome(decision) == ("as_warp", "line 1: tile_zeros uses C in the loop")


def test_a_use_of_another_tile_does_not() -> None:
    decision = only(t.zeros(C), t.loop(*body(), t.operation("tile_sum", D, line=9)))
    assert outcome(decision) == ("register_sums", "line 9: tile_sum works on a tile while others are loaded")


def test_another_product_of_c_has_to_keep_its_sums_too() -> None:
    first, second, product = body()
    other = t.product(A, B, C, 1, alpha=2.0, line=9)
    decision = only(t.zeros(C), t.loop(first, second, product, other))
    assert decision.state == "as_warp"
    assert decision.reason == (
        "line 1: line 9: alpha and beta are not both the constant 1; line 9: alpha and beta are not both the constant 1"
    )


def test_a_fresh_product_of_c_is_a_use_of_it() -> None:
    decision = only(t.zeros(C), t.loop(*body(), t.fresh_product(D, D, C, 1)))
    assert "line 1: line 1: tile_matmul uses C in the loop" in decision.reason
    assert decision.accumulations == ()


def test_products_of_different_c_are_apart() -> None:
    first, second, product = body()
    other = t.product(A, B, D, 1, alpha=2.0, line=9)
    decision = only(t.zeros(C), t.zeros(D), t.loop(first, second, product, other))
    assert outcome(decision) == (
        "register_sums",
        "line 9: alpha and beta are not both the constant 1; the other products keep their sums in registers",
    )
    assert [one.operation for one in decision.accumulations] == [product]
    assert decision.products == 2


# ---- where sums live


def test_sums_live_over_the_outermost_loop_that_leaves_c_alone() -> None:
    inner = t.loop(*body())
    middle = t.loop(inner, t.operation("tile_sum", D))
    outer = t.loop(middle, t.operation("tile_store", C))
    (decision,) = decided(t.zeros(C), outer)
    (kept,) = decision.accumulations
    assert kept.home == middle
    around = t.loop(inner)
    (free,) = decided(t.zeros(C), around)
    assert free.accumulations[0].home == around
    assert free.state == "pipelined"


def test_sums_live_in_the_innermost_loop_where_the_next_one_uses_c() -> None:
    inner = t.loop(*body())
    (decision,) = decided(t.loop(t.loop(t.zeros(C), inner, t.operation("tile_store", C))))
    assert decision.accumulations[0].home == inner
    assert decision.state == "pipelined"


@pytest.mark.xfail(strict=True, reason="a tile that is zeroed before a loop is taken for zero in every iteration of it")
def test_an_earlier_iteration_of_a_loop_around_may_have_written_c() -> None:
    nodes = t.loop(t.loop(*body()), t.operation("tile_store", C))
    assert outcome(only(t.zeros(C), nodes)) == ("register_sums", START)


def test_two_products_of_one_function_and_c_share_their_sums() -> None:
    first, second, product = body()
    again = t.product(A, B, C)
    decision = only(t.zeros(C), t.loop(first, second, product, again))
    assert [one.array for one in decision.accumulations] == [product.hook] * 2
    assert decision.state == "pipelined"


@pytest.mark.parametrize(("c", "site"), [(C, 1), (D, 0)])
def test_other_functions_and_other_c_do_not(c: Any, site: int) -> None:
    first, second, product = body()
    other = t.product(A, B, c, site)
    decision = only(t.zeros(C), t.zeros(D), t.loop(first, second, product, other))
    assert [one.array for one in decision.accumulations] == [product.hook, other.hook]


def test_two_views_of_one_memory_do_not_share_their_sums() -> None:
    first, second, product = body()
    other = t.product(A, B, t.view("v", C))
    decision = only(t.zeros(C), t.loop(first, second, product, other))
    assert [one.array for one in decision.accumulations] == [product.hook, other.hook]


# ---- loads ahead


def test_the_setting() -> None:
    assert outcome(only(t.zeros(C), t.loop(*body()), ahead=False)) == ("register_sums", OFF)


def test_products_in_different_branches() -> None:
    first, second, product = body()
    loop = t.loop(first, second, t.branch(product), t.branch(t.product(A, B, C)))
    assert outcome(only(t.zeros(C), loop)) == ("register_sums", "its products lie in different branches")


def test_a_loop_that_loads_nothing() -> None:
    loop = t.loop(t.product(A, B, C))
    assert outcome(only(t.zeros(C), loop)) == ("register_sums", "it loads no operand of its products")
    other = t.loop(t.load(D), t.product(A, B, C))
    assert outcome(only(t.zeros(C), other)) == ("register_sums", "it loads no operand of its products")


def test_one_loaded_operand_is_enough() -> None:
    loop = t.loop(t.load(B), t.product(A, B, C))
    expected = "second buffers of 512 bytes lie in C's memory, which is idle in the loop"
    assert outcome(only(t.zeros(C), t.load(A), loop)) == ("pipelined", expected)


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        (Effect.NONE, None),
        (Effect.TILES, "line 9: other works on a tile while others are loaded"),
        (Effect.WRITES, "line 9: other writes to an array while tiles are loaded"),
        (Effect.UNKNOWN, "line 9: it is not known what other does"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_other_operations_of_the_loop(effect: Effect, reason: str | None, nested: bool) -> None:
    other: Node = t.operation("other", effect=effect, line=9)
    loop = t.loop(*body(), t.branch(other) if nested else other)
    assert outcome(only(t.zeros(C), loop)) == (("register_sums", reason) if reason else ("pipelined", LENT))


def test_a_product_that_is_no_accumulation_of_this_loop_works_on_tiles() -> None:
    inner = t.loop(t.product(A, B, D, 1))
    loop = t.loop(*body(), inner)
    outer, _ = decided(t.zeros(C), t.zeros(D), loop)
    assert outcome(outer) == ("register_sums", "line 1: tile_matmul works on a tile while others are loaded")


@pytest.mark.parametrize("of", [A, D])
def test_views_of_loaded_tiles_are_renamed_and_others_are_work(of: Any) -> None:
    name = t.view("v", of)
    loop = t.loop(t.load(A), t.load(B), t.alias(name, of, line=9), t.product(A, B, C))
    state, reason = outcome(only(t.zeros(C), loop))
    assert state == ("pipelined" if of is A else "register_sums")
    assert reason == (LENT if of is A else "line 9: tile_transpose works on a tile while others are loaded")


def test_a_view_of_a_loaded_tile_is_multiplied() -> None:
    turned = t.view("v", B)
    loop = t.loop(t.load(A), t.load(B), t.alias(turned, B), t.product(A, turned, C))
    assert only(t.zeros(C), loop).state == "pipelined"


@pytest.mark.xfail(strict=True, reason="views whose offset changes with the loop are renamed like all others")
def test_a_view_that_moves_is_work() -> None:
    part = t.view("v", A)
    moved = t.operation("tile_view", A, Scalar("var_k"), effect=Effect.ALIAS, results=(part,), line=9)
    assert only(t.zeros(C), t.loop(t.load(A), t.load(B), moved, t.product(part, B, C))).state == "register_sums"


def test_a_load_in_another_branch() -> None:
    loop = t.loop(t.load(A), t.branch(t.load(B, line=9)), t.product(A, B, C))
    reason = "line 9: the tile is not loaded in the branch that multiplies it"
    assert outcome(only(t.zeros(C), loop)) == ("register_sums", reason)


def test_loads_and_product_in_one_branch() -> None:
    assert only(t.zeros(C), t.loop(t.branch(t.branch(*body())))).state == "pipelined"


@pytest.mark.parametrize("other", [t.register("r"), t.view("r", D)])
def test_a_tile_in_registers(other: Any) -> None:
    loop = t.loop(t.load(A), t.load(B), t.load(other, line=9), t.product(A, B, C))
    assert outcome(only(t.zeros(C), loop)) == ("register_sums", "line 9: the tile lies in registers")


@pytest.mark.parametrize("before", [True, False])
def test_a_loaded_tile_that_is_used_elsewhere(before: bool) -> None:
    use, loop = t.operation("tile_sum", A, line=9), t.loop(t.load(A, line=5), t.load(B), t.product(A, B, C))
    nodes = (use, t.zeros(C), loop) if before else (t.zeros(C), loop, use)
    reason = "line 5: line 9 uses the loaded tile too"
    assert outcome(only(*nodes)) == ("register_sums", reason)


def test_a_view_of_a_loaded_tile_that_is_used_elsewhere() -> None:
    turned = t.view("v", A)
    loop = t.loop(t.load(A, line=5), t.load(B), t.alias(turned, A), t.product(A, B, C))
    assert outcome(only(t.zeros(C), loop, t.operation("tile_sum", turned, line=9))) == (
        "register_sums",
        "line 5: line 9 uses the loaded tile too",
    )
    behind = t.alias(turned, A, line=9)
    plain = t.loop(t.load(A, line=5), t.load(B), t.product(A, B, C))
    assert only(t.zeros(C), plain, behind).reason == "line 5: line 9 uses the loaded tile too"


def test_a_tile_that_is_loaded_twice() -> None:
    loop = t.loop(t.load(A, line=5), t.load(A, line=9), t.load(B), t.product(A, B, C))
    assert only(t.zeros(C), loop).reason == "line 5: line 9 uses the loaded tile too"


def test_a_loaded_tile_that_nothing_multiplies() -> None:
    loop = t.loop(*body(), t.load(D, line=9))
    reason = "line 9: the loaded tile is no operand of the product"
    assert outcome(only(t.zeros(C), loop)) == ("register_sums", reason)


# ---- unrolled loops

IN_TURN = "Warp unrolls the loop, so that each iteration has tiles of its own"


def unrolled(count: int = 3) -> list[Operation]:
    nodes = []
    for index in range(count):
        a, b = t.tile(f"a{index}", 16, 8), t.tile(f"b{index}", 8, 16)
        nodes += [t.load(a), t.load(b), t.product(a, b, C)]
    return nodes


@pytest.mark.parametrize("start", ["tile_zeros", "tile_ones"])
def test_an_unrolled_loop_needs_no_second_buffers(start: str) -> None:
    nodes = unrolled()
    decision = only(t.operation(start, results=(C,)), t.loop(*nodes, kind="unrolled"))
    assert outcome(decision) == ("pipelined", IN_TURN)
    assert decision.pipeline is not None
    assert decision.pipeline.buffers == ()
    assert len(decision.pipeline.products) == 3
    assert len(decision.pipeline.loads) == 6


def test_an_unrolled_iteration_without_loads() -> None:
    nodes = unrolled()
    reason = "its iterations do not each load what they multiply"
    assert outcome(only(t.zeros(C), t.loop(*nodes, t.product(A, B, C), kind="unrolled"))) == ("register_sums", reason)
    del nodes[3:5]
    assert outcome(only(t.zeros(C), t.loop(*nodes, kind="unrolled"))) == ("register_sums", reason)


def test_a_load_behind_the_last_unrolled_product() -> None:
    first, second, product, *_ = unrolled(1)
    decision = only(t.zeros(C), t.loop(first, product, second, kind="unrolled"))
    assert outcome(decision) == ("register_sums", "its iterations do not each load what they multiply")


@pytest.mark.xfail(strict=True, reason="the product of the last unrolled iteration would leave its branch")
def test_an_unrolled_iteration_in_a_branch() -> None:
    assert only(t.zeros(C), t.loop(t.branch(*unrolled(1)), kind="unrolled")).state == "register_sums"


# ---- second buffers


def placed(a: Any, b: Any, *cs: Any) -> LoopDecision:
    products = (t.product(a, b, c, site) for site, c in enumerate(cs))
    return only(*map(t.zeros, cs), t.loop(t.load(a), t.load(b), *products))


def test_buffers_are_aligned() -> None:
    a, b = t.tile("a", 3, 5), t.tile("b", 3, 6)  # 60 and 72 bytes
    decision = placed(a, b, C)
    assert decision.pipeline is not None
    assert {one.tile.name: one.offset_bytes for one in decision.pipeline.buffers} == {"b": 0, "a": 80}
    assert decision.reason == "second buffers of 144 bytes lie in C's memory, which is idle in the loop"


def test_the_last_buffer_may_end_where_c_ends() -> None:
    a, b = t.tile("a", 16, 8), t.tile("b", 1, 127)  # 512 and 508 bytes
    assert placed(a, b, C).state == "pipelined"
    assert placed(t.tile("a", 16, 8), t.tile("b", 16, 8), C).state == "pipelined"


def test_too_little_room() -> None:
    a, b = t.tile("a", 16, 9), t.tile("b", 8, 16)
    reason = "second buffers need 1088 bytes, and C's memory has 1024"
    assert outcome(placed(a, b, C)) == ("register_sums", reason)


def test_several_c_lend_their_memory() -> None:
    a, b = t.tile("a", 16, 12), t.tile("b", 12, 16)  # 768 bytes each
    assert outcome(placed(a, b, C)) == ("register_sums", "second buffers need 1536 bytes, and C's memory has 1024")
    decision = placed(a, b, C, D)
    assert decision.state == "pipelined"
    assert decision.pipeline is not None
    assert {(one.tile.name, one.lender.name, one.offset_bytes) for one in decision.pipeline.buffers} == {
        ("a", "c", 0),
        ("b", "d", 0),
    }


def test_only_a_c_that_holds_zeros_lends() -> None:
    first, second, product = body()
    loop = t.loop(first, second, product, t.product(A, B, D, 1))
    decision = only(t.operation("tile_load", results=(C,), hook=t.number()), t.zeros(D), loop)
    assert decision.pipeline is not None
    assert {one.lender for one in decision.pipeline.buffers} == {D}
    ones = (t.operation("tile_ones", results=(c,)) for c in (C, D))
    assert outcome(only(*ones, loop)) == ("register_sums", START)


def test_one_c_lends_once() -> None:
    a, b = t.tile("a", 16, 12), t.tile("b", 12, 16)
    loop = t.loop(t.load(a), t.load(b), t.product(a, b, C), t.product(a, b, C))
    assert only(t.zeros(C), loop).reason == "second buffers need 1536 bytes, and C's memory has 1024"


def test_a_c_with_gaps_lends_nothing() -> None:
    strided = t.tile("c", dense=False)
    assert outcome(placed(A, B, strided)) == ("register_sums", START)


# ---- two loops that lend one C


@pytest.mark.xfail(
    strict=True, reason="each loop zeros C behind the outer loop, the second one behind the first's sums"
)
def test_one_c_is_lent_to_one_loop_of_its_home() -> None:
    a, b = t.tile("a1", 16, 8), t.tile("b1", 8, 16)
    second = t.loop(t.load(a), t.load(b), t.product(a, b, C))
    decisions = decided(t.zeros(C), t.loop(t.loop(*body()), second))
    assert sum(decision.pipeline is not None for decision in decisions) <= 1


# ---- functions that are called


def called(*calls: Node, c: Any = None, body_of: tuple[Node, ...] | None = None) -> LoopDecision:
    """A function with a loop, and a kernel that calls it."""
    c = t.parameter("p") if c is None else c
    inner = t.function(
        t.loop(t.load(A), t.load(B), t.product(A, B, c)) if body_of is None else body_of[0],
        label="f",
        parameters=("x", "p"),
    )
    module: ModuleTrace = t.module(inner, t.function(*calls))
    (found,) = decide(module, inner, t.sums_of(0), ahead=True)
    return found


X = Array("x")


def test_a_parameter_lends_if_every_call_passes_zeros() -> None:
    assert called(t.zeros(C), t.call("f", X, C)).state == "pipelined"
    assert called(t.zeros(C), t.call("f", X, C), t.zeros(D), t.call("f", X, D)).state == "pipelined"
    assert called(t.zeros(C), t.call("f", X, C), t.call("f", X, D)).reason == START
    assert called(t.zeros(C), t.call("f", X, C), t.call("f", X, C)).reason == START
    assert called().reason == START, "nothing is known of a function that nobody calls"


@pytest.mark.parametrize(
    "passed",
    [
        t.view("v", C),
        t.tile("c", dense=False),
        t.tile("c", 8, 8),
        t.register("c"),
        Array("c"),
        t.tile("c", memory=frozenset({"?"})),
    ],
)
def test_what_is_passed_must_be_the_same_memory(passed: Any) -> None:
    results = (passed,) if not isinstance(passed, Array) else (C,)
    assert called(t.operation("tile_zeros", results=results), t.call("f", X, passed)).reason == START


def test_a_call_with_too_few_operands_passes_nothing() -> None:
    assert called(t.zeros(C), t.call("f", X)).reason == START


def test_a_parameter_is_passed_on() -> None:
    p, q = t.parameter("p"), t.parameter("q")
    inner = t.function(t.loop(t.load(A), t.load(B), t.product(A, B, p)), label="f", parameters=("p",))
    middle = t.function(t.call("f", q), label="g", parameters=("q",))
    for start, state in (("tile_zeros", "pipelined"), ("tile_ones", "register_sums")):
        kernel = t.function(t.operation(start, results=(C,)), t.call("g", C))
        (found,) = decide(t.module(inner, middle, kernel), inner, t.sums_of(0), ahead=True)
        assert found.state == state


def test_parameters_that_one_call_joins_share_memory() -> None:
    x, p = t.parameter("x", 16, 8), t.parameter("p")
    loop = t.loop(t.load(B), t.product(x, B, p))
    apart, joined = t.call("f", A, C), t.call("f", C, C)
    assert called(t.zeros(C), apart, body_of=(loop,)).state == "pipelined"
    assert called(t.zeros(C), apart, joined, body_of=(loop,)).reason == "C may share memory with A or B"
