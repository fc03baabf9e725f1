"""Loops that load several iterations ahead, into a ring of stages (``kernels/module/stage_buffers.cuh``).

A stage has a buffer for each tile that an iteration loads. The stages lie in the memory of tiles that are idle in the
loop, and in extra shared memory. Their tiles are multiplied where they are, by wgmma, mma.sync or fma.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from warp_tiles.codegen.module_code import Accumulation, Ring, StageBuffer, StagedProduct
from warp_tiles.codegen.operations import ASSIGN, JUMPS, TRANSPOSE, UNKNOWN_MEMORY, Array, Operation, Tile
from warp_tiles.codegen.pipelines import Body, fill_before, holds_zeros, memory_of
from warp_tiles.codegen.trace import Context, FunctionTrace, Loop, operations, path_to
from warp_tiles.gemm.main_loop import LoopPlan, PipelineMeasurements, loop_problem, transpositions
from warp_tiles.gemm.pipeline import AUTO, LEAST_STAGES, STAGE_ALIGNMENT, InstructionFamily, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Refused, Rejected, accepted, refuse, rejectable

ASYNC_COPIES_OFF = Rejected("async_copies_off")


@dataclass(frozen=True)
class LoopTarget:
    """What loops of a module may use.

    Attributes:
        families: The instructions of staged products; empty if there are none.
        rejection: The reason why an instruction may not be used; None if all may be.
        choice: What the settings fix of the pipeline.
        registers: Registers of a thread that the link of the module allows; None for all that a block may have.
        forbidden: The setting that forbids stages; None if none does.
        records: Measured pipelines; None leaves all choices to the heuristics.
        reserved: That of the plan before (:class:`.ModulePlan`), which stages have to do with; empty in a first plan.
    """

    problems: Mapping[int, GemmProblem] = field(default_factory=dict)
    families: Collection[InstructionFamily] = ()
    rejection: Rejected | None = None
    choice: PipelineOverrides = AUTO
    ahead: bool = True
    registers: int | None = None
    forbidden: Rejected | None = None
    records: PipelineMeasurements | None = None
    reserved: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@rejectable
def plan_ring(context: Context, loop: Loop, body: Body, products: Sequence[Accumulation], target: LoopTarget) -> Ring:
    """Returns the stages of a loop that can load ahead, or the reason why it has none."""
    accepted(body.computes)
    check_order(body, products)
    asked: list[tuple[GemmProblem, tuple[str, str]]] = []
    for product in products:
        problem = target.problems[product.operation.site]
        refuse(product.home != loop.hook, "accumulators_over_outer_loop")
        a, b = loaded_operands(context.function, product, problem, body)
        asked.append((problem, (a.name, b.name)))
    _, stage_bytes = stage_buffers(body.loads)
    overlapping = _overlapping(context, products) | _scaled(context, loop, products)
    idle, starts = idle_tiles(context, loop, body, products, keeps_starts=bool(overlapping), overlapping=overlapping)
    memory, first = memory_of(context, idle, stage_bytes)
    arrays = list(dict.fromkeys(product.array for product in products))
    of_loop = loop_problem(
        asked,
        tuple(target.families),
        memory,
        arrays=tuple(arrays.index(product.array) for product in products),
        iterations=len(range(*(loop.steps or (0,)))),
        registers=target.registers,
    )
    measured = target.records.pipeline(of_loop) if target.records and target.choice == AUTO else None
    plan = of_loop.plan(target.choice if measured is None else measured.overrides)
    most_bytes, _ = target.reserved.get(context.function.label, (math.inf, 0))
    if isinstance(plan, LoopPlan) and plan.loop.extra_bytes > most_bytes:
        plan, measured = of_loop.plan(PipelineOverrides(stages=LEAST_STAGES)), None
    if measured is not None and isinstance(plan, Rejected):
        plan = Rejected("measured", (plan, measured.reason))
    plan = accepted(plan)
    transposed = transpositions(asked)[plan.form]
    buffers, _ = stage_buffers(body.loads, transposed, constant_arrays(context.function, loop))
    summed = {product.c.name: product.c for product, start in zip(products, starts) if not (start or product.addition)}
    fills = tuple(filter(None, (fill_before(context, loop, c) for c in summed.values() if c.owner)))
    facts = zip(products, of_loop.forms[plan.form], plan.products, starts)
    if plan.loop.extra_bytes and not memory.at_end:
        first = None
    staged = tuple(StagedProduct(*fields) for fields in facts)
    return Ring(plan, first, buffers, staged, bool(overlapping), fills, measured.reason if measured else "")


def constant_arrays(function: FunctionTrace, loop: Loop) -> frozenset[str]:
    """The names of arrays that do not change in a loop: parameters, and variables that are set once, before it."""
    inside = set(operations((loop,)))
    made: dict[str, Operation] = {}
    assigned: set[str] = set()
    for operation in function.operations():
        made |= {value.name: operation for value in operation.results if isinstance(value, Array)}
        assigned |= {value.name for value in operation.operands if operation.name == ASSIGN} | operation.changed
    read = {value for operation in inside for value in operation.operands if isinstance(value, Array)}
    return frozenset(
        array.name
        for array in read
        if array.parameter or (array.name in made and made[array.name] not in inside and array.name not in assigned)
    )


def check_order(body: Body, products: Sequence[Accumulation]) -> None:
    """Refuses a loop whose loads and products do not follow each other without jumps."""
    positions = [body.block.index(load) for load in body.loads]
    ends = [body.block.index(product.operation) for product in products]
    refuse(max(positions) > min(ends), "load_after_product")
    between = body.block[min(positions) : max(ends) + 1]
    is_straight = all(isinstance(node, Operation) and node.name not in JUMPS for node in between)
    refuse(not is_straight, "jump_before_product")


def loaded_operands(
    function: FunctionTrace, product: Accumulation, problem: GemmProblem, body: Body
) -> tuple[Tile, Tile]:
    """Returns the loaded tiles that A and B are, or are the transposes of. Others are refused."""
    roots = []
    for tile, operand, shape in (
        (product.a, problem.a, (problem.m, problem.k)),
        (product.b, problem.b, (problem.k, problem.n)),
    ):
        stored = shape if operand.arrangement == "row_major" else shape[::-1]
        root = _whole_root(function, tile, body.tiles)
        if root is None or root.shape != stored:
            raise Refused(Rejected("operand_not_loaded_whole", (product.operation.line,)))
        roots.append(root)
    a, b = roots
    return a, b


def _whole_root(function: FunctionTrace, tile: Tile, roots: Mapping[str, Tile]) -> Tile | None:
    """Returns the loaded tile that an operand is, or is the transpose of."""
    if tile.name in roots:
        return roots[tile.name]
    for operation in function.operations():
        if operation.name == TRANSPOSE and tile in operation.results:
            return roots.get(operation.tiles[0].name)
    return None


def stage_buffers(
    loads: Sequence[Operation], transposed: Collection[str] = (), constant: Collection[str] = ()
) -> tuple[dict[str, StageBuffer], int]:
    """Returns the stage buffers by tile, some of them transposed, and the bytes of a stage.

    ``constant`` are the arrays that do not change in the loop.
    """
    buffers: dict[str, StageBuffer] = {}
    offset = 0
    for load in loads:
        array = next((value for value in load.operands if isinstance(value, Array) and value.name in constant), None)
        (tile,) = load.tiles
        buffers[tile.name] = StageBuffer(load, offset, tile.name in transposed, array)
        offset += -(-tile.size_bytes // STAGE_ALIGNMENT) * STAGE_ALIGNMENT
    return buffers, offset


def idle_tiles(
    context: Context,
    loop: Loop,
    body: Body,
    products: Sequence[Accumulation],
    *,
    keeps_starts: bool = False,
    overlapping: Collection[str] = (),
) -> tuple[dict[str, Tile], tuple[bool, ...]]:
    """Returns the tiles whose memory holds nothing in the loop, and for each product whether C has a start value.

    Args:
        keeps_starts: True if a C with a start value is not idle: the loop adds to it, or its gradient is needed.
        overlapping: The names of Cs that count as Cs with a start value: several products are added to their memory.
    """
    idle = body.tiles
    starts = []
    for product in products:
        zero = product.addition is not None or holds_zeros(context, loop, product.c)
        zero = zero and product.c.name not in overlapping
        starts.append(not zero)
        if product.c.owner and (zero or not keeps_starts):
            idle[product.c.name] = product.c
    idle |= _later_tiles(context.function, loop)
    return idle, tuple(starts)


def _overlapping(context: Context, products: Sequence[Accumulation]) -> frozenset[str]:
    """Returns the names of the Cs whose memory another C of the loop may have, such as a view of it."""
    pairs = itertools.permutations({product.c.name: product.c for product in products}.values(), 2)
    return frozenset(c.name for c, other in pairs if context.may_overlap(c, other))


def _scaled(context: Context, loop: Loop, products: Sequence[Accumulation]) -> set[str]:
    """Returns the names of the Cs whose start value cannot be the first accumulators: it would be divided by alpha."""
    first = {product.c.name: product for product in reversed(products) if product.addition is None}
    return {
        n for n, product in first.items() if product.alpha not in (1, -1) and not holds_zeros(context, loop, product.c)
    }


def _later_tiles(function: FunctionTrace, loop: Loop) -> dict[str, Tile]:
    """Returns the tiles with memory of their own that the program touches only after a loop."""
    path = path_to(function.nodes, loop)
    if any(isinstance(block[at], Loop) for block, at in path[:-1]):
        return {}  # an earlier iteration of the outer loop may have written them
    nodes, index = path[0]
    before = operations(nodes[: index + 1])
    touched = {name for operation in before for tile in operation.tiles for name in tile.memory}
    if UNKNOWN_MEMORY in touched:
        return {}
    later = (tile for operation in operations(nodes[index + 1 :]) for tile in operation.tiles)
    return {tile.name: tile for tile in later if tile.owner and tile.name not in touched}
