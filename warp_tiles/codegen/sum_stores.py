"""Stores that take the accumulators of a loop from registers. C of a whole tile is then not written to shared memory.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from warp_tiles.codegen.answers import Accumulation, ComputedStore, Ring, SumStore
from warp_tiles.codegen.effects import STORE, ZEROS
from warp_tiles.codegen.operations import UNKNOWN_MEMORY, Operation, Tile
from warp_tiles.codegen.stores import computed_stores
from warp_tiles.codegen.trace import FunctionTrace, Loop, loops, operations, path_to
from warp_tiles.gemm.dtypes import DTYPE_BYTES
from warp_tiles.gemm.pipeline import MmaPlan
from warp_tiles.gemm.problem import GemmProblem

_WORD_BYTES = 4
_VECTOR_BYTES = (2, 4, 8, 16)  # that one instruction stores


def plan_sum_store(function: FunctionTrace, loop: Loop, products: Sequence[Accumulation], ring: Ring) -> SumStore | str:
    """Returns the store that takes the accumulators of a loop with stages, or the reason why C is written.

    Args:
        function: The function.
        loop: The loop.
        products: Its products, in order.
        ring: Its stages.
    """
    first = products[0]
    c = first.c
    if len({product.array for product in products}) > 1:
        return "the loop has several sums"
    if first.addition is not None:
        return "the sums are added to another tile"
    if not c.owner:
        return "C is not a tile of the function"
    if not _are_neighbours(ring.variants[0], ring.products[0]):
        return "no thread has neighbouring sums of a row"
    computed = _store_after(function, loop, c)
    if isinstance(computed, str):
        return computed
    found = SumStore(computed, first)
    expected = {*(product.operation for product in products), *computed.statements, computed.store}
    expected |= _before(function, loop)  # the accumulators have the start value of C
    for operation in function.operations():
        if operation not in expected and operation.name != ZEROS and any(c.name in t.memory for t in operation.tiles):
            return f"line {operation.line} uses C too"
    read = {tile for operation in computed.statements for tile in operation.tiles} | set(found.others)
    if any({c.name, UNKNOWN_MEMORY} & tile.memory for tile in read - {c}):
        return "the store reads a view of C"
    if any(tile.parameter or tile.storage != "shared" for tile in found.others):
        return "an operand of the store is not a shared tile of the function"
    result = computed.result
    stored_bytes = result.size_bytes // math.prod(result.shape)
    neighbours = 4 if ring.products[0].instruction == "fma" else 2
    if neighbours * stored_bytes not in _VECTOR_BYTES:
        return f"{neighbours} elements of {stored_bytes} bytes do not fit a vector"
    if stored_bytes < _WORD_BYTES and (ring.products[0].through_registers or ring.products[0].swapped):
        return f"a thread has only two neighbouring sums of a row, and stores {result.dtype}"
    return found


def _before(function: FunctionTrace, loop: Loop) -> set[Operation]:
    """The operations that run before a loop and never after it. In an outer loop, every operation may run after it."""
    path = path_to(function.nodes, loop)
    if any(isinstance(nodes[index], Loop) for nodes, index in path[:-1]):
        return set()
    return {operation for nodes, index in path for operation in operations(nodes[:index])}


def _store_after(function: FunctionTrace, loop: Loop, c: Tile) -> ComputedStore | str:
    """The store of C, or of a tile computed from it, that follows a loop; else the obstacle. It may be conditional."""
    block, index = path_to(function.nodes, loop)[-1]
    after = block[index + 1 :]
    plain = (
        ComputedStore((), operation)
        for operation in operations(after)
        if operation.name == STORE and operation.hook is not None and operation.tiles == (c,)
    )
    following = set(operations(after))
    computed = (found for found in computed_stores(function) if c in found.sources and found.store in following)
    found = next(chain(plain, computed), None)
    if found is None:
        return "no store after the loop takes C or a tile that elementwise operations compute from it"
    between = tuple(node for nodes, position in path_to(after, found.store) for node in nodes[: position + 1])
    if any(loops(between)):
        return "a loop lies between the loop and the store"
    return found


def _are_neighbours(variant: GemmProblem, answer: MmaPlan) -> bool:
    """True if a thread holds neighbouring accumulators of a row, as the products in ``kernels/module`` arrange them."""
    if answer.instruction == "fma":
        return variant.b.arrangement == "row_major"  # else each vector of B belongs to one column
    if answer.instruction == "wgmma" or DTYPE_BYTES[variant.a.dtype] == 2:
        return True
    rows_of_b = variant.b.arrangement == "row_major"
    if variant.a.arrangement != "row_major":
        return False
    return rows_of_b or variant.a.dtype == "float32"  # computed as the transpose of C, or by ldmatrix
