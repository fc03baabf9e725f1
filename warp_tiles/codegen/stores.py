"""Stores of converted tiles: ``wp.tile_store(C, wp.tile_astype(c, dtype))``.

Warp converts the tile in registers and stores single elements. If nothing else uses the converted tile, the store can
read the elements of the shared tile instead, and convert and write vectors (``kernels/module/stores.cuh``).

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warp_tiles.codegen.effects import ASTYPE, JUMPS, STORE
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.macros import STATEMENT, Macros, hook_of
from warp_tiles.codegen.trace import Effect, FunctionTrace, Node, Operation, Tile, blocks


@dataclass(frozen=True)
class ConvertedStore:
    """A store of a converted tile.

    Attributes:
        conversion: The conversion.
        store: The store, the only statement that uses its result.
    """

    conversion: Operation
    store: Operation

    @property
    def source(self) -> Tile:
        """The tile that is converted."""
        return next(value for value in self.conversion.operands if isinstance(value, Tile))

    @property
    def result(self) -> Tile:
        """The converted tile."""
        return next(value for value in self.conversion.results if isinstance(value, Tile))


def converted_stores(function: FunctionTrace) -> Iterator[ConvertedStore]:
    """Yields the stores that can convert the tile themselves.

    Between conversion and store there are only computations of numbers, so the tile has the same elements at both.
    """
    for block in blocks(function.nodes):
        for index, node in enumerate(block):
            if not isinstance(node, Operation) or node.name != ASTYPE or node.hook is None:
                continue
            store = _next_operation(block[index + 1 :])
            if store is None or store.name != STORE or store.hook is None:
                continue
            found = ConvertedStore(node, store)
            users = [other for other in function.operations() if found.result in other.tiles]
            if found.result.storage == "register" and users == [node, store]:
                yield found


def _next_operation(nodes: tuple[Node, ...]) -> Operation | None:
    """The first operation that does more than compute a number; None if a loop, branch or jump comes before it."""
    for node in nodes:
        if not isinstance(node, Operation) or node.name in JUMPS:
            return None
        if node.effect is not Effect.NONE:
            return node
    return None


def emit_converted_stores(macros: Macros, function: FunctionTrace) -> None:
    """Writes the stores of a function that convert the tile themselves."""
    for found in converted_stores(function):
        source, result = found.source.name, found.result.name
        macros.replace(Hook.AT, hook_of(found.conversion), "")
        # inside the block, the name of the result stands for the tile that is converted
        make = f"auto wt_converted = wt_module::converted<decltype({result})>({source});"
        macros.replace(Hook.AT, hook_of(found.store), f"{{ {make} auto& {result} = wt_converted; {STATEMENT} }}")
