"""Stores of computed tiles: ``wp.tile_store(C, wp.tile_map(f, c))`` and ``wp.tile_store(C, wp.tile_astype(c, dtype))``.

Warp computes such a tile in registers and stores single elements. If nothing else uses it, the store can read vectors
of shared tiles instead, compute and write vectors (``kernels/module/stores.cuh``).

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warp_tiles.codegen.effects import ASTYPE, JUMPS, MAP, STORE
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of
from warp_tiles.codegen.trace import Effect, FunctionTrace, Node, Operation, Tile, blocks

MOST_OPERANDS = 5  # of a function of tile_map, in kernels/module/stores.cuh


@dataclass(frozen=True)
class ComputedStore:
    """A store of a computed tile.

    Attributes:
        computation: What computes the tile.
        store: The store, the only statement that uses it.
    """

    computation: Operation
    store: Operation

    @property
    def sources(self) -> list[Tile]:
        """The tiles from which it is computed: the first one, and parameters that may be in registers."""
        first, *others = (value for value in self.computation.operands if isinstance(value, Tile))
        return [first, *dict.fromkeys(tile for tile in others if tile.parameter and tile != first)]

    @property
    def result(self) -> Tile:
        """The computed tile."""
        return next(value for value in self.computation.results if isinstance(value, Tile))


def computed_stores(function: FunctionTrace) -> Iterator[ComputedStore]:
    """Yields the stores that can compute the tile themselves.

    Between computation and store there are only computations of numbers, so the operands are the same at both.
    """
    for block in blocks(function.nodes):
        for index, node in enumerate(block):
            if not isinstance(node, Operation) or not _is_computation(node):
                continue
            store = _next_operation(block[index + 1 :])
            if store is None or store.name != STORE or store.hook is None:
                continue
            found = ComputedStore(node, store)
            users = [other for other in function.operations() if found.result in other.tiles]
            if found.result.storage == "register" and users == [node, store]:
                yield found


def _is_computation(operation: Operation) -> bool:
    """True for a computation from shared tiles, parameters and numbers. The caller decides where parameters are."""
    if operation.hook is None or operation.name not in (ASTYPE, MAP):
        return False
    tiles = [value for value in operation.operands if isinstance(value, Tile)]
    if not tiles or len(operation.operands) > 1 + MOST_OPERANDS:
        return False
    return all(tile.storage == "shared" or tile.parameter for tile in tiles if tile != tiles[0])


def _next_operation(nodes: tuple[Node, ...]) -> Operation | None:
    """The first operation that does more than compute a number; None if a loop, branch or jump comes before it."""
    for node in nodes:
        if not isinstance(node, Operation) or node.name in JUMPS:
            return None
        if node.effect is not Effect.NONE:
            return node
    return None


def emit_computed_stores(macros: Macros, function: FunctionTrace) -> None:
    """Writes the stores of a function that compute the tile themselves.

    Computation and store become functions in a block of their own, because a ``goto`` may not jump over a variable.
    """
    for found in computed_stores(function):
        source, result = found.sources[0].name, found.result.name
        compute = f"{{ const auto wt_compute = [&](auto& {source}, auto& {result}) {{ {STATEMENT} }};"
        macros.replace(Hook.AT, hook_of(found.computation), compute)
        store = f"const auto wt_store = [&](auto& {result}) {{ {STATEMENT} }};"
        tiles = ", ".join([result, *(tile.name for tile in found.sources)])
        call = f"wt_module::store_computed(wt_compute, wt_store, {tiles}); }}"
        macros.replace(Hook.AT, hook_of(found.store), f"{store} {call}")
