"""Which stores take the accumulators of a loop from registers, decided from hand-written traces."""

import pytest

from tests.codegen import traces as t
from tests.codegen.test_pipeline_stages import TARGET, A, B, C, body, decided
from tests.gemm.test_main_loop import fp64
from warp_tiles.codegen.module_code import AccumulatorStore, LoopDecision
from warp_tiles.codegen.operations import Scalar
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.rejected import Rejected

M, N, K = 64, 64, 32
ZEROS = t.zeros(C, hook=t.number())
E = t.register("e", rows=M, cols=N, dtype="float16")


def planned(
    *after: Node, before: tuple[Node, ...] = (ZEROS,), target: LoopTarget = TARGET
) -> AccumulatorStore | Rejected:
    """The decision about a loop with some statements before and after it."""
    return outcome(decided(*before, t.loop(*body()), *after, tiles=(C, A, B), target=target))


def outcome(decision: LoopDecision) -> AccumulatorStore | Rejected:
    """The store that takes the accumulators from registers, or the reason why C is written."""
    assert decision.accumulator_store is not None
    return decision.accumulator_store


def test_a_conditional_store() -> None:
    assert isinstance(planned(t.branch(t.store(C))), AccumulatorStore)
    assert isinstance(planned(t.branch(t.arithmetic()), t.branch(t.branch(t.store(C)))), AccumulatorStore)


STORE_REASON, LOOP_BETWEEN = Rejected("no_store"), Rejected("loop_before_store")
USES_C = Rejected("c_used", (1,))


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ((t.operation("tile_sum", C, results=(E,)), t.store(E)), STORE_REASON),
        ((t.store(C), t.operation("tile_sum", C)), USES_C),
        ((t.alias(t.view("v", C), C), t.store(C)), USES_C),
        ((t.loop(t.store(C)),), LOOP_BETWEEN),
        ((t.loop(t.arithmetic()), t.store(C)), LOOP_BETWEEN),
        ((t.branch(t.loop(t.arithmetic())), t.store(C)), LOOP_BETWEEN),
    ],
)
def test_reasons_after_the_loop(after: tuple[Node, ...], reason: Rejected) -> None:
    assert planned(*after) == reason


def test_reasons_of_c() -> None:
    doubles = LoopTarget({0: fp64(M, N, K, 128)}, TARGET.families)
    for target in (TARGET, doubles):
        assert isinstance(planned(t.store(C), before=(t.load(C),), target=target), AccumulatorStore)
    start, nodes = t.load(C), (t.loop(*body()), t.store(C))
    assert outcome(decided(t.loop(start, *nodes), tiles=(C, A, B))) == USES_C  # also after the loop


@pytest.mark.parametrize("start", [ZEROS, t.load(C)], ids=["zeros", "a start value"])
def test_a_store_that_reads_a_view_of_c(start: Node) -> None:
    view = t.tile("v", M, N, memory=frozenset({"c"}))
    operation = t.compute("tile_map", Scalar("f"), C, view, result=E)
    assert planned(operation, t.store(E), before=(start, t.alias(view, C))) == Rejected("stores_view")
