"""Decides about adjoints of products: which of them wait, and which forward products a reverse loop can skip.

Warp calls the function for the gradient of A and then the function for the gradient of B, without a barrier. In
``wp.tile_matmul(a, wp.tile_transpose(a))`` both add to one gradient. Threads of the second function could then read an
element before threads of the first have written it.

In the reverse loop of a backward pass Warp repeats the forward product, although often nothing reads its result there.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

import functools

from warp_tiles.codegen.operations import Effect, Operation, Tile
from warp_tiles.codegen.trace import FunctionTrace, ModuleTrace, Node, loops, operations, own_operations, path_to

# for these the reverse pass reads only the gradient of the tile, and none of its elements
_NO_READS = frozenset({"tile_zeros", "tile_load", "tile_store"})


def waiting_sites(module: ModuleTrace) -> frozenset[int]:
    """Returns the sites of products whose operands may share memory. Their second adjoint waits for the first."""
    sites = set()
    for function in module.functions.values():
        for operation in function.operations():
            if operation.product is not None:
                a, b, _ = operation.matrices
                if module.may_overlap(function, a, b):
                    sites.add(operation.product.site)
    return frozenset(sites)


@functools.lru_cache(maxsize=1)  # all decisions about a module ask
def sites_without_replay(module: ModuleTrace) -> frozenset[int]:
    """Returns the sites of products in loops that the reverse pass can skip, as nothing reads their result there."""
    sites = set()
    for function in module.functions.values():
        for loop, around in loops(function.nodes):
            nest = (*around, loop)
            if all(level.kind == "unrolled" for level in nest):
                continue  # the reverse pass repeats unrolled statements once, before all adjoints
            outermost = nest[0]
            for operation in own_operations(loop):
                if operation.product is None or operation.results:
                    continue
                if _is_unread(module, function, outermost, operation.matrices[2]):
                    sites.add(operation.product.site)
    return frozenset(sites)


def _is_unread(module: ModuleTrace, function: FunctionTrace, last: Node, c: Tile) -> bool:
    """True if neither repeated statements nor adjoints of the reverse pass read C, from a node on.

    The reverse pass runs backwards: it reaches the node after everything that follows the node in the program.
    """
    if not c.memory or len(c.memory) > 1:
        return False
    (_, index), *_ = path_to(function.nodes, last)
    for operation in operations(function.nodes[: index + 1]):
        touches_c = any(module.may_overlap(function, c, tile) for tile in operation.tiles)
        if touches_c and _reads(module, function, operation, c):
            return False
    if not c.parameter:
        return True
    passed = module.passed(function, c.name)
    return bool(passed) and all(
        isinstance(t, Tile) and _is_unread(module, caller, call, t) for caller, call, t in passed
    )


def _reads(module: ModuleTrace, function: FunctionTrace, operation: Operation, c: Tile) -> bool:
    """True if an operation that touches C may read it in the reverse pass."""
    if operation.product is not None and not operation.results:
        a, b, _ = operation.matrices
        return module.may_overlap(function, a, c) or module.may_overlap(function, b, c)
    if operation.callee:  # C is an argument of the call
        callee = module.functions.get(operation.callee)
        return callee is None or any(
            _reads(module, callee, inner, tile)
            for inner in callee.operations()
            for tile in inner.tiles
            if tile.parameter
        )
    return operation.name not in _NO_READS and operation.effect is not Effect.ALIAS
