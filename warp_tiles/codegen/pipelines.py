"""Loops that load the tiles of the next product during a product.

A second buffer for each tile that a loop loads is enough: each iteration loads its tiles into one set of buffers, and
multiplies the previous iteration's tiles from the other set. If statements between loads and product work on tiles,
such as one that computes an operand, the block multiplies before them, and then waits for the loads.

If C holds zeros before a loop whose accumulators stay in registers, or is a new tile that is added to another one after
the loop, its memory is idle until the loop ends, and the buffers lie there as far as they fit. The others lie in extra
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from warp_tiles.codegen.module_code import Accumulation, Buffer, aligned
from warp_tiles.codegen.operations import JUMPS, LOAD, TUPLE, ZEROS, Effect, Operation, Scalar, Tile
from warp_tiles.codegen.trace import (
    Branch,
    Context,
    FunctionTrace,
    Loop,
    Node,
    loops,
    operations,
    own_operations,
    path_to,
)
from warp_tiles.gemm.main_loop import reason_for_no_buffers
from warp_tiles.gemm.pipeline import LoopMemory
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Refused, Rejected, accepted, refuse, rejectable


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
    block = _block_of(loop.nodes, multiplied)
    if block is None:
        raise Refused(Rejected("products_in_branches"))
    inside = list(operations(loop.nodes))
    first, last = (choose(map(block.index, multiplied)) for choose in (min, max))
    jumps = [jump for jump in own_operations(Branch(block[first:last])) if jump.name in JUMPS]
    refuse(bool(jumps), "jump_between_products")
    loads = [operation for operation in inside if operation.name == LOAD]
    loaded = {tile.name for load in loads for tile in load.tiles}
    used = {name for product in products for tile in (product.a, product.b) for name in tile.memory}
    after_loads = () if loop.kind == "unrolled" else _between(block, loads, multiplied)
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


def _between(block: tuple[Node, ...], loads: Sequence[Operation], products: Sequence[Operation]) -> tuple[Node, ...]:
    last_load = max((block.index(load) for load in loads if load in block), default=len(block))
    return block[last_load + 1 : max(map(block.index, products))]


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
    inside, inner = list(operations(loop.nodes)), [level for level, _ in loops(loop.nodes)]
    # a number that is not affine, such as k % 16, is a variable of its own
    changed = {
        name for statement in inside for name in (*statement.assigned, *(value.name for value in statement.results))
    }
    changed |= {level.variable for level in (loop, *inner)}
    tuples = {
        statement.results[0].name: statement.operands
        for statement in function.operations()
        if statement.name == TUPLE and statement.results
    }
    numbers = [
        number
        for value in operation.operands
        for number in tuples.get(value.name, (value,))
        if isinstance(number, Scalar)
    ]
    return any(
        number.constant is None and (number.offset is None or number.offset.variables & changed) for number in numbers
    )


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
