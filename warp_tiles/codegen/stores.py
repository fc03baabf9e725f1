"""Stores of computed tiles, e.g. ``wp.tile_store(C, wp.tile_astype(c + w, dtype))``.

Warp computes such a tile in registers, one operation after the other, and stores single elements. If nothing else uses
the tiles in registers, the store can read vectors of the shared tiles instead, compute and write vectors
(``kernels/module/stores.cuh``).

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from warp_tiles.codegen.effects import ASTYPE, INPLACE, JUMPS, MAP, OPERATORS, STORE
from warp_tiles.codegen.trace import Effect, FunctionTrace, Node, Operation, Tile, blocks


@dataclass(frozen=True)
class ComputedStore:
    """A store of a computed tile.

    Attributes:
        operations: The elementwise operations that compute the tile, in the order of the program.
        store: The store.
    """

    operations: tuple[Operation, ...]
    store: Operation

    @property
    def result(self) -> Tile:
        """The stored tile."""
        (tile,) = self.store.tiles
        return tile

    @property
    def sources(self) -> tuple[Tile, ...]:
        """The tiles that the operations read and do not compute."""
        return tuple(tile for tile in self._tiles if not _is_intermediate(tile))

    @property
    def intermediates(self) -> tuple[Tile, ...]:
        """The computed tiles except the stored one."""
        return tuple(tile for tile in self._tiles if _is_intermediate(tile) and tile != self.result)

    @property
    def _tiles(self) -> list[Tile]:
        return _distinct(tile for operation in self.operations for tile in operation.tiles)


def computed_stores(function: FunctionTrace) -> Iterator[ComputedStore]:
    """Yields the stores that can compute the tile themselves.

    No statement before such a store changes an operand of an operation that comes earlier. So the operands are the same
    at the operations and at the store.
    """
    for block in blocks(function.nodes):
        for index, node in enumerate(block):
            if not isinstance(node, Operation) or node.name != STORE or node.hook is None or len(node.tiles) != 1:
                continue
            operations = _operations_before(block[:index], node.tiles[0])
            if operations and _nothing_else_uses(function, operations, node):
                yield ComputedStore(operations, node)


def _operations_before(nodes: Sequence[Node], result: Tile) -> tuple[Operation, ...]:
    """The elementwise operations right before a store that compute its tile; empty if other statements contribute.

    Between them there may be views of shared tiles and computations of numbers.
    """
    found: list[Operation] = []
    missing = {result} if _is_intermediate(result) else set()
    views: set[Tile] = set()
    for node in reversed(nodes):
        if not missing or not isinstance(node, Operation) or node.name in JUMPS:
            break
        if node.effect in (Effect.NONE, Effect.ALIAS):
            if not node.results:
                break  # it changes an operand, e.g. a vector's component
            views.update(tile for tile in node.results if isinstance(tile, Tile))
            continue
        computed = _computed_tile(node)
        if computed not in missing or not views.isdisjoint(node.tiles):
            break
        found.append(node)
        missing.remove(computed)
        missing.update(tile for tile in node.operands if isinstance(tile, Tile) and _is_intermediate(tile))
    return () if missing else tuple(reversed(found))


def _is_intermediate(tile: Tile) -> bool:
    """True for a tile in registers. The callers decide about parameters, so these are read like shared tiles."""
    return tile.storage == "register" and not tile.parameter


def _computed_tile(operation: Operation) -> Tile | None:
    """The tile that an elementwise operation computes or changes; None for other operations."""
    if operation.hook is None:
        return None
    if operation.name in INPLACE:
        return operation.tiles[0]
    if operation.name not in (ASTYPE, MAP, *OPERATORS):
        return None
    return next((value for value in operation.results if isinstance(value, Tile)), None)


def _nothing_else_uses(function: FunctionTrace, operations: Sequence[Operation], store: Operation) -> bool:
    """True if only these operations and the store use the tiles that they keep in registers."""
    tiles = {tile for operation in operations for tile in operation.tiles if _is_intermediate(tile)}
    return all(
        operation in operations or operation is store or tiles.isdisjoint(operation.tiles)
        for operation in function.operations()
    )


def _distinct(tiles: Iterable[Tile]) -> list[Tile]:
    return list(dict.fromkeys(tiles))
