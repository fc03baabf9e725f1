"""Decides which loads of tiles are asynchronous, and where the block waits for them.

Warp's ``wp.tile_load`` waits for each 16 bytes before it loads the next, and for each tile before the next tile. Here
the loads of shared tiles are async copies. The first statement that may access a tile waits for all loads in flight.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from warp_tiles.codegen.answers import Loads
from warp_tiles.codegen.operations import JUMPS, LOAD, Effect, Operation
from warp_tiles.codegen.trace import FunctionTrace, Loop, Node


def is_asynchronous(load: Operation) -> bool:
    """True for a load into a two-dimensional tile with shared memory of its own."""
    return load.name == LOAD and any(tile.owner and len(tile.shape) == 2 for tile in load.tiles)


def plan_loads(functions: Iterable[FunctionTrace], pipelined: Collection[int] = ()) -> Loads:
    """Decides about the loads of a module's functions.

    Args:
        pipelined: Numbers of the hooks of loops that load ahead. Their loads are not decided here.
    """
    asynchronous: dict[int, bool] = {}
    all_waits: set[int] = set()
    for function in functions:
        loads: dict[int, bool] = {}
        waits: set[int] = set()
        in_flight = False
        for is_load, hook in (*_loads_and_waits(function.nodes, pipelined), (False, function.end_wait)):
            if not (is_load or in_flight):
                continue
            if hook is None:
                break  # without a hook to wait at, no load is asynchronous
            if is_load:
                loads[hook] = not in_flight
            else:
                waits.add(hook)
            in_flight = is_load
        else:
            asynchronous |= loads
            all_waits |= waits
    return Loads(asynchronous, frozenset(all_waits))


def _loads_and_waits(nodes: Iterable[Node], pipelined: Collection[int]) -> Iterator[tuple[bool, int | None]]:
    """Yields each load that may be asynchronous, and each place that waits for those in flight, with its hook.

    They are in the order of the program. The first value is True for a load.
    """
    for node in nodes:
        if isinstance(node, Operation):
            if is_asynchronous(node) and node.hook is not None:
                yield True, node.hook
            elif node.effect not in (Effect.NONE, Effect.ALIAS) or node.name in JUMPS:
                yield False, node.wait
        elif isinstance(node, Loop) and node.hook in pipelined:
            yield False, node.wait
        elif isinstance(node, Loop) and node.kind == "unrolled":  # a sequence of statements
            yield from _loads_and_waits(node.nodes, pipelined)
        else:
            yield False, node.wait
            yield from _loads_and_waits(node.nodes, pipelined)
            yield False, node.end_wait
