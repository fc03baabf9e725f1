"""Products whose accumulators stay in registers over a loop.

``wp.tile_matmul(a, b, c)`` reads and writes C in shared memory at each call. In a loop in which nothing else touches C,
its accumulators can stay in registers. C is then read and written once, after the loop.

``s += wp.tile_matmul(a, b)`` writes a new tile C at each call and adds it to s. The accumulators can stay in registers,
too, and C is written and added to s once, after the loop. No other statement may use C then. ``s -= C`` is alike.

A constant factor ``alpha`` is applied once, after the loop.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from warp_tiles.codegen.answers import LoopAccumulators
from warp_tiles.codegen.effects import INPLACE, JUMPS, Effect
from warp_tiles.codegen.operations import Operation, Tile
from warp_tiles.codegen.trace import FunctionTrace, Loop, ModuleTrace, operations, path_to

AccumulatorsOf = Callable[[int], LoopAccumulators | str]
"""The device functions that keep the accumulators of a site's product, or the reason why there are none."""


def kept_accumulators(
    module: ModuleTrace, function: FunctionTrace, loop: Loop, operation: Operation, accumulators: AccumulatorsOf
) -> LoopAccumulators | str:
    """The functions that keep a product's accumulators in registers over a loop, or the reason why they cannot stay.

    ``accumulators`` finds the device functions of a site.
    """
    functions = _functions_of(module, function, operation, accumulators)
    if isinstance(functions, str):
        return functions
    inside = list(operations(loop.nodes))
    leaving = next((other for other in inside if other.effect is Effect.LEAVES), None)
    if leaving is not None:
        return f"line {leaving.line} returns from within the loop: let it return behind the loop"
    if operation.results:
        return _problem_of_new_tile(module, function, loop, operation) or functions
    c = operation.matrices[2]
    for other in inside:
        if other.product is not None and not other.results and other.matrices[2].memory == c.memory:
            found = _functions_of(module, function, other, accumulators)
            if isinstance(found, str):
                return f"line {other.line}: {found}"
            # without accumulators in stages, count is that of a function
            if other.alpha != operation.alpha and functions.count:
                return f"line {other.line}: it has another alpha, which needs accumulators of its own: use one alpha"
        elif any(module.may_overlap(function, c, tile) for tile in other.tiles):
            return f"line {other.line}: {other.name} uses C in the loop: move it behind the loop"
    return functions


def addition_of(function: FunctionTrace, operation: Operation) -> Operation | None:
    """Returns ``s += C`` or ``s -= C`` after a product that makes a new tile C, if it is in the same block."""
    if not operation.results:
        return None
    block, index = path_to(function.nodes, operation)[-1]
    c = operation.matrices[2].name
    for node in block[index + 1 :]:
        if any(other.name in JUMPS for other in operations((node,))):
            return None
        if isinstance(node, Operation) and node.name in INPLACE and node.hook is not None:
            target, *added = node.tiles
            if [tile.name for tile in added] == [c] and target.name != c:
                return node
    return None


def _problem_of_new_tile(module: ModuleTrace, function: FunctionTrace, loop: Loop, operation: Operation) -> str:
    """The reason why a product that makes a new tile cannot keep its accumulators in registers; empty if it can."""
    c = operation.matrices[2]
    addition = addition_of(function, operation)
    if addition is None:
        return "the product is a new tile in each iteration: add to one tile with wp.tile_matmul(a, b, c)"
    if loop.kind == "unrolled":
        return "Warp unrolls the loop, and each iteration has a new tile: use wp.tile_matmul(a, b, c)"
    for other in function.operations():
        if other not in (operation, addition) and any(_touches(module, function, c, tile) for tile in other.tiles):
            return f"line {other.line}: {other.name} uses the new tile too: use wp.tile_matmul(a, b, c)"
    target = addition.tiles[0]
    for other in operations(loop.nodes):
        if other is not addition and any(_touches(module, function, target, tile) for tile in other.tiles):
            return f"line {other.line}: {other.name} uses the sum in the loop: move it behind the loop"
    return ""


def _touches(module: ModuleTrace, function: FunctionTrace, one: Tile, other: Tile) -> bool:
    return one.name == other.name or module.may_overlap(function, one, other)


def _functions_of(
    module: ModuleTrace, function: FunctionTrace, operation: Operation, accumulators: AccumulatorsOf
) -> LoopAccumulators | str:
    product = operation.product
    assert product is not None
    if product.alpha is None or not math.isfinite(product.alpha):
        return "alpha is not a constant: write it as a number, or scale C behind the loop"
    if product.beta != 1.0 and not operation.results:
        return "beta is not the constant 1: scale C before the loop"
    a, b, c = operation.matrices
    if module.may_overlap(function, a, c) or module.may_overlap(function, b, c):
        return "C may share memory with A or B: use tiles of their own"
    return accumulators(product.site)
