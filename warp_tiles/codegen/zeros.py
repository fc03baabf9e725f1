"""Tells whether a tile holds zeros when the program reaches a node, and which statement fills it."""

from __future__ import annotations

from warp_tiles.codegen.effects import JUMPS, ZEROS, Effect
from warp_tiles.codegen.operations import Operation, Tile
from warp_tiles.codegen.trace import FunctionTrace, Loop, ModuleTrace, Node, operations, path_to


def holds_zeros(module: ModuleTrace, function: FunctionTrace, before: Node, tile: Tile) -> bool:
    """True if a tile with memory of its own holds zeros when the program reaches a node.

    A parameter holds zeros if every call of the function passes zeros.
    """
    for nodes, index in reversed(path_to(function.nodes, before)):
        parent = nodes[index]
        if isinstance(parent, Loop) and parent.kind != "unrolled" and parent is not before:
            return False  # an earlier iteration may have written the tile
        for node in reversed(nodes[:index]):
            inside = [node] if isinstance(node, Operation) else list(operations(node.nodes))
            accesses = (operation for operation in inside if operation.effect is not Effect.ALIAS)
            if any(module.may_overlap(function, tile, other) for operation in accesses for other in operation.tiles):
                return isinstance(node, Operation) and node.name == ZEROS and tile in node.results
    if not tile.parameter:
        return False
    calls = module.calls_of(function.label)
    position = function.parameters.index(tile.name)
    return bool(calls) and all(_passes_zeros(module, caller, call, position, tile) for caller, call in calls)


def fill_before(module: ModuleTrace, function: FunctionTrace, loop: Loop, tile: Tile) -> Operation | None:
    """The ``tile_zeros`` that fills a tile right before a loop, which overwrites it: only numbers lie between.

    Returns:
        None if there is none, or if the program can leave the block between fill and loop.
    """
    nodes, index = path_to(function.nodes, loop)[-1]
    for node in reversed(nodes[:index]):
        if not isinstance(node, Operation) or node.name in JUMPS or node.effect in (Effect.LEAVES, Effect.UNKNOWN):
            return None
        if any(module.may_overlap(function, tile, other) for other in node.tiles):
            is_fill = node.name == ZEROS and tile in node.results and node.hook is not None
            return node if is_fill else None
    return None


def _passes_zeros(module: ModuleTrace, caller: FunctionTrace, call: Operation, position: int, tile: Tile) -> bool:
    passed = call.operands[position] if position < len(call.operands) else None
    if not isinstance(passed, Tile) or not passed.dense or passed.size_bytes != tile.size_bytes:
        return False
    if not (passed.owner or passed.parameter):
        return False
    return holds_zeros(module, caller, call, passed)
