"""Removes assignments of tiles that nobody reads from a trace.

If a loop makes a tile of a name that the function has used before, Warp copies the new tile to the first one at the end
of each iteration. Two loops of one kernel that use the same names do that. Nobody reads the copy if each reader of the
first tile follows the statement that makes this tile, in the same block. Warp's adjoint of such a copy cannot run.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from warp_tiles.codegen.operations import ASSIGN, UNKNOWN_MEMORY, UNREAD_ASSIGN, Effect, Operation, Tile
from warp_tiles.codegen.trace import FunctionTrace, Node, operations, path_to


def without_unread_assignments(function: FunctionTrace) -> FunctionTrace:
    """Returns a trace in which assignments that nobody reads have no operands and no effect."""
    targets = {target.name: target for operation in function.operations() if (target := assigned_tile(operation))}
    unread: set[Operation] = set()
    # an assignment to a view may be the last reader of the view's tile
    while found := {one for target in targets.values() for one in _unread(function, target, unread)}:
        unread |= found
    return replace(function, nodes=_without(function.nodes, unread)) if unread else function


def assigned_tile(operation: Operation) -> Tile | None:
    """Returns the tile to which an operation copies another tile as a whole."""
    is_copy = operation.name == ASSIGN and operation.hook is not None and len(operation.operands) == 2
    return operation.tiles[0] if is_copy and len(operation.tiles) == 2 else None


def _unread(function: FunctionTrace, target: Tile, removed: Collection[Operation]) -> list[Operation]:
    """Returns more assignments to a tile that nobody reads. One to a view changes the view, and not its memory."""
    makers = [operation for operation in function.operations() if target in operation.results]
    if len(makers) != 1 or target.parameter:
        return []
    block, index = path_to(function.nodes, makers[0])[-1]
    with_own_value = {makers[0], *operations(block[index + 1 :]), *removed}
    memory = {target.name, UNKNOWN_MEMORY} if target.memory == {target.name} else set()
    others = [
        operation
        for operation in function.operations()
        if operation not in with_own_value
        and any(tile.name == target.name or tile.memory & memory for tile in operation.tiles)
    ]
    return others if all(assigned_tile(operation) == target for operation in others) else []


def _without(nodes: tuple[Node, ...], unread: Collection[Operation]) -> tuple[Node, ...]:
    return tuple(
        (replace(node, name=UNREAD_ASSIGN, effect=Effect.NONE, operands=(), results=()) if node in unread else node)
        if isinstance(node, Operation)
        else replace(node, nodes=_without(node.nodes, unread))
        for node in nodes
    )
