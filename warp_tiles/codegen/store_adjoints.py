"""Decides which stores of computed tiles have adjoints that are computed in bands of the tile.

The reverse pass repeats the elementwise operations, and later runs the adjoint of the store and those of the
operations. For a band, the operations are repeated only then. So their operands must be the same at both places.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from warp_tiles.codegen.answers import ComputedStore, ReversedStore
from warp_tiles.codegen.effects import ELEMENTWISE, INPLACE, MAP, SHAPE, STORE, TRANSPOSE, Effect
from warp_tiles.codegen.operations import Array, Operation, Scalar, Tile
from warp_tiles.codegen.stores import computed_stores
from warp_tiles.codegen.trace import FunctionTrace, Loop, ModuleTrace, operations, path_to

_VECTOR_BYTES = 16
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def reversed_stores(module: ModuleTrace, function: FunctionTrace) -> Iterator[ReversedStore]:
    """Yields the stores whose adjoints can be computed in bands.

    Args:
        module: The whole module, for calls of the function.
        function: The function.
    """
    for found in computed_stores(function):
        if _is_hooked(found) and _has_whole_vectors(found) and _keeps_operands(module, function, found):
            pairs = itertools.combinations(found.sources, 2)
            yield ReversedStore(found, any(module.may_overlap(function, one, other) for one, other in pairs))


def _is_hooked(found: ComputedStore) -> bool:
    return not found.loads and all(operation.reverses for operation in (*found.operations, found.store))


def _has_whole_vectors(found: ComputedStore) -> bool:
    """True if the tiles have one shape and floating-point elements, and rows of the stored one are whole vectors."""
    shape = found.result.shape
    tiles = (found.result, *found.sources, *found.intermediates)
    if len(shape) != 2 or any(tile.dtype not in _FLOATS or tile.shape != shape for tile in tiles):
        return False
    return shape[1] * (found.result.size_bytes // math.prod(shape)) % _VECTOR_BYTES == 0


def _keeps_operands(module: ModuleTrace, function: FunctionTrace, found: ComputedStore) -> bool:
    """True if the operands are the same at the repeated operations and at their adjoints."""
    operands = [value for operation in found.operations for value in _values(operation)]
    if not all(isinstance(value, (Tile, Scalar)) for value in operands):
        return False
    numbers = {value.name for value in operands if isinstance(value, Scalar) and value.constant is None}
    numbers -= _constants(function)
    nodes, end = path_to(function.nodes, found.store)[-1]
    between = operations(nodes[nodes.index(found.operations[0]) : end])
    if any(_needs_order(operation, numbers) for operation in between if operation not in found.operations):
        return False
    return not any(
        _may_change(module, function, operation, found.sources, numbers)
        for operation in _following(function, found.store)
    )


def _values(operation: Operation) -> tuple[object, ...]:
    """The operands of an elementwise operation, without the function of a map."""
    return operation.operands[1:] if operation.name == MAP else operation.operands


def _constants(function: FunctionTrace) -> set[str]:
    """Names of the numbers that are computed from constants only, e.g. ``wp.float16(0.5)``."""
    changed = {name for operation in function.operations() if not operation.results for name in _names(operation)}
    found: set[str] = set()
    for operation in function.operations():
        scalars = [value for value in operation.operands if isinstance(value, Scalar)]
        if operation.effect is not Effect.NONE or operation.callee or len(scalars) < len(operation.operands):
            continue
        if scalars and all(value.constant is not None or value.name in found for value in scalars):
            found |= _results(operation) - changed
    return found


def _needs_order(operation: Operation, numbers: set[str]) -> bool:
    """True if the adjoint of an operation may not run before the adjoint of the store and those of earlier operations.

    It may need complete gradients of its results, change an operand, or add to the gradient of the stored array.
    """
    reads = operation.name != SHAPE and any(isinstance(value, Array) for value in operation.operands)
    return reads or bool(operation.callee) or _is_transpose(operation) or bool(_names(operation) & numbers)


def _following(function: FunctionTrace, store: Operation) -> Iterator[Operation]:
    """Yields the operations that run, or whose adjoints run, between the repeated operations and their adjoints."""
    path = path_to(function.nodes, store)
    for nodes, index in reversed(path):
        node = nodes[index]
        if isinstance(node, Loop) and node.kind != "unrolled":
            return
        yield from operations(nodes[index + 1 :])


def _may_change(
    module: ModuleTrace, function: FunctionTrace, operation: Operation, tiles: Sequence[Tile], numbers: set[str]
) -> bool:
    """True if an operation or its adjoint may change elements of some tiles, or some numbers."""
    if operation.effect is Effect.UNKNOWN:
        return True
    if _names(operation) & numbers and (operation.callee or not operation.results or _results(operation) & numbers):
        return True
    return any(module.may_overlap(function, one, other) for one in _changed(operation) for other in tiles)


def _changed(operation: Operation) -> tuple[Tile, ...]:
    """The tiles whose elements an operation or its adjoint may change."""
    if operation.name == STORE:
        return ()
    if operation.name in INPLACE:
        return operation.tiles[:1]
    if operation.product is not None:
        return operation.matrices[2:]
    if operation.name in ELEMENTWISE:
        return tuple(value for value in operation.results if isinstance(value, Tile))
    if operation.effect is Effect.ALIAS and not _is_transpose(operation):
        return ()
    return operation.tiles


def _is_transpose(operation: Operation) -> bool:
    return operation.name == TRANSPOSE  # Warp's adjoint writes the tile's elements


def _names(operation: Operation) -> set[str]:
    return {value.name for value in operation.values if isinstance(value, Scalar)}


def _results(operation: Operation) -> set[str]:
    return {value.name for value in operation.results if isinstance(value, Scalar)}
