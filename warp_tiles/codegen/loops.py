"""Which loops keep the sums of their products in registers, and which load tiles ahead of the product.

``wp.tile_matmul(a, b, c)`` reads and writes C in shared memory at each call. In a loop in which nothing else touches C,
its sums can stay in registers, and C is read and written once, behind the loop. If C holds zeros before, its memory is
idle until then: it serves as second buffers for the tiles that the loop loads. Each iteration then loads its tiles into
one set of buffers and multiplies those of the iteration before, from the other.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warp_tiles.codegen.effects import LOAD
from warp_tiles.codegen.trace import (
    Branch,
    Effect,
    FunctionTrace,
    Loop,
    ModuleTrace,
    Node,
    Operation,
    Product,
    Scalar,
    Tile,
    loops,
    of_this_loop,
    operations,
    path_to,
)

ALIGNMENT = 16  # bytes, of a buffer
STAGES = 2  # buffers of each tile in a pipelined loop


@dataclass(frozen=True)
class LoopSums:
    """Functions that keep the sums of one product in registers.

    Attributes:
        symbol: Of the product; ``_add`` and ``_finish`` follow it.
        ctype: C++ type of a sum, e.g. ``wp::float32``.
        count: Sums that each thread holds.
    """

    symbol: str
    ctype: str
    count: int


@dataclass(frozen=True)
class Accumulation:
    """A product whose sums stay in registers.

    Attributes:
        operation: The product.
        sums: Its functions.
        home: The outermost loop in which nothing else touches C; the sums are added to C behind it.
        array: Number of the array that holds the sums; products of one C and one function share it.
    """

    operation: Operation
    sums: LoopSums
    home: Loop
    array: int

    @property
    def c(self) -> Tile:
        """The tile that the product adds to."""
        return factors(self.operation)[2]


@dataclass(frozen=True)
class Buffer:
    """The second buffer of a tile that a loop loads.

    Attributes:
        tile: The tile.
        load: Its load.
        lender: The C whose memory the buffer lies in.
        offset_bytes: Where in it.
    """

    tile: Tile
    load: Operation
    lender: Tile
    offset_bytes: int


@dataclass(frozen=True)
class Pipeline:
    """How a loop loads and multiplies at the same time.

    Attributes:
        buffers: In the order of the loads. Empty in an unrolled loop, where each iteration has tiles of its own.
        products: In the order of the program. In a loop all are computed where the last one stands; in an unrolled one
            each where the next one stands, and the last one at the end.
        loads: In the order of the program.
    """

    buffers: tuple[Buffer, ...]
    products: tuple[Accumulation, ...]
    loads: tuple[Operation, ...]


@dataclass(frozen=True)
class LoopDecision:
    """What is done with one loop.

    Attributes:
        function: Label of the function that contains it.
        loop: The loop.
        products: How many products it contains, without those of loops inside it.
        accumulations: Those whose sums stay in registers.
        pipeline: None where tiles are not loaded ahead.
        reason: Why not more is done, or what makes it possible.
    """

    function: str
    loop: Loop
    products: int
    accumulations: tuple[Accumulation, ...]
    pipeline: Pipeline | None
    reason: str

    @property
    def state(self) -> str:
        """``pipelined``, ``register_sums`` or ``as_warp``."""
        if self.pipeline is not None:
            return "pipelined"
        return "register_sums" if self.accumulations else "as_warp"


def factors(operation: Operation) -> tuple[Tile, Tile, Tile]:
    """A, B and C of a product."""
    a, b, c = (value for value in operation.values if isinstance(value, Tile))
    return a, b, c


def decide(
    module: ModuleTrace, function: FunctionTrace, sums: Mapping[int, LoopSums | str], *, ahead: bool
) -> tuple[LoopDecision, ...]:
    """Decide about every loop of a function that contains products.

    Args:
        module: The whole module, for calls of the function.
        function: The function.
        sums: By site: the functions that keep its sums, or why there are none.
        ahead: Whether tiles may be loaded ahead.
    """
    found = []
    arrays: dict[tuple[LoopSums, int, str], int] = {}
    for loop, around in loops(function.nodes):
        products = [operation for operation in of_this_loop(loop) if operation.product is not None]
        if products:
            found.append(_decide(module, function, loop, around, products, sums, arrays, ahead))
    return tuple(found)


def _decide(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    around: tuple[Loop, ...],
    products: Sequence[Operation],
    sums: Mapping[int, LoopSums | str],
    arrays: dict[tuple[LoopSums, int, str], int],
    ahead: bool,
) -> LoopDecision:
    kept: list[Accumulation] = []
    reasons: list[str] = []
    for operation in products:
        obstacle = _obstacle(module, function, loop, operation, sums)
        if obstacle:
            reasons.append(f"line {operation.line}: {obstacle}" if len(products) > 1 else obstacle)
            continue
        home = loop
        for outer in reversed(around):
            if _obstacle(module, function, outer, operation, sums):
                break
            home = outer
        found = sums[_product(operation).site]
        assert isinstance(found, LoopSums)
        assert operation.hook is not None
        array = arrays.setdefault((found, home.hook, factors(operation)[2].name), operation.hook)
        kept.append(Accumulation(operation, found, home, array))
    pipeline: Pipeline | None = None
    if not kept:
        pass
    elif len(kept) < len(products):
        reasons.append("the other products keep their sums in registers")
    elif not ahead:
        reasons.append("the setting wide_moves is off")
    else:
        planned = _pipeline(module, function, loop, kept)
        if isinstance(planned, Pipeline) and loop.kind == "unrolled":
            pipeline = planned
            reasons.append("Warp unrolls the loop, so that each iteration has tiles of its own")
        elif isinstance(planned, Pipeline):
            pipeline = planned
            lent = sum(_aligned(buffer.tile.size_bytes) for buffer in planned.buffers)
            reasons.append(f"second buffers of {lent} bytes lie in C's memory, which is idle in the loop")
        else:
            reasons.append(planned)
    return LoopDecision(function.label, loop, len(products), tuple(kept), pipeline, "; ".join(dict.fromkeys(reasons)))


def _product(operation: Operation) -> Product:
    assert operation.product is not None
    return operation.product


# ---- sums in registers


def _obstacle(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    operation: Operation,
    sums: Mapping[int, LoopSums | str],
) -> str:
    """Why a product cannot keep its sums in registers over a loop; empty if it can."""
    c = factors(operation)[2]
    same = [
        other for other in operations(loop.nodes)
        if other.product is not None and not other.results and factors(other)[2].memory == c.memory
    ]  # fmt: skip
    for other in (operation, *same):
        problem = _problem_of_product(module, function, other, sums)
        if problem:
            return problem if other is operation else f"line {other.line}: {problem}"
    for other in operations(loop.nodes):
        if other.effect is Effect.LEAVES:
            return f"line {other.line} returns from within the loop"
        if any(other is one for one in same):
            continue
        if any(module.may_overlap(function, c, tile) for tile in other.tiles):
            return f"line {other.line}: {other.name} uses C in the loop"
    return ""


def _problem_of_product(
    module: ModuleTrace, function: FunctionTrace, operation: Operation, sums: Mapping[int, LoopSums | str]
) -> str:
    product = _product(operation)
    if operation.results:
        return "the product is a new tile in each iteration; wp.tile_matmul(a, b, c) adds to one tile"
    if product.alpha != 1.0 or product.beta != 1.0:
        return "alpha and beta are not both the constant 1"
    a, b, c = factors(operation)
    if module.may_overlap(function, a, c) or module.may_overlap(function, b, c):
        return "C may share memory with A or B"
    found = sums.get(product.site, "no function was planned for it")
    return "" if isinstance(found, LoopSums) else found


# ---- loads ahead


def _pipeline(module: ModuleTrace, function: FunctionTrace, loop: Loop, kept: Sequence[Accumulation]) -> Pipeline | str:
    """How a loop loads ahead, or why it cannot."""
    block = _block_of(loop.nodes, [one.operation for one in kept])
    if block is None:
        return "its products lie in different branches"
    inside = list(operations(loop.nodes))
    loads = [operation for operation in inside if operation.name == LOAD]
    loaded = {tile.name: load for load in loads for tile in load.results if isinstance(tile, Tile)}
    used = {name for one in kept for tile in factors(one.operation)[:2] for name in tile.memory}
    if not used & set(loaded):
        return "it loads no operand of its products"
    for operation in inside:
        if (problem := _waits(operation, kept, set(loaded))) != "":
            return f"line {operation.line}: {problem}"
    for load in loads:
        problem = _problem_of_load(function, load, block, kept, inside)
        if problem:
            return f"line {load.line}: {problem}"
    if loop.kind == "unrolled":
        return _in_turn(block, loads, kept) if block is loop.nodes else "Warp unrolls the loop around a condition"
    return _placed(module, function, loads, kept)


def _block_of(nodes: tuple[Node, ...], wanted: Sequence[Operation]) -> tuple[Node, ...] | None:
    """The statements among which all wanted operations stand directly."""
    if all(any(node is one for node in nodes) for one in wanted):
        return nodes
    for node in nodes:
        if isinstance(node, Branch) and (found := _block_of(node.nodes, wanted)) is not None:
            return found
    return None


def _waits(operation: Operation, kept: Sequence[Accumulation], loaded: set[str]) -> str:
    """Why an operation of the loop cannot run while tiles are loaded; empty if it can."""
    if operation.name == LOAD or any(operation is one.operation for one in kept):
        return ""
    if operation.effect is Effect.ALIAS and all(tile.memory & loaded for tile in operation.tiles):
        # the products multiply what was loaded before through the view of this iteration
        moves = any(isinstance(value, Scalar) and value.constant is None for value in operation.operands)
        return f"the view that {operation.name} makes moves with the loop" if moves else ""
    return {
        Effect.NONE: "",
        Effect.WRITES: f"{operation.name} writes to an array while tiles are loaded",
        Effect.LEAVES: "the function returns from within the loop",
        Effect.UNKNOWN: f"it is not known what {operation.name} does",
    }.get(operation.effect, f"{operation.name} works on a tile while others are loaded")


def _problem_of_load(
    function: FunctionTrace,
    load: Operation,
    block: tuple[Node, ...],
    kept: Sequence[Accumulation],
    inside: Sequence[Operation],
) -> str:
    (tile,) = (value for value in load.results if isinstance(value, Tile))
    if not any(node is load for node in block):
        return "the tile is not loaded in the branch that multiplies it"
    if not tile.owner:
        return "the tile lies in registers"
    for operation in function.operations():
        if operation is load or not any(tile.name in other.memory for other in operation.tiles):
            continue
        multiplies = any(operation is one.operation for one in kept)
        renames = operation.effect is Effect.ALIAS and any(operation is other for other in inside)
        if not multiplies and not renames:
            return f"line {operation.line} uses the loaded tile too"
    if not any(tile.name in x.memory for one in kept for x in factors(one.operation)[:2]):
        return "the loaded tile is no operand of the product"
    return ""


def _in_turn(block: tuple[Node, ...], loads: Sequence[Operation], kept: Sequence[Accumulation]) -> Pipeline | str:
    """A pipeline of unrolled iterations: what a product multiplies is loaded behind the product before it."""
    positions = [next(i for i, node in enumerate(block) if node is one.operation) for one in kept]
    groups = [sum(position < index for position in positions) for index, node in enumerate(block) if node in loads]
    if set(groups) != set(range(len(kept))):
        return "its iterations do not each load what they multiply"
    return Pipeline((), tuple(kept), tuple(loads))


def _placed(
    module: ModuleTrace, function: FunctionTrace, loads: Sequence[Operation], kept: Sequence[Accumulation]
) -> Pipeline | str:
    """Second buffers of the loaded tiles in the memory of those C that hold zeros where their loop begins."""
    lenders: dict[str, Accumulation] = {}
    for one in kept:
        if one.c.dense and holds_zeros(module, function, one.home, one.c):
            lenders.setdefault(one.c.name, one)
    if not lenders:
        return "C holds a start value, and so has no room for second buffers"
    free = {name: (0, one.c) for name, one in lenders.items()}
    place: dict[str, tuple[Tile, int]] = {}
    tiles = [value for load in loads for value in load.results if isinstance(value, Tile)]
    for tile in sorted(tiles, key=lambda one: -one.size_bytes):
        room = next((name for name, (taken, c) in free.items() if taken + tile.size_bytes <= c.size_bytes), None)
        if room is None:
            needed, there = (
                sum(map(_aligned, (t.size_bytes for t in tiles))),
                sum(c.size_bytes for _, c in free.values()),
            )
            return f"second buffers need {needed} bytes, and C's memory has {there}"
        taken, lender = free[room]
        place[tile.name] = lender, taken
        free[room] = taken + _aligned(tile.size_bytes), lender
    buffers = tuple(
        Buffer(tile, load, *place[tile.name])
        for load in loads
        for tile in load.results
        if isinstance(tile, Tile)
    )  # fmt: skip
    return Pipeline(buffers, tuple(kept), tuple(loads))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


# ---- what C holds


def holds_zeros(module: ModuleTrace, function: FunctionTrace, before: Node, tile: Tile) -> bool:
    """Whether a tile with memory of its own holds zeros when the program reaches a node.

    Of a parameter every call of the function decides.
    """
    for nodes, index in reversed(path_to(function.nodes, before)):
        around = nodes[index]
        if isinstance(around, Loop) and around.kind != "unrolled" and around is not before:
            return False  # an earlier iteration may have written it
        for node in reversed(nodes[:index]):
            inside = [node] if isinstance(node, Operation) else list(operations(node.nodes))
            looked_at = (operation for operation in inside if operation.effect is not Effect.ALIAS)
            if any(module.may_overlap(function, tile, other) for operation in looked_at for other in operation.tiles):
                return isinstance(node, Operation) and node.name == "tile_zeros" and tile in node.results
    if not tile.parameter:
        return False
    calls = module.calls_of(function.label)
    position = function.parameters.index(tile.name)
    return bool(calls) and all(_passes_zeros(module, caller, call, position, tile) for caller, call in calls)


def _passes_zeros(module: ModuleTrace, caller: FunctionTrace, call: Operation, position: int, tile: Tile) -> bool:
    passed = call.operands[position] if position < len(call.operands) else None
    if not isinstance(passed, Tile) or not passed.dense or passed.size_bytes != tile.size_bytes:
        return False
    if not (passed.owner or passed.parameter):
        return False
    return holds_zeros(module, caller, call, passed)
