"""Stores that compute their tile, from vectors of shared tiles or from accumulators in registers; reductions of rows.

Warp computes a tile such as ``wp.tile_astype(c + w, dtype)`` in registers, one operation after the other, and stores
single elements. If nothing else uses the tiles in registers, the store can read vectors of the shared tiles instead,
compute and write vectors (``kernels/module/stores.cuh``). After a loop with stages it can take the loop's accumulators
from registers, so that C of a whole tile is not written to shared memory (``kernels/module/accumulator_stores.cuh``).

The reverse pass repeats the elementwise operations, and later runs the adjoint of the store and those of the
operations. In bands of the tile, the operations are repeated only then (``kernels/module/adjoint_chains.cuh``). So
their operands must be the same at both places.

Warp's warps reduce one row after the other, and wait for an exchange between lanes at each step. Threads can reduce
rows alone (``kernels/module/reductions.cuh``): ``wp.tile_reduce`` and ``wp.tile_sum`` along the second axis. The
functions here are commutative for all operands, so results are equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from warp_tiles.codegen.module_code import AccumulatorStore, ComputedStore, ReversedStore, Ring, StagedProduct
from warp_tiles.codegen.operations import (
    JUMPS,
    LOAD,
    RANDOM,
    SHAPE,
    STORE,
    TRANSPOSE,
    UNKNOWN_MEMORY,
    ZEROS,
    Array,
    Effect,
    Operation,
    Scalar,
    Tile,
)
from warp_tiles.codegen.trace import Context, FunctionTrace, Loop, Node, blocks, loops, operations, path_to
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.rejected import given, refuse, rejectable

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_VECTOR_BYTES = 16
_STORED_BYTES = (2, 4, 8, 16)  # that one instruction stores
_WORD_BYTES = 4
_PART = LANES  # elements that a warp of Warp's reduces together
_LONGEST_ROW = 256  # Warp's block reduces longer rows together, in another order
_FEW_ROWS = 8  # with fewer rows, most threads would have none


def computed_stores(function: FunctionTrace) -> Iterator[ComputedStore]:
    """Yields the stores that can compute the tile themselves.

    No statement before such a store changes an operand of an operation that comes earlier, nor an array that is loaded.
    So the operands are the same at the operations and at the store. The store itself may write to a loaded array only
    where it loads it.
    """
    for block in blocks(function.nodes):
        for index, node in enumerate(block):
            if not isinstance(node, Operation) or node.name != STORE or node.hook is None or len(node.tiles) != 1:
                continue
            computed = _computed_before(block[:index], node)
            if computed is not None and _nothing_else_uses(function, computed) and _can_load(computed):
                yield computed


def _computed_before(nodes: Sequence[Node], store: Operation) -> ComputedStore | None:
    """A store with the elementwise operations before it that compute its tile, and the loads of their operands.

    None if other statements contribute. Between them there may be views of shared tiles, loads of other shared tiles,
    and computations of numbers.
    """
    (result,) = store.tiles
    statements: list[Operation] = []
    loads: list[Operation] = []
    missing = {result} if result.is_intermediate else set()
    made: set[Tile] = set()  # by statements that the walk has passed, so earlier operations may not use them
    for node in reversed(nodes):
        if not missing or not isinstance(node, Operation) or node.name in JUMPS:
            break
        if node.effect in (Effect.NONE, Effect.ALIAS):
            if not node.results or node.name in RANDOM or node.changed:
                break  # it changes an operand, e.g. a vector's component
            made.update(tile for tile in node.results if isinstance(tile, Tile))
            continue
        if node.name == LOAD and node.hook is not None and len(node.tiles) == 1:
            (tile,) = node.tiles
            if tile in missing and tile != result:
                loads.append(node)
                missing.remove(tile)
                continue
            if tile.owner:
                made.add(tile)
                continue
        computed = _computed_tile(node)
        if computed not in missing or not made.isdisjoint(node.tiles):
            break
        statements.append(node)
        missing.remove(computed)
        missing.update(tile for tile in node.operands if isinstance(tile, Tile) and tile.is_intermediate)
    if missing or not statements:
        return None
    return ComputedStore(tuple(reversed(statements)), store, tuple(reversed(loads)))


def _can_load(computed: ComputedStore) -> bool:
    """True if the store can repeat the loads: for vectors of tiles of two dimensions, beside shared tiles only."""
    others = all(tile.storage == "shared" and not tile.parameter for tile in computed.sources)
    shapes = all(len(tile.shape) == 2 for tile in (*computed.loaded, computed.result))
    return not computed.loads or (
        others and shapes and not any(_reads_elsewhere(load, computed) for load in computed.loads)
    )


def _reads_elsewhere(load: Operation, computed: ComputedStore) -> bool:
    """True if a load reads the stored array at another place than the store writes, perhaps before the load."""
    accesses = load, computed.store
    array, stored = ([value.name for value in access.operands if isinstance(value, Array)] for access in accesses)
    if array and stored and array != stored:
        return False
    positions = [_offsets(access) for access in accesses]
    same = len(positions[0]) == len(positions[1]) == 2 and all(map(_are_equal, *positions))
    return not same or load.tiles[0].shape != computed.result.shape


def _offsets(access: Operation) -> list[Scalar]:
    """The last two numbers among the operands of a load or store, which are the offsets of a matrix if it has any."""
    scalars = (value for value in access.operands if isinstance(value, Scalar))
    return [value for value in scalars if not isinstance(value.constant, (bool, str))][-2:]


def _are_equal(scalar: Scalar, other: Scalar) -> bool:
    if scalar.constant is not None or other.constant is not None:
        return scalar.constant == other.constant
    return scalar.name == other.name or (scalar.offset is not None and scalar.offset == other.offset)


def _computed_tile(operation: Operation) -> Tile | None:
    builtin = operation.elementwise
    if operation.hook is None or builtin is None:
        return None
    if builtin.updates is not None:
        return operation.tiles[builtin.updates]
    return next((value for value in operation.results if isinstance(value, Tile)), None)


def _nothing_else_uses(function: FunctionTrace, computed: ComputedStore) -> bool:
    """True if only these statements and the store use the tiles that they keep in registers."""
    tiles = {tile for operation in computed.statements for tile in operation.tiles if tile.is_intermediate}
    expected = (*computed.statements, computed.store)
    return all(operation in expected or tiles.isdisjoint(operation.tiles) for operation in function.operations())


# ---- stores of accumulators


@rejectable
def plan_accumulator_store(function: FunctionTrace, loop: Loop, ring: Ring) -> AccumulatorStore:
    """Returns the store that takes the accumulators of a loop with stages, or the reason why C is written."""
    products, plan = [product.accumulation for product in ring.products], ring.products[0].plan
    first, c = products[0], products[0].c
    refuse(len({product.c.name for product in products}) > 1, "several_cs")
    refuse(len({product.array for product in products}) > 1, "several_factors")
    refuse(first.addition is not None, "added_to_another_tile")
    refuse(ring.adds_starts, "added_to_start")
    refuse(not c.owner, "c_of_caller")
    refuse(not _are_neighbours(ring.products[0]), "no_neighbours")
    computed = _store_after(function, loop, c)
    accumulator_store = AccumulatorStore(computed, first)
    expected = {*(product.operation for product in products), *computed.statements, computed.store}
    expected |= _before(function, loop)  # the accumulators have the start value of C
    for operation in function.operations():
        touches_c = operation.name != ZEROS and any(c.name in tile.memory for tile in operation.tiles)
        refuse(touches_c and operation not in expected, "c_used", operation.line)
    read = {tile for operation in computed.statements for tile in operation.tiles} | set(accumulator_store.others)
    refuse(any({c.name, UNKNOWN_MEMORY} & tile.memory for tile in read - {c}), "stores_view")
    are_shared = all(tile.storage == "shared" and not tile.parameter for tile in accumulator_store.others)
    refuse(not are_shared, "store_operand_not_shared")
    result = computed.result
    stored_bytes = result.size_bytes // math.prod(result.shape)
    neighbours = 4 if plan.instruction == "fma" else 2
    refuse(neighbours * stored_bytes not in _STORED_BYTES, "elements_do_not_fit_vector", neighbours, stored_bytes)
    is_transposed = bool(plan.through_registers) or plan.swapped
    refuse(stored_bytes < _WORD_BYTES and is_transposed, "few_neighbours", result.dtype)
    return accumulator_store


def _before(function: FunctionTrace, loop: Loop) -> set[Operation]:
    """The operations that run before a loop and never after it. In an outer loop, every operation may run after it."""
    path = path_to(function.nodes, loop)
    if any(isinstance(nodes[index], Loop) for nodes, index in path[:-1]):
        return set()
    return {operation for nodes, index in path for operation in operations(nodes[:index])}


def _store_after(function: FunctionTrace, loop: Loop, c: Tile) -> ComputedStore:
    """The store of C, or of a tile computed from it, that follows a loop. It may be conditional."""
    block, index = path_to(function.nodes, loop)[-1]
    after = block[index + 1 :]
    plain = (
        ComputedStore((), operation)
        for operation in operations(after)
        if operation.name == STORE and operation.hook is not None and operation.tiles == (c,)
    )
    following = set(operations(after))
    computed = (store for store in computed_stores(function) if c in store.sources and store.store in following)
    store = given(next(itertools.chain(plain, computed), None), "no_store")
    between = tuple(node for nodes, position in path_to(after, store.store) for node in nodes[: position + 1])
    refuse(any(loops(between)), "loop_before_store")
    return store


def _are_neighbours(product: StagedProduct) -> bool:
    """True if a thread holds neighbouring accumulators of a row, as the products in ``kernels/module`` arrange them."""
    (a, b, _), instruction = product.problem.operands, product.plan.instruction
    rows_of_b = b.arrangement == "row_major"
    if instruction == "fma":
        return rows_of_b  # else each vector of B belongs to one column
    if instruction == "wgmma" or DTYPE_BYTES[a.dtype] == 2:
        return True
    # computed as the transpose of C, or by ldmatrix
    return a.arrangement == "row_major" and (rows_of_b or a.dtype == "float32")


# ---- adjoints


def reversed_stores(context: Context) -> Iterator[ReversedStore]:
    """Yields the stores whose adjoints can be computed in bands."""
    for computed in computed_stores(context.function):
        hooked = not computed.loads and all(operation.reverses for operation in (*computed.operations, computed.store))
        if hooked and _has_whole_vectors(computed) and _keeps_operands(context, computed):
            pairs = itertools.combinations(computed.sources, 2)
            yield ReversedStore(computed, any(context.may_overlap(tile, other) for tile, other in pairs))


def _has_whole_vectors(computed: ComputedStore) -> bool:
    """True if the tiles have one shape and floating-point elements, and rows of the stored one are whole vectors."""
    shape = computed.result.shape
    tiles = (computed.result, *computed.sources, *computed.intermediates)
    if len(shape) != 2 or any(tile.dtype not in _FLOATS or tile.shape != shape for tile in tiles):
        return False
    return shape[1] * (computed.result.size_bytes // math.prod(shape)) % _VECTOR_BYTES == 0


def _keeps_operands(context: Context, computed: ComputedStore) -> bool:
    """True if the operands are the same at the repeated operations and at their adjoints."""
    operands = [value for operation in computed.operations for value in operation.operand_values]
    if not all(isinstance(value, (Tile, Scalar)) for value in operands):
        return False
    numbers = {value.name for value in operands if isinstance(value, Scalar) and value.constant is None}
    numbers -= _constants(context.function)
    nodes, end = path_to(context.function.nodes, computed.store)[-1]
    between = operations(nodes[nodes.index(computed.operations[0]) : end])
    if any(_needs_order(operation, numbers) for operation in between if operation not in computed.operations):
        return False
    return not any(
        _may_change(context, operation, computed.sources, numbers)
        for operation in _following(context.function, computed.store)
    )


def _constants(function: FunctionTrace) -> set[str]:
    """Names of the numbers that are computed from constants only, e.g. ``wp.float16(0.5)``."""
    changed = {name for operation in function.operations() if not operation.results for name in _scalars(operation)}
    constants: set[str] = set()
    for operation in function.operations():
        scalars = [value for value in operation.operands if isinstance(value, Scalar)]
        if operation.effect is not Effect.NONE or operation.callee or len(scalars) < len(operation.operands):
            continue
        if scalars and all(value.constant is not None or value.name in constants for value in scalars):
            constants |= _scalar_results(operation) - changed
    return constants


def _needs_order(operation: Operation, numbers: set[str]) -> bool:
    """True if the adjoint of an operation may not run before the adjoint of the store and those of earlier operations.

    It may need complete gradients of its results, change an operand, or add to the gradient of the stored array.
    """
    reads = operation.name != SHAPE and any(isinstance(value, Array) for value in operation.operands)
    return reads or bool(operation.callee) or operation.name == TRANSPOSE or bool(_scalars(operation) & numbers)


def _following(function: FunctionTrace, store: Operation) -> Iterator[Operation]:
    """Yields the operations that run, or whose adjoints run, between the repeated operations and their adjoints."""
    path = path_to(function.nodes, store)
    for nodes, index in reversed(path):
        node = nodes[index]
        if isinstance(node, Loop) and node.kind != "unrolled":
            return
        yield from operations(nodes[index + 1 :])


def _may_change(context: Context, operation: Operation, tiles: Sequence[Tile], numbers: set[str]) -> bool:
    if operation.effect is Effect.UNKNOWN:
        return True
    if _scalars(operation) & numbers and (
        operation.callee or not operation.results or _scalar_results(operation) & numbers
    ):
        return True
    return any(context.may_overlap(changed, tile) for changed in _changed(operation) for tile in tiles)


def _changed(operation: Operation) -> tuple[Tile, ...]:
    """The tiles whose elements an operation or its adjoint may change."""
    if operation.name == STORE:
        return ()
    if operation.product is not None:
        return operation.matrices[2:]
    if operation.elementwise is not None and operation.elementwise.adjoint:
        return operation.changed_tiles or tuple(value for value in operation.results if isinstance(value, Tile))
    if operation.effect is Effect.ALIAS and operation.name != TRANSPOSE:  # whose adjoint writes the tile's elements
        return ()
    return operation.tiles


def _scalars(operation: Operation) -> set[str]:
    return {value.name for value in operation.values if isinstance(value, Scalar)}


def _scalar_results(operation: Operation) -> set[str]:
    return {value.name for value in operation.results if isinstance(value, Scalar)}


# ---- reductions of rows


def row_reductions(function: FunctionTrace, threads: int) -> Iterator[Operation]:
    """Yields the reductions of rows that threads can compute alone, in the order in which Warp adds."""
    if threads % LANES:  # then a part has other elements
        return
    for operation in function.operations():
        if operation.hook is None or not operation.reduction:
            continue
        tile, axis = operation.tiles[0], operation.operands[-1]
        is_along_rows = isinstance(axis, Scalar) and axis.constant == 1
        if is_along_rows and tile.owner and tile.dense and has_whole_parts(tile):
            yield operation


def has_whole_parts(tile: Tile) -> bool:
    """True for a tile of rows that Warp reduces in whole parts."""
    if tile.dtype != "float32" or len(tile.shape) != 2:
        return False
    rows, columns = tile.shape
    return rows >= _FEW_ROWS and columns % _PART == 0 and _PART < columns <= _LONGEST_ROW
