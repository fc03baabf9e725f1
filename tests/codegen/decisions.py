"""Loop decisions for hand-written traces, and the tiles of these traces. Shared by the tests of this folder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.codegen import traces as t
from tests.gemm.test_main_loop import fp32
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.module_code import LoopAccumulators, LoopDecision
from warp_tiles.codegen.operations import Operation
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.trace import FunctionTrace, Node
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import PlannedLoop

A, B = t.tile("a", 16, 8), t.tile("b", 8, 16)  # 512 bytes each
C, D = t.tile("c"), t.tile("d")  # 1024 bytes each
FEW_ACCUMULATORS = Rejected("few_accumulators_for_buffers", ("4 accumulators", 8))
PROBLEM = fp32(16, 16, 8, 64, "rr")
TARGET = LoopTarget(dict.fromkeys(range(3), PROBLEM))


def decide_loops(
    *nodes: Node,
    accumulators: Mapping[int, LoopAccumulators | Rejected] | None = None,
    target: LoopTarget = TARGET,
    others: tuple[FunctionTrace, ...] = (),
    **fields: Any,
) -> tuple[LoopDecision, ...]:
    function = t.function(*nodes, **fields)
    found = t.accumulators_of(0, 1, 2) if accumulators is None else t.of_sites(accumulators)
    return decide(t.context(function, *others), found, target)


def decide_loop(*nodes: Node, **options: Any) -> LoopDecision:
    (found,) = decide_loops(*nodes, **options)
    return found


def body() -> tuple[Operation, Operation, Operation]:
    return t.load(A), t.load(B), t.product(A, B, C)


def staged_loop(file: str, line: int, **pipeline: Any) -> PlannedLoop:
    """A loop with stages, as a plan has it for kernel ``k``, with some fields of its pipeline."""
    a, b, c = t.tile("a", 64, 32), t.tile("b", 32, 64), t.tile("c", 64, 64)
    target = LoopTarget({0: fp32(64, 64, 32, 64, "rr")}, ("mma",))
    decision = decide_loop(t.zeros(c), t.loop(t.load(a), t.load(b), t.product(a, b, c)), target=target)
    assert decision.ring is not None
    plan = decision.ring.plan
    ring = replace(decision.ring, plan=replace(plan, loop=replace(plan.loop, **pipeline)))
    return PlannedLoop(**vars(replace(decision, file=file, line=line, ring=ring)), kernel="k")


def outcome(decision: LoopDecision) -> tuple[str | Rejected, ...]:
    """What is done with a loop, and the reasons why not more is."""
    return decision.state, *decision.reasons
