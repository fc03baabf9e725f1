"""Stores of computed tiles, e.g. ``wp.tile_store(C, wp.tile_astype(c + w, dtype))``.

Warp computes such a tile in registers, one operation after the other, and stores single elements. If nothing else uses
the tiles in registers, the store can read vectors of the shared tiles instead, compute and write vectors
(``kernels/module/stores.cuh``).

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warp_tiles.codegen.answers import ComputedStore
from warp_tiles.codegen.effects import ASTYPE, INPLACE, JUMPS, LOAD, MAP, OPERATORS, RANDOM, STORE, Effect
from warp_tiles.codegen.operations import Array, Operation, Scalar, Tile
from warp_tiles.codegen.trace import FunctionTrace, Node, blocks


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
            found = _computed_before(block[:index], node)
            if found is not None and _nothing_else_uses(function, found) and _can_load(found):
                yield found


def _computed_before(nodes: Sequence[Node], store: Operation) -> ComputedStore | None:
    """A store with the elementwise operations before it that compute its tile, and the loads of their operands.

    None if other statements contribute. Between them there may be views of shared tiles, loads of other shared tiles,
    and computations of numbers.
    """
    (result,) = store.tiles
    found: list[Operation] = []
    loads: list[Operation] = []
    missing = {result} if result.is_intermediate else set()
    made: set[Tile] = set()  # by statements that the walk has passed, so earlier operations may not use them
    for node in reversed(nodes):
        if not missing or not isinstance(node, Operation) or node.name in JUMPS:
            break
        if node.effect in (Effect.NONE, Effect.ALIAS):
            if not node.results or node.name in RANDOM:
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
        found.append(node)
        missing.remove(computed)
        missing.update(tile for tile in node.operands if isinstance(tile, Tile) and tile.is_intermediate)
    if missing or not found:
        return None
    return ComputedStore(tuple(reversed(found)), store, tuple(reversed(loads)))


def _can_load(found: ComputedStore) -> bool:
    """True if the store can repeat the loads: for vectors of tiles of two dimensions, beside shared tiles only."""
    others = all(tile.storage == "shared" and not tile.parameter for tile in found.sources)
    shapes = all(len(tile.shape) == 2 for tile in (*found.loaded, found.result))
    return not found.loads or (others and shapes and not any(_reads_elsewhere(load, found) for load in found.loads))


def _reads_elsewhere(load: Operation, found: ComputedStore) -> bool:
    """True if a load reads the stored array at another place than the store writes, perhaps before the load."""
    array, stored = (_arrays(operation) for operation in (load, found.store))
    if array and stored and array != stored:
        return False
    places = [_offsets(one) for one in (load, found.store)]
    same = len(places[0]) == len(places[1]) == 2 and all(map(_are_equal, *places))
    return not same or load.tiles[0].shape != found.result.shape


def _arrays(access: Operation) -> list[str]:
    """The names of the arrays that an operation accesses."""
    return [value.name for value in access.operands if isinstance(value, Array)]


def _offsets(access: Operation) -> list[Scalar]:
    """The last two numbers among the operands of a load or store, which are the offsets of a matrix if it has any."""
    scalars = (value for value in access.operands if isinstance(value, Scalar))
    return [value for value in scalars if not isinstance(value.constant, (bool, str))][-2:]


def _are_equal(one: Scalar, other: Scalar) -> bool:
    """True if two numbers are known to be equal."""
    if one.constant is not None or other.constant is not None:
        return one.constant == other.constant
    return one.name == other.name or (one.offset is not None and one.offset == other.offset)


def _computed_tile(operation: Operation) -> Tile | None:
    """The tile that an elementwise operation computes or changes; None for other operations."""
    if operation.hook is None:
        return None
    if operation.name in INPLACE:
        return operation.tiles[0]
    if operation.name not in (ASTYPE, MAP, *OPERATORS):
        return None
    return next((value for value in operation.results if isinstance(value, Tile)), None)


def _nothing_else_uses(function: FunctionTrace, found: ComputedStore) -> bool:
    """True if only these statements and the store use the tiles that they keep in registers."""
    tiles = {tile for operation in found.statements for tile in operation.tiles if tile.is_intermediate}
    expected = (*found.statements, found.store)
    return all(operation in expected or tiles.isdisjoint(operation.tiles) for operation in function.operations())
