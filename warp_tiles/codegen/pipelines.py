"""Loops that load the tiles of the next products during a product: which can, and where the loaded tiles lie.

Double buffers: a second buffer for each tile that a loop loads is enough. Each iteration loads its tiles into one set
of buffers, and multiplies the previous iteration's tiles from the other set. If statements between loads and product
work on tiles, such as one that computes an operand, the block multiplies before them, and then waits for the loads. If
C holds zeros before a loop whose accumulators stay in registers, or is a new tile that is added to another one after
the loop, its memory is idle until the loop ends, and the buffers lie there as far as they fit. The others lie in extra
memory.

Stages: a ring of them (``kernels/module/stage_buffers.cuh``) loads several iterations ahead. A stage has a buffer for
each tile that an iteration loads. The stages lie in the memory of tiles that are idle in the loop, and in extra shared
memory. Their tiles are multiplied where they are, by wgmma, mma.sync or fma.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from warp_tiles.codegen.module_code import Accumulation, Buffer, Ring, StageBuffer, StagedProduct, aligned
from warp_tiles.codegen.operations import (
    ASSIGN,
    JUMPS,
    LOAD,
    TRANSPOSE,
    UNKNOWN_MEMORY,
    ZEROS,
    Array,
    Effect,
    Operation,
    Tile,
)
from warp_tiles.codegen.trace import (
    Branch,
    Context,
    FunctionTrace,
    Loop,
    Node,
    changed_names,
    loops,
    numbers_of,
    operations,
    own_operations,
    path_to,
)
from warp_tiles.gemm.main_loop import (
    LoopPlan,
    PipelineMeasurements,
    loop_problem,
    reason_for_no_buffers,
    transpositions,
)
from warp_tiles.gemm.pipeline import (
    AUTO,
    LEAST_STAGES,
    STAGE_ALIGNMENT,
    InstructionFamily,
    LoopMemory,
    PipelineOverrides,
)
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Rejected, accepted, given, refuse, rejectable


@dataclass(frozen=True)
class Body:
    """The statements of a loop that can load ahead.

    Attributes:
        block: The statements that directly contain its loads and products.
        loads: Those into shared memory.
        computes: Why loads do not run on while statements between loads and products work on tiles; None without such
            statements.
        arrival: Number of the hook at which the block waits for the loads, before these statements; None without any.
    """

    block: tuple[Node, ...]
    loads: tuple[Operation, ...]
    computes: Rejected | None = None
    arrival: int | None = None

    @property
    def tiles(self) -> dict[str, Tile]:
        return {tile.name: tile for load in self.loads for tile in load.tiles}


@rejectable
def body_of(function: FunctionTrace, loop: Loop, products: Sequence[Accumulation]) -> Body:
    """Returns the statements of a loop that can load ahead, or the reason why it cannot."""
    multiplied = [product.operation for product in products]
    additions = [statement for product in products if product.addition for statement in product.addition.statements]
    block = given(_block_of(loop.nodes, multiplied), "products_in_branches")
    inside = list(operations(loop.nodes))
    first, last = (choose(map(block.index, multiplied)) for choose in (min, max))
    jumps = [jump for jump in own_operations(Branch(block[first:last])) if jump.name in JUMPS]
    refuse(bool(jumps), "jump_between_products")
    loads = [operation for operation in inside if operation.name == LOAD]
    loaded = {tile.name for load in loads for tile in load.tiles}
    used = {name for product in products for tile in (product.a, product.b) for name in tile.memory}
    last_load = max((block.index(load) for load in loads if load in block), default=len(block))
    after_loads = () if loop.kind == "unrolled" else block[last_load + 1 : last]
    refuse(not (used & loaded or after_loads), "no_loaded_operand")
    computing: dict[Operation, Rejected] = {}
    for operation in inside:
        if operation in (*multiplied, *additions):
            continue
        problem = _problem_of_operation(function, loop, operation, loaded)
        may_compute = _may_compute(operation, after_loads, multiplied)
        # the products read the tiles of the iteration before through the view of this iteration
        if operation.effect is Effect.ALIAS and _varies(function, loop, operation):
            is_loaded = any(tile.memory & loaded for tile in operation.tiles)
            problem = Rejected("moving_view_of_loaded_tile" if is_loaded else "moving_view", (operation.name,))
            may_compute = may_compute and not any(tile.memory & used for tile in operation.tiles)
        if problem is not None and may_compute:
            computing[operation] = problem.at(operation.line)
        else:
            accepted(problem, at=operation.line)
    for load in loads:
        problem = _problem_of_load(function, load, block, multiplied, inside, used, computing)
        accepted(problem, at=load.line)
    refuse(loop.kind == "unrolled" and block is not loop.nodes, "unrolled_condition")
    shared = tuple(load for load in loads if load.tiles[0].owner)
    if not computing:
        return Body(block, shared)
    refuse(not shared, "no_loaded_operand")
    start, computes = next(iter(computing.items()))
    until = next(index for index, node in enumerate(after_loads) if start in operations((node,)))
    *_, arrival = (node.wait for node in after_loads[: until + 1] if node.wait is not None)
    return Body(block, shared, computes, arrival)


def _may_compute(operation: Operation, after_loads: tuple[Node, ...], products: Sequence[Operation]) -> bool:
    """True if an operation may work on tiles after the loads of its iteration have arrived.

    The products come later, so that nothing may change operands after the first statement behind the last load.
    """
    within = list(operations(after_loads))
    if operation not in within or operation.effect not in (Effect.TILES, Effect.ALIAS):
        return False
    if operation.product or operation.solver is not None or operation.assigned_tile is not None:
        return False
    is_before = not any(product in within[: within.index(operation)] for product in products)
    return is_before or not operation.changed_tiles


def _varies(function: FunctionTrace, loop: Loop, operation: Operation) -> bool:
    """True if a number that an operation gets may be another one in the next iteration of a loop."""
    # a number that is not affine, such as k % 16, is a variable of its own
    changed = changed_names(loop) | {level.variable for level, _ in loops((loop,))}
    numbers = numbers_of(function, operation)
    return any(number.offset is None or number.offset.variables & changed for number in numbers)


def _block_of(nodes: tuple[Node, ...], wanted: Sequence[Operation]) -> tuple[Node, ...] | None:
    if all(operation in nodes for operation in wanted):
        return nodes
    for node in nodes:
        if isinstance(node, Branch) and (block := _block_of(node.nodes, wanted)) is not None:
            return block
    return None


@rejectable
def _problem_of_operation(function: FunctionTrace, loop: Loop, operation: Operation, loaded: set[str]) -> None:
    """Returns the reason why an operation of the loop cannot run while tiles are loaded; None if it can.

    It has a remedy only if the operation gets the same values in each iteration.
    """
    # iterations load in their own turn, so what an operation computes is ready, and its place is Warp's
    if operation.name == LOAD or (operation.effect in (Effect.NONE, Effect.ORDERED) and not operation.assigned_tile):
        return
    if operation.effect is Effect.ALIAS and all(tile.memory & loaded for tile in operation.tiles):
        return
    refuse(operation.assigned_tile is not None, "replaced_tile")
    refuse(operation.effect is Effect.WRITES, "writes_array", operation.name)
    changed = {made.name for node in operations(loop.nodes) for made in (*node.results, *node.changed_tiles)}
    depends = _varies(function, loop, operation) or any(tile.memory & changed for tile in operation.tiles)
    is_unknown = operation.effect is Effect.UNKNOWN
    refuse(is_unknown, "unknown_effects" if depends else "constant_unknown_effects", operation.name)
    refuse(True, "works_on_tile" if depends else "constant_works_on_tile", operation.name)


@rejectable
def _problem_of_load(
    function: FunctionTrace,
    load: Operation,
    block: tuple[Node, ...],
    products: Sequence[Operation],
    inside: Sequence[Operation],
    used: set[str],
    computing: Collection[Operation],
) -> None:
    """Returns the reason why a load cannot run ahead; None if it can, or if a tile is computed from its registers."""
    (tile,) = load.tiles
    refuse(load not in block, "loaded_in_other_branch")
    if computing and tile.storage == "register":
        return
    refuse(not tile.owner, "loaded_to_registers")
    used = used.union(name for operation in computing for accessed in operation.tiles for name in accessed.memory)
    for operation in function.operations():
        if operation is load or not any(tile.name in accessed.memory for accessed in operation.tiles):
            continue
        is_view = operation.effect is Effect.ALIAS and operation in inside
        is_known = is_view or operation in products or operation in computing
        refuse(not is_known, "loaded_tile_used", operation.line)
    refuse(tile.name not in used, "loaded_tile_not_multiplied")


def check_unrolled(body: Body, products: Sequence[Accumulation]) -> None:
    """Refuses unrolled iterations that cannot load the operands of a product after the product before."""
    positions = [body.block.index(product.operation) for product in products]
    groups = {sum(position < body.block.index(load) for position in positions) for load in body.loads}
    refuse(groups != set(range(len(products))), "unrolled_without_loads")


@rejectable
def double_buffers(
    context: Context, body: Body, products: Sequence[Accumulation], problems: Sequence[GemmProblem]
) -> tuple[Buffer, ...]:
    """Places a second buffer for each loaded operand: in a C that holds zeros before its loop, else in extra memory.

    The reason if the loop has none in extra memory. ``problems`` are its forward products.
    """
    free: dict[str, tuple[int, Tile]] = {}  # by name of C: bytes in use, and C
    homes = {loop.hook: loop for loop, _ in loops(context.function.nodes)}
    for product in products:
        c = product.c
        idle = product.addition is not None or holds_zeros(context, homes[product.home], c)
        if c.dense and c.name not in free and idle:
            free[c.name] = 0, c
    extra = 0
    positions: dict[str, tuple[Tile | None, int]] = {}
    operands = {name for product in products for tile in (product.a, product.b) for name in tile.memory}
    loaded = [(tile, load) for load in body.loads for tile in load.tiles if tile.name in operands]
    for tile, _ in sorted(loaded, key=lambda pair: -pair[0].size_bytes):
        name = next((name for name, (used, c) in free.items() if used + tile.size_bytes <= c.size_bytes), None)
        if name is None:
            positions[tile.name] = None, extra
            extra += aligned(tile.size_bytes)
        else:
            used, c = free[name]
            positions[tile.name] = c, used
            free[name] = used + aligned(tile.size_bytes), c
    memory, _ = memory_of(context, {}, 0)
    if extra:
        # Warp reserves as much as the larger of extra memory and a callee's tiles
        for call in operations(body.block):
            refuse(context.module.has_frame(call.callee), "call_beside_buffers", call.name)
        accepted(reason_for_no_buffers(problems, memory, extra))
    return tuple(Buffer(tile, load, *positions[tile.name]) for tile, load in loaded)


# ---- tiles that hold zeros


def holds_zeros(context: Context, before: Node, tile: Tile) -> bool:
    """True if a tile with memory of its own holds zeros when the program reaches a node.

    A parameter holds zeros if every call of the function passes zeros.
    """
    for nodes, index in reversed(path_to(context.function.nodes, before)):
        parent = nodes[index]
        if isinstance(parent, Loop) and parent.kind != "unrolled" and parent is not before:
            return False  # an earlier iteration may have written the tile
        for node in reversed(nodes[:index]):
            inside = [node] if isinstance(node, Operation) else list(operations(node.nodes))
            accesses = (operation for operation in inside if operation.effect is not Effect.ALIAS)
            if any(context.may_overlap(tile, accessed) for operation in accesses for accessed in operation.tiles):
                return isinstance(node, Operation) and node.name == ZEROS and tile in node.results
    if not tile.parameter:
        return False
    passed = context.passed(tile.name)
    return bool(passed) and all(
        isinstance(value, Tile)
        and (value.dense, value.size_bytes) == (True, tile.size_bytes)
        and (value.owner or value.parameter)
        and holds_zeros(caller, call, value)
        for caller, call, value in passed
    )


def fill_before(context: Context, loop: Loop, tile: Tile) -> Operation | None:
    """The ``tile_zeros`` that fills a tile right before a loop, which overwrites it: only numbers lie between.

    None if there is none, or if the program can leave the block between fill and loop.
    """
    nodes, index = path_to(context.function.nodes, loop)[-1]
    for node in reversed(nodes[:index]):
        if not isinstance(node, Operation) or node.name in JUMPS or node.effect in (Effect.LEAVES, Effect.UNKNOWN):
            return None
        if any(context.may_overlap(tile, accessed) for accessed in node.tiles):
            is_fill = node.name == ZEROS and tile in node.results and node.hook is not None
            return node if is_fill else None
    return None


# ---- shared memory


def memory_of(
    context: Context, idle: Mapping[str, Tile], stage_bytes: int, copies: int = 1
) -> tuple[LoopMemory, Tile | None]:
    """The memory of a loop's block, and the first of the idle tiles in which stages may lie.

    There are two ``copies`` if a gradient lies behind each tile.
    """
    run, at_end = _longest_run(context.function, idle)
    sizes = dict(context.function.frame)
    around = context.bytes_around() * (2 if context.module.reversed else 1)  # callers' tiles may have gradients
    tile_bytes, idle_bytes = copies * sum(sizes.values()), copies * sum(sizes[name] for name in run)
    memory = LoopMemory(stage_bytes, tile_bytes, idle_bytes, at_end, around, bool(context.function.solver_rows()))
    return memory, idle[run[0]] if run else None


def _longest_run(function: FunctionTrace, idle: Collection[str]) -> tuple[tuple[str, ...], bool]:
    """Returns the idle tiles that lie next to each other and have the most bytes, and whether they are the last ones.

    The last tiles come first, because extra memory continues them.
    """
    runs = runs_of(function, idle)
    if runs and next(reversed(runs))[-1] == function.frame[-1][0]:
        return next(reversed(runs)), True
    return max(runs, key=lambda run: runs[run], default=()), False


def runs_of(function: FunctionTrace, idle: Collection[str]) -> dict[tuple[str, ...], int]:
    """Returns the idle tiles that lie next to each other, with their bytes."""
    sizes = dict(function.frame)
    runs = (tuple(group) for is_idle, group in itertools.groupby(sizes, idle.__contains__) if is_idle)
    return {run: sum(sizes[name] for name in run) for run in runs}


# ---- stages

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

    @property
    def no_stages(self) -> Rejected | None:
        """The reason why no product has stages."""
        return None if self.families else self.rejection


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
        reason = "operand_not_loaded_whole", product.operation.line
        root = given(_whole_root(function, tile, body.tiles), *reason)
        refuse(root.shape != stored, *reason)
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
