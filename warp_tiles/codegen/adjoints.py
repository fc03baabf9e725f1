"""Adjoints of products: which wait for each other, and which forward products a reverse loop need not repeat.

Warp calls the function for the gradient of A and then the one for that of B, without a barrier. In
``wp.tile_matmul(a, wp.tile_transpose(a))`` both add to one gradient, so that threads of the second function would read
what threads of the first are about to write. And in the reverse loop of a backward pass Warp repeats the forward
product, although often nothing reads its result there.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

from warp_tiles.codegen.loops import factors
from warp_tiles.codegen.trace import (
    Effect,
    FunctionTrace,
    ModuleTrace,
    Node,
    Operation,
    Tile,
    loops,
    of_this_loop,
    operations,
    path_to,
)

# their adjoints read no element of the tile, only its gradient
_UNREAD = frozenset({"tile_zeros", "tile_load", "tile_store"})


def waiting_sites(module: ModuleTrace) -> frozenset[int]:
    """Sites of products whose operands may share memory: there the second adjoint waits for the first."""
    found = set()
    for function in module.functions.values():
        for operation in function.operations():
            if operation.product is not None:
                a, b, _ = factors(operation)
                if module.may_overlap(function, a, b):
                    found.add(operation.product.site)
    return frozenset(found)


def unrepeated_sites(module: ModuleTrace) -> frozenset[int]:
    """Sites of products in loops that a reverse pass repeats although nothing reads their result there."""
    found = set()
    for function in module.functions.values():
        for loop, around in loops(function.nodes):
            chain = (*around, loop)
            if all(one.kind == "unrolled" for one in chain):
                continue  # the reverse pass repeats what is unrolled once, before all adjoints
            outermost = chain[0]
            for operation in of_this_loop(loop):
                if operation.product is None or operation.results:
                    continue
                if _is_unread(module, function, outermost, factors(operation)[2]):
                    found.add(operation.product.site)
    return frozenset(found)


def _is_unread(module: ModuleTrace, function: FunctionTrace, last: Node, c: Tile) -> bool:
    """Whether no code of the reverse pass from a node on reads C: neither repeated statements nor adjoints.

    The reverse pass goes backwards, so that what stands behind the node in the program comes before it there.
    """
    if not c.memory or len(c.memory) > 1:
        return False
    (_, index), *_ = path_to(function.nodes, last)
    for operation in operations(function.nodes[: index + 1]):
        touched = [tile for tile in operation.tiles if module.may_overlap(function, c, tile)]
        if touched and not _leaves_unread(module, function, operation, c):
            return False
    if not c.parameter:
        return True
    calls = module.calls_of(function.label)
    position = function.parameters.index(c.name)
    return bool(calls) and all(
        isinstance(passed := call.operands[position], Tile) and _is_unread(module, caller, call, passed)
        for caller, call in calls
    )


def _leaves_unread(module: ModuleTrace, function: FunctionTrace, operation: Operation, c: Tile) -> bool:
    if operation.product is not None and not operation.results:
        a, b, _ = factors(operation)
        return not module.may_overlap(function, a, c) and not module.may_overlap(function, b, c)
    if operation.callee:  # the call of the function whose parameter C is
        callee = module.functions.get(operation.callee)
        return callee is not None and all(
            _leaves_unread(module, callee, inner, tile)
            for inner in callee.operations()
            for tile in inner.tiles
            if tile.parameter
        )
    return operation.name in _UNREAD or operation.effect is Effect.ALIAS
